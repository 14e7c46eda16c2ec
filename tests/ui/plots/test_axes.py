"""The axes of plots: ranges and ticks, levels as drawn, and labels that never clash."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, QRectF

from gpudash.drawing.axes import (
    CALM_S,
    Autoscale,
    Unit,
    clock_ticks,
    format_value,
    time_ticks,
    value_ticks,
)
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.records import EpochFinished, Marker, Sample, StepFinished
from gpudash.telemetry.store import Store
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.units import GIB, MIB
from tests.ui.plots.conftest import GPU, MEMORY, Feed, refresh

units = st.sampled_from(["bytes", "rate", "ratio", "number", "nats"])


@pytest.mark.parametrize(
    ("unit", "high", "count", "labels", "name"),
    [
        ("bytes", 26.9 * GIB, 3, ["0", "8", "16", "24"], "GiB"),
        ("bytes", 700 * MIB, 3, ["0", "256", "512"], "MiB"),
        ("rate", 31e9, 3, ["0", "10", "20", "30"], "GB/s"),
        ("rate", 900e6, 3, ["0", "200", "400", "600", "800"], "MB/s"),
        ("ratio", 1.04, 3, ["0", "50", "100"], "%"),
        ("nats", 3.2, 3, ["0", "1", "2", "3"], "nats"),
    ],
)
def test_ticks_stand_at_round_numbers_of_the_right_unit(
    unit: Unit, high: float, count: int, labels: list[str], name: str
) -> None:
    ticks = value_ticks(unit, 0.0, high, count)
    assert ([text for _, text in ticks.marks], ticks.name) == (labels, name)


@settings(max_examples=150, deadline=None)
@given(units, st.floats(-1e3, 1e15), st.floats(1e-6, 1e16), st.integers(2, 8))
def test_ticks_lie_in_range_ascend_differ_in_words_and_are_about_as_many_as_asked(
    unit: Unit, low: float, span: float, count: int
) -> None:
    low = low if unit == "nats" else 0.0
    assume(span > abs(low) * 1e-6)
    marks = value_ticks(unit, low, low + span, count, unit_name="items/s").marks
    positions = [position for position, _ in marks]
    assert positions == sorted(positions)
    assert all(low - span * 1e-6 <= p <= low + span * (1 + 1e-6) for p in positions)
    assert len(marks) <= 2 * count + 2
    if unit != "ratio":
        assert len({text for _, text in marks}) == len(marks)


@pytest.mark.parametrize("bad", [(math.nan, 1.0), (0.0, math.inf), (1.0, 1.0), (2.0, 1.0)])
def test_no_range_has_no_ticks(bad: tuple[float, float]) -> None:
    assert value_ticks("nats", *bad, 4).marks == ()


def test_a_logarithmic_axis_has_ticks_at_powers_and_their_parts() -> None:
    assert [text for _, text in value_ticks("nats", -1.0, 1.0, 7, log=True).marks] == [
        "0.1", "0.2", "0.5", "1", "2", "5", "10",
    ]  # fmt: skip
    assert next(text for _, text in value_ticks("nats", -8.0, 2.0, 3, log=True).marks) == "10⁻⁸"


@pytest.mark.parametrize("height", [400, 900])
def test_thousands_stay_thousands_on_a_plot_too_low_for_the_name_of_its_axis(
    stack: PlotStack, store: Store, height: int
) -> None:
    curve = CurveSpec(("run", "throughput", None), "items a second", "number", "throughput", unit_name="items/s")
    for step in range(100):
        store.apply(StepFinished(time_s=step * 0.1, step=step, steps=100, seconds=0.1, throughput=19e3))
    spec = PlotSpec("throughput", "THROUGHPUT", (curve,), "number", unit_name="items/s")
    stack.set_plots([replace(spec, id=f"throughput {number}") for number in range(5)])
    stack.resize(700, height)
    for _ in range(3):
        refresh(stack)
    texts = [label.text for label in stack.plots[-1].canvas.frame.labels]
    assert ("k items/s" in texts, "20k" in texts, "20" in texts) == (height == 900, height == 400, height == 900)


def test_time_counts_back_from_now_or_forward_in_the_session() -> None:
    live = time_ticks(-60.0, 0.0, 700, relative_to="now")
    assert [text for _, text in live.marks] == ["-60", "-50", "-40", "-30", "-20", "-10", "0"]
    assert live.name == "seconds before now"
    paused = time_ticks(60.0, 180.0, 400)
    assert [text for _, text in paused.marks] == ["1:00", "1:30", "2:00", "2:30", "3:00"]
    assert time_ticks(-7200.0, 0.0, 400, relative_to="now").name == "minutes before now"


@pytest.fixture
def kathmandu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock that is five hours and three quarters ahead of UTC."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("kathmandu")
def test_clock_times_stand_at_whole_hours_of_the_users_clock_and_a_new_day_at_its_date() -> None:
    noon = datetime(2026, 11, 3, 12, tzinfo=ZoneInfo("Asia/Kathmandu")).timestamp()
    assert [text for _, text in clock_ticks(noon, noon + 3600, 400).marks] == [
        "12:00",
        "12:15",
        "12:30",
        "12:45",
        "13:00",
    ]
    assert clock_ticks(noon, noon + 3600, 400).marks[1][0] == noon + 900
    day = clock_ticks(noon, noon + 86400, 400)
    assert [text for _, text in day.marks] == ["12:00", "18:00", "4 Nov", "06:00", "12:00"]
    assert day.name == "clock time, from 3 Nov on"
    assert [text for _, text in clock_ticks(noon, noon + 4, 400).marks][:2] == ["12:00:00", "12:00:01"]
    assert clock_ticks(noon, noon, 400).marks == ()


def test_a_short_window_shows_parts_of_seconds() -> None:
    assert [text for _, text in time_ticks(61.0, 61.4, 400).marks][:2] == ["1:01.0", "1:01.1"]


def test_memory_rates_and_numbers_begin_at_zero() -> None:
    for unit in ("bytes", "rate", "number"):
        scale = Autoscale(unit)
        scale.update(5.0, 9.0, 0.0)
        assert scale.range()[0] == 0.0 and scale.range()[1] >= 9.0


def test_an_axis_grows_at_once_and_shrinks_only_after_a_calm_while() -> None:
    scale = Autoscale("nats")
    scale.update(0.0, 1.0, 0.0)
    scale.update(0.0, 10.0, 0.1)
    assert scale.range()[1] >= 10.0
    scale.update(0.0, 1.0, 0.2)
    scale.update(0.0, 1.0, 0.2 + CALM_S * 0.9)
    assert scale.range()[1] >= 10.0
    scale.update(0.0, 1.0, 0.3 + CALM_S)
    assert scale.range()[1] < 2.0


def test_an_axis_beyond_what_the_data_can_be_shrinks_however_little() -> None:
    scale = Autoscale("bytes")
    scale.update(0.0, 768 * MIB, 0.0, 768 * MIB)
    higher = scale.update(0.0, 768 * MIB, 5.0, 640 * MIB)
    assert higher[1] > 768 * MIB, "what is in view is seen"
    assert scale.update(0.0, 600 * MIB, 6.0, 640 * MIB) == higher
    assert 640 * MIB < scale.update(0.0, 600 * MIB, 6.0 + CALM_S, 640 * MIB)[1] < 720 * MIB
    kept = scale.update(0.0, 500 * MIB, 20.0, 640 * MIB)
    assert scale.update(0.0, 500 * MIB, 21.0 + CALM_S, 640 * MIB) == kept


def test_a_spike_within_the_calm_while_starts_it_anew() -> None:
    scale = Autoscale("nats")
    scale.update(0.0, 10.0, 0.0)
    scale.update(0.0, 1.0, 1.0)
    scale.update(0.0, 9.5, 2.0)
    scale.update(0.0, 1.0, 3.0)
    scale.update(0.0, 1.0, 4.5)
    assert scale.range()[1] >= 10.0


def test_on_request_it_shrinks_at_once() -> None:
    scale = Autoscale("nats")
    scale.update(0.0, 10.0, 0.0)
    scale.reset()
    scale.update(0.0, 1.0, 0.1)
    assert scale.range()[1] < 2.0


def test_the_axis_of_an_empty_memory_has_no_ticks_within_a_mebibyte() -> None:
    scale = Autoscale("bytes")
    assert scale.range() == (0.0, 16 * 2.0**20)
    assert scale.update(0.0, 0.0, 1.0) == (0.0, 16 * 2.0**20)


def test_a_zoomed_axis_stays_until_it_is_fitted_again() -> None:
    scale = Autoscale("bytes")
    scale.update(0.0, 10.0, 0.0)
    high = scale.range()[1]
    scale.zoom(0.5, 3.0)
    scale.update(0.0, 100.0, 1.0)
    assert scale.range() == (0.0, high / 2)
    scale.reset()
    assert scale.update(0.0, 10.0, 2.0) == (0.0, high)


@settings(max_examples=100, deadline=None)
@given(units, st.lists(st.tuples(st.floats(-1e12, 1e12), st.floats(0, 1e12)), min_size=1, max_size=20))
def test_whatever_the_data_it_fits(unit: Unit, extremes: list[tuple[float, float]]) -> None:
    scale = Autoscale(unit)
    for step, (low, height) in enumerate(extremes):
        low = low if unit == "nats" else abs(low)
        bottom, top = scale.update(low, low + height, step * 1.0)
        assert bottom < top and bottom <= low and low + height <= top


def test_no_data_keeps_the_axis() -> None:
    scale = Autoscale("nats")
    assert scale.update(math.nan, math.nan, 0.0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("unit", "value", "words"),
    [
        ("bytes", 19.8 * GIB, "19.8 GiB"),
        ("bytes", -2.5 * GIB, "-2.50 GiB"),
        ("rate", 24.6e9, "24.6 GB/s"),
        ("ratio", 0.412, "41 %"),
        ("ratio", 0.004, "< 1 %"),
        ("ratio", 0.999, "99 %"),
        ("ratio", math.inf, "∞"),
        ("nats", 0.4121, "0.412"),
        ("nats", math.inf, "∞"),
        ("number", 6408.2, "6\u202f408 items/s"),
        ("number", -12.5, "-12.5 items/s"),
        ("number", None, "-"),
        ("bytes", math.nan, "-"),
    ],
)
def test_values_are_written_with_their_unit_and_none_is_a_dash(unit: Unit, value: float | None, words: str) -> None:
    assert format_value(unit, value, "items/s" if unit == "number" else "") == words


def test_the_time_axis_is_named_once_under_all_plots(drawn: PlotStack, view: TimeView) -> None:
    assert [label.text for plot in drawn.plots for label in plot.labels() if "now" in label.text] == []
    assert "seconds before now" in [label.text for label in drawn.axis.labels]
    view.pause()
    refresh(drawn)
    assert "session time" in [label.text for label in drawn.axis.labels]


def test_a_tick_of_the_time_axis_is_under_its_moment_in_every_plot(drawn: PlotStack, view: TimeView) -> None:
    view.show(2.0, 12.0)
    refresh(drawn)
    (tick,) = [label for label in drawn.axis.labels if label.text == "0:08"]
    for plot in drawn.plots:
        geometry = plot.geometry_now
        assert geometry is not None
        x = plot.canvas.mapTo(drawn, QPoint(0, 0)).x() + geometry.x_of(8.0)
        assert drawn.axis.x() + tick.rect.center().x() == pytest.approx(x, abs=1.0)


@pytest.mark.parametrize("height", [220, 420, 900])
def test_the_time_axis_stays_in_view_however_low_the_window_and_far_the_plots_are_scrolled(
    drawn: PlotStack, height: int
) -> None:
    drawn.resize(900, height)
    refresh(drawn)
    bar = drawn._scroll.verticalScrollBar()
    for place in (bar.minimum(), bar.maximum()):
        bar.setValue(place)
        refresh(drawn)
        assert drawn.axis.visibleRegion().boundingRect() == drawn.axis.rect()
        assert drawn.axis.labels


def _clashes(stack: PlotStack) -> list[tuple[str, str, str]]:
    found = []
    labelled = [(plot.spec.id, plot.labels(), QRectF(plot.canvas.rect())) for plot in stack.plots]
    for name, labels, canvas in [*labelled, ("time", stack.axis.labels, QRectF(stack.axis.rect()))]:
        found += [(name, label.text, "outside") for label in labels if not canvas.contains(label.rect)]
        found += [
            (name, a.text, b.text)
            for i, a in enumerate(labels)
            for b in labels[i + 1 :]
            if a.rect.adjusted(0.6, 0.6, -0.6, -0.6).intersects(b.rect)
        ]
    return found


@pytest.mark.parametrize("size", [(500, 420), (900, 560), (1600, 1100)])
@pytest.mark.parametrize("paused", [False, True])
def test_no_label_overlaps_another_or_leaves_its_canvas(
    drawn: PlotStack, view: TimeView, store: Store, size: tuple[int, int], paused: bool
) -> None:
    for time_s in (12.0, 12.2, 15.0, 19.9):
        store.apply(Marker(time_s=time_s, label=f"a mark at {time_s}"))
    store.apply(EpochFinished(time_s=15.1, epoch=2, device="cpu", loss=1, accuracy=0, seconds=1, observation=""))
    drawn.resize(*size)
    for window_s in (0.3, 3.0, 10.0, 4000.0):
        view.set_window(window_s)
        if paused:
            view.pause()
        refresh(drawn)
        assert _clashes(drawn) == []


def test_values_beyond_a_zoomed_axis_leave_an_arrow_at_the_edge(drawn: PlotStack) -> None:
    plot = drawn.plots[0]
    plot.zoom_y(0.1, 0)
    refresh(drawn)
    arrows = plot.canvas.overlay._content.arrows
    assert [arrow.above for arrow in arrows] == [True]
    drawn.fit(plot)
    refresh(drawn)
    assert plot.canvas.overlay._content.arrows == []


def test_memory_begins_at_zero_and_shows_the_capacity(drawn: PlotStack) -> None:
    plot = drawn.plots[0]
    low, high = plot.y_range
    assert low == 0.0 and high > 8 * GIB
    assert [level.value for level in plot.canvas.overlay._content.levels] == [8 * GIB]
    assert plot.legend.levels == ["capacity 8.00 GiB"]


def test_the_axis_of_a_memory_that_is_empty_reaches_to_the_capacity_and_then_at_once_to_what_is_used(
    stack: PlotStack, store: Store
) -> None:
    line = replace(MEMORY.lines[0], scales=False)
    stack.set_plots([replace(MEMORY, curves=MEMORY.curves[:1], lines=(line,))])

    def used(time_s: float, size: int) -> float:
        values = {"used_bytes": size, "process_bytes": 0, "total_bytes": 8 * GIB}
        store.apply(Sample(time_s, "gpu", GPU, values))
        refresh(stack)
        return stack.plots[0].y_range[1]

    assert used(0.1, 0) > 8 * GIB
    assert GIB < used(0.2, GIB) < 2 * GIB
    assert stack.plots[0].legend.levels == ["↑ capacity 8.00 GiB"]


@pytest.mark.parametrize("after_a_gap", [True, False])
def test_a_value_before_the_view_counts_only_where_the_line_comes_from_it(
    stack: PlotStack, store: Store, view: TimeView, after_a_gap: bool
) -> None:
    swap = CurveSpec(("host", "swap_used_bytes", None), "swap", "bytes", "cpu")
    stack.set_plots([PlotSpec("swap", "SWAP", (swap,), "bytes")])
    store.apply(Sample(1.0, "host", None, {"swap_used_bytes": 4 * GIB}))
    if after_a_gap:
        store.apply(Sample(12.0, "host", None, {"swap_used_bytes": None}))
    for tenths in range(130, 200):
        store.apply(Sample(tenths / 10, "host", None, {"swap_used_bytes": GIB}))
    view.show(11.0, 20.0)
    refresh(stack)
    high = stack.plots[0].y_range[1]
    assert GIB < high < 2 * GIB if after_a_gap else high > 4 * GIB


def test_the_capacity_stays_while_its_source_is_lost(stack: PlotStack, feed: Feed, store: Store) -> None:
    feed.ticks(10)
    store.apply(Sample(feed.time_s, "gpu", GPU, {"total_bytes": None, "used_bytes": None, "process_bytes": None}))
    refresh(stack)
    assert [level.value for level in stack.plots[0].canvas.overlay._content.levels] == [8 * GIB]


def test_the_logarithmic_axis_is_for_the_loss_alone(drawn: PlotStack) -> None:
    drawn.toggle_log()
    refresh(drawn)
    assert [plot.log for plot in drawn.plots] == [False, False, True]
    low, high = drawn.plots[2].y_range
    assert low < math.log10(4.0 / 21) and math.log10(4.0 / 11) < high < 0.0
    drawn.toggle_log()
    assert not drawn.plots[2].log


def test_accuracy_reads_on_its_own_axis_from_0_to_100(drawn: PlotStack) -> None:
    plot = drawn.plots[2]
    geometry = plot.geometry_now
    assert geometry is not None
    right = [label for label in plot.labels() if label.rect.left() > geometry.area.right() and not label.turned]
    assert [label.text for label in right] == ["0", "50", "100"]
    hundred = right[-1].rect.center().y()
    item = plot.canvas._raw["accuracy"]
    _, y = item.getData()
    assert geometry.y_of(float(y[-1])) == pytest.approx(hundred, abs=2.0)


@given(st.floats(-6.0, 6.0), st.floats(0.02, 9.0), st.integers(2, 12))
def test_a_logarithmic_axis_has_at_least_three_labelled_ticks(low: float, decades: float, count: int) -> None:
    ticks = value_ticks("nats", low, low + decades, count, log=True).marks
    assert len(ticks) >= 3 and len({text for _, text in ticks}) == len(ticks)
    assert all(low - 1e-9 <= position <= low + decades + 1e-9 for position, _ in ticks)


def test_a_loss_of_little_range_has_three_ticks_on_its_logarithmic_axis(stack: PlotStack, store: Store) -> None:
    for number in range(50):
        loss = 2.31 + 0.05 * math.sin(number)
        store.apply(StepFinished(time_s=number * 0.1, step=number, steps=50, seconds=0.1, loss=loss))
    stack.toggle_log()
    refresh(stack)
    left = [label for label in stack.plots[2].labels() if label.rect.right() < stack.plots[2].canvas.area.left()]
    assert len([label for label in left if not label.turned]) >= 3


@pytest.mark.parametrize("size", [(500, 420), (900, 560), (1600, 1100)])
def test_no_label_lies_where_curves_are_drawn(drawn: PlotStack, view: TimeView, size: tuple[int, int]) -> None:
    drawn.resize(*size)
    for zoomed in (1.0, 0.05):
        drawn.plots[0].zoom_y(zoomed, 0)
        refresh(drawn)
        for plot in drawn.plots:
            area = plot.canvas.area.adjusted(1, 1, -1, -1)
            assert [label.text for label in plot.labels() if label.rect.intersects(area)] == []
    assert drawn.plots[0].legend.levels == ["↑ capacity 8.00 GiB"]
