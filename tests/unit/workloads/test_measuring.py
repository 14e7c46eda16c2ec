"""Transfer, matrix products and memory pressure."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpudash.specs import MatmulSpec, PipelineSpec, PressureSpec, Spec, TransferSpec, build, workloads
from gpudash.specs import matmul as matmul_spec
from gpudash.telemetry.records import Note, RunEnd, StageFinished, StepFinished, Transfer
from gpudash.units import GIB, MIB
from gpudash.workloads.program_code import code
from gpudash.workloads.programs import matmul, pressure, transfer
from gpudash.workloads.programs import pressure as pressure_patterns
from gpudash.workloads.running.context import Context, MemoryLevel
from gpudash.workloads.running.run_errors import Cancelled
from gpudash.workloads.running.timing import median_and_iqr
from tests.unit.workloads.conftest import Bench, Custom, Reported, context_on


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50))
def test_median_and_spread_are_numpys(values: list[float]) -> None:
    median, iqr = median_and_iqr(values)
    lower, middle, upper = np.quantile(values, [0.25, 0.5, 0.75])

    assert median == pytest.approx(middle)
    assert iqr == pytest.approx(upper - lower if len(values) > 1 else 0.0, abs=1e-6 * max(values))


def transferred(context: Context, **values: Any) -> dict[str, Any]:
    return dict(transfer.run(TransferSpec(**{"blocks": "64KiB,1MiB", "samples": 3, **values}), context))


def test_on_the_cpu_host_to_host_is_measured_and_the_rest_says_why_not(context: Context) -> None:
    result = transferred(context)

    keys = {"from", "to", "memory", "blocking", "block_bytes", "bytes_per_second_median", "bytes_per_second_iqr"}
    assert all(keys | {"samples"} <= set(row) for row in result["rates"])
    had = [row for row in result["rates"] if row["bytes_per_second_median"] is not None]
    assert [(row["from"], row["to"], row["memory"], row["blocking"], row["block_bytes"]) for row in had] == [
        ("cpu", "cpu", "pageable", True, 65536),
        ("cpu", "cpu", "pageable", True, MIB),
    ]
    lacking = [row for row in result["rates"] if row not in had]
    assert len(lacking) == 22
    assert all(row["bytes_per_second_iqr"] is None and row["samples"] is None and row["reason"] for row in lacking)
    beside = [row for row in lacking if (row["from"], row["to"], row["memory"]) == ("cpu", "cpu", "pageable")]
    assert all("overlaps with nothing" in row["reason"] for row in beside) and len(beside) == 2
    needing = {row["reason"] for row in lacking if row not in beside}
    assert needing == {
        "needs a CUDA device, and cpu is not one",
        "needs a CUDA device or a simulated GPU, and cpu is neither",
    }


def test_the_link_is_unknown_unless_given_and_the_best_is_told(told: Reported) -> None:
    context = context_on(reported=told, link_bytes_per_second=31.5e9)
    result = transferred(context, directions="h2h", memory="pageable", blocking="blocking")

    assert result["link_bytes_per_second"] == 31.5e9
    assert list(result["best_bytes_per_second"]) == ["cpu → cpu"]
    assert result["best_bytes_per_second"]["cpu → cpu"] == max(
        row["bytes_per_second_median"] for row in result["rates"]
    )


def test_copying_every_step_costs_more_than_copying_once(context: Context) -> None:
    result = transferred(context, directions="h2h", blocks="16MiB", memory="pageable")

    assert result["copy_every_step_seconds"] > result["copy_once_seconds"] > 0
    assert result["link_bytes_per_second"] is None


def test_every_sample_is_a_transfer_and_a_step(context: Context, told: Reported) -> None:
    transferred(context)
    context.flush()

    events = [event for event in told if isinstance(event, Transfer)]
    assert sum(event.bytes for event in events) == 3 * (64 * 65536 + 64 * MIB)
    assert {event.direction for event in events} == {"h2h"}
    steps = [event for event in told if isinstance(event, StepFinished)]
    assert steps[-1].step == steps[-1].steps == 8


def test_blocks_that_are_no_sizes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"--blocks .*'many' is not a size"):
        build(TransferSpec, {"blocks": "1MiB,many"})
    with pytest.raises(ValueError, match=r"--blocks .*outside 1 KiB to 16 GiB"):
        build(TransferSpec, {"blocks": "1"})


def test_a_product_tells_its_rate_from_its_median(context: Context, told: Reported) -> None:
    result = matmul.run(MatmulSpec(size=64, repeat=5), context)
    context.flush()

    assert result["flops_per_second"] == pytest.approx(2 * 64**3 / result["seconds_median"])
    assert result["seconds_iqr"] >= 0 and result["threads"] == 1 and result["dtype"] == "float32"
    stages = [event for event in told if isinstance(event, StageFinished)]
    assert sum(stage.count for stage in stages) == 5 and stages[0].flops == 2.0 * 64**3


def test_a_large_product_leaves_one_core_alone_and_a_wish_for_threads_is_obeyed(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul_spec.os, "sched_getaffinity", lambda pid: set(range(6)))
    used: list[int] = []
    monkeypatch.setattr(context, "use_threads", used.append)

    assert matmul_spec.threads_for(4096) == 5 and matmul_spec.threads_for(64) == 1
    assert matmul.run(MatmulSpec(size=300, repeat=3, threads=2), context)["threads"] == 2
    assert used == [2]
    monkeypatch.setattr(matmul_spec.os, "sched_getaffinity", lambda pid: {0})
    assert matmul_spec.threads_for(4096) == 1


def test_panels_make_the_same_product(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MatmulSpec, "panel_rows", lambda spec, device: 7)
    left, right, product = torch.rand(20, 20), torch.rand(20, 20), torch.empty(20, 20)

    matmul._multiply(MatmulSpec(size=20), left, right, product, context)

    assert torch.allclose(product, left @ right)


@pytest.mark.parametrize("size", [1, 100, 1024, 4096, 16384, 65536])
def test_a_part_of_a_product_takes_a_second_or_is_cautioned_about(size: int) -> None:
    spec = MatmulSpec(size=size)
    rows = spec.panel_rows("cpu")

    assert 1 <= rows <= size
    assert bool(spec.cautions("cpu")) == (2 * size**2 * rows / 20e9 > 1.0)
    assert spec.panel_rows("cuda:0") == size and spec.cautions("cuda:0") == []


@given(cap=st.integers(1, 10**6), step=st.integers(1000, 10**5))
def test_the_steps_of_a_ramp_add_up_to_its_cap(cap: int, step: int) -> None:
    sizes = pressure_patterns.steps_to(cap, step)

    assert sum(sizes) == cap and all(size == step for size in sizes[:-1]) and 0 < sizes[-1] <= step


@given(total=st.integers(1, 2**40), used=st.floats(0, 1), cache=st.floats(0, 1), ratio=st.floats(0.1, 0.95))
def test_the_default_cap_stays_below_its_level_and_below_what_is_free(
    total: int, used: float, cache: float, ratio: float
) -> None:
    level = MemoryLevel(int(total * used), int((total - int(total * used)) * cache), total)

    cap = pressure.default_cap(level, ratio)

    assert 0 <= cap <= 0.8 * level.free_bytes
    assert cap == 0 or level.used_bytes + cap <= min(1.0, ratio + 0.05) * total


def test_the_default_cap_is_five_per_cent_above_the_warning_level() -> None:
    assert pressure.default_cap(MemoryLevel(50 * GIB, 50 * GIB, 100 * GIB), 0.85) == 40 * GIB
    assert pressure.default_cap(MemoryLevel(10 * GIB, 20 * GIB, 100 * GIB), 0.85) == 16 * GIB


def test_a_ramp_reaches_its_cap_and_gives_everything_back(context: Context, told: Reported) -> None:
    result = pressure.run(PressureSpec(step=MIB, cap=5 * MIB // 2, rate=1000, hold=0), context)
    context.flush()

    assert result["allocated_bytes"] == result["cap_bytes"] == 5 * MIB // 2 and result["allocations"] == 3
    names = [event.name for event in told if isinstance(event, StageFinished)]
    assert names[0] == "allocate" and {"hold", "free"} <= set(names)


def test_a_ramp_without_cap_and_reading_says_to_name_one(bench: Bench) -> None:
    ending = bench.run("pressure")

    assert (
        isinstance(ending, RunEnd)
        and ending.status == "failed"
        and ending.error == "no_reading"
        and "--cap" in ending.remedy
    )


def test_a_ramp_above_its_level_already_allocates_nothing(told: Reported) -> None:
    context = context_on(reported=told, memory=lambda: MemoryLevel(95 * GIB, 5 * GIB, 100 * GIB))
    result = pressure.run(PressureSpec(), context)

    assert result["allocations"] == 0
    assert any(isinstance(event, Note) and "nothing is allocated" in event.text for event in told)


def test_stop_ends_the_hold_of_a_ramp(context: Context, told: Reported) -> None:
    progress = context.progress
    context.progress = lambda step, steps: (progress(step, steps), told.requests.stop.set())  # type: ignore[method-assign]

    with pytest.raises(Cancelled):
        pressure.run(PressureSpec(step=MIB, cap=MIB, hold=3600), context)


PROGRAMS: list[tuple[str, dict[str, Any]]] = [
    ("pipeline", {}),
    ("pipeline", {"move": "to_dtype", "operation": "matmul", "fill": "random", "repeat": 2, "back": "to_cpu"}),
    ("pipeline", {"move": "to_other", "operation": "multiply", "dtype": "int32", "fill": "random"}),
    ("pipeline", {"move": "direct", "operation": "relu", "dtype": "bfloat16", "rows": 40, "columns": 20}),
    ("pipeline", {"move": "direct", "fill": "ones"}),
    ("transfer", {"blocks": "64KiB", "samples": 3}),
    ("transfer", {"blocks": "64KiB", "samples": 3, "directions": "h2h", "memory": "pageable"}),
    ("matmul", {"size": 32, "repeat": 3}),
    ("pressure", {"step": "1MiB", "cap": "2MiB", "rate": 1000.0, "hold": 0.0}),
    ("training", {"model": "mlp", "mode": "inference", "width": 8, "depth": 1, "steps": 4}),
    ("training", {"mode": "inference", "width": 8, "depth": 1, "steps": 4, "precision": "bf16"}),
    ("training", {"model": "mlp", "width": 8, "depth": 1, "steps": 4, "batches": "pingpong", "optimizer": "sgd"}),
    ("training", {"model": "mlp", "width": 8, "depth": 1, "steps": 4, "keep_intermediates": True, "optimizer": "adam"}),
]


@pytest.mark.parametrize(("workload", "values"), PROGRAMS)
def test_the_program_a_run_amounts_to_runs_on_torch_alone(workload: str, values: dict[str, Any]) -> None:
    program = code(build(workloads()[workload], values), "cpu")
    printed = io.StringIO()

    with redirect_stdout(printed):
        exec(compile(program, "shown.py", "exec"), {"__name__": "shown"})

    assert "gpudash" not in program and printed.getvalue()


def test_the_program_of_the_default_pipeline_prints_the_result() -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code(PipelineSpec(), "cpu"), "shown.py", "exec"), {})

    assert "[11., 12., 13.]" in printed.getvalue() and "cpu cpu cpu True" in printed.getvalue()


@pytest.mark.parametrize("workload", ["training", "pipeline", "transfer", "matmul", "pressure"])
def test_programs_for_cuda_compile_and_name_the_device(workload: str) -> None:
    spec = workloads()[workload]
    for values in ({}, *spec.presets.values()):
        assert '"cuda:1"' in code(build(spec, values), "cuda:1")
    pitfalls = ["unassigned", "mixed_devices", "leaf", "numpy", "current_device"]
    for variant in (
        {"pipeline": [{"pitfall": pitfall} for pitfall in pitfalls] + [{"move": "pinned"}, {"move": "cuda_index"}]}
    ).get(workload, []):
        compile(code(build(spec, variant), "cuda:1"), "shown.py", "exec")
    if workload == "training":
        program = code(build(spec, {"move_at_epoch": 2, "deterministic": True}), "cuda:1")
        compile(program, "shown.py", "exec")
        assert "optimizer.load_state_dict(state)" in program


def test_a_third_partys_workload_has_no_program_to_show() -> None:
    spec: Spec = Custom()

    with pytest.raises(ValueError, match="custom cannot be shown as a program"):
        code(spec, "cpu")
