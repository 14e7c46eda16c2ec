"""A picture of the dashboard, drawn by the real window from a recording, with no display needed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal

from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QApplication

from gpudash.session import Replay
from gpudash.ui.app import application
from gpudash.ui.dashboard import SLOW_REFRESH
from gpudash.ui.main_window import MainWindow
from gpudash.ui.theme import apply_colours


def draw(recording: Path, picture: Path, size: tuple[int, int], theme: Literal["light", "dark"] = "dark") -> None:
    """Draw the window as it looks over ``recording`` and write it as a PNG of ``size`` logical pixels.

    Raises:
        RecordingError: one sentence, when the recording cannot be read.
        OSError: when the picture cannot be written.
    """
    app = application()
    palette = apply_colours(app, theme)
    with closing(Replay(recording)) as replay:
        window = MainWindow(replay, palette, lambda _choice: None)
        try:
            _grab(window, picture, size)
        finally:
            window.close()
            window.deleteLater()
            QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)  # no event loop is there to do it


def _grab(window: MainWindow, picture: Path, size: tuple[int, int]) -> None:
    window.timer.stop()
    window.resize(*size)
    window.show()
    window.dashboard.show_run()
    for _frame in range(SLOW_REFRESH + 1):
        QApplication.processEvents()
        window.refresh()
    if not window.grab().save(str(picture), "PNG"):
        raise OSError(f"{picture} cannot be written")
