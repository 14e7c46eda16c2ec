"""The longest turn of the window's thread while tabs open: two recordings, one after the other, and a snapshot; and a
switch of the theme while the first of them is shown.

Counted is the CPU that the thread takes from waking until it has nothing left to do, to which other programs on the
machine add nothing. ``theme_ms`` is until everything is painted in the new colours; ``theme_over_bare`` the same over a
style sheet replaced on as many labels in a window with nothing else.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QDeadlineTimer, QEventLoop
from PySide6.QtWidgets import QApplication, QLabel, QWidget

from gpudash.session import Session
from gpudash.system.settings import Settings
from gpudash.ui.app import application, build_window
from gpudash.ui.dashboard.document import Document
from gpudash.ui.snapshot.document import SnapshotDocument
from gpudash.ui.widgets.theme import Choice, apply_colours, dress
from gpudash.ui.window.main_window import MainWindow
from tests.benchmarks.generated_snapshot import generated
from tests.benchmarks.ten_million import make

ROWS = 400_000
EVENTS = 100_000
PATIENCE_MS = 60_000
SWITCHES: tuple[Choice, ...] = ("light", "dark") * 4
SETTLE_TURNS = 40
"""Turns after a tab is there: its first frames belong to its opening."""


def measure() -> dict[str, float]:
    """CPU milliseconds of the longest turn while a recording and while a snapshot opens, the first time and again."""
    folder = Path(tempfile.mkdtemp())
    recordings = [folder / f"{number}.gpudash" for number in (1, 2)]
    for path in recordings:
        make(path, ROWS)
    app = application()
    session = Session(Settings(), recording=None)
    session.start()
    window = build_window(session, apply_colours(app, "dark"), lambda _choice: None)
    window.resize(1440, 900)
    window.show()
    _turns(lambda: False, SETTLE_TURNS)
    gc.freeze()  # as the window does after its first paint
    try:
        first = _opening(window, recordings[0])
        theme = _theme(app, window)
        again = _opening(window, recordings[1])
        snapshot = generated(EVENTS)
        figures = {"recording_ms": first, "recording_again_ms": again, "snapshot_ms": _opening(window, snapshot)}
    finally:
        window.close()
    return {**figures, "longest_ms": max(figures.values()), **theme}


def _theme(app: QApplication, window: MainWindow) -> dict[str, float]:
    bare = QWidget()
    for _ in window.findChildren(QWidget):
        QLabel("label", bare)
    bare.show()
    took_s: list[float] = []
    bare_s: list[float] = []
    for choice in SWITCHES:
        began_s = time.thread_time()
        palette = apply_colours(app, choice)
        window.set_palette(palette)
        window.repaint()
        took_s.append(time.thread_time() - began_s)
        _turns(lambda: False, SETTLE_TURNS)
        began_s = time.thread_time()
        dress(bare, palette)
        bare.repaint()
        bare_s.append(time.thread_time() - began_s)
    bare.close()
    took, of_bare = statistics.median(took_s), statistics.median(bare_s)
    return {"theme_ms": took * 1e3, "theme_over_bare": took / of_bare}


def _opening(window: MainWindow, path: Path) -> float:
    began_s = time.thread_time()
    window.workspace.open(path)
    took_s = [time.thread_time() - began_s]
    document = window.workspace.front
    took_s += _turns(lambda: _is_shown(document))
    took_s += _turns(lambda: False, SETTLE_TURNS)
    return max(took_s) * 1e3


def _is_shown(document: Document | None) -> bool:
    if isinstance(document, SnapshotDocument):
        return document.ready
    return document is not None and document.dashboard is not None


def _turns(done: Callable[[], bool], most: int = 10**9) -> list[float]:
    """Let the window's thread run until ``done``, or for so many turns; seconds of CPU that each took."""
    deadline = QDeadlineTimer(PATIENCE_MS)
    found: list[float] = []
    while len(found) < most and not done():
        assert not deadline.hasExpired()
        began_s = time.thread_time()
        QApplication.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents)
        found.append(time.thread_time() - began_s)
    return found
