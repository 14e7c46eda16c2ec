"""Calls for what should not wait for the window's next frame: a changed form, and an answer from another thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from PySide6.QtCore import QObject, QTimer, Signal


class BetweenFrames(QObject):
    """Calls back between two frames, on the window's thread.

    Args:
        ask: called when the event that changed something has been handled, at most once a frame: faster changes, as
            those of a key that is held down, wait for the frame.
        show: called after `answered`.
        frame_s: seconds between two frames.
        parent: ends the calls with it.
    """

    _arrived = Signal()

    def __init__(
        self, ask: Callable[[], None], show: Callable[[], None], frame_s: Callable[[], float], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._frame_s = frame_s
        self._changed_s = float("-inf")
        self._asking = QTimer(self)
        self._asking.setSingleShot(True)
        self._asking.timeout.connect(ask)
        self._arrived.connect(show)

    def changed(self) -> None:
        """Something changed."""
        now_s = time.monotonic()
        if now_s - self._changed_s >= self._frame_s():
            self._changed_s = now_s
            self._asking.start(0)

    def answered(self) -> None:
        """An answer arrived; any thread may call this, even after the window has gone."""
        with suppress(RuntimeError):
            self._arrived.emit()
