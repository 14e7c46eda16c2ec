"""The reader that is sent over ssh: what it may be made of, and what it tells of the driver's stand-in."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpudash.devices import known_gpus
from gpudash.sources.nvml import calls
from gpudash.sources.nvml.errors import classify
from gpudash.sources.processes import container_in
from gpudash.sources.ssh import remote_reader
from gpudash.sources.ssh.connection import reader_source
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import State
from tests.nvml_stub.build import (
    GIB,
    LOST,
    MIB,
    Scenario,
    StubGpu,
    build,
    gb10,
    h100_in_halves,
    variables,
    without_driver,
)

pytestmark = pytest.mark.process

SOURCE = Path(remote_reader.__file__)

PATIENCE_S = 120.0

PCIE = remote_reader.PCIE[0]


def test_python_3_8_can_read_it_and_needs_nothing_but_its_own_library() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
    sent = reader_source()
    ast.parse(sent, feature_version=(3, 8))
    assert len(sent) < 2**15  # a pipe holds twice as much, so that sending it never waits


def test_its_codes_and_numbers_are_those_of_the_drivers_header() -> None:
    states = {State.NO_PERMISSION: remote_reader.NO_PERMISSION, State.LOST: remote_reader.LOST}
    for code, state in remote_reader._STATES.items():
        judged = classify(pynvml.NVMLError(code)).state
        assert states.get(judged, remote_reader.NOT_SUPPORTED) == state, code
    assert pynvml.nvmlMemory_v2 == remote_reader._MEMORY_2_VERSION
    assert pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value == remote_reader.NOT_AVAILABLE
    assert (calls.HEAT, calls.BRAKE, calls.POWER) == (remote_reader.HEAT, remote_reader.BRAKE, remote_reader.POWER)


def started(variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """The reader, as a process."""
    command = [sys.executable, "-I", "-S", "-B", str(SOURCE), "0.05"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)


@contextmanager
def reading(
    process: subprocess.Popen[bytes],
) -> Iterator[Callable[[Callable[[dict[str, Any]], bool]], dict[str, Any]]]:
    """What is yielded gives the next line of the reader's that meets a condition."""
    with process:
        assert process.stdin is not None and process.stdout is not None
        output = process.stdout

        def first(wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            for line in output:
                record: dict[str, Any] = json.loads(line)
                if wanted(record):
                    return record
            raise AssertionError("it ended")

        try:
            yield first
        finally:
            process.stdin.close()
            process.stdin = None
            process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_gpu_is_told_with_every_metric_its_processes_and_its_link(tmp_path: Path) -> None:
    processes = ((os.getpid(), 5 * GIB, "C"), (os.getpid(), 5 * GIB, "G"))
    card = StubGpu(0, used=7 * GIB, processes=processes, clock_reasons=0x48, ecc_errors=3)
    Scenario(gpus=[card, StubGpu(1)]).write(tmp_path / "scenario")
    with reading(started(variables(build(tmp_path / "stub"), tmp_path / "scenario"))) as first:
        assert first(lambda record: "gpudash" in record)["capacity_source"]
        found = first(lambda record: "gpus" in record)["gpus"]
        assert [(gpu["uuid"], gpu["product"], gpu["pcie_generation"]) for gpu in found] == [
            (StubGpu(number).uuid, "NVIDIA H200", 5) for number in (0, 1)
        ]
        gpu = first(lambda record: record.get("device") == card.uuid and "used_bytes" in record)
        measured = {metric.name for metric in METRICS["gpu"]} - {"process_bytes"}
        now_and_then = {*remote_reader.PCIE, *remote_reader.NVLINK, *remote_reader.XIDS}
        assert measured - now_and_then <= set(gpu) and "states" not in gpu
        assert (gpu["used_bytes"], gpu["total_bytes"], gpu["power_w"]) == (7 * GIB, 141 * GIB, 120.5)
        assert (gpu["slowed_by_heat"], gpu["slowed_by_power"], gpu["ecc_uncorrected_errors"]) == (1, 0, 3)
        assert gpu["clocks_event_reasons"] == 0x48
        told = [first(lambda record, n=n: record.get("device") == StubGpu(n).uuid and PCIE in record) for n in (1, 0)]
        assert [record[PCIE] for record in told] == [1e6, 1e6]
        listed = first(lambda record: record.get("device") == card.uuid and record.get("pid") is not None)
        assert (listed["pid"], listed["memory_bytes"]) == (os.getpid(), 5 * GIB)
        host = first(lambda record: record.get("table") == "host" and "cpu_utilisation" in record)
        assert host["used_bytes"] + host["available_bytes"] == host["total_bytes"]


def test_xid_errors_are_told_one_by_one_and_links_with_their_rates_and_errors(tmp_path: Path) -> None:
    card = StubGpu(0, links=4, links_down=1, link_errors=2, link_rate=1e6, xids=[13])
    Scenario(gpus=[card]).write(tmp_path / "scenario")
    with reading(started(variables(build(tmp_path / "stub"), tmp_path / "scenario"))) as first:
        count, last = remote_reader.XIDS
        assert first(lambda record: count in record)[last] == 0
        Scenario(gpus=[replace(card, xids=[13, 94, 45])]).write(tmp_path / "scenario")
        told = [first(lambda record, n=n: record.get(count) == n) for n in (1, 2)]
        assert [record[last] for record in told] == [94, 45]
        received, sent, errors, links = remote_reader.NVLINK
        linked = first(lambda record: bool(record.get(received)))
        assert (linked[errors], linked[links]) == (8, 3)
        assert linked[received] == pytest.approx(2 * linked[sent], rel=0.01) and linked[received] > 2**20


def test_a_gpu_that_is_lost_still_tells_of_the_xid_error_that_it_was_lost_by(tmp_path: Path) -> None:
    both = [StubGpu(0), StubGpu(1)]
    Scenario(gpus=both).write(tmp_path / "scenario")
    with reading(started(variables(build(tmp_path / "stub"), tmp_path / "scenario"))) as first:
        uuid, (count, last) = StubGpu(0).uuid, remote_reader.XIDS
        first(lambda record: record.get("device") == uuid and count in record)
        gone = Scenario(gpus=[replace(both[0], xids=[79]), both[1]])
        gone.fault("nvmlDeviceGetMemoryInfo_v2", LOST, 0).write(tmp_path / "scenario")
        told = first(lambda record: record.get("device") == uuid and record.get(count) == 1)
        assert told[last] == 79


SHARING = {
    "NotSupported": lambda: gb10(used=0),
    "a total of 0": lambda: StubGpu(0, name="NVIDIA GB10", total=0, reserved=0, used=0),
    "the system's memory as the card's": lambda: StubGpu(0, name="NVIDIA GB10", total=24 * GIB, used=20 * GIB),
    "a Jetson's": lambda: StubGpu(0, name="Orin (nvgpu)", total=15 * GIB, used=GIB),
}


@pytest.mark.parametrize("driver", SHARING)
def test_a_gpu_without_memory_of_its_own_has_the_machines_and_no_link(tmp_path: Path, driver: str) -> None:
    Scenario(gpus=[replace(SHARING[driver](), processes=((os.getpid(), 5 * GIB, "C"),))]).write(tmp_path / "scenario")
    with reading(started(variables(build(tmp_path / "stub"), tmp_path / "scenario"))) as first:
        [found] = first(lambda record: "gpus" in record)["gpus"]
        assert found["shared_memory"] is True
        card = first(lambda record: record.get("table") == "gpu" and PCIE in record)
        host = first(lambda record: record.get("table") == "host")
        assert card["total_bytes"] == host["total_bytes"] and card["used_bytes"] > 0
        assert (card["gpu_utilisation"], card["temperature_c"]) == (0.37, 41.0)
        missing = {name for name, state in card["states"].items() if state == "not supported"}
        assert {"driver_reserved_bytes", *remote_reader.PCIE, "pcie_generation", "pcie_width"} <= missing
        listed = first(lambda record: record.get("pid") == os.getpid() and record.get("device") == found["uuid"])
        assert listed["memory_bytes"] == 5 * GIB


def test_a_mig_instance_is_a_gpu_with_memory_and_processes_of_its_own(tmp_path: Path) -> None:
    whole, first_part, second_part = h100_in_halves(processes=[(os.getpid(), GIB, "C")])
    gpus = [whole, first_part, replace(second_part, name=whole.name)]
    Scenario(gpus=gpus).write(tmp_path / "scenario")
    with reading(started(variables(build(tmp_path / "stub"), tmp_path / "scenario"))) as first:
        found = first(lambda record: "gpus" in record)["gpus"]
        assert [(gpu["uuid"], gpu["instances"]) for gpu in found] == [
            (whole.uuid, 2),
            (first_part.uuid, 0),
            (second_part.uuid, 0),
        ]
        part = found[2]
        assert (part["parent"], part["instance"], part["multiprocessors"]) == (whole.uuid, 1, 60)
        assert part["product"] == "NVIDIA H100 80GB HBM3 MIG 3g.40gb" and not part["shared_memory"]
        for gpu, used in ((first_part, GIB), (second_part, 2 * GIB)):
            row = first(lambda record, uuid=gpu.uuid: record.get("device") == uuid and "used_bytes" in record)
            assert (row["used_bytes"], row["total_bytes"]) == (used, 40_448 * MIB)
            assert {name for name, value in row.items() if value is None} == {*row["states"]}
            assert set(row["states"].values()) == {"not supported"}
        told = first(lambda record: record.get("device") == whole.uuid and "temperature_c" in record)
        assert told["temperature_c"] == 41.0
        lists = [first(lambda record: "pid" in record and record["device"] is not None) for _each in range(5)]
        assert [(row["device"], row["pid"]) for row in lists] == [
            (whole.uuid, None),  # the beginning of a list, and of this one the end
            (first_part.uuid, None),
            (first_part.uuid, os.getpid()),
            (second_part.uuid, None),
            (second_part.uuid, os.getpid()),
        ]


CGROUPS = [
    f"0::/system.slice/docker-{'3f2a9c1b4d5e' + '0' * 52}.scope",
    f"12:memory:/docker/{'3f2a9c1b4d5e' + '0' * 52}",
    f"0::/user.slice/libpod-{'a' * 64}.scope/container",
    f"0::/kubepods.slice/pod{'12345678-1234-1234-1234-123456789abc'}/cri-containerd-{'b' * 64}.scope",
    "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0",
    f"0::/slurm/job_7/docker/{'c' * 64}",
    "0::/user.slice/user-1000.slice/session-2.scope",
    "",
]


def test_a_container_is_named_as_the_one_of_a_process_here() -> None:
    told = [remote_reader.container_in(cgroup) for cgroup in CGROUPS]
    assert told == [container_in(cgroup) for cgroup in CGROUPS]
    assert told[0] == told[1] == "docker 3f2a9c1b4d5e" and told[-1] is None and None not in told[:6]


def test_a_gpu_of_no_memory_is_known_by_the_same_names_as_here() -> None:
    assert known_gpus._INTEGRATED.pattern == remote_reader.INTEGRATED


@pytest.mark.timed
def test_it_writes_no_file_and_looks_at_no_clock_that_can_be_set(tmp_path: Path) -> None:
    """A disk that is full there, or cannot be written, and a clock that is wrong there keep nothing from it."""
    called = {node.attr for node in ast.walk(ast.parse(SOURCE.read_text())) if isinstance(node, ast.Attribute)}
    assert not called & {"time_ns", "now", "today", "localtime", "gmtime"}
    times = [node for node in ast.walk(ast.parse(SOURCE.read_text())) if isinstance(node, ast.Attribute)]
    of_time = {node.attr for node in times if isinstance(node.value, ast.Name) and node.value.id == "time"}
    assert of_time == {"monotonic", "sleep"}
    program = tmp_path / "watched.py"
    program.write_text(
        "import os, runpy, sys\n"
        "def look(event, found):\n"
        "    if event == 'open' and isinstance(found[2], int) and found[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):\n"
        "        os.write(2, repr(found).encode())\n"
        "        os._exit(9)\n"
        "sys.addaudithook(look)\n"
        f"sys.argv[:] = [{str(SOURCE)!r}, '0.05']\n"
        f"runpy.run_path({str(SOURCE)!r}, run_name='__main__')\n"
    )
    command = [sys.executable, "-I", "-S", "-B", str(program)]
    with reading(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=without_driver(tmp_path))
    ) as first:
        assert first(lambda record: record.get("table") == "process")["memory_bytes"] > 0


