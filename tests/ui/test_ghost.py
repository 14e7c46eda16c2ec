"""A predicted run in the memory plot before the start: drawn, in words, faded while a newer answer comes, and gone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import (
    QApplication,
    QLineEdit,
    QProxyStyle,
    QStyle,
    QStyleHintReturn,
    QStyleOption,
    QWidget,
)

from gpudash.drawing.ghost import Ghost
from gpudash.memory.allocator.trace import ConvolutionScratch
from gpudash.memory.predicting.estimate import RankEstimate
from gpudash.session import Answer
from gpudash.session.predicting.estimator import Problem
from gpudash.session.predicting.measured import MeasuredRun
from gpudash.telemetry.records import RunEnd, RunStarted, Sample, StepFinished
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.card_chips import CardChip
from gpudash.ui.forms.fit_follower import RUNS_AGAIN
from gpudash.ui.plots.legend import LegendEntry
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.widgets.theme import apply_colours
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, MIB
from tests.ui.asked_form import ask_again, asked_window
from tests.ui.conftest import IN_BOTH_THEMES, OpenWindow, settle
from tests.ui.estimates import FITS, SHORT
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.plots.test_vectors import CORNER
from tests.unit.clock import Clock
from tests.unit.speed.made_up_times import made_up_time

STAGES = ("forward", "backward", "optimizer")
MARKS = (
    (0, 0, ""),
    *((100 + 900 * (step - 1) + 300 * place, step, name) for step in (1, 2) for place, name in enumerate(STAGES)),
)


def ghost(peak: int, capacity: int = 8 * GIB) -> Ghost:
    """A gibibyte of weights, and activations that rise to ``peak`` in both steps."""
    rising = np.interp((np.arange(1900) - 100) % 900, [0, 300, 899], [0, peak - GIB, 0])
    ribbons = {"weights": np.full(1900, float(GIB)), "activations": rising}
    return Ghost.of(ribbons, MARKS, capacity=capacity, limit=capacity)


FITTING = replace(FITS, device="cuda:0", peak_reserved_bytes=2 * GIB, overhead_bytes=GIB, free_bytes=8 * GIB)


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([gpu(0)]).feed(1)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession, clock: Clock, palette: Palette) -> MainWindow:
    """A window whose form was asked about once."""
    return asked_window(open_window, session, clock, theme=palette.name)


def answered(window: MainWindow, session: FakeSession, peak: int = 3 * GIB) -> TimePlot:
    """The memory plot with what is predicted."""
    session.estimates.report(SHORT if peak > 8 * GIB else FITTING, ghost=ghost(peak))
    settle(window)
    return memory(window)


def memory(window: MainWindow) -> TimePlot:
    plot = window.workspace.dashboard.plots.plot("memory")
    assert plot is not None
    return plot


def words(plot: TimePlot) -> list[str]:
    return [label.text for label in plot.canvas.ghost.labels]


def curves(plot: TimePlot) -> list[str]:
    return [curve.name for curve in plot.spec.curves]


def picture(plot: TimePlot) -> QImage:
    return plot.canvas.grab().toImage()


def test_readings_are_shown_until_something_is_predicted(window: MainWindow) -> None:
    assert memory(window).ghost is None and words(memory(window)) == []
    assert "weights" not in curves(memory(window))


def test_the_highest_point_that_is_drawn_is_the_predicted_one_to_the_byte(
    window: MainWindow, session: FakeSession
) -> None:
    plot = answered(window, session, 3 * GIB + 1)
    panels = plot.canvas.ghost.drawn
    assert [panel.step for panel, _, _ in panels] == [2, 0]
    assert [int(columns.edges[-1].max()) for _, _, columns in panels] == [3 * GIB + 1, 3 * GIB + 1]


def test_where_names_are_many_the_legend_has_those_of_what_is_largest(window: MainWindow, session: FakeSession) -> None:
    thin = ("context", "weights", "optimizer state", "gradients", "inputs", "workspace")
    ribbons = {**{name: np.full(1900, 8.0 * MIB) for name in thin}, "activations": np.full(1900, float(GIB))}
    ribbons["temporary"] = np.full(1900, float(GIB))
    session.estimates.report(FITTING, ghost=Ghost.of(ribbons, MARKS, capacity=8 * GIB, limit=8 * GIB))
    window.resize(1000, 700)
    settle(window)
    entries = memory(window).legend.findChildren(LegendEntry)
    named = [entry.spec.name for entry in entries if entry.isVisible()]
    assert {"activations", "temporary"} <= set(named) and len(named) < len(ribbons), named


def test_where_an_earlier_step_held_more_that_step_is_shown_and_its_parts_come_to_the_peak(
    window: MainWindow, session: FakeSession
) -> None:
    calm = ghost(3 * GIB)
    released = np.where(np.arange(1900) < 1000, float(GIB), 0.0)  # a cache that the second step had to give back
    ribbons = {**dict(zip(calm.names, np.diff(calm.edges, axis=0, prepend=0.0), strict=True)), "idle": released}
    held = Ghost.of(ribbons, MARKS, kept="idle", capacity=8 * GIB, limit=8 * GIB)
    session.estimates.report(FITTING, ghost=held)
    settle(window)
    assert [panel.step for panel, _, _ in memory(window).canvas.ghost.drawn] == [1, 0]
    assert sum(held.parts.values()) == held.highest == 4 * GIB


def test_stages_peak_and_capacity_are_said_beside_it(window: MainWindow, session: FakeSession) -> None:
    found = words(answered(window, session))
    assert {"forward", "backward", "optimizer", "steps 1 to 2 of 300", "peak 3.00 GiB · 5.00 GiB spare"} <= set(found)
    assert "↑ capacity 8.00 GiB" in found, "an axis up to it would leave the ribbons little height"


def test_where_its_time_is_predicted_a_step_is_drawn_in_that_and_says_so(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    plain = words(answered(window, session))
    assert any("stages by requests, not by time" in text for text in plain)
    seconds = {"forward": 0.1, "backward": 0.19, "optimizer": 0.02}
    ask_again(window)
    timed = replace(ghost(3 * GIB), stage_seconds=seconds)
    session.estimates.report(FITTING, ghost=timed, times={"cuda:0": made_up_time()})
    settle(window)
    said = words(memory(window))
    assert "one step, the same from step 2 on, in predicted time: 0.31 s (0.26 to 0.38)" in said
    assert {"forward, 100 ms", "backward, 190 ms"} <= set(said)
    step, place, _ = memory(window).canvas.ghost.drawn[0]
    assert [stage.end for stage in step.stages] == pytest.approx([10 / 31, 29 / 31, 1.0])
    assert place.width() > 0
    view = memory(window).ghost
    assert view is not None and "a step is predicted to take 0.31 s (0.26 to 0.38)" in view.description


def test_a_run_that_does_not_fit_says_by_how_much_on_an_axis_beyond_the_capacity(
    window: MainWindow, session: FakeSession
) -> None:
    plot = answered(window, session, 11 * GIB)
    assert {"does not fit: 3.10 GiB too much", "capacity 8.00 GiB"} <= set(words(plot))
    assert plot.y_range[1] > 11 * GIB


@IN_BOTH_THEMES
def test_above_the_capacity_and_only_there_the_picture_is_red(
    window: MainWindow, session: FakeSession, palette: Palette
) -> None:
    plot = answered(window, session, 11 * GIB)
    geometry, critical = plot.geometry_now, QColor(palette.critical)
    assert geometry is not None
    image = picture(plot)

    def reds(top: float, bottom: float) -> int:
        left, right = round(geometry.area.left()) + 4, round(geometry.area.left() + 0.7 * geometry.area.width())
        seen = (image.pixelColor(x, y) for y in range(round(top), round(bottom)) for x in range(left, right, 3))
        return sum(abs(c.red() - critical.red()) + abs(c.green() - critical.green()) < 40 for c in seen)

    assert reds(geometry.y_of(10.5 * GIB), geometry.y_of(8.3 * GIB)) > 20
    assert reds(geometry.y_of(7.4 * GIB), geometry.area.bottom()) == 0


def test_the_read_out_says_what_each_part_has_at_the_peak_from_the_highest_down(
    window: MainWindow, session: FakeSession
) -> None:
    answered(window, session)
    rows = window.workspace.dashboard.plots.readout.rows()
    assert rows[:4] == [("activations", "2.00"), ("weights", "1.00"), ("all", "3.00"), ("spare", "5.00")]


def test_a_part_that_is_hidden_leaves_no_hole(window: MainWindow, session: FakeSession) -> None:
    plot = answered(window, session)
    before = picture(plot)
    plot.legend.set_hidden(["weights"])
    settle(window)
    assert picture(plot) != before


def test_while_a_newer_answer_is_on_its_way_the_earlier_one_stays_at_half_strength(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    plot = answered(window, session)
    control = window.workspace.dashboard.panel.form.control("batch")
    assert isinstance(control, QLineEdit)
    shapes = [columns.edges.tobytes() for _, _, columns in plot.canvas.ghost.drawn]
    control.setText("17")
    for _ in range(3):
        settle(window, 1)
        assert [columns.edges.tobytes() for _, _, columns in plot.canvas.ghost.drawn] == shapes
        assert plot.ghost is not None and plot.ghost.faded
        assert "asking for batch 17" in words(plot)
    answered(window, session, 4 * GIB)
    assert plot.ghost is not None and not plot.ghost.faded
    assert int(plot.canvas.ghost.drawn[0][2].edges[-1].max()) == 4 * GIB


def test_a_changed_form_is_asked_about_and_its_first_answer_drawn_without_waiting_for_a_frame(
    window: MainWindow, session: FakeSession
) -> None:
    plot = answered(window, session, 3 * GIB)
    session.settings = session.settings.model_copy(update={"frames_hz": 1e9})  # none is too soon after another
    window.timer.stop()
    asked = len(session.estimates.questions)
    window.workspace.dashboard.panel.changed.emit()
    QApplication.processEvents()
    assert len(session.estimates.questions) == asked + 1
    session.estimates.report(FITTING, ghost=ghost(4 * GIB), final=False)
    QApplication.processEvents()
    assert plot.ghost is not None and plot.ghost.ghost is not None
    assert not plot.ghost.faded and plot.ghost.ghost.highest == 4 * GIB
    session.estimates.report(FITTING, ghost=ghost(5 * GIB))
    QApplication.processEvents()
    assert plot.ghost.ghost.highest == 4 * GIB, "what follows the first answer waits for the frame"
    window.workspace.refresh()
    assert plot.ghost is not None and plot.ghost.ghost is not None and plot.ghost.ghost.highest == 5 * GIB


def test_a_wrong_value_is_named_over_the_earlier_answer(window: MainWindow, session: FakeSession) -> None:
    plot = answered(window, session)
    control = window.workspace.dashboard.panel.form.control("batch")
    assert isinstance(control, QLineEdit)
    control.setText("0")
    settle(window)
    assert "Correct Batch first" in words(plot)
    assert plot.ghost is not None and plot.ghost.faded


def test_why_nothing_could_be_predicted_is_gone_once_other_values_are_asked_about(
    window: MainWindow, session: FakeSession
) -> None:
    session.estimates.fail("It decides by numbers.", "Run one step.")
    settle(window)
    control = window.workspace.dashboard.panel.form.control("batch")
    assert isinstance(control, QLineEdit)
    control.setText("17")
    settle(window)
    assert words(memory(window)) == ["predicting…"]


def test_what_cannot_be_predicted_says_why_in_its_place(window: MainWindow, session: FakeSession) -> None:
    session.estimates.fail("It decides by numbers.", "Run one step.")
    settle(window)
    assert words(memory(window)) == ["It decides by numbers.", "Run one step."]
    assert memory(window).canvas.frame.labels == [], "there is nothing to read on an axis"
    assert curves(memory(window)) == []


def test_where_nothing_can_be_predicted_at_all_readings_stay(window: MainWindow, session: FakeSession) -> None:
    session.estimates.answer = Answer(1, None, Problem("unavailable", "PyTorch is not there."), True)
    settle(window)
    assert memory(window).ghost is None
    assert curves(memory(window))


def test_a_pause_shows_readings_and_following_again_the_ghost(window: MainWindow, session: FakeSession) -> None:
    plot = answered(window, session)
    window.workspace.dashboard.plots.pause()
    settle(window)
    assert plot.ghost is None and "weights" not in curves(plot)
    window.workspace.dashboard.plots.pause()
    settle(window)
    assert plot.ghost is not None and "weights" in curves(plot)


def test_a_run_shows_readings_until_the_form_is_changed_behind_it(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    plot = answered(window, session)
    session.start("cuda:0")
    session.train(1, device="cuda:0")
    settle(window)
    assert plot.ghost is None
    session.end()
    settle(window)
    settle(window)
    answered(window, session)
    assert plot.ghost is None, "a finished run stays in view"
    ask_again(window)
    answered(window, session)
    assert plot.ghost is not None


def test_a_run_that_is_over_before_anybody_looked_shows_readings_too(window: MainWindow, session: FakeSession) -> None:
    plot = answered(window, session)
    session.start("cuda:0")
    session.end()
    settle(window)
    answered(window, session)
    assert plot.ghost is None


def test_words_about_it_never_lie_on_one_another(window: MainWindow, session: FakeSession) -> None:
    for peak in (3 * GIB, 7 * GIB, 8 * GIB - 10 * MIB, 11 * GIB):
        labels = answered(window, session, peak).canvas.ghost.labels
        for place, one in enumerate(labels):
            for other in labels[place + 1 :]:
                assert not one.rect.intersects(other.rect), (one.text, other.text)


def test_it_is_said_to_a_screen_reader(window: MainWindow, session: FakeSession) -> None:
    plot = answered(window, session)
    session.apply(Sample(session.now_s + 2, "gpu", "GPU-00000000", {"used_bytes": GIB}))
    window.workspace.dashboard.plots.refresh(force=True)
    assert "peak 3.00 GiB · 5.00 GiB spare" in plot.accessibleDescription()


def test_during_a_run_and_behind_it_the_plot_says_what_was_predicted_and_what_was_reached(
    window: MainWindow, session: FakeSession
) -> None:
    plot = answered(window, session)
    spec = window.workspace.dashboard.panel.spec()
    assert spec is not None
    session.start_run(spec, "cuda:0")
    settle(window)
    assert [line.name for line in plot.spec.lines][:2] == ["capacity", "predicted 3.00 GiB"]
    session.apply(Sample(session.now_s, "allocator", "cuda:0", {"allocated_bytes": GIB, "reserved_bytes": 2 * GIB}))
    session.train(1, device="cuda:0")
    settle(window)
    assert (plot.spec.lines[1].name, plot.spec.lines[1].value) == (
        "predicted 3.00 GiB, reached 3.00 GiB with context",
        3 * GIB,
    )
    session.end()
    settle(window)
    assert plot.spec.lines[1].name == "predicted 3.00 GiB, reached 3.00 GiB with context"


def test_readings_draw_themselves_into_the_ghost_whose_steps_have_the_ends_of_the_real_ones(
    window: MainWindow, session: FakeSession
) -> None:
    plot = answered(window, session)
    spec = window.workspace.dashboard.panel.spec()
    assert spec is not None
    session.start_run(spec, "cuda:0")
    settle(window)
    for step in range(1, 4):
        session.feed(3 if step == 1 else 2)
        session.apply(StepFinished(time_s=session.now_s, run_id=1, step=step, steps=4, seconds=2.0, loss=4.0 - step))
        settle(window)
    running, geometry = plot.canvas.running_ghost, plot.geometry_now
    assert geometry is not None and running._running_ghost is not None
    pieces = running._running_ghost.pieces(geometry.time_at(geometry.area.right()))
    assert [panel.step for panel, _, _ in pieces] == [0, 1, 2, 2, 2], "as the last followed, and one is to come"
    assert [round(end, 6) for _, _, end in pieces[1:]] == [4.0, 6.0, 8.0, 10.0]
    corners, edges = running.stretches()
    assert len(corners) == edges.shape[1] + 1 and int(edges[-1].max()) == 3 * GIB
    assert geometry.x_of(session.now_s) < corners[-1] <= geometry.x_of(10.0) + 1
    session.end()
    settle(window)
    assert plot.canvas.running_ghost._running_ghost is not None and plot.canvas.running_ghost._running_ghost.over
    assert window.workspace.dashboard.view.lead_s == 0


def parted(window: MainWindow, session: FakeSession, reserved: list[int]) -> TimePlot:
    """The plot of a run of steps of two seconds that were read to have reserved so much, 2 GiB being predicted."""
    plot = answered(window, session)
    spec = window.workspace.dashboard.panel.spec()
    assert spec is not None
    session.start_run(spec, "cuda:0")
    settle(window)
    for step, size in enumerate(reserved, 1):
        for _ in range(20):
            session.feed(0.1)
            figures = {"peak_allocated_bytes": size, "peak_reserved_bytes": size, "reserved_bytes": size}
            session.apply(Sample(session.now_s, "allocator", "cuda:0", figures))
        session.apply(StepFinished(time_s=session.now_s, run_id=1, step=step, steps=9, seconds=2.0, loss=4.0 - step))
        settle(window, 2)
    session.feed(0.1)
    session.apply(Sample(session.now_s, "allocator", "cuda:0", {"peak_reserved_bytes": reserved[-1]}))
    settle(window)
    return plot


@IN_BOTH_THEMES
def test_a_step_that_leaves_the_ghost_has_a_mark_with_the_difference_and_the_pointer_is_told_more(
    window: MainWindow, session: FakeSession, palette: Palette
) -> None:
    plot = parted(window, session, [3 * GIB, 3 * GIB, 3 * GIB + 80 * MIB])
    layer = plot.canvas.deviations
    assert [deviation.label for deviation, _ in layer.marks] == ["+80 MiB"]
    assert [label.text for label in layer.labels] == ["80 MiB more than predicted"]
    _, at = layer.marks[0]
    assert layer.text_at(at).startswith("at step 3 the run held 80 MiB more than predicted: its tensors")
    assert layer.text_at(at + QPointF(40, 0)) == ""
    assert picture(plot).pixelColor(round(at.x()), round(at.y())).name() == QColor(palette.warn).name()


def test_a_run_as_it_was_predicted_has_no_mark(window: MainWindow, session: FakeSession) -> None:
    assert parted(window, session, [3 * GIB, 3 * GIB]).canvas.deviations.marks == []


def test_a_view_that_is_shorter_than_a_step_shows_what_is_to_come(window: MainWindow, session: FakeSession) -> None:
    plot = parted(window, session, [3 * GIB, 3 * GIB])
    window.workspace.dashboard.view.set_window(1.0)
    session.feed(1.5)
    settle(window)
    running = plot.canvas.running_ghost._running_ghost
    assert running is not None and (running.step, running.ended[-1]) == (2, pytest.approx(5.0, abs=0.2))


NEARLY = replace(
    FITTING, fits=None, peak_reserved_bytes=round(6.7 * GIB), spare_bytes=round(0.3 * GIB), margin_bytes=GIB
)


@IN_BOTH_THEMES
def test_within_the_margin_the_error_is_a_band_about_the_total_and_nothing_is_hatched(
    window: MainWindow, session: FakeSession, palette: Palette
) -> None:
    session.estimates.report(NEARLY, ghost=ghost(round(8.2 * GIB)))
    settle(window)
    plot = memory(window)
    geometry = plot.geometry_now
    assert "≈ peak 7.70 GiB ± 1.00 GiB, probably fits" in words(plot)
    assert window.workspace.dashboard.panel.fit.headline.startswith("≈ ")
    assert geometry is not None and geometry.y_high > 9.2 * GIB
    _, place, columns = plot.canvas.ghost.drawn[0]
    column = columns.edges.shape[1] // 5
    x = round(place.left() + column * place.width() / columns.edges.shape[1])
    total = float(columns.edges[-1, column])
    image, warn = picture(plot), QColor(palette.warn)
    seen = image.pixelColor(x, round(geometry.y_of(total + 0.6 * GIB)))
    assert seen.alphaF() == pytest.approx(0.22, abs=0.02)
    assert abs(seen.hue() - warn.hue()) <= 6
    assert image.pixelColor(x, round(geometry.y_of(total + 1.3 * GIB))).alpha() == 0


OF_CONVOLUTIONS = replace(
    FITTING, workload="training", convolutions=ConvolutionScratch(unknown_bytes=GIB), spare_bytes=4 * GIB
)


def test_what_convolutions_may_take_is_hatched_upon_the_total_and_said(
    window: MainWindow, session: FakeSession
) -> None:
    session.estimates.report(OF_CONVOLUTIONS, ghost=replace(ghost(4 * GIB), unknown=float(GIB)))
    settle(window)
    plot = memory(window)
    geometry = plot.geometry_now
    assert geometry is not None and geometry.y_high > 5 * GIB
    assert "hatched: up to 1.00 GiB more for convolutions" in words(plot)
    _, place, columns = plot.canvas.ghost.drawn[0]
    column = columns.edges.shape[1] // 5
    x = round(place.left() + column * place.width() / columns.edges.shape[1])
    total = float(columns.edges[-1, column])
    image = picture(plot)
    below, above = (round(geometry.y_of(total + share * GIB)) for share in (0.3, 0.9))
    drawn = [image.pixelColor(x + right, y).alpha() > 0 for right in range(7) for y in range(above, below)]
    assert 0.1 < sum(drawn) / len(drawn) < 0.8, "lines with gaps between"
    assert image.pixelColor(x, round(geometry.y_of(total + 1.2 * GIB))).alpha() == 0
    assert window.workspace.dashboard.panel.fit.bar.unknown() is not None


def test_a_new_answer_is_gone_to_within_120_milliseconds_the_line_of_all_first(
    window: MainWindow, session: FakeSession
) -> None:
    plot = answered(window, session, 6 * GIB)
    plot.canvas.ghost.motion.settle()
    session.estimates.report(FITTING, ghost=ghost(4 * GIB))
    window.workspace.refresh()
    motion = plot.canvas.ghost.motion
    assert motion.moving and motion.duration() == 120
    motion.setCurrentTime(20)
    on_the_way = picture(plot)
    motion.setCurrentTime(120)
    settle(window)
    there = picture(plot)
    assert not motion.moving and on_the_way != there
    assert picture(plot) == there


class Still(QProxyStyle):
    """A style of a system on which nothing is to move."""

    def styleHint(
        self,
        hint: QStyle.StyleHint,
        option: QStyleOption | None = None,
        widget: QWidget | None = None,
        returned: QStyleHintReturn | None = None,
    ) -> int:
        if hint is QStyle.StyleHint.SH_Widget_Animation_Duration:
            return 0
        return super().styleHint(hint, option, widget, returned)


def test_where_less_motion_is_asked_for_it_is_there_at_once(
    window: MainWindow, session: FakeSession, qapp: QApplication, palette: Palette
) -> None:
    plot = answered(window, session, 6 * GIB)
    plot.canvas.ghost.motion.settle()
    try:
        qapp.setStyle(Still("Fusion"))
        session.estimates.report(FITTING, ghost=ghost(4 * GIB))
        window.workspace.refresh()
        assert not plot.canvas.ghost.motion.moving and plot.canvas.ghost._share == 1
    finally:
        qapp.setStyle("Fusion")
        apply_colours(qapp, palette.name)


def test_on_the_cpu_the_ghost_of_a_run_stands_upon_what_its_process_held_before(
    open_window: OpenWindow, clock: Clock
) -> None:
    session = FakeSession().feed(3)
    window = asked_window(open_window, session, clock)
    plot = memory(window)
    session.estimates.report(replace(FITS, device="cpu"), ghost=ghost(3 * GIB))
    settle(window)
    with session.store.lock:
        held = session.store.latest("host", "process_bytes", None).value
    spec = window.workspace.dashboard.panel.spec()
    assert spec is not None and isinstance(held, (int, float))
    session.start_run(spec, "cpu")
    settle(window)
    for step in (1, 2):
        session.feed(2)
        session.apply(StepFinished(time_s=session.now_s, run_id=1, step=step, steps=4, seconds=2.0, loss=4.0 - step))
        settle(window)
    running = plot.canvas.running_ghost._running_ghost
    assert running is not None
    assert running.ghost.names[0] == "in use already" and running.ghost.parts["in use already"] == held
    assert running.ghost.highest == held + 3 * GIB
    assert plot.canvas.deviations.marks == []
    assert not any("predicted" in line.name for line in plot.spec.lines)


def measured(peak: int, devices: int = 1) -> MeasuredRun:
    curve = np.array([1.0, 2.0, 3.0, 2.0]) / 3 * peak
    drawn = Ghost.of({"allocated": curve}, [(0, 1, ""), (2, 2, "")])
    return MeasuredRun(datetime(2025, 3, 3, 12, 30, tzinfo=UTC).timestamp(), "cuda:0", devices, drawn, peak, 2)


def test_a_script_that_ran_before_shows_what_it_took_against_what_there_is_room_for_now(
    window: MainWindow, session: FakeSession, clock: Clock, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    panel = window.workspace.dashboard.panel
    panel.take_script(script)
    ask_again(window)
    assert session.measured.requests[-1].command[-1] == str(script)
    plot = memory(window)
    assert plot.ghost is None, "nothing is found as yet"
    session.measured.found = measured(6 * GIB)
    settle(window)
    assert plot.ghost is not None and plot.spec.title == "MEMORY, as of the run of 3 Mar 2025 on cuda:0"
    assert (plot.ghost.headline, plot.ghost.verdict) == ("peak 6.00 GiB", "fits")
    assert curves(plot) == ["allocated"]
    chips = {chip.content.name: chip.content.text for chip in window.workspace.dashboard.chooser._chips.values()}
    assert (chips["RTX 4090"].standing, chips["RTX 4090"].verdict) == ("fits", "17.5 GiB spare")
    assert chips["RTX 4090"].detail == "by its last run"
    session.measured.found = measured(9 * GIB, devices=2)
    settle(window)
    assert plot.ghost.verdict == "short"
    assert plot.spec.title.endswith("on cuda:0, the fullest of 2")
    panel.script.set_script(replace(panel.script.script(), simulate="16 GiB"))
    ask_again(window)
    assert plot.ghost is not None
    assert (plot.ghost.verdict, plot.ghost.limit_text) == ("fits", "limit 16.0 GiB")
    shown = {chip.content.key: chip.content.text for chip in window.workspace.dashboard.chooser.shown}
    assert (shown["16GiB"].standing, shown["16GiB"].verdict) == ("fits", "7.0 GiB spare"), "it is not an offered card"
    session.start("cuda:0")
    settle(window)
    assert plot.ghost is None


def test_a_script_that_was_stopped_before_its_peak_is_nowhere_shown_as_fitting(
    window: MainWindow, session: FakeSession, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    window.workspace.dashboard.panel.take_script(script)
    session.measured.found = replace(measured(GIB), cut_short="stopped after 0 steps")
    ask_again(window)
    settle(window)
    plot = memory(window)
    assert plot.ghost is not None
    assert (plot.ghost.headline, plot.ghost.verdict) == ("stopped after 0 steps: at least 1.00 GiB", "uncertain")
    for chip in window.workspace.dashboard.chooser._chips.values():
        assert chip.content.text.standing == "refused"
        assert "stopped after 0 steps and may need more" in chip.content.text.detail


def test_while_a_script_runs_again_no_card_keeps_the_verdict_of_the_run_before(
    window: MainWindow, session: FakeSession, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    panel = window.workspace.dashboard.panel
    panel.take_script(script)
    session.measured.found = measured(GIB)
    ask_again(window)
    settle(window)

    def verdicts() -> set[str]:
        settle(window)
        return {chip.content.text.headline for chip in window.workspace.dashboard.chooser.findChildren(CardChip)}

    assert all("spare" in verdict for verdict in verdicts())
    request = panel.script.request()
    session.running = True
    session.apply(RunStarted(time_s=session.now_s, run_id=1, workload="watch", device="sim:0", spec=request.spec()))
    assert verdicts() == {f"– {RUNS_AGAIN}"}
    session.measured.found = measured(GIB)
    assert verdicts() == {f"– {RUNS_AGAIN}"}, "a search that began before the start finds the run before"
    session.running = False
    session.apply(RunEnd(time_s=session.now_s + 1, run_id=1, status="out_of_memory", seconds=1.0, steps=3))
    session.measured.found = replace(measured(8 * GIB), ran_out=True)
    ask_again(window)
    assert any("short" in verdict for verdict in verdicts())
    assert not any("spare" in verdict for verdict in verdicts())


def test_of_a_run_with_ranks_the_title_says_which_is_drawn(window: MainWindow, session: FakeSession) -> None:
    ranks = tuple(RankEstimate(f"cuda:{rank}", 8 * GIB, 8 * GIB, GIB, 2 * GIB, 3 * GIB, rank=rank) for rank in range(2))
    session.estimates.report(replace(FITTING, ranks=ranks, deciding_rank=1), ghost=ghost(3 * GIB))
    settle(window)
    assert memory(window).spec.title == "MEMORY cuda:1, predicted: rank 1, the fullest of 2"


def test_in_a_vector_picture_it_is_as_pale_as_in_pixels(window: MainWindow, session: FakeSession) -> None:
    answered(window, session)
    stack = window.workspace.dashboard.plots
    pixels = stack.picture(ratio=1.0)
    vector = QImage(pixels.size(), QImage.Format.Format_RGB32)
    painter = QPainter(vector)
    svg = stack.vector_picture()
    assert b"<image" not in svg and b"peak 3.00 GiB" in svg
    QSvgRenderer(svg).render(painter, QRectF(vector.rect()))
    painter.end()
    canvas = memory(window).canvas
    _, place, _ = canvas.ghost.drawn[0]
    at = place.bottomLeft() + QPointF(canvas.pos()) + QPointF(CORNER) + QPointF(5, -5)
    one, other = (QColor(image.pixel(at.toPoint())) for image in (pixels, vector))
    assert max(abs(one.red() - other.red()), abs(one.blue() - other.blue())) < 8, (one.name(), other.name())
