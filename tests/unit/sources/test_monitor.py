"""A monitor over the NVML stub: what is lost, hangs, comes later or goes, and whose processes are shown."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from gpudash.sources.host import HostReader
from gpudash.sources.lanes import Timing
from gpudash.sources.monitor import Monitor
from gpudash.sources.nvml.errors import Fault, NvmlUnavailableError, classify
from gpudash.sources.nvml.gpu_reader import MEMORY
from gpudash.sources.nvml.gpu_watch import GpuWatch
from gpudash.telemetry.records import Record, Sample, SourceFailed, SourceRecovered, State
from tests.nvml_stub.build import GIB, NOT_LOADED, Playing, Scenario, StubGpu, h100_in_halves, variables
from tests.programs import python
from tests.unit.sources.collecting import PATIENCE_S, Collector, events, longest_gap_s, rows, running, session_clock

pytestmark = pytest.mark.process

Play = Callable[..., Playing]

QUICK = Timing(slow=0.1, processes=0.5, tend=0.05, longest_retry=0.1, reopen=0.2, patience=0.15)

FAST_CALLS = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetFieldValues",
)
SLOW_CALLS = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetComputeRunningProcesses_v3")

TIMING = Timing(tend=1.0, longest_retry=64.0)


def three() -> Scenario:
    return Scenario([StubGpu(number, used=(number + 1) * GIB) for number in range(3)])


def monitor(records: Collector, root: Path, rate_hz: float = 50.0, timing: Timing = QUICK) -> Monitor:
    return Monitor(records, session_clock(), rate_hz=rate_hz, timing=timing, host=HostReader(), root=root)


def has_value(uuid: str, metric: str = "used_bytes") -> Callable[[Record], bool]:
    return lambda r: isinstance(r, Sample) and r.device == uuid and r.values.get(metric) is not None


def is_gap(uuid: str, state: State, metric: str = "used_bytes") -> Callable[[Record], bool]:
    return lambda r: isinstance(r, Sample) and r.device == uuid and r.states.get(metric) is state


def told(kind: type[SourceFailed | SourceRecovered], source: str) -> Callable[[Record], bool]:
    return lambda r: isinstance(r, kind) and r.source == source


def last_time_s(records: Iterable[Record]) -> float:
    return max(record.time_s for record in records)


def test_all_gpus_are_listed_and_read_by_uuid_whatever_their_order(play: Play, tmp_path: Path) -> None:
    scenario = three()
    scenario.order = [2, 0, 1]
    play(scenario)
    records = Collector()
    with running(monitor(records, tmp_path)) as watching:
        for gpu in scenario.gpus:
            sample = records.wait_for(has_value(gpu.uuid))[0]
            assert isinstance(sample, Sample) and sample.values["used_bytes"] == (gpu.number + 1) * GIB
        assert [gpu.uuid for gpu in watching.gpus] == [scenario.gpus[number].uuid for number in (2, 0, 1)]
        assert watching.problem is None
    assert events(records.records, SourceFailed) == []


def test_a_lost_gpu_is_a_gap_exactly_while_it_is_lost_and_the_others_go_on(play: Play, tmp_path: Path) -> None:
    scenario = three().begin_now()
    stub = play(scenario)
    uuids = [gpu.uuid for gpu in scenario.gpus]
    records = Collector()
    with running(monitor(records, tmp_path)):
        for uuid in uuids:
            records.wait_for(has_value(uuid))
        stub.play(scenario.lose(1))
        lost_s = records.wait_for(is_gap(uuids[1], State.LOST))[0].time_s
        records.wait_past(lost_s + 0.3, uuids[1])
        stub.play(scenario.mend())
        records.wait_for(told(SourceRecovered, uuids[1]))
        back_s = records.wait_for(lambda r: has_value(uuids[1])(r) and r.time_s > lost_s)[0].time_s
        known = records.wait_past(back_s + 0.2, uuids[1])
    for row in rows(known, uuids[1], "used_bytes"):
        lost = lost_s <= row.time_s < back_s
        assert [row.values[metric] is None for metric in MEMORY] == [lost] * 4
        assert row.states.get("used_bytes") is (State.LOST if lost else None)
    for uuid in (uuids[0], uuids[2]):
        assert all(row.values["used_bytes"] is not None for row in rows(known, uuid, "used_bytes"))
        assert longest_gap_s(rows(known, uuid, "used_bytes")) < 1.0
    assert longest_gap_s(rows(known, uuids[1], "used_bytes")) < 1.0
    assert len(events(known, SourceFailed)) == len(events(known, SourceRecovered)) == 1
    assert stub.misuse == 0


def test_mig_instances_that_are_made_appear_and_those_that_are_destroyed_are_gaps(play: Play, tmp_path: Path) -> None:
    whole, first, second = h100_in_halves()
    scenario = Scenario([replace(whole, mig=True)])
    stub = play(scenario)
    records = Collector()
    with running(monitor(records, tmp_path)) as watching:
        records.wait_for(has_value(whole.uuid))
        assert [gpu.instances for gpu in watching.gpus] == [0]
        scenario.gpus += [first, second]
        stub.play(scenario)
        records.wait_for(has_value(first.uuid))
        records.wait_for(has_value(second.uuid))
        assert [gpu.number for gpu in watching.gpus] == ["0", "0:0", "0:1"] and watching.gpus[0].instances == 2
        scenario.gpus.remove(second)
        stub.play(scenario)
        gone_s = records.wait_for(is_gap(second.uuid, State.LOST))[0].time_s
        records.wait_for(lambda r: has_value(first.uuid)(r) and r.time_s > gone_s)
        records.wait_for(lambda r: watching.gpus[0].instances == 1)
        scenario.gpus.append(second)
        stub.play(scenario)
        records.wait_for(told(SourceRecovered, second.uuid))
        assert len(watching.gpus) == 3
    gone = [event.text for event in events(records.records, SourceFailed)]
    assert len(gone) == 1 and "GPU 0:1" in gone[0] and "the MIG instance was destroyed" in gone[0]
    assert stub.misuse == 0


@pytest.mark.parametrize("function", FAST_CALLS + SLOW_CALLS)
def test_a_call_that_hangs_costs_its_own_lane_and_nothing_else(function: str, play: Play, tmp_path: Path) -> None:
    scenario = three()
    stub = play(scenario)
    uuids = [gpu.uuid for gpu in scenario.gpus]
    records = Collector()
    with running(monitor(records, tmp_path), lambda: stub.play(scenario.mend())):
        for uuid in uuids:
            records.wait_for(has_value(uuid))
            records.wait_for(has_value(uuid, "energy_j"))
        stub.play(scenario.hang(function, 1))
        failed = records.wait_for(told(SourceFailed, uuids[1]))[0]
        assert isinstance(failed, SourceFailed) and "GPU 1 (NVIDIA H200) has not answered for" in failed.text
        records.wait_for(is_gap(uuids[1], State.STALE, "energy_j"))
        if function in FAST_CALLS:
            records.wait_for(is_gap(uuids[1], State.STALE))
        records.wait_past(failed.time_s + 0.2)
        stub.play(scenario.mend())
        back = records.wait_for(told(SourceRecovered, uuids[1]))[0]
        known = records.wait_past(back.time_s + 0.2, uuids[1])
    stale = [row for row in rows(known, uuids[1]) if State.STALE in row.states.values()]
    assert any("used_bytes" in row.values for row in stale) == (function in FAST_CALLS)
    assert all(row.values[metric] is None for row in stale for metric in row.states)
    for device in (None, uuids[0], uuids[2]):
        assert longest_gap_s(rows(known, device, "used_bytes")) < 0.5
    times = [row.time_s for row in rows(known, uuids[1], "used_bytes")]
    assert times == sorted(times)
    assert longest_gap_s(rows(known, uuids[1], "used_bytes")) < 0.5


def test_a_monitor_whose_driver_hangs_for_ever_still_stops_in_time(play: Play, tmp_path: Path) -> None:
    scenario = three()
    stub = play(scenario)
    records = Collector()
    watching = monitor(records, tmp_path)
    watching.start()
    try:
        records.wait_for(has_value(scenario.gpus[1].uuid))
        stub.play(scenario.hang("nvmlDeviceGetMemoryInfo_v2", 1))
        records.wait_for(is_gap(scenario.gpus[1].uuid, State.STALE))
        assert not watching.stop(0.3)
        ended = len(records.records)
        assert [lane.name for lane in watching.statistics() if lane.stuck] == [f"{scenario.gpus[1].uuid} fast"]
    finally:
        stub.play(scenario.mend())
        assert watching.stop(PATIENCE_S)
    assert len(records.records) == ended


def test_an_initialisation_that_hangs_leaves_the_host_alone(play: Play, tmp_path: Path) -> None:
    scenario = three().hang("nvmlInit")
    stub = play(scenario)
    records = Collector()
    with running(monitor(records, tmp_path), lambda: stub.play(scenario.mend())) as watching:
        failed = records.wait_for(told(SourceFailed, "nvml"))[0]
        assert isinstance(failed, SourceFailed) and "The NVIDIA driver has not answered" in failed.text
        assert watching.problem is not None and "does not answer" in watching.problem
        known = records.wait_past(failed.time_s + 0.3)
        assert longest_gap_s(rows(known, None)) < 0.5
        stub.play(scenario.mend())
        records.wait_for(told(SourceRecovered, "nvml"))
        records.wait_for(has_value(scenario.gpus[0].uuid))
        assert watching.problem is None


def test_a_gpu_that_hangs_from_the_start_hides_no_other(play: Play, tmp_path: Path) -> None:
    scenario = three().hang("nvmlDeviceGetHandleByIndex_v2", 0)
    stub = play(scenario)
    records = Collector()
    with running(monitor(records, tmp_path), lambda: stub.play(scenario.mend())) as watching:
        records.wait_for(has_value(scenario.gpus[2].uuid))
        failed = records.wait_for(told(SourceFailed, "nvml"))[0]
        assert isinstance(failed, SourceFailed) and failed.text.startswith("GPU 0 does not answer")
        assert [gpu.nvml_index for gpu in watching.gpus] == [1, 2]
        stub.play(scenario.mend())
        records.wait_for(has_value(scenario.gpus[0].uuid))
        assert [gpu.nvml_index for gpu in watching.gpus] == [0, 1, 2]


def test_a_driver_that_is_loaded_later_is_picked_up(play: Play, tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    scenario = three().fault("nvmlInit", NOT_LOADED)
    stub = play(scenario)
    records = Collector()
    with running(monitor(records, tmp_path)) as watching:
        failed = records.wait_for(told(SourceFailed, "nvml"))[0]
        assert watching.gpus == () and watching.problem is not None and "not loaded" in watching.problem
        records.wait_past(failed.time_s + 0.3)
        stub.play(scenario.mend())
        back = records.wait_for(told(SourceRecovered, "nvml"))[0]
        assert isinstance(back, SourceRecovered) and "3 GPUs" in back.text
        records.wait_for(has_value(scenario.gpus[2].uuid))
        assert watching.problem is None
    assert len(events(records.records, SourceFailed, "nvml")) == 1


def test_a_machine_without_a_card_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    records = Collector()
    with running(monitor(records, tmp_path)) as watching:
        known = records.wait_past(0.3)
        assert watching.problem == "No NVIDIA card was found; everything runs on the CPU."
    assert events(known, SourceFailed) == [] and watching.gpus == ()


def test_a_driver_that_is_taken_away_under_way_is_told_and_taken_up_again(play: Play, tmp_path: Path) -> None:
    scenario = three()
    stub = play(scenario)
    uuid = scenario.gpus[0].uuid
    records = Collector()
    with running(monitor(records, tmp_path)) as watching:
        records.wait_for(has_value(uuid))
        stub.play(scenario.fault("*", NOT_LOADED).fault("nvmlInit", NOT_LOADED))
        gone = records.wait_for(told(SourceFailed, "nvml"))[0]
        records.wait_for(is_gap(uuid, State.LOST))
        assert len(watching.gpus) == 3
        stub.play(scenario.mend())
        records.wait_for(lambda r: has_value(uuid)(r) and r.time_s > gone.time_s)
        records.wait_for(told(SourceRecovered, "nvml"))
    assert stub.misuse == 0


def test_when_all_gpus_are_lost_the_library_is_initialised_anew(play: Play, tmp_path: Path) -> None:
    scenario = Scenario([StubGpu(0)])
    stub = play(scenario)
    records = Collector()
    with running(monitor(records, tmp_path)):
        records.wait_for(has_value(scenario.gpus[0].uuid))
        before = stub.calls("nvmlInit")
        stub.play(scenario.lose(0))
        lost = records.wait_for(is_gap(scenario.gpus[0].uuid, State.LOST))[0]
        records.wait_past(lost.time_s + 0.6)
        assert stub.calls("nvmlInit") > before
        stub.play(scenario.mend())
        records.wait_for(lambda r: has_value(scenario.gpus[0].uuid)(r) and r.time_s > lost.time_s)
    assert stub.misuse == 0


def test_an_allocator_is_read_at_the_memory_rate_until_it_is_detached(tmp_path: Path) -> None:
    records = Collector()
    calls = iter(range(1_000_000))
    attached = threading.Event()
    attached.set()

    def read() -> dict[str, int]:
        assert attached.is_set()
        return {"allocated_bytes": next(calls), "reserved_bytes": GIB}

    with running(monitor(records, tmp_path)) as watching:
        watching.probe("cuda:0", read)
        wanted = records.wait_for(lambda r: isinstance(r, Sample) and r.table == "allocator", 10)
        watching.probe("cuda:0", None)
        attached.clear()
        records.wait_past(last_time_s(records.records) + 0.2)
    assert [r.values["allocated_bytes"] for r in wanted if isinstance(r, Sample)] == list(range(10))
    assert events(records.records, SourceFailed, "allocator cuda:0") == []


def test_the_rate_can_change_under_way(play: Play, tmp_path: Path) -> None:
    scenario = Scenario([StubGpu(0)])
    play(scenario)
    records = Collector()
    with running(monitor(records, tmp_path, rate_hz=1.0)) as watching:
        records.wait_for(has_value(scenario.gpus[0].uuid))
        watching.set_rate(50.0)
        records.wait_for(has_value(scenario.gpus[0].uuid), 20)
        fast = [lane for lane in watching.statistics() if lane.name in ("host", f"{scenario.gpus[0].uuid} fast")]
        assert [lane.period_s for lane in fast] == [0.02, 0.02]
        watching.set_rate(1000.0)
        assert watching.statistics()[0].period_s == 0.02


def test_it_accounts_for_its_own_cost(tmp_path: Path) -> None:
    records = Collector()
    with running(monitor(records, tmp_path)) as watching:
        records.wait_past(0.3)
    host = watching.statistics()[0]
    assert host.name == "host" and host.readings == len(rows(records.records, None))
    assert host.busy_s > 0 and host.cpu_s > 0
    assert watching.host_capacity_source


def test_a_process_ends_at_once_although_a_driver_call_never_returns(stub_library: Path, tmp_path: Path) -> None:
    Scenario([StubGpu(0)]).hang("nvmlDeviceGetMemoryInfo_v2", begin=0.5).write(tmp_path / "scenario")
    program = (
        "import queue, time\n"
        "from gpudash.sources.monitor import Monitor\n"
        "from gpudash.telemetry.records import SourceFailed\n"
        "records = queue.Queue()\n"
        "monitor = Monitor(records.put, time.monotonic)\n"
        "monitor.start()\n"
        "while not isinstance(records.get(timeout=20), SourceFailed): pass\n"
        "print(monitor.stop(0.2), len(monitor.gpus), flush=True)\n"
    )
    env = {**os.environ, **variables(stub_library, tmp_path / "scenario"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = python("-c", program, env=env)
    assert (done.stdout.split(), done.stderr, done.returncode) == (["False", "1"], "", 0)


class NoDriver:
    """A library whose driver is not loaded.

    Attributes:
        opened: how often it was tried.
    """

    usable = False

    def __init__(self) -> None:
        self.opened = 0
        self.fault: Fault | None = classify(pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))

    def open(self) -> None:
        self.opened += 1
        assert self.fault is not None
        raise NvmlUnavailableError(self.fault)

    def abandon(self, fault: Fault) -> None:
        """Nothing is open."""

    def silent(self, patience_s: float = 0.0) -> Sequence[str]:
        return ()


def watch(nvml: NoDriver, root: Path) -> GpuWatch:
    return GpuWatch(nvml, lambda _record: None, lambda: 0.0, 0.1, TIMING, root, frozenset)  # type: ignore[arg-type]


def test_a_look_that_is_asked_for_does_not_wait_for_the_next_attempt(tmp_path: Path) -> None:
    nvml = NoDriver()
    watching = watch(nvml, tmp_path)
    for now_s in range(40):
        watching._tend(float(now_s))
    patient = nvml.opened
    assert patient < 10  # the waits between the attempts double
    watching._tend(40.0)
    assert nvml.opened == patient
    watching.retry_now()
    watching._tend(40.5)
    assert nvml.opened == patient + 1
    watching._tend(42.0)
    assert nvml.opened == patient + 2  # and it is looked for often again


def test_the_library_is_told_in_its_own_words(tmp_path: Path) -> None:
    nvml = NoDriver()
    watching = watch(nvml, tmp_path)
    assert watching.nvml_text == "Driver Not Loaded"
    nvml.fault = None
    assert watching.nvml_text == "answers"


def test_its_memory_stands_in_place_of_ours_and_its_processes_are_listed() -> None:
    told: list[Record] = []
    monitor = Monitor(told.append, lambda: 1.0)
    (own,) = monitor._host.read(0.0)
    parent = os.getppid()
    monitor.follow(lambda: {parent: 5, 999_999_999: 7})
    (watched,) = monitor._host.read(0.1)
    assert watched.values["process_bytes"] == 12
    assert {parent, os.getpid()} <= monitor._family()
    monitor._processes.read(0.0)
    assert parent in {sample.values["pid"] for sample in monitor._processes.read(0.1)}
    monitor.follow(None)
    (again,) = monitor._host.read(0.2)
    assert again.values["process_bytes"] > 2**20 and own.values["process_bytes"] > 2**20
    monitor.stop()
