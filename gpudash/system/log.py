"""The log of gpudash's processes: what they did and what failed, in a file that only its user may read.

A module logs by ``logger = logging.getLogger(__name__)``: INFO is for the few facts of a process's life (what began,
ended, was lost or came back), WARNING for what the user is shown, ERROR for the unexpected, with its traceback.
DEBUG is shown by ``--verbose`` alone. Nothing is logged per reading.

`logging.handlers` is not used: its import takes as long as a help page, and two processes that write to one of its
rotating files lose each other's older ones.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gpudash.system.foreign_text import visible

VARIABLE = "GPUDASH_LOG"
"""Variable with the log's path, for a process that cannot find it, because it runs in another Python."""

MOST_BYTES = 1_000_000
KEPT = 4
"""Number of older files kept next to the newest one, as gpudash.log.1 and so on."""

LONGEST_RECORD = 100_000
"""Largest record in bytes, including its traceback."""

A_MINUTE = 30
"""Most records per minute from one place in the code, so that a repeated failure does not fill the file."""

FORMAT = "%(asctime)s %(process)d %(threadName)s %(levelname)s %(name)s: %(message)s"

_PACKAGE = logging.getLogger("gpudash")
_handlers: list[logging.Handler] = []
_hidden: set[str] = set()


def start_log(file: str, *, verbose: bool = False) -> None:
    """Log what this process does to a file from now on. If the log cannot be written, nothing else is affected.

    Args:
        file: absolute path. The file and its folder are created with the first record.
        verbose: whether to write it to standard error too, with debug messages.
    """
    # May be called again, for example by a command inside a test.
    stop_log()
    _add(_PrivateFile(file), logging.INFO)
    if verbose:
        _add(logging.StreamHandler(), logging.DEBUG)
    _PACKAGE.setLevel(logging.DEBUG if verbose else logging.INFO)


def stop_log() -> None:
    """Stop logging."""
    for handler in _handlers:
        _PACKAGE.removeHandler(handler)
        handler.close()
    _handlers.clear()
    _PACKAGE.setLevel(logging.NOTSET)


def hide(secret: str) -> None:
    """Make the log show … instead of a token, or of an address that is as sensitive."""
    if secret:
        _hidden.add(secret)


