import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpudash.telemetry.plots import Unit
from gpudash.ui.plots.axes import CALM_S, Autoscale, time_ticks, value_ticks
from gpudash.ui.plots.curve import format_value
from gpudash.units import GIB, MIB

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


def test_time_counts_back_from_now_or_forward_in_the_session() -> None:
    live = time_ticks(-60.0, 0.0, 700, relative=True)
    assert [text for _, text in live.marks] == ["-60", "-50", "-40", "-30", "-20", "-10", "0"]
    assert live.name == "seconds before now"
    paused = time_ticks(60.0, 180.0, 400, relative=False)
    assert [text for _, text in paused.marks] == ["1:00", "1:30", "2:00", "2:30", "3:00"]
    assert time_ticks(-7200.0, 0.0, 400, relative=True).name == "minutes before now"


def test_a_short_window_shows_parts_of_seconds() -> None:
    assert [text for _, text in time_ticks(61.0, 61.4, 400, relative=False).marks][:2] == ["1:01.0", "1:01.1"]


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