def test_a_gpu_that_is_lost_is_a_gap_with_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    scenario = Scenario(gpus=[StubGpu(0), StubGpu(1)])
    scenario.write(tmp_path / "scenario")
    with reading(started(variables(build(tmp_path / "stub"), tmp_path / "scenario"))) as first:
        first(lambda record: record.get("device") == StubGpu(1).uuid and "used_bytes" in record)
        scenario.fault("*", LOST, 1).write(tmp_path / "scenario")
        gap = first(lambda record: record.get("device") == StubGpu(1).uuid and record.get("states"))
        assert gap["used_bytes"] is None and gap["states"]["used_bytes"] == "lost"
        assert first(lambda record: record.get("device") == StubGpu(0).uuid)["used_bytes"] == 2 * GIB


def test_a_driver_that_hangs_leaves_the_hosts_figures_and_makes_its_own_gaps(tmp_path: Path) -> None:
    scenario = Scenario(gpus=[StubGpu(0)])
    scenario.write(tmp_path / "scenario")
    with reading(started(variables(build(tmp_path / "stub"), tmp_path / "scenario"))) as first:
        first(lambda record: record.get("table") == "gpu")
        scenario.hang("nvmlDeviceGetUtilizationRates", 0).write(tmp_path / "scenario")
        gap = first(lambda record: record.get("table") == "gpu" and "states" in record)
        assert set(gap["states"].values()) == {"stale"}
        assert first(lambda record: record.get("table") == "host")["used_bytes"] > 0


def test_without_a_driver_that_is_told_by_its_code_and_the_host_is_read(tmp_path: Path) -> None:
    with reading(started(without_driver(tmp_path))) as first:
        assert first(lambda record: "gpus" in record) == {"gpus": [], "problem": remote_reader.NO_LIBRARY}
        assert first(lambda record: record.get("table") == "host")["total_bytes"] > 0
