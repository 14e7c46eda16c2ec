"""Watching three GPUs of the stand-in driver, from a terminal: what is lost is a gap, what hangs stops nothing else."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from gpudash.session.recordings.replay import Replay
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.records import Warning
from tests.end_to_end.conftest import Command, Stub, start_python
from tests.nvml_stub.build import GIB, Scenario, StubGpu, gb10, variables

FUNCTIONS = (
    "nvmlInit",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetNvLinkState",
    "nvmlEventSetCreate",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)
"""Every call that gpudash makes of this driver."""


def three() -> Scenario:
    return Scenario([StubGpu(number, used=(number + 1) * GIB) for number in range(3)])


def watching(home: Path, env: dict[str, str], recording: Path) -> subprocess.Popen[str]:
    return start_python(
        home, "-m", "gpudash", "monitor", "--record", str(recording), extra=env, stdout=subprocess.DEVNULL
    )


def interrupted(process: subprocess.Popen[str]) -> float:
    """Seconds from Ctrl+C to the end of a process; one that does not end is a failure."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        _, told = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    seconds = time.monotonic() - began
    assert process.returncode == 0, told
    assert "Traceback" not in told
    return seconds


def used(recording: Path, table: str, uuid: str | None = None) -> list[tuple[float, int | None]]:
    """Time and use of every reading of memory, a row that did not ask for it left out."""
    with sqlite3.connect(recording) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        rows = database.execute(f"select time_s, device, used_bytes, states from {table} order by time_s").fetchall()
    return [
        (time_s, size)
        for time_s, device, size, states in rows
        if device == uuid and (size is not None or "used_bytes" in json.loads(states or "{}"))
    ]


