"""The verdict of measured figures: fed with what devices that are not here would have shown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpudash.units import GIB
from gpudash.workloads.programs.comparison_verdict import (
    Agreement,
    Measured,
    Point,
    Ratio,
    SideFigures,
    Sweep,
    interval_words,
    more_runs,
    round_size,
    times_words,
    verdict,
)

CPU = SideFigures("cpu", "cpu", 0.2, computed=0.95)
GPU = SideFigures("cuda:0", "cuda:0", 0.2, computed=0.9)


def about(value: float, width: float = 0.02) -> Ratio:
    return Ratio(value, value * math.exp(-width), value * math.exp(width), 20)


def measured(ratio: Ratio | float, first: SideFigures = CPU, second: SideFigures = GPU, **more: object) -> Measured:
    found = ratio if isinstance(ratio, Ratio) else about(ratio)
    figures = {"compute_only": found, "agreement": Agreement(True, "Losses agree."), **more}
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
    assert times_words(ratio) == words


def test_the_interval_is_one_digit_finer() -> None:
    assert interval_words(Ratio(14.0, 13.62, 14.38, 9)) == "13.6 – 14.4"
    assert interval_words(Ratio(1.2, 1.184, 1.216, 9)) == "1.18 – 1.22"
    assert interval_words(Ratio(1.2, 0.0, math.inf, 2)) == "no interval yet"


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
