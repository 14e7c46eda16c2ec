"""The ratio of two sides with its interval, and the verdict that is made of it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.units import GIB
from gpudash.workloads.programs.comparing.comparison_verdict import (
    Agreement,
    Measured,
    Point,
    Ratio,
    SideFigures,
    Sweep,
    autocorrelation,
    centre,
    decorrelated,
    interval_text,
    more_needed,
    more_runs,
    ratio_of,
    round_size,
    times_text,
    verdict,
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


CPU = SideFigures("cpu", "cpu", 0.2, computed=0.95)
GPU = SideFigures("cuda:0", "cuda:0", 0.2, computed=0.9)


def about(value: float, width: float = 0.02) -> Ratio:
    return Ratio(value, value * math.exp(-width), value * math.exp(width), 20)


def measured(ratio: Ratio | float, first: SideFigures = CPU, second: SideFigures = GPU, **more: object) -> Measured:
    found = ratio if isinstance(ratio, Ratio) else about(ratio)
    figures = {"compute_only": found, "agreement": Agreement(True, "The losses match."), **more}
    return Measured(first, second, found, **figures)  # type: ignore[arg-type]


def test_a_faster_gpu_is_said_to_be_so_many_times_faster() -> None:
    found = verdict(measured(14.2))
    assert (found.outcome, found.cause) == ("faster", None)
    assert found.text == "The GPU is 14× faster than the CPU for this workload."


def test_it_does_not_matter_which_of_the_two_is_named_first() -> None:
    assert verdict(measured(1 / 14.2, GPU, CPU)).text == verdict(measured(14.2)).text
    assert verdict(measured(3.0, GPU, CPU)).outcome == "slower"


def test_twelve_minutes_on_the_gpu_against_ten_on_the_cpu_come_out_as_not_worth_it_with_the_cause() -> None:
    slow = replace(GPU, step_seconds=0.72, copied=0.61, computed=0.3)
    found = verdict(measured(10 / 12, replace(CPU, step_seconds=0.6), slow, compute_only=about(2.1)))
    assert (found.outcome, found.cause) == ("slower", "transfers")
    assert found.text == (
        "The GPU is not worth it here: the CPU is 1.2× faster, and both find the same. The GPU spends 61 % of its "
        "step copying data; without the copies it is 2.1× faster than the CPU."
    )


def test_the_measured_effect_of_keeping_the_data_on_the_device_is_told_before_the_reckoned_one() -> None:
    slow = replace(GPU, copied=0.5, computed=0.4)
    found = verdict(measured(0.8, second=slow, compute_only=about(1.7), resident=about(1.3)))
    assert "with the data kept there it is 1.3× faster than the CPU" in found.because
    still = verdict(measured(0.5, second=slow, resident=about(0.8)))
    assert still.because.endswith("with the data kept there it is still 1.2× slower.")
    even = verdict(measured(0.5, second=slow, resident=about(1.0)))
    assert even.because.endswith("both are equally fast.")


SLOW = 0.5
COPYING = {"copied": 0.5, "computed": 0.4}
STRAY = {"strays": ("parameters: head.weight on cpu",)}
FULL = {"peak_reserved_bytes": 96 * GIB // 100, "capacity_bytes": GIB}
RETRIES = {"retries": 3}
SMALL = {"computed": 0.3}
CROSSES = Sweep("batch", (Point(8, (1.0, 2.0)), Point(32, (2.0, 2.0)), Point(128, (4.0, 2.0))))


@pytest.mark.parametrize(
    ("facts", "sweep", "cause", "words"),
    [
        (STRAY | COPYING | RETRIES | SMALL, CROSSES, "placement", "head.weight on cpu"),
        (COPYING | RETRIES, CROSSES, "transfers", "50 %"),
        (RETRIES, CROSSES, "memory", "3 times"),
        (FULL, CROSSES, "memory", "96 % full"),
        ({}, CROSSES, "too_small", "pays off from about batch 32 upward"),
        (SMALL, None, "too_small", "70 % of a step passes without computing"),
        ({}, None, "arithmetic", "arithmetic itself"),
    ],
)
def test_a_slower_gpu_is_explained_by_the_first_cause_that_holds(
    facts: dict[str, object], sweep: Sweep | None, cause: str, words: str
) -> None:
    found = verdict(measured(SLOW, second=replace(GPU, **facts), sweep=sweep))  # type: ignore[arg-type]
    assert (found.outcome, found.cause) == ("slower", cause)
    assert words in found.because


def test_an_equally_fast_gpu_is_explained_too() -> None:
    found = verdict(measured(1.01, second=replace(GPU, **COPYING)))
    assert (found.outcome, found.cause) == ("close", "transfers")
    assert found.headline == "Too close to call: the difference is below 5 %."


def test_a_faster_gpu_that_takes_more_energy_is_told_to() -> None:
    found = verdict(measured(1.3, replace(CPU, energy_j=2.0), replace(GPU, energy_j=4.2)))
    assert (found.outcome, found.cause) == ("faster", "energy")
    assert found.because == "But it takes 2.1× the energy: 4.2 J a step against 2 J."
    unknown = verdict(measured(1.3, replace(CPU, energy_j=None), replace(GPU, energy_j=4.2)))
    assert unknown.cause is None


def test_two_runs_of_one_device_that_differ_are_not_blamed_on_the_device() -> None:
    sides = replace(CPU, label="cpu A"), replace(CPU, label="cpu B")
    found = verdict(measured(1 / 1.2, *sides))
    assert found.text.startswith("cpu A is 1.2× faster than cpu B for this workload.")
    assert found.cause is None


@pytest.mark.parametrize(
    ("ratio", "outcome", "more"),
    [
        (Ratio(1.00, 0.98, 1.02, 20), "close", 0),
        (Ratio(1.00, 0.951, 1.051, 20), "close", 2),
        (Ratio(1.20, 0.99, 1.45, 20), "close", 4),
        (Ratio(1.04, 1.03, 1.049, 20), "close", 0),
        (Ratio(1.20, 1.18, 1.22, 20), "faster", 0),
        (Ratio(0.80, 0.0, math.inf, 5), "close", 22),
    ],
)
def test_what_is_below_five_percent_or_unsure_is_too_close_to_call(ratio: Ratio, outcome: str, more: int) -> None:
    sides = replace(CPU, label="cpu A"), replace(CPU, label="cpu B")
    found = verdict(measured(ratio, *sides))
    assert (found.outcome, found.more) == (outcome, more)
    if more:
        assert found.headline == f"Too close to call, needs {more} more runs on each device."


def test_a_machine_too_busy_to_measure_on_gives_no_verdict() -> None:
    found = verdict(measured(3.0, second=replace(GPU, lost=0.5)))
    assert (found.outcome, found.cause) == ("close", None)
    assert found.headline == "Too close to call, needs 2 more runs on each device."
    assert found.because.startswith("Other programs took the cores")
    same = verdict(measured(Ratio(1.0, 0.97, 1.03, 20), second=replace(GPU, lost=0.5)))
    assert same.headline == "Too close to call: the difference is below 5 %."


def test_a_busy_cpu_is_judged_as_its_time_is_counted_without_what_others_took() -> None:
    sides = replace(CPU, label="cpu A", lost=0.5), replace(CPU, label="cpu B", lost=0.5)
    assert verdict(measured(Ratio(1.2, 1.16, 1.24, 20), *sides)).headline.startswith("cpu B is 1.2× faster than cpu A")


def test_a_ratio_at_the_limit_does_not_ask_for_runs_without_end() -> None:
    limit = math.log(1.05)
    assert more_runs(Ratio(math.exp(limit), 1.0, math.exp(2 * limit), 20)) < 100_000


@pytest.mark.parametrize(
    ("ratio", "words"), [(1.2, "1.2×"), (9.94, "9.9×"), (9.96, "10×"), (14.4, "14×"), (140, "140×")]
)
def test_times_have_one_decimal_below_ten_and_none_above(ratio: float, words: str) -> None:
    assert times_text(ratio) == words


def test_the_interval_is_one_digit_finer() -> None:
    assert interval_text(Ratio(14.0, 13.62, 14.38, 9)) == "13.6 – 14.4"
    assert interval_text(Ratio(1.2, 1.184, 1.216, 9)) == "1.18 – 1.22"
    assert interval_text(Ratio(1.2, 0.0, math.inf, 2)) == "no interval yet"


def test_no_verdict_ever_speaks_of_percent_faster() -> None:
    for value in (0.02, 0.3, 0.8, 1.0, 1.2, 9.0, 40.0):
        assert "% faster" not in verdict(measured(value, second=replace(GPU, **COPYING))).text


def test_a_crossing_lies_on_the_line_between_two_sizes() -> None:
    sweep = Sweep("size", (Point(256, (1.0, 4.0)), Point(1024, (16.0, 4.0))))
    assert sweep.crossing == pytest.approx(512)
    assert Sweep("size", (Point(256, (1.0, 4.0)),)).crossing is None


@pytest.mark.parametrize(("size", "rounded"), [(7.3, 7), (512.3, 510), (98765, 99000)])
def test_a_reckoned_size_is_told_to_two_digits(size: float, rounded: int) -> None:
    assert round_size(size) == rounded
