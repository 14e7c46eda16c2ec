"""The plots of a recording as a picture in a file, drawn by the window's own plots with no display needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from PySide6.QtCore import QCoreApplication, QEvent, QMessageLogContext, Qt, QtMsgType, qInstallMessageHandler
from PySide6.QtWidgets import QApplication

from gpudash.session import Replay
from gpudash.telemetry.export import atomically
from gpudash.ui.app import application
from gpudash.ui.dashboard import Dashboard
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.taking import as_png, picture_size
from gpudash.ui.theme import apply_theme

SHARP_S = 2.0
"""Longest that is waited for the samples of what is drawn; past it, the exact extremes of wider columns are."""


def write_graphs(
    recording: Path, out: Path, size: tuple[int, int], theme: Literal["light", "dark"] = "light", force: bool = False
) -> list[str]:
    """Write the plots of the last run in ``recording``, or of all of it, as PNG or SVG, by the suffix of ``out``.

    Args:
        recording: the file.
        out: what to write; anything but ``.svg`` becomes a PNG.
        size: width and height in pixels; a picture in which the plots have no room is higher.
        theme: colours.
        force: replace ``out`` where it is.

    Returns:
        What could not be read of the recording, a sentence each.

    Raises:
        RecordingError: in one sentence, when the recording cannot be read or ``out`` cannot be written.
    """
    with _without_size_hints(), atomically(out, recording, force) as part:
        palette = apply_theme(application(), theme)
        replay = Replay(recording)
        try:
            dashboard = Dashboard(replay, palette, live=False)
            with _alone(dashboard, size, lambda: replay.settle(SHARP_S)) as plots:
                run = replay.store.run
                title = recording.stem if run is None else f"{run.workload}, {recording.stem}"
                plots.set_caption(title, dashboard.caption(dashboard.selected, ""))
                svg = out.suffix.lower() == ".svg"
                part.write_bytes(plots.vector_picture() if svg else as_png(plots.picture(ratio=1.0)))
            notices = replay.notices
        finally:
            replay.close()
    return notices


@contextmanager
def _without_size_hints() -> Iterator[None]:
    """Pass on what Qt says, but for its word that a platform without a screen has no hints on sizes."""

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
    """The plots of a dashboard by themselves, laid out so that their picture is as large as asked for.

    Args:
        dashboard: over the recording.
        size: of the picture.
        settle: waits for the samples that the plots have asked for.
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
    plots.resize(*size)
    plots.show()
    try:
        QApplication.processEvents()
        for _ in range(2):  # the first may take away or bring the scroll bar beside the plots
            drawn = picture_size(plots.plots)
            height = plots.height() + size[1] - drawn.height()
            plots.resize(plots.width() + size[0] - drawn.width(), max(height, plots.needed_height))
            QApplication.processEvents()
        plots.refresh(force=True)
        settle()
        yield plots
    finally:
        plots.close()
        plots.deleteLater()
        dashboard.close()
        dashboard.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
