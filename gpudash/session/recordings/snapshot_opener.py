"""Snapshot files, each opened by a child process: a hostile or huge one can end that process, and nothing else."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.memory.snapshot.history.model import Snapshot, SnapshotError
from gpudash.memory.snapshot.reading.source import ReadLimits, name_of
from gpudash.memory.snapshot.reading.stored import load
from gpudash.system.child_process import ChildProcess, Waker
from gpudash.system.files import PrivateFolder
from gpudash.system.threads import joined

if TYPE_CHECKING:
    from gpudash.memory.snapshot.replay.what_if import WhatIfAnswer

logger = logging.getLogger(__name__)

MODULE = "gpudash.memory.snapshot.reading.process"

CLOSE_TIMEOUT_S = 1.0

KEPT_ANSWERS = 100

_ROOT = str(Path(__file__).resolve().parents[3])


def command() -> tuple[str, ...]:
    """The process that reads; the folder it is started in holds no module for it."""
    return (sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {_ROOT!r}); from {MODULE} import main; main()")


class OpenedSnapshot:
    """A snapshot file that is being read, or has been. Any thread may call any method.

    One thread owns the process, which stays to answer questions until `close`.

    Args:
        path: of the file.
        memory_bytes: for the process; a file that needs more is read in part. That of `ReadLimits` unless given.
        process: program and arguments, instead of `command`.
    """

    def __init__(
        self,
        path: Path,
        *,
        memory_bytes: int | None = None,
        process: tuple[str, ...] | None = None,
    ) -> None:
        self.path = Path(path)
        self._name = name_of(self.path)
        self._memory_bytes = memory_bytes or ReadLimits().memory_bytes
        self._command = process or command()
        self._changed = threading.Condition()
        self._progress = (0, 0)
        self._snapshot: Snapshot | None = None
        self._refusal: str | None = None
        self._requested = 0
        self._question: dict[str, Any] | None = None
        self._answers: dict[int, WhatIfAnswer | str] = {}
        self._closing = False
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None
        self._folder: PrivateFolder | None = None

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
            self._thread = threading.Thread(target=self._work, name="gpudash-snapshot", daemon=True)
            self._thread.start()

    def poll(self) -> Snapshot | None:
        """The snapshot, or ``None`` as long as it is being read.

        Raises:
            SnapshotError: it was refused; or the process that read it ended.
        """
        with self._changed:
            if self._snapshot is None and self._refusal is not None:
                raise SnapshotError(self._refusal)
            return self._snapshot

    def wait(self, timeout_s: float) -> Snapshot | None:
        """As `poll`, after waiting until there is something to tell, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot is not None or self._refusal is not None, timeout_s)
        return self.poll()

    def ask(self, device_index: int, capacity_bytes: int | None, settings_text: str | None) -> int:
        """Ask what would have happened; only the newest question is sure to be answered.

        Args:
            device_index: in the file.
            capacity_bytes: that the allocator may take; ``None``: as much as it wants.
            settings_text: as in ``PYTORCH_CUDA_ALLOC_CONF``; ``None``: the recorded ones.

        Returns:
            The number of the question.
        """
        with self._changed:
            self._requested += 1
            self._question = {
                "question": self._requested,
                "device": device_index,
                "capacity": capacity_bytes,
                "settings": settings_text,
            }
            self._rouse()
            return self._requested

    def answer(self, number: int) -> WhatIfAnswer | None:
        """The answer to a question, or ``None`` as long as there is none.

        Raises:
            ValueError: it could not be answered, in one sentence.
        """
        with self._changed:
            found = self._answers.get(number)
            if found is None and number <= self._requested and self._refusal is not None:
                raise ValueError(self._refusal)
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """End the process and the thread, whatever they are doing; what has been read stays usable.

        Returns:
            Whether the thread is gone.
        """
        with self._changed:
            self._closing = True
            if self._refusal is None:
                when = ""
                if self._snapshot is None:
                    when = " before it was read"
                self._refusal = f"{self._name} was closed{when}."
            self._changed.notify_all()
            self._rouse()
        return joined(self._thread, timeout_s)

    def _rouse(self) -> None:
        if self._waker is not None:
            self._waker.rouse()

    def _work(self) -> None:
        """The thread that owns the process."""
        process: ChildProcess | None = None
        try:
            process = self._started()
            self._converse(process)
        except Exception as error:  # whatever it is, who waits for the file is to know
            logger.exception("a snapshot could not be opened")
            self._refuse(f"{self._name} could not be opened ({type(error).__name__}: {error}).")
        finally:
            if process is None:
                how = ""
            else:
                how = process.end()
            self._refuse(self._ending(how))
            self._remove_folder()
            assert self._waker is not None
            self._waker.close()

    def _started(self) -> ChildProcess:
        self._folder = PrivateFolder(Path(tempfile.gettempdir()), "gpudash-snapshot-")
        process = ChildProcess(self._command)
        process.send(
            {
                "path": str(self.path.absolute()),
                "folder": str(self._folder.path),
                "parent": os.getpid(),
                "memory_bytes": self._memory_bytes,
            }
        )
        return process

    def _converse(self, process: ChildProcess) -> None:
        assert self._waker is not None
        while not self._closing:
            self._waker.wait(process)
            for message in process.read():
                self._take(message)
            if process.gone:
                return
            if self._snapshot is not None:
                self._put_question(process)

    def _put_question(self, process: ChildProcess) -> None:
        with self._changed:
            question, self._question = self._question, None
        if question is not None:
            process.send(question)

    def _take(self, message: Mapping[str, Any]) -> None:
        if "progress" in message:
            done, total = message["progress"]
            self._progress = int(done), int(total)
        elif "refused" in message:
            self._refuse(str(message["refused"]))
        elif "read" in message:
            assert self._folder is not None
            snapshot = load(self._folder.path)
            self._remove_folder()
            with self._changed:
                self._progress = self._progress[1], self._progress[1]
                self._snapshot = snapshot
                self._changed.notify_all()
        elif "answer" in message:
            self._take_answer(message)

    def _take_answer(self, message: Mapping[str, Any]) -> None:
        from gpudash.memory.snapshot.replay.what_if import WhatIfAnswer

        found = str(message["problem"]) if "problem" in message else WhatIfAnswer.from_json(message["result"])
        with self._changed:
            self._answers[int(message["answer"])] = found
            while len(self._answers) > KEPT_ANSWERS:
                del self._answers[min(self._answers)]
            self._changed.notify_all()

    def _ending(self, how: str) -> str:
        name = self._name
        if how == "signal SIGXCPU":
            return f"{name} took far longer to read than a snapshot of its size does, and was given up."
        if how.startswith(("killed", "signal")):
            return f"{name} made the process that read it end ({how}): torch has not written it so."
        return f"The process that read {name} ended ({how})."

    def _refuse(self, sentence: str) -> None:
        with self._changed:
            if self._refusal is None:
                self._refusal = sentence
            self._changed.notify_all()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
