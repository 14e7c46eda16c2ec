"""Whether two devices found the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpudash.specs import ComparisonSpec, Spec, build
from gpudash.telemetry.records import EpochFinished, Note, RunEnd, StageFinished, StepFinished
from gpudash.workloads.programs.comparing import comparison as comparison_module
from gpudash.workloads.programs.comparing import comparison_side
from gpudash.workloads.programs.comparing.comparison import COMPARED_STEPS, of_losses, of_results, run, tolerance
from gpudash.workloads.running import run as running
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import Cancelled
from tests.unit.clock import Clock
from tests.unit.workloads.conftest import Bench, Reported

MLP = {"model": "mlp", "width": 8, "depth": 1, "batch": 2}

CONTRACT = {"ratio", "interval", "cause", "verdict"}


def comparison(**values: Any) -> ComparisonSpec:
    spec = build(ComparisonSpec, {"devices": "cpu,cpu", "limit": 2.0, **values})
    assert isinstance(spec, ComparisonSpec)
    return spec


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(comparison_side.time, "perf_counter", clock)
    monkeypatch.setattr(comparison_side, "waited_seconds", lambda: 0.0)
    return clock


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[list[float]]:
    """A workload whose steps take what the list says for the two sides, by a clock of its own."""
    seconds = [0.012, 0.010]
    turns = itertools.cycle([0, 1, 1, 0])

    def workload(spec: Spec, context: Context) -> dict[str, Any]:
        turn = next(turns)
        context.begin_steps()
        for step in range(1, 11):
            clock.now_s += seconds[turn]
            context.step(step, 10, loss=2.0 / step, accuracy=0.5)
        return {}

    monkeypatch.setattr(running, "resolve", lambda _spec: workload)
    return iter([seconds])


def test_a_side_slowed_by_a_fifth_comes_out_as_one_point_two(paced: Iterator[list[float]], context: Context) -> None:
    found = run(comparison(fields=MLP, limit=1000.0), context)
    low, high = found["interval"]
    assert low <= 1.2 <= high
    assert low > 1
    assert found["verdict"].startswith("cpu B is 1.2× faster than cpu A")
    assert found["agreement"]["agrees"] is True
    assert found["repetitions"] == 2 * comparison_module.FEWEST_FOURSOMES


def test_equal_sides_are_too_close_to_call_after_the_fewest_repetitions(
    paced: Iterator[list[float]], context: Context
) -> None:
    next(paced)[:] = [0.01, 0.01]
    found = run(comparison(fields=MLP, limit=1000.0), context)
    assert found["interval"] == pytest.approx([1, 1])
    assert found["verdict"] == "Too close to call: the difference is below 5 %."
    assert found["cause"] is None


@pytest.mark.parametrize(
    ("lengths", "times", "step_s"),
    [
        pytest.param([1.0] * comparison_side.WARM_UP + [0.01] * 4, [0.01] * 4, 0.01, id="without warm-up"),
        pytest.param(([0.01] * 4 + [0.02]) * 2 + [0.01] * 2, None, 0.012, id="a fifth is longer"),
    ],
)
def test_warm_up_steps_do_not_count_and_what_happens_at_every_fifth_step_only_does(
    clock: Clock, context: Context, lengths: list[float], times: list[float] | None, step_s: float
) -> None:
    def workload(spec: Spec, part: Context) -> dict[str, Any]:
        part.begin_steps()
        for number, length in enumerate(lengths, 1):
            clock.now_s += length
            part.progress(number, len(lengths))
        return {}

    repetition = comparison_side.Side(context, "cpu", "cpu A", workload).run(comparison().chosen)
    assert repetition.step_seconds == pytest.approx(step_s)
    assert times is None or repetition.times == pytest.approx(times)


def interrupted(clock: Clock, waited: list[float]) -> Any:
    """A workload of steps of 0.01 s, two of which another program holds up for 4.99 s."""

    def workload(spec: Spec, part: Context) -> dict[str, Any]:
        part.begin_steps()
        for step in range(1, 11):
            held_up = 4.99 if step in {4, 7} else 0.0
            clock.now_s += 0.01 + held_up
            waited[0] += held_up
            part.progress(step, 10)
        return {}

    return workload


def test_time_in_which_another_program_had_the_core_does_not_count(
    clock: Clock, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = [0.0]
    monkeypatch.setattr(comparison_side, "waited_seconds", lambda: waited[0])
    repetition = comparison_side.Side(context, "cpu", "cpu A", interrupted(clock, waited)).run(comparison().chosen)
    assert repetition.times == pytest.approx([0.01] * 8)
    assert repetition.lost == pytest.approx(2 * 4.99 / (2 * 4.99 + 8 * 0.01))


def test_a_gpu_works_on_while_its_thread_waits_so_all_of_a_step_counts_and_its_end_is_waited_for(
    clock: Clock, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, settled = [0.0], []
    monkeypatch.setattr(comparison_side, "waited_seconds", lambda: waited[0])

    def catch_up(device: torch.device) -> None:
        settled.append(str(device))
        clock.now_s += 0.8  # what the GPU had been asked for and not done yet

    monkeypatch.setattr(comparison_side.torch.cuda, "synchronize", catch_up)
    monkeypatch.setattr(comparison_side.torch.cuda, "reset_peak_memory_stats", lambda _device: None)
    monkeypatch.setattr(comparison_side, "retries", lambda _device: 0)
    monkeypatch.setattr(comparison_side.Side, "_on_device", lambda _self, call: call())
    repetition = comparison_side.Side(context, "cuda:0", "cuda:0", interrupted(clock, waited)).run(comparison().chosen)
    assert sum(repetition.times) == pytest.approx(2 * 4.99 + 8 * 0.01 + 0.8)
    assert set(settled) == {"cuda:0"}


def test_waiting_between_two_steps_is_not_taken_off_the_next(
    clock: Clock, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_side, "waited_seconds", itertools.count().__next__)

    def workload(spec: Spec, part: Context) -> dict[str, Any]:
        part.begin_steps()
        for step in range(1, 11):
            clock.now_s += 0.01
            part.progress(step, 10)
        return {}

    repetition = comparison_side.Side(context, "cpu", "cpu A", workload).run(comparison().chosen)
    assert (repetition.times, repetition.lost) == (pytest.approx([0.01] * 8), 0.0)


def test_a_workload_without_steps_counts_as_one(clock: Clock, context: Context) -> None:
    def workload(spec: Spec, part: Context) -> dict[str, Any]:
        clock.now_s += 3.0
        return {}

    assert comparison_side.Side(context, "cpu", "cpu A", workload).run(comparison().chosen).step_seconds == 3.0


def test_copies_between_memories_are_told_from_computing(clock: Clock, context: Context) -> None:
    def workload(spec: Spec, part: Context) -> dict[str, Any]:
        part.begin_steps()
        for step in range(1, 11):
            for name, seconds, target in (("batch", 0.006, "cuda:0"), ("forward", 0.003, None)):
                part._stages.timing = _Fixed(seconds)  # what CUDA's events would have said
                with part.stage(name, from_device=target and "cpu", to_device=target, copied=target is not None):
                    clock.now_s += seconds
            clock.now_s += 0.001
            part.progress(step, 10)
        return {}

    repetition = comparison_side.Side(context, "cpu", "cuda:0", workload).run(comparison().chosen)
    assert repetition.step_seconds == pytest.approx(0.010)
    assert (repetition.copied, repetition.computed) == (pytest.approx(0.6), pytest.approx(0.3))
    assert repetition.kept_seconds == pytest.approx(0.004)


class _Fixed:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def begin(self) -> float:
        return 0.0

    def end(self, _begun: float) -> float:
        return self._seconds

    @staticmethod
    def seconds(span: float, *, wait: bool) -> float:
        return span


def test_stages_are_told_with_their_side_and_loss_curves_are_not_mixed(told: Reported, context: Context) -> None:
    part = comparison_side.Side(context, "cpu", "cpu A", running.resolve(comparison().chosen))
    part.run(comparison(fields={**MLP, "steps": 5, "epochs": 1}).chosen)
    assert {event.name.partition(":")[0] for event in told if isinstance(event, StageFinished)} == {"cpu A"}
    assert not [event for event in told if isinstance(event, (StepFinished, EpochFinished))]


def test_stop_ends_a_comparison_and_what_is_known_is_kept(
    paced: Iterator[list[float]], told: Reported, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_module, "ratio_of", _stopping(comparison_module.ratio_of, told))
    with pytest.raises(Cancelled):
        run(comparison(fields=MLP, limit=1e4, half_width=0.001, repetitions=1000), context)
    assert context.kept.keys() >= CONTRACT


def _stopping(original: Any, told: Reported) -> Any:
    calls = itertools.count()

    def counted(*args: Any) -> Any:
        if next(calls) == 2 * comparison_module.FEWEST_FOURSOMES:
            told.requests.stop.set()
        return original(*[[second * (1 + index % 3) for index, second in enumerate(args[0])], *args[1:]])

    return counted


def test_a_whole_comparison_on_the_worker_keeps_the_contract(bench: Bench) -> None:
    ended = bench.run("comparison", devices="cpu,cpu", limit=1.0, repetitions=16, fields=MLP)
    assert isinstance(ended, RunEnd) and not ended.ended_badly
    found = ended.result
    assert found.keys() >= CONTRACT
    low, high = found["interval"] if None not in found["interval"] else (0.0, 1e9)
    assert low <= found["ratio"] <= high
    assert 0.05 < found["ratio"] < 20
    assert [one["label"] for one in found["sides"]] == ["cpu A", "cpu B"]
    assert all(one["energy_j"] is None and "not measurable here" in one["energy"] for one in found["sides"])
    assert found["agreement"]["largest_difference"] == 0
    assert [note.topic for note in bench.of(Note)].count("comparison") >= 2
    steps = bench.of(StepFinished)
    assert steps[-1].step == steps[-1].steps == 2 * found["repetitions"]


@pytest.mark.usefixtures("no_simulated_gpu")
def test_a_cuda_device_that_is_not_there_ends_the_comparison_in_words(bench: Bench) -> None:
    ended = bench.run("comparison", devices="cuda:7,cpu", fields=MLP)
    assert ended.error == "device"
    assert "torch has no cuda:7" in ended.message


def test_seed_and_data_are_the_same_on_both_sides_and_torchs_threads_are_put_back(bench: Bench) -> None:
    threads = torch.get_num_threads()
    ended = bench.run(
        "comparison", devices="cpu,cpu", limit=1.0, repetitions=16, fields={**MLP, "steps": 4, "epochs": 1}
    )
    assert ended.result["agreement"]["loss"][0] == ended.result["agreement"]["loss"][1]
    assert torch.get_num_threads() == threads


def test_the_limit_ends_a_comparison_that_stays_unsure(context: Context) -> None:
    found = run(comparison(limit=1.0, half_width=0.001, fields=MLP), context)
    assert found["repetitions"] >= 2


LOSSES = [2.0 - 0.01 * step for step in range(30)]


def test_losses_within_the_precision_agree_and_the_tolerance_is_told() -> None:
    other = [loss * (1 + 1e-6) for loss in LOSSES]
    found = of_losses((LOSSES, [0.5] * 30), (other, [0.5] * 30), "fp32")
    assert found.agrees is True
    assert found.tolerance == tolerance("fp32")
    assert "2e-04" in found.sentence
    assert found.accuracy == (0.5, 0.5)


@pytest.mark.parametrize(("precision", "agrees"), [("fp32", False), ("bf16", True)])
def test_the_tolerance_is_the_precisions_own(precision: str, agrees: bool) -> None:
    other = [loss * 1.01 for loss in LOSSES]
    assert of_losses((LOSSES, []), (other, []), precision).agrees is agrees


def test_only_the_first_steps_are_compared() -> None:
    other = [*LOSSES[:COMPARED_STEPS], *[9.0] * 20]
    assert of_losses((LOSSES, []), (other, []), "fp32").agrees is True


def test_a_loss_that_is_nan_on_one_side_only_differs() -> None:
    assert of_losses(([1.0, math.nan], []), ([1.0, 2.0], []), "fp32").agrees is False
    assert of_losses(([1.0, math.nan], []), ([1.0, math.nan], []), "fp32").agrees is True


def test_results_are_compared_by_their_values() -> None:
    assert of_results({"values": [[1.0, 2.0]]}, {"values": [[1.0, 2.0]]}, "float32").agrees is True
    assert of_results({"values": [[1.0, 2.0]]}, {"values": [[1.0, 2.1]]}, "float32").agrees is False


def test_a_workload_that_tells_nothing_neither_agrees_nor_differs() -> None:
    assert of_losses(([], []), ([], []), "fp32").agrees is None
    assert of_results({}, {}, "float32").agrees is None
