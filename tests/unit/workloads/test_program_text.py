"""Programs keep within sixty lines, whatever is asked of a run, and stay programs."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudash.devices.names import Simulation
from gpudash.session.live.programs import NOT_KEPT
from gpudash.specs import Spec, build, workloads
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import GIB
from gpudash.workloads.program_code import MOST_LINES, code, fitted

DEVICES = ("cpu", "sim:0", "cuda:1")


def choices(workload: str) -> st.SearchStrategy[dict[str, Any]]:
    """Values of the fields of a workload that choose between ways of doing it."""
    fields = {}
    for name, values in VARIANTS[workload].items():
        fields[name] = st.sampled_from(values)
    return st.fixed_dictionaries({}, optional=fields)


VARIANTS: dict[str, dict[str, list[Any]]] = {
    "training": {
        "model": ["transformer", "mlp", "cnn"],
        "mode": ["train", "inference"],
        "precision": ["fp32", "bf16", "fp16"],
        "optimizer": ["sgd", "momentum", "adam", "adamw"],
        "checkpointing": [True],
        "accumulation": [3],
        "batches": ["resident", "moved", "pingpong"],
        "keep_intermediates": [True],
        "move_at_epoch": [2],
        "deterministic": [True],
        "depth": [1, 7],
    },
    "pipeline": {
        "move": ["to", "to_dtype", "to_other", "cuda", "cuda_index", "pinned", "direct"],
        "fill": ["count", "ones", "random"],
        "dtype": ["float32", "int64", "bfloat16"],
        "operation": ["add", "multiply", "matmul", "relu"],
        "back": ["cpu", "to_cpu"],
        "pitfall": ["none", "unassigned", "mixed_devices", "leaf", "numpy", "current_device"],
    },
    "transfer": {
        "blocks": ["1KiB", "1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"],
        "directions": ["all", "h2d", "d2h", "h2h"],
        "memory": ["both", "pageable", "pinned"],
        "blocking": ["both", "blocking", "overlapped"],
    },
    "pressure": {
        "pattern": ["ramp", "leak", "sawtooth", "fragmentation", "spike"],
        "until": ["cap", "oom"],
        "cap": ["3MiB"],
    },
    "matmul": {"dtype": ["float32", "bfloat16", "float64"], "threads": [0, 3]},
}


def is_readable(program: str) -> None:
    ast.parse(program)
    assert len(program.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("workload", list(VARIANTS))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_combination_is_a_program_of_at_most_sixty_lines(workload: str, data: st.DataObject) -> None:
    values, device = data.draw(choices(workload)), data.draw(st.sampled_from(DEVICES))
    cap = data.draw(st.sampled_from([None, MemoryCap(share=0.5), MemoryCap(size=2 * GIB)]))
    spec = build(workloads()[workload], values)
    simulation = Simulation((4 * GIB, 8 * GIB), others=GIB)

    is_readable(code(spec, device, simulation, None if device == "cpu" else cap))
    if device != "cpu":
        is_readable(code(spec, device, simulation, remark=NOT_KEPT))


def presets() -> list[tuple[type[Spec], str, str]]:
    built_in = [workloads()[name] for name in VARIANTS]
    return [(spec, preset, device) for spec in built_in for preset in spec.presets for device in DEVICES]


@pytest.mark.parametrize(("spec", "preset", "device"), presets())
def test_every_preset_is_a_program_without_statements_side_by_side(spec: type[Spec], preset: str, device: str) -> None:
    program = code(build(spec, {}, preset), device)

    is_readable(program)
    assert not any("; " in line.partition("#")[0] for line in program.splitlines())
    assert ("gpudash" in program) == device.startswith("sim")


def test_what_fits_is_left_as_it_is() -> None:
    lines = ["import torch", "", "x = 1", "", "y = 2"]

    assert fitted(lines, 5) == lines


def test_blank_lines_go_first_and_only_as_many_as_must() -> None:
    assert fitted(["import torch", "", "x = 1", "", "y = 2"], 4) == ["import torch", "", "x = 1", "y = 2"]


def test_then_short_statements_of_a_block_share_a_line() -> None:
    lines = ["for x in y:", "    a = 1", "    b = [2]  # why", "    c = 3", "    d = 4", "e = 5"]

    assert fitted(lines, 5) == ["for x in y:", "    a = 1", "    b = [2]  # why", "    c = 3; d = 4", "e = 5"]


def test_what_cannot_be_joined_stays_too_long_rather_than_becoming_wrong() -> None:
    lines = ["import a", "from b import c", "x = (", "    1)", "if x:", "    return"]

    assert fitted(lines, 1) == lines
