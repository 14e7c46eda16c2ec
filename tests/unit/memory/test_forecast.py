"""`Trend` and `forecast`: lines are found, noise and jumps are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.forecast import HORIZON_S, Growth, Trend, forecast
from gpudash.units import GIB, MIB

CAPACITY = 24 * GIB


def trend(used: np.ndarray, rate_hz: float = 20.0) -> Trend:
    found = Trend()
    for i, value in enumerate(used):
        found.add(i / rate_hz, float(value))
    return found


@settings(max_examples=40, deadline=None)
@given(st.floats(20, 2000), st.sampled_from([2.0, 10.0, 20.0, 50.0]), st.integers(0, 2**32 - 1))
def test_a_straight_growth_is_found_through_noise(rate: float, rate_hz: float, seed: int) -> None:
    count = int(12 * rate_hz)
    noise = np.random.default_rng(seed).normal(0, rate * MIB * 0.02, count)
    growth = trend(GIB + rate * MIB * np.arange(count) / rate_hz + noise, rate_hz).growth(CAPACITY)
    assert growth is not None
    assert growth.median == pytest.approx(rate * MIB, rel=0.1)
    assert growth.low <= growth.median <= growth.high


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 4))
def test_a_memory_that_only_trembles_does_not_grow(seed: int, mib: float) -> None:
    noise = np.random.default_rng(seed).normal(0, mib * MIB, 300)
    assert trend(10 * GIB + noise).growth(CAPACITY) is None


def test_a_falling_memory_does_not_grow() -> None:
    assert trend(10 * GIB - 100 * MIB * np.arange(300) / 20).growth(CAPACITY) is None


def test_a_sawtooth_does_not_grow() -> None:
    assert trend(GIB + 500 * MIB * (np.arange(300) % 20) / 20).growth(CAPACITY) is None


def test_a_growth_that_has_just_begun_is_found_after_two_seconds() -> None:
    level, slope = np.full(200, 4.0 * GIB), 4.0 * GIB + 256 * MIB * np.arange(48) / 20
    growth = trend(np.concatenate((level, slope))).growth(CAPACITY)
    assert growth is not None
    assert growth.median == pytest.approx(256 * MIB, rel=0.15)


def test_too_few_readings_say_nothing() -> None:
    assert Trend().growth(CAPACITY) is None
    assert trend(GIB * np.arange(5), rate_hz=2).growth(CAPACITY) is None


def test_a_cleared_trend_says_nothing() -> None:
    found = trend(GIB + 100 * MIB * np.arange(300) / 20)
    found.clear()
    assert found.growth(CAPACITY) is None


def test_what_lies_beyond_ten_minutes_is_not_foretold() -> None:
    growth = Growth(90.0, 100.0, 110.0)
    assert forecast(growth, 0, int(HORIZON_S * 100) + 1, None) is None
    ahead = forecast(growth, 0, int(HORIZON_S * 100), None)
    assert ahead is not None
    assert (ahead.seconds, ahead.limit) == (HORIZON_S, "capacity")
    assert ahead.seconds_low < ahead.seconds < ahead.seconds_high
    assert 0 < ahead.confidence < 1


def test_a_memory_past_its_limit_reaches_it_at_once() -> None:
    ahead = forecast(Growth(1.0, 1.0, 1.0), 200, 300, 100)
    assert ahead is not None
    assert (ahead.seconds, ahead.limit, ahead.confidence) == (0.0, "guard", 1.0)


def test_a_guard_above_the_capacity_is_not_what_is_reached() -> None:
    ahead = forecast(Growth(1.0, 1.0, 1.0), 0, 100, 200)
    assert ahead is not None
    assert (ahead.limit, ahead.limit_bytes) == ("capacity", 100)
