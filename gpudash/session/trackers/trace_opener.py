"""Trace files of torch.profiler, each read by a child process: a hostile or huge one can end that process, and nothing
else.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpudash.memory.profiler_trace.profile import TraceProfile
from gpudash.memory.profiler_trace.trace_file import TraceError, TraceLimits
from gpudash.memory.snapshot.reading.source import name_of
from gpudash.system.child_process import ChildProcess, Waker

logger = logging.getLogger(__name__)

MODULE = "gpudash.memory.profiler_trace.process"

CLOSE_TIMEOUT_S = 1.0

_ROOT = str(Path(__file__).resolve().parents[3])


def command() -> tuple[str, ...]:
    """The process that reads; the folder it is started in holds no module for it."""
    return (sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {_ROOT!r}); from {MODULE} import main; main()")


class OpenedTrace:
    """A trace file that is being read, or has been. Any thread may call any method.

    Args:
        path: of the file.
        memory_bytes: for the process. That of `TraceLimits` unless given.
        process: program and arguments, instead of `command`.
    """

    def __init__(self, path: Path, *, memory_bytes: int | None = None, process: tuple[str, ...] | None = None) -> None:
        self.path = Path(path)
        self._name = name_of(self.path)
        self._memory_bytes = memory_bytes or TraceLimits().memory_bytes
        self._command = process or command()
        self._changed = threading.Condition()
        self._progress = (0, 0)
        self._profile: TraceProfile | None = None
        self._refusal: str | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes read, and those of the file; zeros before they are known."""
        return self._progress

    def start(self) -> None:
        """Begin to read; a second call does nothing."""
        with self._changed:
            if self._thread is not None or self._closing:
                return
            self._waker = Waker()
            self._thread = threading.Thread(target=self._work, name="gpudash-trace", daemon=True)
            self._thread.start()

    def poll(self) -> TraceProfile | None:
        """The profile, or ``None`` as long as it is being read.

        Raises:
            TraceError: the file was refused, or the process that read it ended.
        """
        with self._changed:
            if self._profile is None and self._refusal is not None:
                raise TraceError(self._refusal)
            return self._profile

    def wait(self, timeout_s: float) -> TraceProfile | None:
        """As `poll`, after waiting until there is something to tell, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._profile is not None or self._refusal is not None, timeout_s)
        return self.poll()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """End the process and the thread, whatever they are doing; what has been read stays usable.

        Returns:
            Whether the thread is gone.
        """
        with self._changed:
            self._closing = True
            self._refuse(f"{self._name} was closed before it was read.")
            if self._waker is not None:
                self._waker.rouse()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        """The thread that owns the process."""
        assert self._waker is not None
        process: ChildProcess | None = None
        how = ""
        try:
            process = ChildProcess(self._command)
            process.send({"path": str(self.path.absolute()), "parent": os.getpid(), "memory_bytes": self._memory_bytes})
            while not (self._closing or process.gone or self._profile is not None or self._refusal is not None):
                self._waker.wait(process)
                for message in process.read():
                    self._take(message)
        except Exception as error:  # whatever it is, who waits for the file is to know
            logger.exception("a trace could not be opened")
            self._refuse(f"{self._name} could not be opened ({type(error).__name__}: {error}).")
        finally:
            if process is not None:
                how = process.end()
            self._refuse(self._ending(how))
            self._waker.close()

    def _take(self, message: Mapping[str, Any]) -> None:
        if "progress" in message:
            done, total = message["progress"]
            self._progress = int(done), int(total)
        elif "refused" in message:
            self._refuse(str(message["refused"]))
        elif "read" in message:
            profile = TraceProfile.from_json(message["read"])
            with self._changed:
                self._profile = profile
                self._changed.notify_all()

    def _ending(self, how: str) -> str:
        if how == "signal SIGXCPU":
            return f"{self._name} took far longer to read than a trace of its size does, and was given up."
        return f"The process that read {self._name} ended ({how})."

    def _refuse(self, sentence: str) -> None:
        with self._changed:
            if self._refusal is None:
                self._refusal = sentence
            self._changed.notify_all()
