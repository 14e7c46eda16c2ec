"""The noise of a figure: what it must cover, and what it must not hide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry.comparing import noise


def median(values: np.ndarray) -> float:
    return float(np.median(values))


def test_equal_steps_have_no_spread() -> None:
    assert noise.spread(np.full(100, 3.0), median) == 0.0


def test_the_first_step_is_warm_up_and_does_not_count() -> None:
    values = np.full(5, 3.0)
    values[0] = 1000.0
    assert noise.spread(values, median) == 0.0


def test_few_steps_do_not_tell_their_spread() -> None:
    assert noise.spread(np.array([1.0, 2.0, 3.0, 4.0]), median) is None
    assert noise.spread(np.full(50, np.nan), median) is None


def test_ten_blocks_give_the_prediction_interval_of_their_medians() -> None:
    blocks = np.arange(10.0)
    values = np.concatenate(([0.0], np.repeat(blocks, 7)))
    expected = 3.250 * np.std(blocks, ddof=1) * np.sqrt(1.1)
    assert noise.spread(values, median) == pytest.approx(expected)


def test_slow_changes_within_a_run_weigh_more_than_fast_ones() -> None:
    fast = np.tile([1.0, 2.0], 500)
    slow = np.repeat([1.0, 2.0], 500)
    found = noise.spread(fast, lambda values: float(values.mean())), noise.spread(slow, lambda values: values.mean())
    assert found[0] is not None and found[1] is not None
    assert found[1] > 20 * found[0]


def test_two_halves_of_a_drifting_machine_count_as_the_same() -> None:
    """Autocorrelated steps: a run at a pace that wanders covers another one of the same wandering."""
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(50):
        pace = np.cumsum(random.normal(0, 0.01, 2000)) + 10 + random.normal(0, 0.3, 2000)
        a, b = pace[:1000], pace[1000:]
        spreads = [noise.spread(half, median) for half in (a, b)]
        assert spreads[0] is not None and spreads[1] is not None
        hits += abs(median(a) - median(b)) <= np.hypot(*spreads)
    assert hits >= 45


def test_a_falling_loss_is_no_noise() -> None:
    """A straight fall of d a block has successive differences of d, far below its whole range."""
    falling = np.linspace(10.0, 0.0, 400)
    found = noise.trending(falling, 20)
    step = 20 * 10.0 / 399
    assert found == pytest.approx(3.250 * step / np.sqrt(2) * np.sqrt(1.1), rel=1e-6)


def test_a_short_loss_is_measured_within_its_last_steps() -> None:
    values = np.array([1.0, 2.0] * 10)
    assert noise.trending(values, 20) == pytest.approx(3.250 * 1.2533 * np.std(values, ddof=1) / np.sqrt(20))
    assert noise.trending(np.array([1.0, 2.0]), 20) is None


def test_times_and_rates_have_a_least_noise_and_know_of_other_programs() -> None:
    assert noise.of_time(10.0, 0.0, 0.0) == pytest.approx(0.2)
    assert noise.of_time(10.0, None, 0.0) == pytest.approx(1.0)
    assert noise.of_time(10.0, 0.0, 0.5) == pytest.approx(5.0)
    assert noise.of_rate(10.0, 0.0, 0.5) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("busy", "own_cores", "taken"),
    [(0.5, 1.0, 0.0), (1.0, 1.0, 0.5), (0.75, 1.0, 0.0), (1.0, 2.0, 0.0), (1.0, 0.0, 0.9)],
)
def test_what_others_use_counts_only_beyond_what_stays_idle(busy: float, own_cores: float, taken: float) -> None:
    assert noise.crowding(busy, own_cores, 2) == pytest.approx(taken)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=300), st.floats(0.1, 10))
def test_noise_has_the_unit_of_its_values(values: list[float], factor: float) -> None:
    plain, scaled = noise.spread(np.array(values), median), noise.spread(factor * np.array(values), median)
    assert plain is not None and scaled is not None
    assert plain >= 0
    assert scaled == pytest.approx(factor * plain, rel=1e-6, abs=1e-3)
