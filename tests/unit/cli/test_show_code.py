"""``gpudash run WORKLOAD --show-code``: what it refuses, and what of the request gets into the program."""

from __future__ import annotations

import pytest

from gpudash.cli import run
from gpudash.units import GIB, MIB


def test_a_share_of_the_memory_is_limited_before_anything_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "matmul", "--device", "cuda:1", "--memory-cap", "25%", "--show-code"]) == 0
    lines = capsys.readouterr().out.splitlines()
    limit = lines.index('torch.cuda.set_per_process_memory_fraction(0.25, "cuda:1")')
    assert lines.index("import torch") < limit < next(n for n, line in enumerate(lines) if "torch.empty" in line)


def test_a_limit_in_bytes_is_taken_of_what_the_gpu_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "training", "--device", "cuda:0", "--memory-cap", "2GiB", "--show-code"]) == 0
    program = capsys.readouterr().out
    assert 'capacity = torch.cuda.get_device_properties("cuda:0").total_memory' in program
    assert 'set_per_process_memory_fraction((2147483648 + 0.25) / capacity, "cuda:0")' in program
    compile(program, "shown.py", "exec")


def test_the_simulated_gpus_and_what_others_hold_of_them_are_those_that_were_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--simulate", "1GiB", "--simulate", "2GiB", "--simulate-others", "256MiB"]
    assert run(["run", "matmul", "--device", "sim:1", *flags, "--show-code"]) == 0
    assert "simulate(1073741824, 2147483648, others=268435456)" in capsys.readouterr().out


def test_a_run_is_on_the_gpu_that_is_simulated_for_it_unless_a_device_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["run", "matmul", "--simulate", "1GiB", "--show-code"]) == 0
    assert 'device="sim:0"' in capsys.readouterr().out
    assert run(["run", "matmul", "--simulate", "1GiB", "--device", "cpu", "--show-code"]) == 0
    assert "sim:0" not in capsys.readouterr().out


def test_a_gpu_that_was_asked_for_by_name_is_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "matmul", "--show-code", "--device", "sim:1", "--simulate", "8GiB,H100"]) == 0
    assert "simulate(8589934592, 'h100')  # a GPU's name, or bytes;" in capsys.readouterr().out


LIMITS = [
    (["--simulate", "1GiB", "--memory-cap", "512MiB"], 512 * MIB),
    (["--simulate", "1GiB", "--memory-cap", "50%"], 512 * MIB),
    (["--simulate", "1GiB", "--simulate-others", "500MiB"], 224 * MIB),
    (["--device", "cuda:0", "--memory-cap", "512MiB"], 512 * MIB),
    (["--device", "cuda:0"], 2 * GIB),
]


@pytest.mark.parametrize(
    ("pattern", "flags", "room"),
    [
        *(("leak", *limit) for limit in LIMITS),
        *(
            (pattern, *limit)
            for pattern, limit in zip(("ramp", "sawtooth", "fragmentation", "spike"), LIMITS, strict=False)
        ),
    ],
)
def test_a_pressure_without_a_cap_of_its_own_ends_below_what_there_is(
    pattern: str, flags: list[str], room: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "pressure", "--pattern", pattern, *flags, "--show-code"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("cap = "))
    assert 0 < int(line.split()[2]) <= 0.8 * room
