"""What torch tells of a device while a run is on it: its allocator, and a GPU's memory where no driver is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpudash.memory.watching.pushed_reading import PushedReading
from gpudash.sources.lanes import LaneStatistics
from gpudash.sources.torch_gpus import NOT_REPORTED, GpuSource, TorchGpus
from gpudash.telemetry.records import Record, Sample, State
from gpudash.telemetry.store import Store
from gpudash.units import GIB
from tests.unit.sources.collecting import Collector

READING = {"allocated_bytes": GIB, "reserved_bytes": 2 * GIB, "free_bytes": 5 * GIB, "total_bytes": 8 * GIB}


class Reading:
    """A source with one device, ended with the test."""

    def __init__(self, read: Callable[[], Mapping[str, int | None]]) -> None:
        self.seen, self._now_s = Collector(), 0.0
        self.source: GpuSource = TorchGpus(self.seen, self.clock, 0.001)
        assert isinstance(self.source, TorchGpus)
        self.source.probe("xpu:0", read)

    def clock(self) -> float:
        self._now_s += 1e-4
        return self._now_s

    def cards(self, count: int) -> list[Sample]:
        """The first rows of the GPU."""
        return [row for row in self.seen.wait_for(_of_the_card, count) if isinstance(row, Sample)]

    def close(self) -> list[LaneStatistics]:
        self.source.stop()
        for lane in self.source.lanes:
            assert lane.join(20.0)
        self.source.close()
        return [lane.statistics for lane in self.source.lanes]


def _of_the_card(record: Record) -> bool:
    return isinstance(record, Sample) and record.table == "gpu"


def test_a_gpu_that_only_torch_reads_has_its_memory_from_there_and_gaps_for_the_rest() -> None:
    reading = Reading(lambda: READING)
    try:
        first, second = reading.cards(2)
    finally:
        reading.close()
    assert first.device == "xpu:0"
    assert [first.values[name] for name in ("used_bytes", "free_bytes", "total_bytes")] == [3 * GIB, 5 * GIB, 8 * GIB]
    assert first.states == NOT_REPORTED and {"temperature_c", "gpu_utilisation", "process_bytes"} <= set(NOT_REPORTED)
    assert set(second.values) == {"used_bytes", "free_bytes", "total_bytes"}, "the rest is told once a second"
    allocator = next(row for row in reading.seen.records if isinstance(row, Sample) and row.table == "allocator")
    assert allocator.values == {"allocated_bytes": GIB, "reserved_bytes": 2 * GIB}


def test_a_run_that_falls_silent_leaves_a_gap_and_an_allocator_of_another_reads_no_gpu() -> None:
    pushed = PushedReading(lambda: 0.0)
    pushed.put(READING)
    reading = Reading(pushed)
    try:
        reading.cards(1)
        pushed.end()
        gap = reading.seen.wait_for(lambda row: _of_the_card(row) and row.values["used_bytes"] is None)[0]  # type: ignore[attr-defined]
    finally:
        reading.close()
    assert isinstance(gap, Sample) and gap.states["used_bytes"] is State.STALE
    other = Reading(lambda: {"allocated_bytes": GIB, "reserved_bytes": GIB})
    try:
        rows = other.seen.wait_for(lambda row: isinstance(row, Sample), 3)
    finally:
        other.close()
    assert not any(map(_of_the_card, rows))


def test_the_bands_of_such_a_gpu_add_up_to_what_is_used() -> None:
    store = Store()
    store.link("xpu:0", "xpu:0")
    reading = Reading(lambda: READING)
    try:
        reading.cards(3)
    finally:
        reading.close()
    for record in reading.seen.records:
        store.apply(record)
    newest = {name: store.series("gpu", f"{name}_bytes", "xpu:0") for name in ("allocated", "idle", "other")}
    assert {name: series.last()[1] for name, series in newest.items() if series and series.last()} == {
        "allocated": GIB,
        "idle": GIB,
        "other": GIB,
    }
