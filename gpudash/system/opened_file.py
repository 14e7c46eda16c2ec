"""Files that anybody may have written, each read by a child process: a hostile or huge one can end that process, and
nothing else.

The first line for the process says what to read: ``{"path", "parent", "memory_bytes"}``. It writes lines of JSON:
``{"progress": [bytes, bytes]}`` now and then, at the end ``{"refused": sentence}`` or ``{"read": what it found}``. What
it is asked and answers after that is between it and the subclass of `OpenedFile`.
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
from gpudash.system.threads import joined
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
        path: of the file.
        memory_bytes: for the process.
        process: program and arguments, instead of `command`.
    """

    KIND: ClassVar[str]
    """What such a file is, in a word."""

    MODULE: ClassVar[str]
    """The process's; its ``main`` has a `FileReader`."""

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
        """The process that reads; the folder it is started in holds no module for it."""
        code = f"import sys; sys.path.insert(0, {_ROOT!r}); from {cls.MODULE} import main; main()"
        return (sys.executable, "-P", "-c", code)

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
            self._thread = threading.Thread(target=self._work, name=f"gpudash-{self.KIND}", daemon=True)
            self._thread.start()

    def poll(self) -> T | None:
        """What was read, or ``None`` as long as it is being read.

        Raises:
            ValueError: the `REFUSAL` of the kind; the file was refused, or the process that read it ended.
        """
        with self._changed:
            if self._found is None and self._refusal is not None:
                raise self.REFUSAL(self._refusal)
            return self._found

    def wait(self, timeout_s: float) -> T | None:
        """As `poll`, after waiting until there is something to tell, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._found is not None or self._refusal is not None, timeout_s)
        return self.poll()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """End the process and the thread, whatever they are doing; what has been read stays usable.

        Returns:
            Whether the thread is gone.
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
        """What the process is told besides the file; called before there is one, by the thread that owns it."""
        return {}

    def _read(self, found: Any) -> T:
        """What is kept of the process's answer."""
        raise NotImplementedError

    def _take(self, message: Mapping[str, Any]) -> None:
        """Take an answer to what was asked once the file was read."""

    def _ask(self, process: ChildProcess) -> None:
        """Send what is to be asked, once the file is read and whenever the thread was roused."""

    def _clean_up(self) -> None:
        """Remove what `_prepare` has made; called when the process has ended."""

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
        except Exception as error:  # whatever it is, who waits for the file is to know
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
    """The process's end. It ends with the process that has started it.

    Args:
        name: of this process, at most 15 bytes.

    Raises:
        ValueError: what is to be read was not said in JSON.

    Attributes:
        request: the first line.
        path: of the file.
        memory_bytes: that reading may take.
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
        """What ``read`` makes of the file, under limits; ``None`` when the file was refused, which is answered then.

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
