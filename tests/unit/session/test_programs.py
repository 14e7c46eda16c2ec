"""A run as a program: of the panel, and of a recording."""

from __future__ import annotations

import pytest

from gpudash.devices.names import Device
from gpudash.session.live.machine import NOT_KEPT, program_of, program_of_run
from gpudash.specs import MatmulSpec, PressureSpec, Spec, TrainingSpec
from gpudash.units import GIB

CPU, SIMULATED = Device("cpu", "CPU", 8 * GIB), Device("sim:0", "simulated", 2 * GIB, "SIM-0")


def test_the_simulated_gpus_are_those_of_the_session() -> None:
    assert f"simulate({2 * GIB})" in program_of(MatmulSpec(), "sim:0", [CPU, SIMULATED])
    assert "simulate(8589934592, 8589934592)" in program_of(MatmulSpec(), "sim:1")


def test_a_recorded_run_becomes_a_program_by_what_was_recorded_of_it() -> None:
    spec = PressureSpec(cap=GIB, hold=1.5)
    recorded = spec.model_dump(mode="json")

    assert program_of_run("pressure", recorded, "cpu") == program_of(spec, "cpu")


def test_what_simulated_other_processes_hold_is_in_the_program() -> None:
    assert f"simulate({2 * GIB}, others={GIB})" in program_of(MatmulSpec(), "sim:0", [CPU, SIMULATED], GIB)


@pytest.mark.parametrize("spec", [TrainingSpec(), PressureSpec(until="oom")])
def test_what_a_recording_does_not_keep_is_said_in_the_program(spec: Spec) -> None:
    text = program_of_run(spec.name, spec.model_dump(mode="json"), "sim:0", [CPU, SIMULATED])

    assert text.startswith("".join(f"{line}\n" for line in NOT_KEPT))
    assert len(text.splitlines()) <= 60 and max(map(len, text.splitlines())) <= 120
    compile(text, "copied.py", "exec")
    assert "--memory-cap" not in program_of_run("training", {}, "cpu")


@pytest.mark.parametrize(
    ("workload", "fields", "words"),
    [
        ("watch", {"command": ["train.py"]}, "your own program"),
        ("diffusion", {}, "the workload diffusion, which is not here"),
        ("matmul", {"sise": 8}, "sise"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(workload: str, fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        program_of_run(workload, fields, "cpu")
    assert len(str(refusal.value).splitlines()) == 1
