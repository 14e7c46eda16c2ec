"""`Forecaster`: growth is foretold with its range; sawteeth, warm-ups, plateaus, drops and noise are not growth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.watching.forecaster import HISTORY, Bin, Forecaster, Pyramid
from gpudash.memory.watching.growth import HORIZON_S, LEAST_SURE, Forecast, GrowthTrend, is_due, outlook
from gpudash.units import GIB, MIB
from tests.benchmarks.forecast import contestants, ours, raised, score
from tests.benchmarks.forecast_series import DEVELOPMENT_SEED, KINDS, make, series

CAPACITY = 24 * GIB


def watch(
    level: Callable[[float], float],
    seconds: float,
    *,
    rate_hz: float = 10.0,
    step_s: float = 0.0,
    capacity: int = CAPACITY,
    steps: int = 0,
) -> list[tuple[float, Forecast | None]]:
    """What is foretold after every reading of ``level``, until memory is full."""
    forecaster, said, done = Forecaster(), [], 0
    for tick in range(int(seconds * rate_hz)):
        time_s = tick / rate_hz
        used = level(time_s)
        if used >= capacity:
            break
        if step_s and time_s // step_s > done:
            done = int(time_s // step_s)
            forecaster.observe_step(time_s, done, steps)
        forecaster.observe(time_s, used, capacity)
        said.append((time_s, forecaster.forecast()))
    return said


def spoken(said: Sequence[tuple[float, Forecast | None]]) -> list[tuple[float, Forecast]]:
    return [(time_s, ahead) for time_s, ahead in said if ahead is not None]


def saw(time_s: float, period_s: float) -> float:
    """0 to 1 in the first half of a period and back in the second."""
    return 1 - abs(2 * (time_s / period_s % 1) - 1)


@settings(max_examples=8, deadline=None)
@given(st.floats(80, 1500), st.sampled_from([5.0, 10.0, 50.0]), st.integers(0, 2**32 - 1))
def test_a_straight_growth_is_foretold_through_noise(rate: float, rate_hz: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, rate * MIB * 0.02, 3000)
    full_s = 14 * GIB / (rate * MIB)
    shown_s = min(0.8 * full_s, 3000 / rate_hz - 1)
    said = watch(lambda t: 10 * GIB + rate * MIB * t + noise[round(t * rate_hz)], shown_s, rate_hz=rate_hz)
    time_s, ahead = said[-1]
    if shown_s > LEAST_SURE * 2 * full_s:
        assert ahead is not None
        assert ahead.seconds_low <= full_s - time_s <= ahead.seconds_high
        assert ahead.bytes_per_second == pytest.approx(rate * MIB, rel=0.15)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 8), st.floats(0.1, 0.99))
def test_stationary_noise_is_never_foretold(seed: int, mib: float, ratio: float) -> None:
    noise = np.random.default_rng(seed).normal(0, mib * MIB, 300)
    assert spoken(watch(lambda t: ratio * CAPACITY + noise[round(t * 10)], 30)) == []


def test_a_falling_memory_is_not_foretold() -> None:
    assert spoken(watch(lambda t: 20 * GIB - 100 * MIB * t, 30)) == []


@pytest.mark.parametrize("period_s", [0.37, 1.3, 5.0])
@pytest.mark.parametrize("known", [True, False])
def test_a_sawtooth_that_keeps_nothing_is_not_worth_a_notice(period_s: float, known: bool) -> None:
    said = watch(lambda t: 10 * GIB + 10 * GIB * saw(t, period_s), 120, step_s=period_s if known else 0)
    assert not any(is_due(ahead) for time_s, ahead in spoken(said) if time_s > 3 * period_s)


@pytest.mark.parametrize("period_s", [0.37, 1.3, 5.0])
@pytest.mark.parametrize("known", [True, False])
def test_a_leak_under_a_sawtooth_is_foretold(period_s: float, known: bool) -> None:
    rate = 0.06 * GIB
    said = watch(
        lambda t: 8 * GIB + rate * period_s * (t // period_s) + 8 * GIB * saw(t, period_s),
        200,
        step_s=period_s if known else 0,
    )
    full_s = said[-1][0]
    due = [(time_s, ahead) for time_s, ahead in spoken(said) if is_due(ahead)]
    assert due
    assert full_s - due[0][0] > 10
    last = [ahead for time_s, ahead in due if time_s > full_s - 30]
    assert last[-1].bytes_per_second == pytest.approx(rate, rel=0.25)


def test_growth_is_told_per_step_where_steps_are_known() -> None:
    said = spoken(watch(lambda t: 8 * GIB + 50 * MIB * (t // 0.5) + GIB * saw(t, 0.5), 60, step_s=0.5))
    assert said[-1][1].bytes_per_step == pytest.approx(50 * MIB, rel=0.2)
    assert spoken(watch(lambda t: 8 * GIB + 100 * MIB * t, 60))[-1][1].bytes_per_step is None


def test_a_run_that_ends_before_memory_is_full_is_not_foretold() -> None:
    def grows(time_s: float) -> float:
        return 12 * GIB + 100 * MIB * time_s

    assert spoken(watch(grows, 30, step_s=0.5, steps=90)) == []
    assert spoken(watch(grows, 60, step_s=0.5, steps=1000)[300:]) != []


def test_a_staircase_of_segments_is_foretold() -> None:
    said = watch(lambda t: 16 * GIB + 256 * MIB * (t // 4), 200)
    full_s = said[-1][0] + 0.1
    late = [(time_s, ahead) for time_s, ahead in spoken(said) if full_s - 40 < time_s < full_s - 10]
    assert late
    held = [ahead.seconds_low <= full_s - time_s <= ahead.seconds_high for time_s, ahead in late]
    assert sum(held) >= 0.9 * len(held)


@pytest.mark.parametrize("top", [0.7, 0.9, 0.97])
def test_a_warm_up_that_levels_off_is_not_worth_a_notice(top: float) -> None:
    said = watch(lambda t: CAPACITY * top * (1 - 0.7 * math.exp(-t / 12)), 120)
    assert not any(is_due(ahead) for _, ahead in spoken(said))


def test_a_jump_is_no_growth() -> None:
    assert spoken(watch(lambda t: (8 if t < 10 else 20) * GIB, 40)) == []


def test_epochs_that_fill_and_give_back_are_foretold_at_most_while_they_are_new() -> None:
    said = watch(lambda t: 6 * GIB + 15 * GIB * (t / 20 % 1), 120)
    assert not any(is_due(ahead) for time_s, ahead in spoken(said) if time_s > 20)


def test_growth_that_goes_on_after_a_cache_was_emptied_is_foretold_again() -> None:
    said = watch(lambda t: 4 * GIB + 400 * MIB * (t if t < 20 else t - 20), 100)
    full_s = said[-1][0] + 0.1
    assert any(ahead.seconds_low <= full_s - time_s <= ahead.seconds_high for time_s, ahead in spoken(said)[-20:])
    assert spoken([one for one in said if 20.5 < one[0] < 30]) == []


def test_a_growth_that_has_stopped_is_not_foretold_any_more() -> None:
    said = watch(lambda t: 4 * GIB + 300 * MIB * min(t, 50), 60)
    assert said[490][1] is not None
    assert spoken([one for one in said if one[0] > 52]) == []


def test_a_fall_ends_a_forecast() -> None:
    said = watch(lambda t: 4 * GIB + 300 * MIB * (t if t < 50 else 150 - 2 * t), 60)
    assert spoken([one for one in said if one[0] > 52]) == []


@pytest.mark.parametrize(("time_s", "capacity"), [(40.0, CAPACITY), (30.0, 2 * CAPACITY)], ids=["gap", "capacity"])
def test_a_gap_and_another_capacity_begin_anew(time_s: float, capacity: int) -> None:
    forecaster = Forecaster()
    for tick in range(300):
        forecaster.observe(tick / 10, 4 * GIB + 50 * MIB * tick, CAPACITY)
    assert forecaster.forecast() is not None
    forecaster.observe(time_s, 20 * GIB, capacity)
    assert forecaster.forecast() is None


def test_too_few_readings_say_nothing() -> None:
    assert Forecaster().forecast() is None
    assert spoken(watch(lambda t: 20 * GIB + 500 * MIB * t, 0.7)) == []


def test_an_allocator_that_is_no_longer_read_leaves_the_use() -> None:
    forecaster = Forecaster()
    for tick in range(400):
        if tick < 100:
            forecaster.observe_allocator(tick / 10, GIB, 2 * GIB)
        forecaster.observe(tick / 10, 4 * GIB + 45 * MIB * tick, CAPACITY)
    assert forecaster.forecast() is not None


READINGS = st.lists(st.tuples(st.floats(0, 2.5), st.floats(0, 2**50), st.booleans()), max_size=120)


@settings(max_examples=60, deadline=None)
@given(READINGS, st.integers(1, 2**50), st.none() | st.integers(1, 2**50))
def test_no_series_raises_and_every_range_is_ordered(
    readings: list[tuple[float, float, bool]], capacity: int, guard: int | None
) -> None:
    forecaster, time_s, step = Forecaster(), 0.0, 0
    for wait_s, used, stepped in readings:
        time_s += wait_s
        if stepped:
            step += 1
            forecaster.observe_step(time_s, step % 50, 40)
            forecaster.observe_allocator(time_s, used / 3, used / 2)
        forecaster.observe(time_s, used, capacity)
        ahead = forecaster.forecast(guard)
        if ahead is not None:
            assert 0 <= ahead.seconds_low <= ahead.seconds <= ahead.seconds_high
            assert LEAST_SURE <= ahead.confidence <= 1
            assert math.isfinite(ahead.seconds_high)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["ramp", "drops", "warm-up"]),
    st.integers(0, 30),
    st.sampled_from([2, 4, 1024]),
    st.integers(1, 10_000),
)
def test_the_unit_of_bytes_and_the_origin_of_time_do_not_matter(kind: str, number: int, k: int, shift_s: int) -> None:
    one = make(kind, number)
    plain, other = Forecaster(), Forecaster()
    capacity = max(one.capacity, 16 * GIB)
    for tick, used in enumerate(np.floor(one.used[:200]).tolist()):
        time_s = tick / 8
        plain.observe(time_s, used, capacity)
        other.observe(time_s + shift_s, used * k, capacity * k)
        ahead, scaled = plain.forecast(), other.forecast()
        assert (ahead is None) == (scaled is None)
        if ahead is not None and scaled is not None:
            first, second = ([x for x in astuple(a)[:3] if isinstance(x, float)] for a in (ahead, scaled))
            assert first == pytest.approx(second)
            assert ahead.confidence == pytest.approx(scaled.confidence)
            assert ahead.bytes_per_second * k == pytest.approx(scaled.bytes_per_second)


LINE = GrowthTrend(90.0, 100.0, 110.0, at_s=0.0, at_level=0.0, lasted_s=HORIZON_S)


def test_what_lies_beyond_ten_minutes_is_not_foretold() -> None:
    assert outlook(LINE, 0.0, "capacity", int(HORIZON_S * 100) + 1) is None
    ahead = outlook(LINE, 0.0, "capacity", int(HORIZON_S * 100))
    assert ahead is not None
    assert (ahead.seconds, ahead.limit) == (HORIZON_S, "capacity")
    assert ahead.seconds_low < ahead.seconds < ahead.seconds_high
    assert ahead.confidence == pytest.approx(0.5 * LINE.quality)


def test_a_memory_past_its_limit_reaches_it_at_once() -> None:
    past = GrowthTrend(1.0, 1.0, 1.0, at_s=0.0, at_level=200.0, lasted_s=10.0)
    ahead = outlook(past, 0.0, "guard", 100)
    assert ahead is not None
    assert (ahead.seconds, ahead.limit, ahead.confidence) == (0.0, "guard", 1.0)


def test_a_growth_that_slows_down_takes_longer_or_never_arrives() -> None:
    slow = GrowthTrend(90.0, 100.0, 110.0, at_s=0.0, at_level=0.0, lasted_s=100.0, slowing=0.05, to_come=2000.0)
    straight = outlook(GrowthTrend(90.0, 100.0, 110.0, 0.0, 0.0, 100.0), 0.0, "capacity", 1500)
    ahead = outlook(slow, 0.0, "capacity", 1500)
    assert straight is not None and ahead is not None
    assert ahead.seconds > straight.seconds
    assert ahead.seconds_high > straight.seconds_high
    assert outlook(slow, 0.0, "capacity", 2000) is None


def test_a_growth_that_has_just_begun_is_not_worth_a_word() -> None:
    brief = GrowthTrend(90.0, 100.0, 110.0, at_s=0.0, at_level=0.0, lasted_s=5.0)
    assert outlook(brief, 0.0, "capacity", 100 * 100) is None


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=400))
def test_bins_of_every_length_hold_the_same_extremes(values: list[float]) -> None:
    pyramid = Pyramid(4)
    for number, value in enumerate(values):
        pyramid.add(float(number), value, value / 2)
        pyramid.close()
    for number, level in enumerate(pyramid.levels):
        size, table = 2**number, level.table
        assert level.closed == len(values) // size
        assert min(level.closed, HISTORY) <= len(table) <= 2 * HISTORY
        for row, index in zip(table[::-1], range(level.closed - 1, -1, -1), strict=False):
            part = values[index * size : (index + 1) * size]
            assert Bin(*row) == Bin(index * size, (index + 1) * size - 1, max(part), min(part) / 2)


def test_a_contestant_is_silent_for_two_seconds_before_it_alarms_again() -> None:
    warns = [(0.0, True), (1.0, False), (2.0, True), (3.0, False), (6.0, True), (7.0, True)]
    assert raised(iter(warns)) == [0.0, 6.0]


def test_labelled_series_are_the_same_every_time_and_end_when_memory_is_full() -> None:
    for kind in KINDS:
        one, again = make(kind, 7), make(kind, 7)
        assert np.array_equal(one.used, again.used)
        assert one.exhausted_s is None or one.times[-1] <= one.exhausted_s
        assert (np.diff(one.times) >= 0).all()
        assert 0 <= one.used.min() <= one.used.max() <= one.capacity


def test_the_forecast_warns_of_more_and_alarms_less_than_the_others() -> None:
    some = [one for one in series(12, DEVELOPMENT_SEED) if one.seconds < 60]
    own = score(some, ours)
    assert own.fatal >= 15
    for rival in (score(some, contestant) for contestant in contestants().values()):
        assert own.recall > rival.recall
        assert own.false_alarms <= rival.false_alarms
    at_default = score(some, contestants()["threshold_85"])
    assert own.false_alarms < at_default.false_alarms
