"""A picture of the dashboard, drawn by the real window from a recording, with no display needed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from PySide6.QtWidgets import QApplication

from gpudash.session import Replay
from gpudash.ui.app import application
from gpudash.ui.main_window import SLOW_REFRESH, MainWindow
from gpudash.ui.theme import apply_theme

MARGIN_S, MARGIN_RATIO = 0.5, 0.05
"""Seconds shown on either side of a run, and their largest share of a short one."""


def draw(recording: Path, picture: Path, size: tuple[int, int], theme: Literal["light", "dark"] = "dark") -> None:
    """Draw the window as it looks over ``recording`` and write it as a PNG of ``size`` logical pixels.

    Raises:
        RecordingError: one sentence, when the recording cannot be read.
        OSError: when the picture cannot be written.
    """
    app = application()
    palette = apply_theme(app, theme)
    window = MainWindow(Replay(recording), palette, lambda _choice: None)
    try:
        window.timer.stop()
        window.resize(*size)
        window.show()
        show_run(window)
        for _frame in range(SLOW_REFRESH + 1):
            QApplication.processEvents()
            window.refresh()
        if not window.grab().save(str(picture), "PNG"):
            raise OSError(f"{picture} cannot be written")
    finally:
        window.close()
        window.deleteLater()
        QApplication.processEvents()


def show_run(window: MainWindow) -> None:
    """Set the time axis to the last run, or to everything when there was none."""
    store = window.session.store
    with store.lock:
        run, newest = store.run, store.newest_s
    if run is None:
        window.view.show(0.0, max(newest, 1.0))
    else:
        end = newest if run.ended_s is None else run.ended_s
        margin = min(MARGIN_S, (end - run.began_s) * MARGIN_RATIO)
        window.view.show(max(0.0, run.began_s - margin), end + margin)
        window.panel.show_spec(run.workload, run.device, run.spec)
