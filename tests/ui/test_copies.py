"""What a predicted run copies between host and card: columns below its ribbons, and gone where there is nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpudash.drawing.ghost import Ghost
from gpudash.ui.colours import Palette
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, KIB, MIB
from tests.ui.asked_form import ask_again, asked_window
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.test_ghost import FITTING, ghost, memory
from tests.unit.clock import Clock

WEIGHTS = (50, 0, 237 * MIB, 0)
BATCHES = [(100 + 900 * (step - 1), step, 256 * KIB, 0) for step in (1, 2)]
LOSSES = [(99 + 900 * step, step, 4, 1) for step in (1, 2)]


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([gpu(0)]).feed(1)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession, clock: Clock, palette: Palette) -> MainWindow:
    """A window whose form was asked about once."""
    return asked_window(open_window, session, clock, theme=palette.name)


def with_copies() -> Ghost:
    return replace(ghost(3 * GIB), copies=np.array([WEIGHTS, *BATCHES, *LOSSES]))


def transfers(window: MainWindow) -> TimePlot | None:
    return window.workspace.dashboard.plots.plot("transfer")


def answered(window: MainWindow, session: FakeSession) -> TimePlot:
    session.estimates.report(FITTING, ghost=with_copies())
    settle(window)
    plot = transfers(window)
    assert plot is not None
    return plot


def test_what_a_step_and_the_run_copy_are_columns_below_their_ribbons(window: MainWindow, session: FakeSession) -> None:
    plot = answered(window, session)
    assert plot.spec.title == "TRANSFERS, predicted"
    step, run = (place for _, place, _ in memory(window).canvas.ghost.drawn)
    drawn = plot.canvas.copies.columns
    in_step = [(colour, size) for rect, colour, size in drawn if rect.right() <= step.right()]
    in_run = [(colour, size) for rect, colour, size in drawn if rect.left() >= run.left() - 1]
    assert in_step == [("h2d", 256 * KIB), ("d2h", 4)]
    assert sum(size for colour, size in in_run if colour == "h2d") == 237 * MIB + 512 * KIB
    assert sum(size for colour, size in in_run if colour == "d2h") == 8
    assert len(in_step) + len(in_run) == len(drawn)


def test_each_way_is_said_by_its_column_in_the_read_out_and_in_words(window: MainWindow, session: FakeSession) -> None:
    plot = answered(window, session)
    assert "H2D 256 KiB a step" in [label.text for label in plot.labels()]
    assert plot.prediction_text == "predicted copies; H2D 262144 bytes a step; D2H 4 bytes a step"
    spec, rows = plot.group(plot.spec, [])
    assert spec.title == "COPIED A STEP"
    assert [(row.curve.name, row.text) for row in rows] == [("H2D", "256 KiB"), ("D2H", "4 B")]


def test_the_axis_is_logarithmic_and_a_column_of_four_bytes_is_seen(window: MainWindow, session: FakeSession) -> None:
    plot = answered(window, session)
    ticks = [label.text for label in plot.canvas.frame.labels]
    assert {"1 B", "1 MiB"} <= set(ticks)
    heights = {colour: rect.height() for rect, colour, _ in plot.canvas.copies.columns[:2]}
    assert 1 < heights["d2h"] < heights["h2d"] <= plot.canvas.area.height()


def test_a_hidden_way_is_not_drawn(window: MainWindow, session: FakeSession) -> None:
    plot = answered(window, session)
    plot.legend.toggle("H2D")
    settle(window)
    assert {colour for _, colour, _ in plot.canvas.copies.columns} == {"d2h"}


def test_while_a_newer_answer_comes_they_stay_and_with_the_run_they_go(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    plot = answered(window, session)
    before = plot.canvas.grab().toImage()
    ask_again(window)
    settle(window)
    assert plot.canvas.copies.columns and plot.canvas.grab().toImage() != before
    session.start("cuda:0")
    settle(window)
    assert transfers(window) is None


def test_a_run_that_copies_nothing_has_no_such_plot(window: MainWindow, session: FakeSession) -> None:
    session.estimates.report(FITTING, ghost=ghost(3 * GIB))
    settle(window)
    assert transfers(window) is None
