"""The ratio of two sides' times, and how sure it is."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.workloads.programs.comparison_verdict import (
    Ratio,
    autocorrelation,
    centre,
    decorrelated,
    more_needed,
    ratio_of,
)

Noise = Callable[[random.Random], float]


def normal(draw: random.Random) -> float:
    return draw.gauss(0, 0.03)


def disturbed(draw: random.Random) -> float:
    """Every tenth repetition is hit by another program and takes half as long again."""
    return draw.gauss(0, 0.02) + (0.4 if draw.random() < 0.1 else 0.0)


def skewed(draw: random.Random) -> float:
    return draw.expovariate(1 / 0.05)


def taken(true: float, foursomes: int, noise: Noise, seed: int, drift: float = 0.0) -> Ratio:
    """The ratio of an experiment in the order A B B A with noise, in which both get slower as it goes on."""
    draw = random.Random(seed)
    first, second = [], []
    for four in range(foursomes):
        moments = [drift * (4 * four + place) for place in range(4)]
        logs = [moments[place] + noise(draw) for place in range(4)]
        first += [true * math.exp(logs[0]), true * math.exp(logs[3])]
        second += [math.exp(logs[1]), math.exp(logs[2])]
    return ratio_of(first, second, 0.99)


@pytest.mark.parametrize("noise", [normal, disturbed, skewed])
@pytest.mark.parametrize("true", [1.0, 1.2, 14.0])
def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says(noise: Noise, true: float) -> None:
    held = [found.low <= true <= found.high for found in (taken(true, 20, noise, seed) for seed in range(400))]
    assert statistics.fmean(held) >= 0.975  # 99 % less three standard errors of 400 draws


def test_a_side_slowed_by_a_fifth_is_told_from_an_equal_one() -> None:
    found = [taken(1.2, 20, normal, seed) for seed in range(100)]
    assert sum(one.low <= 1.2 <= one.high and one.low > 1 for one in found) >= 97


def test_a_steady_drift_of_the_machine_falls_out() -> None:
    still, drifting = (taken(1.2, 10, lambda _draw: 0.0, 0, drift) for drift in (0.0, 0.01))
    assert drifting.value == pytest.approx(still.value, rel=1e-12)
    assert drifting.half_width == pytest.approx(0, abs=1e-12)


def test_swapping_the_sides_gives_the_reciprocal() -> None:
    draw = random.Random(1)
    first, second = ([draw.uniform(1, 2) for _ in range(40)] for _ in range(2))
    one, other = ratio_of(first, second, 0.99), ratio_of(second, first, 0.99)
    assert one.value == pytest.approx(1 / other.value)
    assert (one.low, one.high) == pytest.approx((1 / other.high, 1 / other.low))


def test_one_wild_repetition_of_many_moves_the_ratio_little() -> None:
    calm = [1.0 + 0.001 * (index % 7) for index in range(40)]
    wild = [*calm[:-1], 100.0]
    assert ratio_of(wild, calm, 0.99).value == pytest.approx(ratio_of(calm, calm, 0.99).value, rel=0.01)


def test_too_few_values_give_a_ratio_without_an_interval() -> None:
    found = ratio_of([2.0] * 14, [1.0] * 14, 0.99)
    assert (found.value, found.low, found.high) == (pytest.approx(2), 0.0, math.inf)
    assert found.half_width == math.inf
    assert ratio_of([2.0] * 16, [1.0] * 16, 0.99).half_width == 0


def test_without_a_foursome_there_is_no_ratio() -> None:
    with pytest.raises(ValueError, match="two repetitions"):
        ratio_of([1.0], [1.0], 0.99)


@pytest.mark.parametrize(
    ("count", "confidence", "outside"),
    # Hollander and Wolfe 1999, table A.4: the smallest sums of ranks a two-sided test at 5 % refuses
    [(6, 0.95, 0), (8, 0.95, 3), (10, 0.95, 8), (10, 0.99, 3), (20, 0.95, 52)],
)
def test_the_interval_leaves_out_as_many_pairwise_means_as_the_tables_say(
    count: int, confidence: float, outside: int
) -> None:
    values = [float(2**index) for index in range(count)]  # no two pairwise means are alike
    means = sorted((one + other) / 2 for index, one in enumerate(values) for other in values[index:])
    _middle, low, high = centre(values, confidence)
    assert (low, high) == (means[outside], means[-outside - 1])


def test_values_that_depend_on_each_other_are_merged_until_they_do_not() -> None:
    draw, level, walk = random.Random(3), 0.0, []
    for _ in range(256):
        level = 0.9 * level + draw.gauss(0, 1)
        walk.append(level)
    merged = decorrelated(walk)
    assert len(merged) < len(walk)
    assert statistics.fmean(merged) == pytest.approx(statistics.fmean(walk))
    independent = [draw.gauss(0, 1) for _ in range(256)]
    assert decorrelated(independent) == independent


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=50))
def test_autocorrelation_is_a_correlation(values: Sequence[float]) -> None:
    assert -1 <= autocorrelation(values) <= 1


@given(st.lists(st.floats(1e-6, 1e3), min_size=4, max_size=40), st.floats(0.01, 100))
def test_scaling_one_side_scales_the_ratio(times: list[float], factor: float) -> None:
    times = times[: len(times) // 2 * 2]
    plain, scaled = ratio_of(times, times, 0.9), ratio_of([factor * one for one in times], times, 0.9)
    assert plain.value == pytest.approx(1)
    assert scaled.value == pytest.approx(factor)


def test_half_the_width_takes_four_times_the_values() -> None:
    ratio = Ratio(1.0, math.exp(-0.04), math.exp(0.04), 20)
    assert more_needed(ratio, 0.02) == 60
    assert more_needed(ratio, 0.5) == 1
    assert more_needed(Ratio(1.0, 0.0, math.inf, 3), 0.02) > 0