def log_uncaught() -> None:
    """Log unhandled exceptions: of the main thread and Qt's slots, of other threads, and of finalizers.

    Calls the previous hooks as well.
    """
    # Keep and call the previous ones: pytest and Qt have their own hooks.
    excepthook, thread_hook, unraisable_hook = sys.excepthook, threading.excepthook, sys.unraisablehook

    def of_main_thread(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            _PACKAGE.critical("Nobody handled an exception.", exc_info=(kind, error, traceback))
        excepthook(kind, error, traceback)

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:  # a thread may end itself with it
            if args.thread is None:
                name = "that has ended"
            else:
                name = args.thread.name
            _log_unhandled(f"Nobody handled an exception of the thread {name}.", args)
        thread_hook(args)

    def of_finalizer(args: sys.UnraisableHookArgs) -> None:
        _log_unhandled(f"{args.err_msg or 'Exception ignored in'} {type(args.object).__name__}.", args)
        unraisable_hook(args)

    sys.excepthook, threading.excepthook, sys.unraisablehook = of_main_thread, of_thread, of_finalizer


# An exception may be known only by its type; logging needs an instance.
def _log_unhandled(text: str, args: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    if args.exc_value is None:
        error = args.exc_type()
    else:
        error = args.exc_value
    _PACKAGE.critical("%s", text, exc_info=(args.exc_type, error, args.exc_traceback))


def _add(handler: logging.Handler, level: int) -> None:
    handler.setLevel(level)
    handler.setFormatter(_Formatter(FORMAT))
    handler.addFilter(_Filter())
    _PACKAGE.addHandler(handler)
    _handlers.append(handler)


class _Filter(logging.Filter):
    """Filters out the user's training steps, ``logging.getLogger("gpudash").info("step", …)``, and records that one
    place in the code logs more often than `A_MINUTE`."""

    def __init__(self) -> None:
        super().__init__()
        self._minute = 0
        self._counts: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # A user's training that logs under our name would otherwise fill the file with its steps.
        if record.name == _PACKAGE.name and hasattr(record, "step"):
            return False
        # Monotonic minutes: a clock that is set back would otherwise silence the place.
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._counts.clear()
        place = record.pathname, record.lineno
        self._counts[place] = self._counts.get(place, 0) + 1
        # The last record says that more are omitted.
        if self._counts[place] == A_MINUTE:
            record.msg = f"{record.msg} (Until the next minute no more of these is logged.)"
        return self._counts[place] <= A_MINUTE


class _Formatter(logging.Formatter):
    """Hides secrets, and escapes what a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            text = super().format(record)
        except (TypeError, ValueError):  # the message and its arguments do not match
            text = f"{record.levelname} {record.name}: {record.msg!r} {record.args!r}"
        return visible(without_secrets(text))


_URL = re.compile(r"\b([a-z][a-z0-9+.-]*)://(?:[^\s/@'\"<>]*@)?([^\s/?#'\"<>),;]*)([^\s'\"<>),;]*)", re.IGNORECASE)
_BEFORE_SECRET = (
    r"authorization:\s*(?:(?:basic|bearer)\s+)?|bearer\s+|ntfy:|(?:token|password|passwd|secret|api[-_]?key)[:=]\s*"
)
_NAMED = re.compile(rf"\b({_BEFORE_SECRET})[^\s&'\",;)]+", re.IGNORECASE)
"""What precedes a secret, and the secret."""


def without_secrets(text: str) -> str:
    """``text`` without secrets from `hide`, without passwords, and with URLs reduced to their host."""
    # Longest first: a secret may contain another one.
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, "…")
    # Keep the host, which a person looks for; user, path and query may contain a token.
    text = _URL.sub(lambda found: f"{found[1]}://{found[2]}{'/…' if len(found[3]) > 1 else found[3]}", text)
    return _NAMED.sub(r"\1…", text)


class _PrivateFile(logging.Handler):
    """A file of mode 0600, whatever the umask, to which several processes may write.

    It is opened for each record, of which there are few, so that no process keeps writing to a file that another one
    has rotated.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = Path(file)

    def emit(self, record: logging.LogRecord) -> None:
        data = self.format(record).encode("utf-8", "backslashreplace")[:LONGEST_RECORD] + b"\n"
        # Errors are ignored: no caller could do anything about them.
        with suppress(OSError):  # a full disk is no reason to print on the user's terminal
            self._write(data)

    def _write(self, data: bytes) -> None:
        # Twice at most: to the file, or to the new one after a rotation.
        for _ in range(2):
            descriptor = self._open()
            try:
                found = os.fstat(descriptor)
                # An empty file accepts any record: a large one would otherwise cause endless rotations.
                if found.st_size + len(data) > MOST_BYTES and found.st_size and self._put_aside(descriptor):
                    continue  # into the new file
                # Anything but a regular file was opened without waiting, and is not written to.
                if stat.S_ISREG(found.st_mode):
                    # One write with O_APPEND: lines of several processes do not mix.
                    os.write(descriptor, data)
                return
            finally:
                os.close(descriptor)

    def _open(self) -> int:
        # Do not wait for what is there instead of a file, such as a pipe without a reader.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self._file, flags, 0o600)
        except FileNotFoundError:
            for folder in reversed([folder for folder in self._file.parents if not folder.exists()]):
                folder.mkdir(mode=0o700, exist_ok=True)
            return os.open(self._file, flags, 0o600)

    def _put_aside(self, descriptor: int) -> bool:
        """Rotate the file, unless another process is doing so; returns whether to open a new one."""
        try:
            # Without waiting: while another process rotates it, this one writes to the file it has.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        if not os.path.samestat(self._file.stat(), os.fstat(descriptor)):
            return True  # another process has done so meanwhile
        # From the oldest on, each gets the next number; the last is replaced.
        for number in range(KEPT - 1, 0, -1):
            with suppress(FileNotFoundError):
                self._older(number).replace(self._older(number + 1))
        self._file.replace(self._older(1))
        return True

    def _older(self, number: int) -> Path:
        return self._file.with_name(f"{self._file.name}.{number}")
