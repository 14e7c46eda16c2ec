"""A picture of the dashboard or of its plots, drawn from a recording by the real window; needs no display."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from PySide6.QtCore import QCoreApplication, QEvent, QMessageLogContext, Qt, QtMsgType, qInstallMessageHandler
from PySide6.QtWidgets import QApplication

from gpudash.session import Replay
from gpudash.telemetry.export.writing import atomically
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.ui.app import application, build_window
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.dashboard.plots_page import SLOW_REFRESH
from gpudash.ui.plots.export import as_png
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.widgets.theme import apply_colours, apply_theme
from gpudash.ui.window.main_window import MainWindow


def draw(recording: Path, picture: Path, size: tuple[int, int], theme: Literal["light", "dark"] = "dark") -> None:
    """Draw the window as it looks with ``recording`` open, and write it as a PNG of ``size`` logical pixels.

    Raises:
        RecordingError: one sentence, if the recording cannot be read.
        OSError: if the picture cannot be written.
    """
    app = application()
    palette = apply_colours(app, theme)
    with closing(Replay(recording)) as replay:
        window = build_window(replay, palette, lambda _choice: None)
        try:
            _grab(window, picture, size)
        finally:
            window.close()
            window.deleteLater()
            QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)  # there is no event loop to do it


def _grab(window: MainWindow, picture: Path, size: tuple[int, int]) -> None:
    window.timer.stop()
    window.resize(*size)
    window.show()
    window.workspace.dashboard.show_run()
    for _frame in range(SLOW_REFRESH + 1):
        QApplication.processEvents()
        window.workspace.refresh()
    if not window.grab().save(str(picture), "PNG"):
        raise OSError(f"{picture} cannot be written")


SHARP_S = 2.0
"""Seconds to wait for the samples of a plot; after that, wider columns are drawn from exact extremes."""


def write_graphs(
    recording: Path, out: Path, size: tuple[int, int], theme: Literal["light", "dark"] = "light", force: bool = False
) -> list[str]:
    """Write the plots of the last run in ``recording``, or of all of it, as PNG or SVG, depending on the suffix of
    ``out``.

    Args:
        recording: recording file.
        out: file to write; any suffix but ``.svg`` gives a PNG.
        size: width and height in pixels.
        theme: colours.
        force: replace ``out`` if it exists.

    Returns:
        What could not be read from the recording, a sentence each.

    Raises:
        RecordingError: in one sentence, if the recording cannot be read, ``out`` cannot be written, or the size is too
            small for the plots.
    """
    with _without_size_hints(), atomically(out, recording, force) as part:
        palette = apply_theme(application(), theme)
        replay = Replay(recording)
        try:
            dashboard = Dashboard(replay, palette)
            with _alone(dashboard, size, lambda: replay.settle(SHARP_S)) as plots:
                run = replay.store.run
                if run is None:
                    title = recording.stem
                else:
                    with replay.store.lock:
                        title = f"{dashboard.runs.name(run)}, {recording.stem}"
                caption = (title, dashboard.caption(dashboard.selected, ""))
                plots.caption = lambda: caption
                svg = out.suffix.lower() == ".svg"
                part.write_bytes(plots.vector_picture() if svg else as_png(plots.picture(ratio=1.0)))
            notices = replay.notices
        finally:
            replay.close()
    return notices


@contextmanager
def _without_size_hints() -> Iterator[None]:
    """Suppress Qt's warning that a platform without a screen does not support size hints; pass on other messages."""

    def pass_on(kind: QtMsgType, context: QMessageLogContext, text: str) -> None:
        if "propagateSizeHints" in text:
            return
        if before is not None:
            before(kind, context, text)
        else:
            sys.stderr.write(f"{text}\n")

    before = qInstallMessageHandler(pass_on)
    try:
        yield
    finally:
        qInstallMessageHandler(before)


@contextmanager
def _alone(dashboard: Dashboard, size: tuple[int, int], settle: Callable[[], object]) -> Iterator[PlotStack]:
    """The plots of a dashboard by themselves, laid out so that their picture has the requested size.

    Args:
        dashboard: dashboard of the recording.
        size: size of the picture, in pixels.
        settle: waits for the samples that the plots have requested.
    """
    dashboard.setAttribute(Qt.WidgetAttribute.WA_DontShowOnScreen)
    dashboard.resize(*size)
    dashboard.show()
    dashboard.show_run()
    dashboard.refresh()
    plots = dashboard.plots
    plots.setParent(None)
    plots.setAttribute(Qt.WidgetAttribute.WA_DontShowOnScreen)
    plots.show_readout(wanted=False)
    plots.strip.hide()
    plots.overview.hide()
    plots.resize(*size)
    plots.show()
    try:
        QApplication.processEvents()
        for _ in range(2):  # the first resize may add or remove a scroll bar
            drawn = plots.picture_size
            plots.resize(plots.width() + size[0] - drawn.width(), plots.height() + size[1] - drawn.height())
            QApplication.processEvents()
        drawn = plots.picture_size
        if plots.missing_height or drawn.toTuple() != size:
            least = f"{max(size[0], drawn.width())}x{drawn.height() + plots.missing_height}"
            raise RecordingError(
                f"{len(plots.plots)} plots have no room in {size[0]}x{size[1]} pixels; choose at least {least}"
            )
        plots.refresh(force=True)
        settle()
        yield plots
    finally:
        plots.close()
        plots.deleteLater()
        dashboard.close()
        dashboard.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
