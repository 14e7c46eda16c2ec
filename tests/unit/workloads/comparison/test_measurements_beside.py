"""What is measured beside the times: energy, larger pieces of work, data kept on the device, memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpudash.specs import ComparisonSpec, MatmulSpec, PipelineSpec, Spec, TrainingSpec, build
from gpudash.specs.model import ModelSpec
from gpudash.system import processes
from gpudash.workloads.programs.comparing import comparison_side
from gpudash.workloads.programs.comparing.comparison import (
    LASTS_S,
    measure_energy,
    result_of,
    side_figures,
    sweep,
    what,
)
from gpudash.workloads.programs.comparing.comparison_side import (
    Repetition,
    Side,
    enlarged,
    resident,
    size_of,
    whole_steps,
    with_steps,
)
from gpudash.workloads.programs.comparing.comparison_verdict import Agreement, Measured, Ratio, SideFigures, verdict
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import GuardRefused


class Machine:
    """A clock that only the workload moves, and an energy counter at a steady power."""

    def __init__(self, watts: float = 50.0) -> None:
        self.now_s = 0.0
        self.watts = watts

    def __call__(self) -> float:
        return self.now_s

    def energy(self, device: str) -> tuple[float, float] | str:
        read_s = self.now_s // 0.25 * 0.25  # the counter is read four times a second
        return (read_s, read_s * self.watts) if device == "cpu" else "no counter there"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(comparison_side.time, "perf_counter", machine)
    monkeypatch.setattr(comparison_side, "waited_seconds", lambda: 0.0)
    return machine


def sized(machine: Machine, overhead_s: float, per_item_s: float) -> Any:
    """A workload whose step takes a fixed time and some more for every row of a batch."""

    def workload(spec: TrainingSpec, part: Context) -> dict[str, Any]:
        part.begin_steps()
        for step in range(1, spec.steps + 1):
            machine.now_s += overhead_s + per_item_s * spec.batch
            part.progress(step, spec.steps)
        return {}

    return workload


def test_a_steps_energy_is_the_power_while_busy_times_its_time(machine: Machine, context: Context) -> None:
    context.energy_counter = machine.energy
    one = Side(context, "cpu", "cpu", sized(machine, 0.01, 0.0))
    spec = TrainingSpec(model="mlp")
    one.measure(with_steps(spec, 10))
    told: list[str] = []
    ((joules, words),) = measure_energy(context, [one], spec, told.append)
    assert joules == pytest.approx(0.5)
    assert words == "of the CPU's package, 50 W on average"
    assert machine.now_s >= LASTS_S
    assert len(told) == 1


def test_without_a_counter_energy_is_not_measurable_here(machine: Machine, context: Context) -> None:
    one = Side(context, "cpu", "cpu", sized(machine, 0.01, 0.0))
    assert measure_energy(context, [one], TrainingSpec(), pytest.fail) == [
        (None, "not measurable here: nothing reads it")
    ]


def test_a_counter_that_stands_still_gives_no_figure(machine: Machine, context: Context) -> None:
    machine.watts = 0.0
    context.energy_counter = machine.energy
    one = Side(context, "cpu", "cpu", sized(machine, 0.01, 0.0))
    one.measure(with_steps(TrainingSpec(model="mlp"), 10))
    ((joules, words),) = measure_energy(context, [one], TrainingSpec(model="mlp"), lambda _text: None)
    assert joules is None
    assert words == "not measurable here: its counter did not move"


def compared(first_s: float, second_s: float) -> Measured:
    sides = SideFigures("cpu", "cpu", first_s), SideFigures("cuda:0", "cuda:0", second_s)
    ratio = Ratio(first_s / second_s, 0.4, 0.6, 20)
    return Measured(*sides, ratio, ratio, Agreement(None, ""))


def swept(machine: Machine, context: Context, limit_s: float = 100.0, fast: Any = None) -> Any:
    slow = Side(context, "cpu", "cpu", sized(machine, 0.0, 0.001))
    quick = Side(context, "cpu", "cuda:0", fast or sized(machine, 0.016, 0.0))
    found = compared(0.008, 0.016)
    return sweep(slow, quick, TrainingSpec(model="mlp", batch=8), found, limit_s, lambda _text: None)


def test_a_sweep_finds_the_size_from_which_the_second_device_pays(machine: Machine, context: Context) -> None:
    found = swept(machine, context)
    assert [point.size for point in found.points] == [8, 32]
    assert found.crossing == pytest.approx(16, rel=0.01)
    assert found.ended == ""


def test_a_sweep_that_would_take_too_long_ends_and_says_so(machine: Machine, context: Context) -> None:
    found = swept(machine, context, limit_s=0.1)
    assert len(found.points) == 1
    assert found.ended == "batch 32 would take too long"
    assert found.crossing is None


def test_a_size_that_does_not_fit_ends_the_sweep_and_not_the_comparison(machine: Machine, context: Context) -> None:
    def full(spec: Spec, part: Context) -> dict[str, Any]:
        raise GuardRefused("no more than that", 1)

    assert swept(machine, context, fast=full).ended == "batch 32 does not fit the memory"

    def out(spec: Spec, part: Context) -> dict[str, Any]:
        raise MemoryError

    assert swept(machine, context, fast=out).ended == "batch 32 does not fit the memory"

    def broken(spec: Spec, part: Context) -> dict[str, Any]:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        swept(machine, context, fast=broken)


def test_variants_of_a_workload_are_valid_specs() -> None:
    training = TrainingSpec(model="mlp", steps=300, epochs=3)
    assert (whole_steps(with_steps(training, 2)), with_steps(training, 2).epochs) == (2, 1)  # type: ignore[attr-defined]
    assert whole_steps(with_steps(MatmulSpec(), 7)) == 7
    kept = resident(training)
    assert isinstance(kept, TrainingSpec)
    assert kept.batches == "resident"
    assert resident(kept) is None
    assert resident(MatmulSpec()) is None
    assert size_of(PipelineSpec(rows=4, columns=4)) == ("size", 64)
    assert enlarged(MatmulSpec(), 2048) is not None
    assert enlarged(MatmulSpec(), 10**9) is None


def test_memory_of_a_process_is_read_where_the_system_tells_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, reader, unknown in (
        ("STATM", processes.resident_bytes, None),
        ("SCHEDSTAT", processes.waited_seconds, 0.0),
    ):
        monkeypatch.setattr(processes, name, tmp_path / "missing")
        assert reader() == unknown
        file = tmp_path / name
        file.write_text("7 2000000000 9")
        monkeypatch.setattr(processes, name, file)
        assert (reader() or 0) > 1


def test_what_was_compared_is_told_in_the_words_of_the_form_without_what_nobody_chose(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    told = what(ModelSpec(path=str(tmp_path / "llama"), threads=1))
    assert told == "A model of yours · llama · training · batch 1 · 1 CPU thread", "neither sequence 0 nor auto"
    told = what(ModelSpec(path=str(tmp_path / "llama"), task="lora", sequence=512, precision="amp", threads=2))
    assert told == "A model of yours · llama · LoRA · batch 1 · sequence 512 · bf16 autocast · 2 CPU threads"
    told = what(TrainingSpec(mode="inference", batches="pingpong", threads=1))
    assert "transformer · inference · width 128" in told and told.endswith("fp32 · batches ping-pong · 1 CPU thread")


def test_the_result_says_what_was_compared_and_how_long_the_whole_run_would_take() -> None:
    spec = build_comparison(fields={"model": "mlp", "batch": 8, "steps": 300})
    found = compared(0.01, 0.02)
    result = result_of(spec, with_steps(spec.chosen, 12), found, verdict(found), 16)
    assert result["what"].startswith("Training · MLP · width 128 · depth 4 · batch 8 · fp32 · ")
    assert "sequence" not in what(spec.chosen)
    assert [one["whole_seconds"] for one in result["sides"]] == [pytest.approx(3), pytest.approx(6)]
    assert (result["measured_steps"], result["repetitions"]) == (10, 16)
    assert result["number"]["times"] == "2.0×"


def build_comparison(**values: Any) -> Any:  # the spec, whose class the callers know
    return build(ComparisonSpec, {"devices": "cpu,cpu", **values})


def test_a_gpus_retries_count_from_the_comparisons_beginning_and_so_does_the_peak_of_one_that_is_not_the_runs(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reset = {"num_alloc_retries": 7}, []
    gpu = SimpleNamespace(
        memory_stats=lambda _device: dict(now),
        reset_peak_memory_stats=reset.append,
        max_memory_allocated=lambda _device: 300,
        max_memory_reserved=lambda _device: 400,
        get_device_properties=lambda _device: SimpleNamespace(total_memory=1000),
        get_device_name=lambda _device: "A card",
    )
    for name, function in vars(gpu).items():
        monkeypatch.setattr(torch.cuda, name, function)
    one = Side(context, "cuda:1", "cuda:1", pytest.fail)
    assert reset == [torch.device("cuda:1")]
    once = Repetition([0.1], 0.0, 0.0, 1.0, losses=[], accuracies=[], peak_bytes=None, strays=[], result={})
    one.repetitions += [once, once]
    assert side_figures(one, context).retries == 0
    now["num_alloc_retries"] = 9
    figures = side_figures(one, context)
    assert (figures.retries, figures.peak_allocated_bytes, figures.fullness) == (2, 300, 0.4)
