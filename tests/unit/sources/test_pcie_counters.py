from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.sources.nvml.calls import ByteCounter
from gpudash.sources.nvml.gpu_reader import NARROW, WrappingRate, safe_period_s

GEN5_X16 = 63e9


@settings(max_examples=100)
@given(
    base=st.integers(0, NARROW - 1),
    moved=st.lists(st.integers(0, int(GEN5_X16 * 0.05)), min_size=1, max_size=30),
    bits=st.sampled_from([32, 64]),
)
def test_rates_are_exact_however_often_a_32_bit_counter_wraps(base: int, moved: list[int], bits: int) -> None:
    rate = WrappingRate()
    total = base
    assert rate.update(ByteCounter(total % NARROW, bits), 0.0, GEN5_X16) is None
    for tick, size in enumerate(moved, start=1):
        total += size
        measured = rate.update(ByteCounter(total % NARROW, bits), tick * 0.05, GEN5_X16)
        assert measured == pytest.approx(size / 0.05, rel=1e-6, abs=1e-6)


def test_a_pause_in_which_the_counter_may_have_wrapped_twice_gives_no_rate() -> None:
    rate = WrappingRate()
    rate.update(ByteCounter(0, 64), 0.0, GEN5_X16)
    ambiguous = rate.update(ByteCounter(100, 64), 0.1, GEN5_X16)
    assert ambiguous is not None and math.isnan(ambiguous)
    assert rate.update(ByteCounter(200, 64), 0.15, GEN5_X16) == pytest.approx(2000)


def test_a_counter_seen_beyond_32_bits_is_trusted_over_long_pauses() -> None:
    rate = WrappingRate()
    rate.update(ByteCounter(NARROW + 1, 64), 0.0, GEN5_X16)
    assert rate.update(ByteCounter(NARROW + 1 + 10**11, 64), 10.0, GEN5_X16) == pytest.approx(1e10)


def test_a_driver_reload_that_resets_a_wide_counter_gives_no_absurd_rate() -> None:
    rate = WrappingRate()
    rate.update(ByteCounter(5 * NARROW, 64), 0.0, GEN5_X16)
    reset = rate.update(ByteCounter(10, 64), 0.05, GEN5_X16)
    assert reset is None or math.isnan(reset) or reset <= GEN5_X16


def test_no_traffic_is_zero_and_not_a_gap() -> None:
    rate = WrappingRate()
    rate.update(ByteCounter(7, 32), 0.0, GEN5_X16)
    assert rate.update(ByteCounter(7, 32), 0.05, GEN5_X16) == 0


def test_the_default_rate_is_fast_enough_for_a_generation_5_link() -> None:
    assert 0.05 < safe_period_s(GEN5_X16) < 0.1
