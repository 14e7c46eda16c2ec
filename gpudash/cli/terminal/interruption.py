"""Ctrl+C and SIGTERM: a first one asks to stop, a second one leaves at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether the user has asked to stop.

    A signal's handler only sets a flag that the command looks at: a handler that took a lock could wait for ever for
    the very code it interrupted.
    """

    def __init__(self, words: str) -> None:
        self.asked = False
        self._words = words

    def handle(self, _number: int, _frame: object) -> None:
        """The handler.

        Raises:
            KeyboardInterrupt: at the second signal.
        """
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self._words:
            os.write(2, f"{self._words}\n".encode())


@contextmanager
def interruptible(words: str = "") -> Iterator[Interruption]:
    """Signals set the flag of the `Interruption` and say ``words`` on stderr, until the block is left."""
    interruption = Interruption(words)
    before = {number: signal.signal(number, interruption.handle) for number in SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