def longest_gap_s(times: list[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(times))


def wall_origin(recording: Path) -> float:
    with sqlite3.connect(recording) as database:
        (text,) = database.execute("select value from meta where key = 'wall_clock_origin'").fetchone()
    return datetime.fromisoformat(text).timestamp()


def test_a_gb10_has_the_computers_memory_in_every_command(gpudash: Command, stub: Stub, tmp_path: Path) -> None:
    env = stub(Scenario([gb10()]))
    cpu, card = gpudash("devices", "--json", env=env).document["devices"][:2]
    assert card["shared_memory"] and card["total_bytes"] == cpu["total_bytes"] == card["readings"]["total_bytes"]
    assert "of memory shared with the CPU" in gpudash("doctor", env=env).stdout
    recording = tmp_path / "session.gpudash"
    told = gpudash("monitor", "--seconds", "1", "--json", "--record", str(recording), env=env).document["devices"]
    assert [(device["uuid"], device["shared_memory"]) for device in told] == [(None, True), (card["uuid"], True)]
    assert told[1]["metrics"]["total_bytes"]["last"] == cpu["total_bytes"]
    with contextlib.closing(Replay(recording)) as replay:
        assert replay.gpus[0].shared_memory


def test_three_gpus_are_listed_and_a_cpu_build_of_torch_beside_them_is_told_everywhere(
    gpudash: Command, stub: Stub
) -> None:
    scenario = three()
    env = stub(scenario)
    outcome = gpudash("devices", "--json", env=env)
    devices = outcome.document
    assert outcome.code == 0
    assert [device["uuid"] for device in devices["devices"][1:]] == [gpu.uuid for gpu in scenario.gpus]
    assert [device["readings"]["used_bytes"] for device in devices["devices"][1:]] == [GIB, 2 * GIB, 3 * GIB]
    if devices["torch"]["cuda_version"] is not None:
        pytest.skip("torch is a CUDA build")
    assert "is a CPU build though a GPU is there" in devices["problem"]
    assert devices["default"] == "cpu"
    doctor = gpudash("doctor", env=env)
    assert doctor.code == 1
    assert "is a CPU build though a GPU is there" in doctor.stdout
    run = gpudash("run", "pipeline", "--device", "cuda:0", env=env)
    assert run.code == 2
    assert "is a CPU build though a GPU is there" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
    listed = gpudash("devices", env=stub(Scenario([gb10()]))).stdout
    assert "\nGPU 0: driver_reserved_bytes not supported" in listed, "by the name that the table has for it"


FULLNESS = (70, 84, 86, 85, 86, 94, 96, 60)
"""Of a GPU in per cent, one after the other."""


@pytest.mark.timed
def test_a_gpu_lost_from_second_5_to_8_is_a_gap_and_levels_of_another_warn_once_each_within_half_a_second(
    home: Path, tmp_path: Path, stub: Stub
) -> None:
    recording = tmp_path / "faults.gpudash"
    points = [(0.0, 70 * GIB), *((4.0 + 0.6 * number, full * GIB) for number, full in enumerate(FULLNESS))]
    filling = StubGpu(2, total=100 * GIB, reserved=0, used=points)
    scenario = Scenario([*three().gpus[:2], filling]).begin_now()
    began_wall = time.time()
    process = watching(home, stub(scenario.lose(1, begin=5.0, end=8.0)), recording)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(10.0)
    assert interrupted(process) < 3.0
    offset = began_wall - wall_origin(recording)  # the scenario's second 0 in session time
    lost, back = 5.0 + offset, 8.0 + offset
    uuids = [gpu.uuid for gpu in scenario.gpus]
    readings = used(recording, "gpu", uuids[1])
    gaps = [time_s for time_s, size in readings if size is None]
    assert gaps
    assert lost - 0.05 <= gaps[0] < lost + 0.2
    assert 0 not in [size for _, size in readings]
    returned = next(time_s for time_s, size in readings if time_s > gaps[-1])
    assert back - 0.05 <= returned < back + 1.0
    assert all(size is None for time_s, size in readings if gaps[0] <= time_s <= gaps[-1])
    assert all(size == 2 * GIB for time_s, size in readings if not gaps[0] <= time_s <= gaps[-1])
    for uuid in (uuids[0], uuids[2]):
        others = used(recording, "gpu", uuid)
        assert all(size is not None for _, size in others)
        assert longest_gap_s([time_s for time_s, _ in others]) < 1.0
    with open_recording(recording) as opened:
        warnings = [event for event in opened.events() if isinstance(event, Warning) and event.device == uuids[2]]
    told = [event for event in warnings if event.level != "forecast"]
    assert [event.level for event in told] == ["warning", "critical", "passed"]
    readings = used(recording, "gpu", uuids[2])
    for event, full in zip(told, (86, 96, 60), strict=True):
        first = next(time_s for time_s, size in readings if size == full * GIB)
        assert 0 <= event.time_s - first < 0.5


class Pulse(threading.Thread):
    """A thread that wants to run twenty times a second, as a reader of the host does: how late this machine lets it.

    Attributes:
        longest_s: between two of its turns.
    """

    def __init__(self) -> None:
        super().__init__(name="pulse", daemon=True)
        self.longest_s = 0.0
        self._ended = threading.Event()

    def run(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(0.05):
            now = time.monotonic()
            self.longest_s, before = max(self.longest_s, now - before), now

    def end(self) -> float:
        """`longest_s`, at its end."""
        self._ended.set()
        self.join()
        return self.longest_s


def hanging(
    home: Path, tmp_path: Path, driver: Path, functions: Sequence[str], *, later: bool, end: float, watch_s: float
) -> dict[str, list[tuple[float, int | None]]]:
    """Watches while a call of GPU 1 (or of the library) hangs, a process for each; GPU 0's readings by function.

    Args:
        later: the calls begin to hang when GPUs are being read, not before the first of them.
        end: seconds after which they return.
        watch_s: how long to watch them hang.
    """
    scenarios = {function: three().begin_now() for function in functions}
    processes = []
    for function, scenario in scenarios.items():
        if not later:
            _hang(scenario, function, end)
        scenario.write(tmp_path / f"{function}.scenario")
        env = variables(driver, tmp_path / f"{function}.scenario")
        processes.append(watching(home, env, tmp_path / f"{function}.gpudash"))
    for function, scenario in scenarios.items() if later else ():
        wait_for_rows(tmp_path / f"{function}.gpudash", "gpu")
        _hang(scenario, function, end).write(tmp_path / f"{function}.scenario")
    for function in functions:
        wait_for_rows(tmp_path / f"{function}.gpudash", "host")
    watched, pulse = time.time(), Pulse()  # until now so many programs that begin had the processor
    pulse.start()
    with pytest.raises(subprocess.TimeoutExpired):
        processes[-1].wait(watch_s)
    asked, late_s = time.time(), pulse.end()
    try:
        for process in processes:  # one by one: together they would keep each other from leaving
            assert interrupted(process) < 3.0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return {function: _others(tmp_path / f"{function}.gpudash", watched, asked, late_s) for function in functions}


def _hang(scenario: Scenario, function: str, end: float) -> Scenario:
    of_library = ("nvmlInit", "nvmlSystem", "nvmlDeviceGetCount", "nvmlEventSetCreate")
    of = None if function.startswith(of_library) else 1
    return scenario.hang(function, of, end=end)


def _others(recording: Path, watched: float, asked: float, late_s: float) -> list[tuple[float, int | None]]:
    """GPU 0's readings while they were watched, once the host's have been found whole.

    Args:
        watched, asked: from when to when, in seconds since the epoch; the latter is the first moment of Ctrl+C.
        late_s: how late a thread was in that time that had nothing to wait for.
    """
    host, origin = used(recording, "host"), wall_origin(recording)
    assert host[-1][0] > asked - origin - 0.5 - late_s, recording
    assert all(size is not None for _, size in host), recording
    begin, end = watched - origin - 0.5, asked - origin
    assert longest_gap_s([time_s for time_s, _ in host if begin < time_s < end]) < 0.5 + late_s, recording
    with sqlite3.connect(recording) as database:
        assert database.execute("select value from meta where key = 'status'").fetchone() == ("closed",), recording
    return [(time_s, size) for time_s, size in used(recording, "gpu", StubGpu(0).uuid) if begin < time_s < end]


def wait_for_rows(recording: Path, table: str) -> None:
    deadline = time.monotonic() + 60.0
    pause = threading.Event()
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(sqlite3.OperationalError),  # not there, or without its tables, yet
            contextlib.closing(sqlite3.connect(f"file:{recording}?mode=ro", uri=True)) as database,
        ):
            if database.execute(f"select count(*) from {table}").fetchone()[0]:
                return
        pause.wait(0.05)
    raise AssertionError(f"{recording} never had a row in {table}")


TOGETHER = 6
"""Processes that watch at once: enough to save time, few enough not to disturb each other."""

GROUPS = [FUNCTIONS[begin : begin + TOGETHER] for begin in range(0, len(FUNCTIONS), TOGETHER)]


STARTING = (
    "nvmlInit",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetFieldValues",
)
"""Of each kind: opening the library, finding a GPU, and reading it often and now and then."""


@pytest.mark.table
@pytest.mark.timed
@pytest.mark.parametrize(
    ("functions", "later"),
    [(STARTING, False), *((group, True) for group in GROUPS)],
    ids=["from the start", *(f"later {group[0]}" for group in GROUPS)],
)
def test_any_call_may_hang_for_ever(
    home: Path, tmp_path: Path, driver: Path, functions: Sequence[str], later: bool
) -> None:
    others = hanging(home, tmp_path, driver, functions, later=later, end=1e9, watch_s=4.0)
    for function in functions if later else ():
        assert longest_gap_s([time_s for time_s, _ in others[function]]) < 1.0, function
    for function in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo_v2"):
        assert others.get(function, True), "another GPU is read though one hangs from the start"


@pytest.mark.table
@pytest.mark.timed
@pytest.mark.parametrize("functions", GROUPS, ids=lambda group: group[0])
def test_any_call_may_hang_for_5_seconds_and_comes_back(
    home: Path, tmp_path: Path, driver: Path, functions: Sequence[str]
) -> None:
    others = hanging(home, tmp_path, driver, functions, later=False, end=5.0, watch_s=8.0)
    for function in functions:
        assert others[function], function
        assert others[function][-1][1] == GIB, function
