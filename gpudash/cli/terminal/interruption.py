"""Ctrl+C, SIGTERM and SIGHUP: the first signal requests a stop, the second ends the command at once."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def stop_signals() -> list[signal.Signals]:
    """Signals that ask a command to stop; without SIGHUP if it is ignored, as under nohup."""
    # A handler of ours would undo nohup.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        hung_up = []
    else:
        hung_up = [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hung_up]


def leave_terminal() -> None:
    """Discard further output to a terminal that is gone: every write would fail."""
    for descriptor in (1, 2):
        with suppress(OSError):
            # If the terminal is gone, its descriptor is still a character device, but isatty() fails; files and pipes
            # are unaffected.
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


class Interruption:
    """Whether the user has asked to stop.

    The signal handler only sets a flag for the command to check: one that took a lock could deadlock with the code it
    interrupts.
    """

    def __init__(self, text: str) -> None:
        self.requested = False
        self._text = text

    def handle(self, number: int, _frame: object) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: at the second signal, unless it is SIGHUP, which kernel and shell both send.
        """
        # Before writing anything: a write to the closed terminal would fail in this handler.
        if number == signal.SIGHUP:
            leave_terminal()
        if self.requested:
            if number != signal.SIGHUP:
                raise KeyboardInterrupt
            return
        self.requested = True
        if self._text:
            # Write to the descriptor: the interrupted code may hold the lock of sys.stderr's buffer.
            with suppress(OSError):
                os.write(2, f"{self._text}\n".encode())


@contextmanager
def interruptible(text: str = "") -> Iterator[Interruption]:
    """Let signals set the flag of an `Interruption` and print ``text`` on stderr, until the block is left."""
    interruption = Interruption(text)
    with handled_by(interruption.handle):
        yield interruption


@contextmanager
def handled_by(handle: Callable[[int, object], None]) -> Iterator[None]:
    """Let signals that ask a command to stop call ``handle``, until the block is left."""
    # The previous handlers are restored: a caller in the same process may have its own.
    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
