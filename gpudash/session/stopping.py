"""Asks a watched program to end, each time more firmly, until it has."""

from __future__ import annotations

import signal
import threading
import time

from gpudash.session.program import Program

STEPS = ((signal.SIGINT, 3.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0))
"""Signals to its process group, and how long each has before the next."""

HURRY = (0.4, 0.4)
"""Parts of the time left that the first two have when the dashboard is being closed."""


class Stopping:
    """The wish that a program ends. Any thread may wish; `tick` belongs to the one that attends to the program.

    Attributes:
        asked: whether the user wished it.
        refused: whether it is ended because it could not run as it was asked for.
        hurried: whether the dashboard is being closed.
    """

    def __init__(self, program: Program) -> None:
        self.asked = self.refused = self.hurried = False
        self._program = program
        self._lock = threading.Lock()
        self._sent = 0
        self._next_s = 0.0
        self._patience = [patience_s for _, patience_s in STEPS]

    def ask(self) -> None:
        """The user wishes it; wished again, the next firmer signal goes at once."""
        with self._lock:
            self.asked = True
            self._send()

    def refuse(self) -> None:
        """It cannot run as it was asked for."""
        with self._lock:
            if not self.refused:
                self.refused = True
                self._sent = max(self._sent, 1)  # an interruption would leave a traceback that says nothing
                self._send()

    def hurry(self, timeout_s: float) -> None:
        """The dashboard is being closed: it is to have ended within ``timeout_s``."""
        with self._lock:
            self.asked = self.hurried = True
            self._patience = [part * timeout_s for part in HURRY] + [timeout_s]
            if self._sent:
                self._next_s = min(self._next_s, time.monotonic() + self._patience[0])
            else:
                self._send()

    def tick(self) -> None:
        """Send the next signal when it is time."""
        with self._lock:
            if self._sent and time.monotonic() >= self._next_s:
                self._send()

    def _send(self) -> None:
        place = min(self._sent, len(STEPS) - 1)
        self._sent += 1
        self._next_s = time.monotonic() + self._patience[place]
        self._program.signal(STEPS[place][0])
