"""Files that anybody may have written, each read by a child process: a hostile or huge one can end that process, and
nothing else.

The process's first line of input is ``{"path", "parent", "memory_bytes"}``. It writes lines of JSON: ``{"progress":
[bytes, bytes]}`` from time to time, at the end ``{"refused": sentence}`` or ``{"read": result}``. Later questions and
answers are up to the subclass of `OpenedFile`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from gpudash.system.child_process import ChildProcess, Waker
from gpudash.system.foreign_text import name_of
from gpudash.system.processes import Conversation, die_with, limit
from gpudash.system.threads import joined, started
from gpudash.units import MIB

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 1.0
REPORTED_EVERY_S = 0.05

_ROOT = str(Path(__file__).resolve().parents[2])

T = TypeVar("T")


class OpenedFile(Generic[T]):
    """A file that is being read, or has been. Any thread may call any method.

    One thread owns the process, which may stay to answer questions until `close`.

    Args:
        path: path of the file.
        memory_bytes: memory limit of the process.
        process: program and arguments; by default those of `command`.
    """

    KIND: ClassVar[str]
    """The kind of file, in a word."""

    MODULE: ClassVar[str]
    """The process's module; its ``main`` uses a `FileReader`."""

    REFUSAL: ClassVar[type[ValueError]]

    def __init__(self, path: Path, memory_bytes: int, process: tuple[str, ...] | None = None) -> None:
        self.path = Path(path)
        self._name = name_of(self.path)
        self._memory_bytes = memory_bytes
        self._command = process or self.command()
        self._changed = threading.Condition()
        self._progress = (0, 0)
        self._found: T | None = None
        self._refusal: str | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None

    @classmethod
    def command(cls) -> tuple[str, ...]:
        """The command of the reading process; no module is imported from its working directory."""
        code = f"import sys; sys.path.insert(0, {_ROOT!r}); from {cls.MODULE} import main; main()"
        return (sys.executable, "-P", "-c", code)

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes read, and size of the file; zeros before they are known."""
        return self._progress

    def start(self) -> None:
        """Start to read; a second call does nothing."""
        with self._changed:
            if self._thread is not None or self._closing:
                return
            self._waker = Waker()
            self._thread = started(f"gpudash-{self.KIND}", self._work)

    def poll(self) -> T | None:
        """The result, or ``None`` while the file is being read.

        Raises:
            ValueError: the kind's `REFUSAL`, if the file was refused, or its process ended.
        """
        with self._changed:
            if self._found is None and self._refusal is not None:
                raise self.REFUSAL(self._refusal)
            return self._found

    def wait(self, timeout_s: float) -> T | None:
        """Like `poll`, after waiting for the result or the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._found is not None or self._refusal is not None, timeout_s)
        return self.poll()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """End the process and the thread, whatever they are doing; the result stays usable.

        Returns:
            Whether the thread has ended.
        """
        with self._changed:
            self._closing = True
            when = ""
            if self._found is None:
                when = " before it was read"
            self._refuse(f"{self._name} was closed{when}.")
            self._rouse()
        return joined(self._thread, timeout_s)

    def _prepare(self) -> Mapping[str, Any]:
        """Further data for the process; called before it is started, by the thread that owns it."""
        return {}

    def _read(self, found: Any) -> T:
        """Convert the process's answer to the result."""
        raise NotImplementedError

    def _take(self, message: Mapping[str, Any]) -> None:
        """Process an answer to a later question."""

    def _ask(self, process: ChildProcess) -> None:
        """Send pending questions, once the file is read and whenever the thread is woken."""

    def _clean_up(self) -> None:
        """Delete what `_prepare` has created; called when the process has ended."""

    def _rouse(self) -> None:
        if self._waker is not None:
            self._waker.rouse()

    def _work(self) -> None:
        """The thread that owns the process."""
        assert self._waker is not None
        process: ChildProcess | None = None
        how = ""
        try:
            request = self._prepare()
            process = ChildProcess(self._command)
            about = {"path": str(self.path.absolute()), "parent": os.getpid(), "memory_bytes": self._memory_bytes}
            process.send({**request, **about})
            self._converse(process, self._waker)
        except Exception as error:  # report it in any case: others wait for the file
            logger.exception("a %s could not be opened", self.KIND)
            self._refuse(f"{self._name} could not be opened ({type(error).__name__}: {error}).")
        finally:
            if process is not None:
                how = process.end()
            self._refuse(self._ending(how))
            self._clean_up()
            self._waker.close()

    def _converse(self, process: ChildProcess, waker: Waker) -> None:
        while not self._closing:
            waker.wait(process)
            for message in process.read():
                self._hear(message)
            if process.gone:
                return
            if self._found is not None:
                self._ask(process)

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "progress" in message:
            done, total = message["progress"]
            self._progress = int(done), int(total)
        elif "refused" in message:
            self._refuse(str(message["refused"]))
        elif "read" in message:
            found = self._read(message["read"])
            with self._changed:
                self._progress = self._progress[1], self._progress[1]
                self._found = found
                self._changed.notify_all()
        else:
            self._take(message)

    def _ending(self, how: str) -> str:
        if how == "signal SIGXCPU":
            return f"{self._name} took far longer to read than a {self.KIND} of its size does, and was given up."
        return f"The process that read {self._name} ended ({how})."

    def _refuse(self, sentence: str) -> None:
        with self._changed:
            if self._refusal is None:
                self._refusal = sentence
            self._changed.notify_all()


class FileReader(Conversation):
    """The process's end of the pipes. It ends with its parent process.

    Args:
        name: name of this process, at most 15 bytes.

    Raises:
        ValueError: if the request is not JSON.

    Attributes:
        request: the first line.
        path: path of the file.
        memory_bytes: memory limit for reading.
    """

    def __init__(self, name: bytes) -> None:
        super().__init__()
        self.start()
        self.request: Mapping[str, Any] = self.next()
        self.path = Path(self.request["path"])
        self.memory_bytes = int(self.request["memory_bytes"])
        self._next_at = 0.0
        die_with(self.request["parent"], name)

    def read(
        self, read: Callable[[], T], refusal: type[Exception], *, cpu_s: int, cpu_s_per_mib: int, remedy: str
    ) -> T | None:
        """The result of ``read`` under limits; ``None`` if the file was refused, which is then reported.

        Args:
            read: opens the file at `path` and reports `progress`.
            refusal: what it raises, with a sentence, where the file is not what it should be.
            cpu_s: processor time that any file may take, in seconds.
            cpu_s_per_mib: and for each MiB of it.
            remedy: what to do where there is not enough memory.
        """
        name = name_of(self.path)
        try:
            limit(self.memory_bytes, cpu_s + cpu_s_per_mib * (self.path.stat().st_size // MIB))
            return read()
        except refusal as error:
            sentence = str(error)
        except OSError as error:
            sentence = f"{name} cannot be read: {error.strerror or error}."
        except MemoryError:
            sentence = f"{name} needs more than {self.memory_bytes:,} bytes of memory: {remedy}."
        self.report({"refused": sentence})
        return None

    def progress(self, done: int, total: int) -> None:
        """Report bytes read, and those of the file, at a pace that costs nothing."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + REPORTED_EVERY_S
            self.report({"progress": [done, total]})
