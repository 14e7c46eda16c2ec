"""A session while it is live and its recording reopened: the same picture and the same figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtGui import QImage
from pytestqt.qtbot import QtBot

from gpudash.devices.names import Gpu
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.widgets.tables import Table
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import gpu
from tests.ui.recordings import KeptSession, open_recording, trained
from tests.unit.telemetry.run_ends import RAN_OUT

PLOTS = (900, 620)
"""Size at which both are drawn: the tab of a recording has less room than the dashboard."""

DIFFERENT_LEVELS = 16
"""Of 255, from which a channel of a pixel counts as different; antialiasing of equal curves stays below."""

DIFFERENT_RATIO = 0.0005
"""Share of pixels that may be different."""


def pixels(image: QImage) -> np.ndarray:
    rgb = image.convertToFormat(QImage.Format.Format_RGBA8888)
    return np.frombuffer(rgb.constBits(), np.uint8).reshape(rgb.height(), rgb.width(), 4)[..., :3].astype(int)


def different(first: QImage, second: QImage) -> float:
    """Share of pixels that are different."""
    one, other = pixels(first), pixels(second)
    assert one.shape == other.shape
    return float((np.abs(one - other).max(axis=2) >= DIFFERENT_LEVELS).mean())


def rows(dashboard: Dashboard) -> dict[str, list[list[str]]]:
    """Every table as it is shown."""
    tabs = dashboard.tabs
    for position in range(tabs.bar.count()):
        tabs.bar.setCurrentIndex(position)
        dashboard.refresh_figures()
    return {table.name: [list(row) for row in table.model.rows] for table in tabs.findChildren(Table)}


def cards(dashboard: Dashboard) -> list[str]:
    """The words of every card."""
    return [card.accessibleName() for card in dashboard.cards._cards.values()]


def drawn(window: MainWindow, dashboard: Dashboard, span: tuple[float, float]) -> QImage:
    dashboard.plots.setFixedSize(*PLOTS)
    dashboard.view.set_cursor(None)
    dashboard.view.show(*span)
    settle(window)
    return dashboard.plots.picture()


@pytest.mark.parametrize(("gpus", "device", "theme"), [((), "cpu", "dark"), ((gpu(0), gpu(1)), "cuda:0", "light")])
def test_the_plots_are_the_same_picture_and_every_figure_is_the_same(
    open_window: OpenWindow, tmp_path: Path, qtbot: QtBot, gpus: Sequence[Gpu], device: str, theme: str
) -> None:
    session = trained(gpus, device=device)
    window = open_window(session, theme=theme)
    live, whole = window.workspace.dashboard, (2.5, 15.5)
    live.view_bar.smoothing.setValue(60)
    if session.gpus:
        live.select_device(session.gpus[0].uuid)
    settle(window)
    live.tabs.set_collapsed(False)
    live_picture, live_rows, live_cards = drawn(window, live, whole), rows(live), cards(live)
    live.view.select(5.0, 9.0)
    live_selected = live.plots.selection_text()

    document = open_recording(window, session.save(tmp_path / "run.gpudash"), qtbot)
    again = document.dashboard
    assert again is not None
    again.view_bar.smoothing.setValue(60)
    again.tabs.set_collapsed(False)
    again_picture = drawn(window, again, whole)
    assert different(live_picture, again_picture) <= DIFFERENT_RATIO
    assert rows(again) == live_rows
    assert cards(again) == live_cards
    again.view.select(5.0, 9.0)
    assert again.plots.selection_text() == live_selected
    assert again.panel.progress.label.text() == live.panel.progress.label.text()


def test_the_comparison_sees_another_curve(open_window: OpenWindow, tmp_path: Path, qtbot: QtBot) -> None:
    session = trained()
    window = open_window(session)
    before = drawn(window, window.workspace.dashboard, (2.5, 15.5))
    other = trained(seconds=11.0)
    document = open_recording(window, other.save(tmp_path / "other.gpudash"), qtbot)
    assert document.dashboard is not None
    assert different(before, drawn(window, document.dashboard, (2.5, 15.5))) > DIFFERENT_RATIO


def test_an_out_of_memory_reopens_with_its_explanation(open_window: OpenWindow, tmp_path: Path, qtbot: QtBot) -> None:
    session = KeptSession([gpu(0)])
    session.feed(1.0)
    session.start("cuda:0")
    session.train(1.0, device="cuda:0")
    session.end(
        replace(
            RAN_OUT,
            time_s=session.now_s,
            error="cuda",
            message="CUDA out of memory.",
            remedy="Make the batch smaller.",
            steps=10,
        )
    )
    window = open_window(KeptSession())
    document = open_recording(window, session.save(tmp_path / "oom.gpudash"), qtbot)
    assert document.dashboard is not None and document.dashboard.banner.isVisible()
    assert "out of memory" in document.dashboard.banner.accessibleName()
    assert "out of memory" in document.head.label.text()
