"""`Store`: what it answers after samples and events, as the session's thread applies them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.telemetry.readings import MAX_EVENTS, NEVER_READ, GpuBands, Reading, gpu_bands, host_others
from gpudash.telemetry.records import (
    EpochFinished,
    Marker,
    Note,
    RunEnd,
    RunStarted,
    Sample,
    StageFinished,
    State,
    StepFinished,
    Topic,
    Transfer,
    Warning,
)
from gpudash.telemetry.store import Store
from tests.unit.telemetry.copies import copied

GPU = "GPU-1"

SIZES = st.integers(0, 2**40)

MAYBE = st.none() | SIZES


def host(t: float, **values: float | None) -> Sample:
    return Sample(t, "host", None, values)


def gpu(t: float, states: dict[str, State] | None = None, **values: float | None) -> Sample:
    return Sample(t, "gpu", GPU, values, states or {})


def allocator(t: float, **values: int | None) -> Sample:
    return Sample(t, "allocator", "cuda:0", values)


def begin(t: float, run_id: int = 1, device: str = "cpu") -> RunStarted:
    return RunStarted(time_s=t, run_id=run_id, workload="training", device=device, spec={"steps": 3})


def finish(t: float, run_id: int = 1) -> RunEnd:
    return RunEnd(time_s=t, run_id=run_id, status="finished", seconds=t, steps=3, result={"ok": True})


def values(store: Store, table: str, metric: str, device: str | None = None) -> list[float]:
    series = store.series(table, metric, device)
    assert series is not None
    return list(series.window(-1e9, 1e9, 10_000)[1])


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_reading_is_kept_as_latest_and_as_history(store: Store) -> None:
    store.apply(host(1.0, used_bytes=10, total_bytes=20))
    store.apply(host(2.0, used_bytes=12))
    assert store.latest("host", "used_bytes") == Reading(12, State.OK, 2.0)
    assert store.latest("host", "total_bytes") == Reading(20, State.OK, 1.0)
    assert values(store, "host", "used_bytes") == [10, 12]
    assert (store.version, store.newest_s) == (2, 2.0)


def test_what_was_never_asked_for_has_neither_series_nor_reading(store: Store) -> None:
    assert store.series("gpu", "used_bytes", GPU) is None
    assert store.latest("gpu", "used_bytes", GPU) == NEVER_READ


def test_a_lost_gpu_reads_as_a_gap_not_as_zero(store: Store) -> None:
    store.apply(gpu(1.0, used_bytes=10))
    store.apply(gpu(2.0, {"used_bytes": State.LOST}, used_bytes=None))
    assert store.latest("gpu", "used_bytes", GPU) == Reading(None, State.LOST, 2.0)
    assert math.isnan(values(store, "gpu", "used_bytes", GPU)[1])
    assert math.isnan(values(store, "gpu", "other_bytes", GPU)[1])


def test_bands_join_the_drivers_and_the_allocators_readings(store: Store) -> None:
    store.link("cuda:0", GPU)
    store.apply(allocator(0.99, allocated_bytes=300, reserved_bytes=500))
    store.apply(gpu(1.0, used_bytes=1000, process_bytes=700))
    store.apply(gpu(1.05, used_bytes=1100))
    bands = [values(store, "gpu", f"{name}_bytes", GPU) for name in ("allocated", "idle", "context", "other")]
    assert bands == [[300, 300], [200, 200], [200, 200], [300, 400]]


def test_an_old_reading_of_the_allocator_is_not_joined(store: Store) -> None:
    store.link("cuda:0", GPU)
    store.apply(allocator(0.0, allocated_bytes=300, reserved_bytes=500))
    store.apply(gpu(10.0, used_bytes=1000))
    assert math.isnan(values(store, "gpu", "allocated_bytes", GPU)[0])


def test_a_gpu_without_our_allocator_is_all_others(store: Store) -> None:
    store.apply(gpu(1.0, used_bytes=1000))
    assert values(store, "gpu", "other_bytes", GPU) == [1000]
    assert values(store, "gpu", "allocated_bytes", GPU) == [0]


def test_host_memory_of_others_leaves_out_this_process(store: Store) -> None:
    store.apply(host(1.0, used_bytes=1000, process_bytes=300))
    assert values(store, "host", "others_bytes") == [700]


def test_the_name_torch_gives_a_gpu_is_known_once_linked(store: Store) -> None:
    assert store.torch_name(GPU) is None
    store.link("cuda:0", GPU)
    assert store.torch_name(GPU) == "cuda:0"


def test_processes_are_those_of_the_newest_list(store: Store) -> None:
    for t, pids in ((1.0, (1, 2)), (2.0, (2, 3))):
        for pid in pids:
            store.apply(Sample(t, "process", GPU, {"pid": pid, "memory_bytes": pid * 10}))
    assert [row["pid"] for row in store.processes(GPU)] == [2, 3]
    assert store.process_devices() == [GPU]
    assert list(store.processes(None)) == []


def test_a_list_of_processes_that_is_empty_or_old_shows_none(store: Store) -> None:
    store.apply(Sample(1.0, "process", GPU, {"pid": 1}))
    store.apply(Sample(2.0, "process", GPU, {}))
    assert list(store.processes(GPU)) == []
    store.apply(Sample(3.0, "process", None, {"pid": 1}))
    store.apply(host(60.0, used_bytes=1))
    assert list(store.processes(None)) == []


def test_a_copy_is_a_step_with_a_gap_behind_it(store: Store) -> None:
    store.apply(copied(5.0, 100, 2.0))
    series = store.series("transfer", "h2d")
    assert series is not None
    times, rates = series.window(0, 10, 100)
    assert times.tolist() == [3.0, 5.0, 5.0]
    assert rates.tolist()[:2] == [50.0, 50.0]
    assert math.isnan(rates[2])


def test_a_copy_of_no_duration_has_no_rate(store: Store) -> None:
    store.apply(
        Transfer(time_s=5.0, from_device="cpu", to_device="cpu", memory="pageable", blocking=True, bytes=1, seconds=0.0)
    )
    assert store.series("transfer", "h2h") is None


def test_losses_of_two_runs_are_not_joined_by_a_line(store: Store) -> None:
    for run_id, t in ((1, 0.0), (2, 10.0)):
        store.apply(begin(t, run_id))
        store.apply(StepFinished(time_s=t + 1, run_id=run_id, step=1, steps=1, seconds=1, loss=2.0))
        store.apply(finish(t + 2, run_id))
    losses = values(store, "run", "loss")
    assert [losses[0], losses[2]] == [2.0, 2.0]
    assert math.isnan(losses[1])
    assert store.series("run", "accuracy") is None


def test_a_run_is_followed_from_start_to_end(store: Store) -> None:
    assert store.run is None
    store.apply(begin(0.0))
    store.apply(EpochFinished(time_s=1, run_id=1, epoch=1, device="cpu", loss=1, accuracy=0, seconds=1, observation=""))
    assert store.run is not None and store.run.running
    store.apply(finish(2.0))
    assert store.run.status == "finished"
    assert len(store.run.epochs) == 1


def test_peaks_on_the_cpu_are_this_processs_while_the_run_is_on(store: Store) -> None:
    store.apply(host(0.0, process_bytes=900, used_bytes=5000, total_bytes=8000))
    store.apply(host(60.0, process_bytes=100, used_bytes=4000))
    store.apply(begin(60.5))
    for t, size in ((61.0, 300), (62.0, 200)):
        store.apply(host(t, process_bytes=size))
    store.apply(finish(63.0))
    store.apply(host(64.0, process_bytes=999))
    assert store.run is not None
    assert store.run.peak_used_bytes == 300
    assert store.run.memory.capacity_bytes == 8000
    assert store.run.peak_allocated_bytes is None


def test_peaks_on_a_gpu_are_the_drivers_and_the_allocators(store: Store) -> None:
    store.link("cuda:0", GPU)
    store.apply(begin(0.0, device="cuda:0"))
    store.apply(gpu(1.0, used_bytes=700, total_bytes=1000))
    store.apply(Sample(1.0, "gpu", "GPU-other", {"used_bytes": 999, "total_bytes": 2000}))
    store.apply(host(1.0, process_bytes=12345))
    store.apply(allocator(1.0, allocated_bytes=100, reserved_bytes=200, peak_allocated_bytes=150))
    run = store.run
    assert run is not None
    assert (run.peak_used_bytes, run.peak_allocated_bytes, run.peak_reserved_bytes) == (700, 150, 200)
    assert run.memory.capacity_bytes == 1000


def test_the_capacity_of_a_card_that_becomes_another_is_that_of_the_newest(store: Store) -> None:
    store.link("cuda:0", GPU)
    store.apply(gpu(0.5, used_bytes=100, total_bytes=8000))
    store.apply(begin(1.0, device="cuda:0"))
    assert store.run is not None and store.run.memory.capacity_bytes == 8000
    store.apply(gpu(1.5, used_bytes=100, total_bytes=768))
    store.apply(gpu(2.0, used_bytes=None, total_bytes=None))
    assert store.run.memory.capacity_bytes == 768


def test_what_this_process_held_is_no_peak_of_a_program_that_is_watched(store: Store) -> None:
    store.apply(host(0.9, process_bytes=500, total_bytes=8000))
    store.apply(replace(begin(1.0), workload="watch"))
    store.apply(host(0.95, process_bytes=500, total_bytes=8000))
    assert store.run is not None and store.run.peak_used_bytes is None
    store.apply(host(1.1, process_bytes=70, total_bytes=8000))
    assert (store.run.peak_used_bytes, store.run.memory.capacity_bytes) == (70, 8000)


def test_an_event_without_a_run_belongs_to_the_one_that_is_on(store: Store) -> None:
    warning = Warning(time_s=1.0, level="warning", device="host", text="full")
    store.apply(begin(0.0))
    store.apply(warning)
    store.apply(finish(2.0))
    store.apply(Warning(time_s=3.0, level="warning", device="host", text="later"))
    assert store.run is not None
    assert store.run.warnings == [warning]


def test_steps_stages_and_copies_do_not_push_out_other_events(store: Store) -> None:
    store.apply(begin(0.0))
    for i in range(MAX_EVENTS):
        store.apply(StepFinished(time_s=i, run_id=1, step=i, steps=MAX_EVENTS, seconds=1.0, loss=1.0))
        store.apply(StageFinished(time_s=i, run_id=1, name="move", seconds=0.1))
    assert [event.kind for event in store.events] == ["RunStarted"]
    assert store.event_count == 1


def test_events_are_bounded_and_counted(store: Store) -> None:
    for i in range(MAX_EVENTS + 5):
        store.apply(Marker(time_s=float(i), label="m"))
    assert len(store.events) == len(store.markers) == MAX_EVENTS
    assert store.event_count == MAX_EVENTS + 5
    assert store.markers[0].time_s == 5.0


def test_warnings_and_runs_are_marked_in_the_plots(store: Store) -> None:
    store.apply(begin(0.0))
    store.apply(Warning(time_s=1.0, level="critical", device="host", text="full"))
    store.apply(Warning(time_s=1.0, level="note", device="host", text="told"))
    store.apply(
        RunEnd(status="out_of_memory", time_s=2, run_id=1, error="guard", message="", remedy="", seconds=2, steps=1)
    )
    store.apply(Marker(time_s=3.0, label="mine"))
    assert [(marker.label, marker.category) for marker in store.markers] == [
        ("training on cpu", "run"),
        ("critical", "warning"),
        ("stopped by the guard", "run"),
        ("mine", "user"),
    ]


def test_a_program_and_a_stopped_run_are_marked_in_the_words_of_the_window(store: Store) -> None:
    store.apply(RunStarted(time_s=0.0, run_id=1, workload="watch", device="cpu", spec={}))
    store.apply(RunEnd(time_s=1.0, run_id=1, status="cancelled", seconds=1.0, steps=1, result={}))
    assert [marker.label for marker in store.markers] == ["program on cpu", "stopped"]


def test_the_mark_of_a_program_names_the_device_that_it_turned_to(store: Store) -> None:
    store.apply(RunStarted(time_s=0.0, run_id=1, workload="watch", device="cpu", spec={}))
    store.apply(Marker(time_s=0.0, label="program on cpu"))
    for device in ("sim:0", "sim:0", "cuda:1"):
        store.apply(Note(time_s=1.0, run_id=1, topic=Topic.DEVICE, text="", details={"device": device}))
    assert [(mark.label, mark.category) for mark in store.markers] == [
        ("program on cuda:1", "run"),
        ("program on cpu", "user"),
    ]
    assert store.renamed == 2, "who follows markers begins anew when one has changed, and only then"


def test_a_watched_program_has_no_peak_of_the_one_before_it_on_its_card() -> None:
    store = Store()
    card = "sim:0@1GiB"
    store.apply(RunStarted(time_s=0.0, run_id=1, workload="watch", device=card, spec={}))
    store.apply(Sample(1.0, "allocator", card, {"reserved_bytes": 700, "peak_reserved_bytes": 720}))
    store.apply(RunEnd(time_s=1.1, run_id=1, status="cancelled", seconds=1.0, steps=1, result={}))
    store.apply(RunStarted(time_s=1.1, run_id=2, workload="watch", device=card, spec={}))
    first, second = store.runs
    assert (first.peak_reserved_bytes, second.peak_reserved_bytes) == (720, None)
    store.apply(Sample(1.2, "allocator", card, {"reserved_bytes": 64, "peak_reserved_bytes": 64}))
    assert second.peak_reserved_bytes == 64


@given(SIZES, MAYBE, SIZES, SIZES, st.booleans())
def test_bands_that_are_known_add_up_to_used(
    used: int, process: int | None, allocated: int, reserved: int, linked: bool
) -> None:
    bands = gpu_bands(used, process, allocated, reserved, linked=linked)
    parts = [part for part in (bands.allocated, bands.idle, bands.context, bands.other) if part is not None]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == used


def test_each_band_is_what_its_name_says() -> None:
    assert gpu_bands(1000, 700, 300, 500, linked=True) == GpuBands(300, 200, 200, 300)


def test_without_the_drivers_figure_the_context_is_part_of_other() -> None:
    assert gpu_bands(1000, None, 300, 500, linked=True) == GpuBands(300, 200, None, 500)


def test_an_allocator_that_cannot_be_read_leaves_gaps_not_zeros() -> None:
    assert gpu_bands(1000, 700, None, None, linked=True) == GpuBands(None, None, None, 300)


def test_a_lost_gpu_has_no_bands() -> None:
    assert gpu_bands(None, 700, 300, 500, linked=True) == GpuBands(None, None, None, None)


def test_others_on_the_host_are_what_this_process_does_not_use() -> None:
    assert host_others(1000, 300) == 700
    assert host_others(1000, None) is None
    assert host_others(100, 300) == 0
