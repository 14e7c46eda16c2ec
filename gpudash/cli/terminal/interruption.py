"""Ctrl+C, SIGTERM and the end of the terminal: a first one asks to stop, a second one leaves at once."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def stop_signals() -> list[signal.Signals]:
    """Signals that ask a command to stop; without SIGHUP where that is ignored, as under nohup."""
    # A handler of ours would undo what nohup has set.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        hung_up = []
    else:
        hung_up = [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hung_up]


def leave_terminal() -> None:
    """Send what is still printed nowhere, where it went to a terminal that is gone: every write would fail."""
    for descriptor in (1, 2):
        with suppress(OSError):
            # Of a terminal that is gone the descriptor is still that of a device, and isatty() fails on it; a file or
            # a pipe stays.
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


class Interruption:
    """Whether the user has asked to stop.

    A signal's handler only sets a flag that the command looks at: a handler that took a lock could wait for ever for
    the very code it interrupted.
    """

    def __init__(self, text: str) -> None:
        self.requested = False
        self._text = text

    def handle(self, number: int, _frame: object) -> None:
        """The handler.

        Raises:
            KeyboardInterrupt: at the second signal, other than SIGHUP: kernel and shell both send that.
        """
        # Before anything is written: a write to the terminal that hung up would fail in the handler itself.
        if number == signal.SIGHUP:
            leave_terminal()
        if self.requested:
            if number != signal.SIGHUP:
                raise KeyboardInterrupt
            return
        self.requested = True
        if self._text:
            # By the descriptor: the interrupted code may hold the lock of sys.stderr's buffer.
            with suppress(OSError):
                os.write(2, f"{self._text}\n".encode())


@contextmanager
def interruptible(text: str = "") -> Iterator[Interruption]:
    """Signals set the flag of the `Interruption` and say ``text`` on stderr, until the block is left."""
    interruption = Interruption(text)
    before = {number: signal.signal(number, interruption.handle) for number in stop_signals()}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
