"""A GPU read through NVML: what every call answers, and what each error leaves of it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.sources.nvml import gpu_reader as gpu_processes
from gpudash.sources.nvml import nvlink
from gpudash.sources.nvml.calls import ByteCounter
from gpudash.sources.nvml.gpu_reader import MEMORY, NARROW, PCIE, GpuReader, WrappingRate, safe_period_s
from gpudash.sources.nvml.library import Nvml
from gpudash.sources.nvml.nvlink import NvLinks
from gpudash.telemetry.records import Record, Sample, SourceFailed, SourceRecovered, State, Value
from tests.nvml_stub.build import (
    GIB,
    LOST,
    MIB,
    NO_PERMISSION,
    NOT_LOADED,
    NOT_SUPPORTED,
    UNKNOWN,
    Playing,
    Scenario,
    StubGpu,
    gb10,
    h100_in_halves,
)
from tests.unit.sources.collecting import events, rows
from tests.unit.sources.test_host import Tree

pytestmark = pytest.mark.process

Play = Callable[..., Playing]
PERIOD_S = 0.05

GEN5_X16 = 63e9


class Bench:
    """The first GPU of a scenario and a reader of it, whose time is counted in ticks of 50 ms."""

    def __init__(self, playing: Playing, scenario: Scenario, root: Path) -> None:
        self.playing, self.scenario = playing, scenario
        self.nvml = Nvml(root)
        self.nvml.open()
        self.gpu = self.nvml.gpus()[0]
        self.reader = GpuReader(self.gpu, self.nvml, root=root)
        self.now_s = 0.0

    def fast(self) -> list[Record]:
        self.now_s += PERIOD_S
        return self.reader.read_fast(self.now_s)

    def row(self) -> Sample:
        return rows(self.fast(), self.gpu.uuid)[0]

    def slow(self) -> Sample:
        return rows(self.reader.read_slow(self.now_s), self.gpu.uuid)[0]

    def until_sensors(self) -> Sample:
        """The next row that holds sensors too."""
        return next(row for row in iter(self.row, None) if "power_w" in row.values)

    def play(self) -> None:
        self.playing.play(self.scenario)

    def close(self) -> None:
        self.reader.close()
        self.nvml.close()


Make = Callable[..., Bench]


@pytest.fixture
def bench(play: Play, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(scenario: Scenario, library: Path | None = None, root: Path = tmp_path) -> Bench:
            made = Bench(play(scenario, library), scenario, root)
            stack.callback(made.close)
            return made

        yield make


def gaps(row: Sample, state: State) -> set[str]:
    """Metrics of ``row`` that have no value because of ``state``."""
    return {metric for metric, value in row.values.items() if value is None and row.states.get(metric) is state}


def test_every_metric_is_in_the_programs_units(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, used=5 * GIB)]))
    values: Mapping[str, Value] = made.row().values
    assert values["used_bytes"] == 5 * GIB
    assert values["total_bytes"] == 141 * GIB
    assert values["driver_reserved_bytes"] == 600 * MIB
    assert values["free_bytes"] == 136 * GIB - 600 * MIB
    assert values["gpu_utilisation"] == 0.37 and values["memory_utilisation"] == 0.12
    assert values["temperature_c"] == 41 and values["power_w"] == 120.5
    assert values["sm_clock_hz"] == 1980e6 and values["memory_clock_hz"] == 3201e6
    assert values["pcie_generation"] == 5 and values["pcie_width"] == 16
    assert made.reader.memory_version == 2
    assert "energy_j" in made.slow().values


@pytest.mark.parametrize(
    ("reasons", "heat", "power"),
    [(0x0, 0, 0), (0x1, 0, 0), (0x4, 0, 1), (0x20, 1, 0), (0x48, 1, 0), (0x88, 0, 1), (0x8, 1, 0), (0x64, 1, 1)],
    ids=["none", "idle", "power cap", "software heat", "hardware heat", "power brake", "a brake alone", "both"],
)
def test_why_a_gpu_clocks_lower_is_told_as_heat_and_power(bench: Make, reasons: int, heat: int, power: int) -> None:
    values = bench(Scenario([StubGpu(0, clock_reasons=reasons)])).row().values
    assert (values["slowed_by_heat"], values["slowed_by_power"]) == (heat, power)
    assert values["clocks_event_reasons"] == reasons


def test_errors_that_ecc_could_not_correct_are_counted_and_a_gpu_without_ecc_has_a_gap(bench: Make) -> None:
    checked = bench(Scenario([StubGpu(0, ecc_errors=3)]))
    checked.row()
    assert checked.slow().values["ecc_uncorrected_errors"] == 3
    without = bench(Scenario([StubGpu(0, refuses=["nvmlDeviceGetTotalEccErrors"])]))
    without.row()
    assert without.slow().states["ecc_uncorrected_errors"] is State.NOT_SUPPORTED


def xids(records: list[Record], uuid: str) -> list[tuple[Value, Value]]:
    """(count, newest) of each row that tells of XID errors."""
    told = [row.values for row in rows(records, uuid) if "last_xid" in row.values]
    return [(values["xid_errors"], values["last_xid"]) for values in told]


def test_each_xid_error_is_told_once_in_order_and_those_before_the_watching_are_not(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, xids=[31])]))
    made.row()
    assert xids(made.reader.read_slow(1.0), made.gpu.uuid) == [(0, 0)]
    made.scenario.gpus[0].xids = [31, 48, 45]
    made.play()
    records = made.reader.read_slow(2.0)
    assert xids(records, made.gpu.uuid) == [(1, 48), (2, 45)]
    times = [row.time_s for row in rows(records, made.gpu.uuid)]
    assert times == sorted(times) and len(set(times)) == len(times)
    assert xids(made.reader.read_slow(3.0), made.gpu.uuid) == [(2, 45)]


def test_a_flood_of_xid_errors_is_taken_in_parts(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]))
    made.row()
    made.slow()
    made.scenario.gpus[0].xids = [31] * 20
    made.play()
    assert xids(made.reader.read_slow(2.0), made.gpu.uuid)[-1] == (16, 31)
    assert xids(made.reader.read_slow(3.0), made.gpu.uuid)[-1] == (20, 31)


def test_a_gpu_that_fell_off_the_bus_still_tells_why(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]))
    made.row()
    made.slow()
    made.scenario.fault("nvmlDeviceGetMemoryInfo_v2", LOST, 0)
    made.scenario.gpus[0].xids = [79]
    made.play()
    made.row()
    assert made.reader.lost
    assert xids(made.reader.read_slow(2.0), made.gpu.uuid) == [(1, 79)]
    made.scenario.mend()
    made.play()
    made.now_s += 1.0
    made.row()
    assert not made.reader.lost
    assert xids(made.reader.read_slow(4.0), made.gpu.uuid) == [(1, 79)]
    assert made.playing.misuse == 0


def test_a_gpu_without_events_or_links_says_so_once(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, links=0, refuses=["nvmlDeviceRegisterEvents"])]))
    made.row()
    missing = {"xid_errors", "last_xid", *nvlink.METRICS}
    assert gaps(made.slow(), State.NOT_SUPPORTED) == missing
    assert gaps(made.slow(), State.NOT_SUPPORTED) == missing
    assert made.playing.calls("nvmlDeviceRegisterEvents") == 1
    assert made.playing.calls("nvmlDeviceGetNvLinkState") == 1


def test_an_event_queue_is_not_used_again_after_the_library_was_opened_anew(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]))
    made.row()
    made.slow()
    made.nvml.open()
    made.now_s += 1.0
    made.row()
    made.scenario.gpus[0].xids = [63]
    assert xids(made.reader.read_slow(2.0), made.gpu.uuid) == [(0, 0)]
    made.play()
    assert xids(made.reader.read_slow(3.0), made.gpu.uuid) == [(1, 63)]
    assert made.playing.misuse == 0


@pytest.mark.parametrize("of_all", [False, True], ids=["counted by link", "counted for all links"])
def test_nvlinks_are_counted_with_their_errors(bench: Make, *, of_all: bool) -> None:
    made = bench(Scenario([StubGpu(0, links=12, links_down=1, link_errors=5, errors_of_all_links=of_all)]))
    made.row()
    row = made.slow()
    assert (row.values["nvlink_links"], row.values["nvlink_errors"]) == (11, 5 if of_all else 60)
    assert not set(nvlink.RATES) & row.values.keys(), "a rate needs two readings"


def test_the_rates_of_nvlinks_are_bytes_a_second_of_all_links(bench: Make) -> None:
    link = NvLinks((lambda counter, *_: counter.value, lambda counter, *_: counter.value))
    made = bench(Scenario([StubGpu(0, link_rate=4e6)]).begin_now())
    told = link.ask(made.nvml.handle(made.gpu), 1.0)
    received, sent = (told[metric] for metric in nvlink.RATES)
    assert isinstance(received, int) and isinstance(sent, int)
    assert received % 1024 == 0 and received // 1024 == pytest.approx(2 * sent // 1024, rel=0.01)


def test_links_are_looked_at_every_ten_seconds_and_counters_in_each_reading(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]))
    made.row()
    for second in range(20):
        made.reader.read_slow(float(second))
    assert made.playing.calls("nvmlDeviceGetNvLinkState") == 2 * (18 + 1)


def test_sensors_are_read_four_times_a_second_and_memory_in_every_tick(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]))
    ticks = [made.row() for _ in range(40)]
    assert all(set(MEMORY) <= row.values.keys() for row in ticks)
    assert sum("power_w" in row.values for row in ticks) == 8


def test_zero_is_a_reading(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, used=0, utilisation=0, memory_utilisation=0, power_mw=0, reserved=0)]))
    row = made.row()
    assert row.values["used_bytes"] == 0 and row.values["gpu_utilisation"] == 0 and row.values["power_w"] == 0
    assert row.values["driver_reserved_bytes"] == 0
    assert row.states == {}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, UNKNOWN])
def test_memory_falls_back_to_the_first_version_and_says_so(bench: Make, code: int) -> None:
    made = bench(Scenario([StubGpu(0, used=GIB)]).fault("nvmlDeviceGetMemoryInfo_v2", code))
    row = made.row()
    assert made.reader.memory_version == 1
    assert row.values["used_bytes"] == GIB + 600 * MIB
    assert row.values["driver_reserved_bytes"] is None
    assert row.states["driver_reserved_bytes"] is State.NOT_SUPPORTED


def test_an_old_library_is_read_as_far_as_it_goes(bench: Make, old_stub_library: Path) -> None:
    processes = [(os.getpid(), GIB, "C")]
    made = bench(Scenario([StubGpu(0, used=GIB, processes=processes)]), old_stub_library)
    row = made.row()
    assert made.reader.memory_version == 1 and row.values["used_bytes"] == GIB + 600 * MIB
    assert row.values["temperature_c"] == 41
    slow = made.reader.read_slow(1.0)
    assert [r.values["memory_bytes"] for r in slow if isinstance(r, Sample) and r.table == "process"] == [GIB]
    assert rows(slow, made.gpu.uuid)[0].values[PCIE[0]] == 1e6


def test_a_driver_that_finds_no_gpu_by_address_is_asked_by_uuid(bench: Make, addressless_stub_library: Path) -> None:
    made = bench(Scenario([StubGpu(0, used=GIB)]), addressless_stub_library)
    assert made.row().values["used_bytes"] == GIB
    assert made.playing.calls("nvmlDeviceGetHandleByUUID", 0) == 1


def test_beside_a_sleeping_gpu_one_that_is_awake_is_found_by_uuid_too(
    play: Play, addressless_stub_library: Path, tmp_path: Path
) -> None:
    sleeping_card(tmp_path / "root", "active")
    sleeping_card(tmp_path / "root", number=1)
    play(Scenario([StubGpu(0), StubGpu(1)]), addressless_stub_library)
    nvml = Nvml(tmp_path / "root")
    nvml.open()
    assert [gpu.uuid for gpu in nvml.gpus()] == [StubGpu(0).uuid, StubGpu(1).uuid]
    nvml.close()


def test_the_version_of_the_memory_call_never_changes_under_way(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, used=GIB)]))
    made.row()
    made.scenario.fault("nvmlDeviceGetMemoryInfo_v2", UNKNOWN)
    made.play()
    assert gaps(made.row(), State.STALE) >= set(MEMORY)
    made.scenario.mend()
    made.play()
    assert made.row().values["used_bytes"] == GIB


SHARING = {
    "NotSupported": lambda: gb10(used=0),
    "a total of 0": lambda: StubGpu(0, name="NVIDIA GB10", total=0, reserved=0, used=0),
    "the system's memory as the card's": lambda: StubGpu(0, name="NVIDIA GB10", total=24 * GIB, used=20 * GIB),
    "a Jetson's": lambda: StubGpu(0, name="Orin (nvgpu)", total=15 * GIB, used=GIB),
}


@pytest.mark.parametrize("driver", SHARING)
def test_a_gpu_without_memory_of_its_own_has_what_the_system_has_left(bench: Make, tmp_path: Path, driver: str) -> None:
    Tree(tmp_path)  # 16 GiB, of which 6 are free and 4 cache files
    made = bench(Scenario([SHARING[driver]()]))
    assert made.gpu.shared_memory and made.gpu.total_bytes == 16 * GIB
    row = made.row()
    assert [row.values[metric] for metric in MEMORY] == [6 * GIB, 10 * GIB, 16 * GIB, None]
    assert row.values["gpu_utilisation"] == 0.37 and row.values["temperature_c"] == 41.0
    missing = gaps(row, State.NOT_SUPPORTED) | gaps(made.slow(), State.NOT_SUPPORTED)
    assert {*PCIE, "pcie_generation", "pcie_width"} <= missing
    assert made.playing.calls("nvmlDeviceGetPcieThroughput") == 0


def test_a_gb10_tells_what_programs_hold_though_not_how_much_there_is(bench: Make, tmp_path: Path) -> None:
    Tree(tmp_path)
    made = bench(Scenario([gb10(processes=[(os.getpid(), 5 * GIB, "C")])]))
    made.row()
    assert made.slow().values["process_bytes"] == 5 * GIB
    assert made.gpu.multiprocessors == 48 and made.gpu.link_bytes_per_second is None
    sensors = made.until_sensors()
    assert sensors.values["power_w"] == 12.4 and "memory_clock_hz" in gaps(sensors, State.NOT_SUPPORTED)


@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN])
def test_another_refusal_does_not_make_the_memory_the_systems(bench: Make, tmp_path: Path, code: int) -> None:
    Tree(tmp_path)
    scenario = Scenario([StubGpu(0)])
    made = bench(scenario.fault("nvmlDeviceGetMemoryInfo_v2", code).fault("nvmlDeviceGetMemoryInfo", code))
    assert not made.gpu.shared_memory and made.gpu.total_bytes is None
    assert made.row().values["used_bytes"] is None


def test_a_mig_instance_is_a_gpu_with_memory_and_processes_of_its_own(bench: Make) -> None:
    made = bench(Scenario(h100_in_halves(processes=[(os.getpid(), GIB, "C")])))
    whole, first, second = made.nvml.gpus()
    assert whole.instances == 2 and first.parent == second.parent == whole.uuid
    assert [gpu.product for gpu in (whole, second)] == ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"]
    assert (second.total_bytes, second.multiprocessors, second.number) == (40_448 * MIB, 60, "0:1")
    reader = GpuReader(second, made.nvml)
    row = rows(reader.read_fast(0.05), second.uuid)[0]
    assert row.values["used_bytes"] == 2 * GIB and row.values["total_bytes"] == 40_448 * MIB
    assert set(row.values) - gaps(row, State.NOT_SUPPORTED) == {*MEMORY}
    slow = reader.read_slow(0.05)
    assert rows(slow, second.uuid)[0].values["process_bytes"] == GIB
    assert all(made.playing.calls(function, 2) == 0 for function in made.scenario.gpus[2].refuses)
    reader.close()


def test_the_gpu_of_mig_instances_keeps_its_temperature_and_lists_no_process_twice(bench: Make) -> None:
    made = bench(Scenario(h100_in_halves(processes=[(os.getpid(), GIB, "C")])))
    sensors = made.until_sensors()
    assert sensors.values["temperature_c"] == 41.0 and "gpu_utilisation" in gaps(sensors, State.NOT_SUPPORTED)
    assert len(made.reader.read_slow(made.now_s)) == 1


def test_an_instance_that_its_driver_does_not_name_is_named_by_its_profile(bench: Make) -> None:
    whole, *parts = h100_in_halves()
    made = bench(Scenario([whole, *(replace(part, name=whole.name) for part in parts)]))
    assert made.nvml.gpus()[1].product == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"


def test_what_is_not_supported_is_not_asked_again_but_stays_named(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]).fault("nvmlDeviceGetPowerUsage", NOT_SUPPORTED))
    ticks = [made.until_sensors() for _ in range(5)]
    assert all("power_w" in gaps(row, State.NOT_SUPPORTED) for row in ticks)
    assert made.playing.calls("nvmlDeviceGetPowerUsage") == 1


def test_what_was_not_supported_is_asked_again_after_the_library_is_opened_anew(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]).fault("nvmlDeviceGetPowerUsage", NOT_SUPPORTED))
    made.until_sensors()
    made.scenario.mend()
    made.play()
    made.nvml.open()
    assert made.until_sensors().values["power_w"] == 120.5
    assert made.playing.misuse == 0


def test_no_permission_is_told_and_asked_again(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]).fault("nvmlDeviceGetPowerUsage", NO_PERMISSION))
    assert "power_w" in gaps(made.until_sensors(), State.NO_PERMISSION)
    made.scenario.mend()
    made.play()
    assert made.until_sensors().values["power_w"] == 120.5


def test_an_unknown_error_costs_one_metric_one_reading(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]).fault("nvmlDeviceGetTemperature", UNKNOWN))
    row = made.until_sensors()
    assert gaps(row, State.STALE) == {"temperature_c"}
    made.scenario.mend()
    made.play()
    assert made.until_sensors().values["temperature_c"] == 41


def test_a_lost_gpu_reads_as_a_gap_and_its_handle_is_never_used_again(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, used=GIB)]))
    made.row()
    made.scenario.lose(0)
    made.play()
    first = made.fast()
    assert gaps(rows(first, made.gpu.uuid)[0], State.LOST) >= set(MEMORY)
    assert len(events(first, SourceFailed, made.gpu.uuid)) == 1
    later = [record for _ in range(40) for record in made.fast()]
    assert all(gaps(row, State.LOST) == row.values.keys() for row in rows(later, made.gpu.uuid))
    assert len(rows(later, made.gpu.uuid)) == 40 and events(later, SourceFailed) == []
    assert gaps(made.slow(), State.LOST) >= {"energy_j", "process_bytes"}
    assert made.playing.calls("nvmlDeviceGetMemoryInfo_v2") == 3  # describing it, one reading, the loss
    assert made.playing.misuse == 0


def test_a_gpu_that_returns_is_found_within_half_a_second_under_a_new_handle(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, used=GIB)]))
    made.row()
    made.scenario.lose(0)
    made.play()
    for _ in range(23):
        made.row()
    made.scenario.mend()
    made.play()
    records = [record for _ in range(11) for record in made.fast()]
    assert rows(records, made.gpu.uuid)[-1].values["used_bytes"] == GIB
    assert len(events(records, SourceRecovered, made.gpu.uuid)) == 1
    assert not made.reader.lost and made.playing.misuse == 0


def test_metrics_read_before_the_loss_in_a_tick_are_kept(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, used=GIB)]).fault("nvmlDeviceGetTemperature", LOST))
    row = made.row()
    assert row.values["used_bytes"] == GIB and row.values["gpu_utilisation"] == 0.37
    assert gaps(row, State.LOST) >= {"temperature_c", "power_w", "sm_clock_hz"}
    assert made.playing.calls("nvmlDeviceGetPowerUsage") == 0


def test_when_the_driver_goes_all_stop_asking(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]))
    made.row()
    made.scenario.fault("*", NOT_LOADED)
    made.play()
    records = made.fast()
    assert gaps(rows(records, made.gpu.uuid)[0], State.LOST) >= set(MEMORY)
    assert not made.nvml.usable and events(records, SourceFailed) == []
    asked = made.playing.calls("nvmlDeviceGetMemoryInfo_v2")
    made.row()
    assert made.playing.calls("nvmlDeviceGetMemoryInfo_v2") == asked


def test_pcie_rates_come_from_the_byte_counters(bench: Make) -> None:
    scenario = Scenario([StubGpu(0, receive_rate=0, send_rate=0)])
    made = bench(scenario)
    assert not set(PCIE) & made.row().values.keys()
    row = made.row()
    assert [row.values[metric] for metric in PCIE] == [0, 0]
    assert made.playing.calls("nvmlDeviceGetPcieThroughput") == 0
    assert not set(PCIE) & made.slow().values.keys()


def test_received_and_sent_are_not_mixed_up(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, counter_base=0, receive_rate=4e9, send_rate=0)]))
    made.row()
    row = made.row()
    assert row.values["pcie_tx_bytes_per_second"] == 0
    assert row.values["pcie_rx_bytes_per_second"] is None or row.values["pcie_rx_bytes_per_second"] > 0  # type: ignore[operator]


def test_without_counters_the_throughput_call_answers_on_the_slow_lane(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0, counter_bits=0, throughput_kb=2500, links=0)]))
    made.row()
    assert not set(PCIE) & made.row().values.keys()
    assert [made.slow().values[metric] for metric in PCIE] == [2.5e6, 2.5e6]
    assert made.playing.calls("nvmlDeviceGetFieldValues") == 1


def test_counters_are_not_trusted_at_a_rate_at_which_they_could_wrap_twice(bench: Make) -> None:
    made = bench(Scenario([StubGpu(0)]))
    made.reader.set_period(1.0)
    assert not set(PCIE) & made.row().values.keys()
    assert set(PCIE) <= made.slow().values.keys()


def test_a_card_that_tells_no_traffic_at_all_says_so(bench: Make) -> None:
    scenario = Scenario([StubGpu(0, counter_bits=0)]).fault("nvmlDeviceGetPcieThroughput", NOT_SUPPORTED)
    made = bench(scenario)
    made.row()
    assert gaps(made.slow(), State.NOT_SUPPORTED) == set(PCIE)
    assert gaps(made.slow(), State.NOT_SUPPORTED) == set(PCIE)
    assert made.playing.calls("nvmlDeviceGetPcieThroughput") == 1


def test_processes_of_both_kinds_are_listed_once(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_processes, "pids_are_the_drivers", lambda: True)
    listed = [(os.getpid(), GIB, "C"), (os.getpid(), GIB, "G"), (4_000_000, None, "G")]
    made = bench(Scenario([StubGpu(0, processes=listed)]))
    made.row()
    records = made.reader.read_slow(1.0)
    found = [r for r in records if isinstance(r, Sample) and r.table == "process"]
    assert [(r.values["pid"], r.values["memory_bytes"]) for r in found] == [(os.getpid(), GIB), (4_000_000, None)]
    assert all(r.device == made.gpu.uuid for r in found)
    assert rows(records, made.gpu.uuid)[0].values["process_bytes"] == GIB


def sleeping_card(root: Path, status: str = "suspended", number: int = 0) -> Path:
    gpu = StubGpu(number)
    address = gpu.pci.removeprefix("0000")
    folder = root / "sys/bus/pci/devices" / address
    (folder / "power").mkdir(parents=True, exist_ok=True)
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text("0x030000\n")
    (folder / "power/runtime_status").write_text(status + "\n")
    facts = root / "proc/driver/nvidia/gpus" / address
    facts.mkdir(parents=True, exist_ok=True)
    (facts / "information").write_text(f"Model: \t\t NVIDIA T1200\nGPU UUID: \t {gpu.uuid}\n")
    return folder / "power/runtime_status"


def test_a_sleeping_gpu_is_listed_and_watched_without_being_woken(bench: Make, tmp_path: Path) -> None:
    sleeping_card(tmp_path / "root")
    made = bench(Scenario([StubGpu(0)]), root=tmp_path / "root")
    assert (made.gpu.uuid, made.gpu.product) == (StubGpu(0).uuid, "NVIDIA T1200")
    for _ in range(10):
        row = made.row()
        assert gaps(row, State.ASLEEP) == row.values.keys()
    assert made.playing.calls("nvmlDeviceGetHandleByIndex_v2") == 0
    assert made.playing.calls("nvmlDeviceGetHandleByPciBusId_v2") == 0


def test_a_gpu_that_wakes_is_read_and_left_alone_when_it_sleeps_again(bench: Make, tmp_path: Path) -> None:
    status = sleeping_card(tmp_path / "root")
    made = bench(Scenario([StubGpu(0, used=GIB)]), root=tmp_path / "root")
    made.row()
    status.write_text("active\n")
    assert made.row().values["used_bytes"] == GIB
    status.write_text("suspended\n")
    asked = made.playing.calls("nvmlDeviceGetMemoryInfo_v2")
    assert gaps(made.row(), State.ASLEEP) >= set(MEMORY)
    assert gaps(made.slow(), State.ASLEEP) >= {"energy_j"}
    assert made.playing.calls("nvmlDeviceGetMemoryInfo_v2") == asked


def test_permuted_indices_do_not_mix_gpus_up(bench: Make) -> None:
    gpus = [StubGpu(number, used=(number + 1) * GIB) for number in range(3)]
    made = bench(Scenario(gpus, order=[2, 0, 1]))
    assert made.gpu.uuid == gpus[2].uuid and made.gpu.nvml_index == 0
    assert made.row().values["used_bytes"] == 3 * GIB


def test_a_wrong_module_named_pynvml_is_told(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play(Scenario([StubGpu(0)]))
    monkeypatch.delattr(pynvml, "nvmlMemory_v2")
    nvml = Nvml()
    with pytest.raises(Exception, match="nvidia-ml-py"):
        nvml.open()


@settings(max_examples=100)
@given(
    base=st.integers(0, NARROW - 1),
    moved=st.lists(st.integers(0, int(GEN5_X16 * 0.05)), min_size=1, max_size=30),
    bits=st.sampled_from([32, 64]),
)
def test_rates_are_exact_however_often_a_32_bit_counter_wraps(base: int, moved: list[int], bits: int) -> None:
    rate = WrappingRate()
    total = base
    assert rate.update(ByteCounter(total % NARROW, bits), 0.0, GEN5_X16) is None
    for tick, size in enumerate(moved, start=1):
        total += size
        measured = rate.update(ByteCounter(total % NARROW, bits), tick * 0.05, GEN5_X16)
        assert measured == pytest.approx(size / 0.05, rel=1e-6, abs=1e-6)


def test_a_pause_in_which_the_counter_may_have_wrapped_twice_gives_no_rate() -> None:
    rate = WrappingRate()
    rate.update(ByteCounter(0, 64), 0.0, GEN5_X16)
    ambiguous = rate.update(ByteCounter(100, 64), 0.1, GEN5_X16)
    assert ambiguous is not None and math.isnan(ambiguous)
    assert rate.update(ByteCounter(200, 64), 0.15, GEN5_X16) == pytest.approx(2000)


def test_a_counter_seen_beyond_32_bits_is_trusted_over_long_pauses() -> None:
    rate = WrappingRate()
    rate.update(ByteCounter(NARROW + 1, 64), 0.0, GEN5_X16)
    assert rate.update(ByteCounter(NARROW + 1 + 10**11, 64), 10.0, GEN5_X16) == pytest.approx(1e10)


def test_a_driver_reload_that_resets_a_wide_counter_gives_no_absurd_rate() -> None:
    rate = WrappingRate()
    rate.update(ByteCounter(5 * NARROW, 64), 0.0, GEN5_X16)
    reset = rate.update(ByteCounter(10, 64), 0.05, GEN5_X16)
    assert reset is None or math.isnan(reset) or reset <= GEN5_X16


def test_no_traffic_is_zero_and_not_a_gap() -> None:
    rate = WrappingRate()
    rate.update(ByteCounter(7, 32), 0.0, GEN5_X16)
    assert rate.update(ByteCounter(7, 32), 0.05, GEN5_X16) == 0


def test_the_default_rate_is_fast_enough_for_a_generation_5_link() -> None:
    assert 0.05 < safe_period_s(GEN5_X16) < 0.1
