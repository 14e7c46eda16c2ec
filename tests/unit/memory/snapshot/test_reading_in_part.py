"""Traces of which only a stretch is wanted, or only a part fits into memory."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudash.memory.allocator import AllocatorSettings, CachingAllocator, DeviceMemory, Segment
from gpudash.memory.snapshot.history.model import DeviceSnapshot, Snapshot
from gpudash.memory.snapshot.reading import reader as reading
from gpudash.memory.snapshot.reading import trace_columns
from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.memory.snapshot.reading.source import ReadLimits, TimeRange
from gpudash.memory.snapshot.replay.trace_program import compiled
from gpudash.units import GIB, MIB
from tests.fuzzing.seeds import FRAMES, event, modern
from tests.unit.memory.snapshot.made import Made

BEGAN_US = 1_780_000_000_000_000
EVERY_US = 100_000
Read = Callable[..., Snapshot]


def recorded(steps: int = 400) -> tuple[dict[str, Any], list[int]]:
    """A snapshot in which the model placed everything, and the bytes allocated after each event."""
    trace: list[dict[str, Any]] = []
    levels: list[int] = []

    def told(action: str, address: int, size: int, stream: int) -> None:
        time_us = BEGAN_US + len(trace) * EVERY_US
        trace.append({**event(action, addr=address, size=size, stream=stream, time_us=time_us)})

    model = CachingAllocator(DeviceMemory(64 * GIB), observer=told)
    chance, held = random.Random(3), []
    for step in range(steps):
        before = model.allocated_bytes
        if step > 5 and held and chance.random() < 0.5:
            model.free(held.pop(chance.randrange(len(held))))
        else:
            held.append(model.malloc(chance.choice((700, 40_000, 2 * MIB, 30 * MIB))))
        # a segment comes before the block that it is for
        levels += [
            before if entry["action"] == "segment_alloc" else model.allocated_bytes for entry in trace[len(levels) :]
        ]
    segments = [
        {
            "address": s.address,
            "total_size": s.total_size,
            "segment_type": "small" if s.is_small else "large",
            "allocated_size": s.allocated_size,
            "blocks": [
                {"address": b.address, "size": b.size, "requested_size": b.requested_size, "state": b.state}
                for b in s.blocks
            ],
        }
        for s in model.segments()
    ]
    return {**modern(), "segments": segments, "device_traces": [trace], "allocator_settings": {}}, levels


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.pickle"


@pytest.fixture(params=["fast", "sparing"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Read:
    """The reader, once with CPython's unpickler and once without."""
    if request.param == "sparing":
        monkeypatch.setattr(reading, "ROOM_PER_BYTE", 2**40)
        monkeypatch.setattr(trace_columns, "AT_ONCE", 64)
    return read_snapshot


def allocated(segments: Any) -> int:
    return sum(segment.allocated_size for segment in segments)


def layout(device: DeviceSnapshot) -> list[tuple[int, int]]:
    return [(segment.address, segment.total_size) for segment in device.segments]


@pytest.mark.parametrize(("begin", "end"), [(0, 1000), (200, 350), (0, 100), (300, None), (None, 250), (999, 999)])
def test_a_stretch_has_the_levels_it_has_in_the_whole(
    path: Path, read: Read, begin: int | None, end: int | None
) -> None:
    data, levels = recorded()
    path.write_bytes(pickle.dumps(data))
    wanted = TimeRange(*(None if place is None else BEGAN_US + place * EVERY_US for place in (begin, end)))
    (device,) = read(path, times=wanted).devices
    whole = read(path).devices[0]
    first, last = begin or 0, len(levels) - 1 if end is None else min(end, len(levels) - 1)
    if first <= last:
        assert list(device.trace) == list(whole.trace)[first : last + 1]
        assert allocated(device.segments) == levels[last]
        assert allocated(compiled(device)[0].begin) == (levels[first - 1] if first else 0)
    else:
        assert len(device.trace) == 0


@pytest.mark.parametrize("expandable", [False, True])
def test_the_segments_of_a_stretch_are_those_that_were_there_at_its_end(path: Path, expandable: bool) -> None:
    made = Made(3 * GIB, AllocatorSettings(expandable_segments=expandable))
    held, chance = made.before(3 * MIB, 700_000, 50 * MIB), random.Random(7)
    there: dict[int, list[Segment]] = {}
    for place in range(400):
        if held and chance.random() < 0.45:
            made.free(held.pop(chance.randrange(len(held))))
        elif place % 90 == 89:
            made.empty_cache()
        else:
            size = chance.choice((chance.randrange(1, MIB), chance.randrange(MIB, 90 * MIB)))
            held.append(made.malloc(size, stream=chance.randrange(2)))
        there[made.entries[-1].time_us or 0] = made.model.segments()
    made.written(path)
    for time_us in list(there)[10::40]:
        found = read_snapshot(path, times=TimeRange(None, time_us)).devices[0].segments
        assert [segment.blocks for segment in found] == [segment.blocks for segment in there[time_us]]


def test_the_whole_stretch_is_the_file(path: Path, read: Read) -> None:
    data, _levels = recorded()
    path.write_bytes(pickle.dumps(data))
    found, whole = read(path, times=TimeRange()), read(path)
    assert found.warnings == whole.warnings == ()
    assert layout(found.devices[0]) == layout(whole.devices[0])
    assert found.devices[0].stated_allocated == allocated(whole.devices[0].segments)


def test_a_part_says_which_it_is(path: Path, read: Read) -> None:
    data, levels = recorded()
    path.write_bytes(pickle.dumps(data))
    late, early = BEGAN_US + 412 * EVERY_US, BEGAN_US + 510 * EVERY_US
    found = read(path, times=TimeRange(late))
    count = len(levels)
    assert found.events_in_file == count
    assert found.warnings == (f"Read in part: {count - 412} of {count} events, 00:41.2 to the end, as asked for.",)
    (words,) = read(path, times=TimeRange(late, early)).warnings
    assert words == f"Read in part: 99 of {count} events, 00:41.2 to 00:51.0, as asked for."


def test_the_newest_events_are_kept_when_the_whole_needs_too_much_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, levels = recorded(4000)
    path.write_bytes(pickle.dumps(data))
    monkeypatch.setattr(trace_columns, "AT_ONCE", 64)
    monkeypatch.setattr(reading, "AT_ONCE", 64)
    memory_bytes = 1000 * reading.EVENT_BYTES
    found = read_snapshot(path, limits=ReadLimits(memory_bytes=memory_bytes))
    (device,) = found.devices
    kept = len(device.trace)
    assert 900 <= kept <= 1000
    assert list(device.trace) == list(read_snapshot(path).devices[0].trace)[-kept:]
    assert allocated(compiled(device)[0].begin) == levels[-kept - 1]
    assert found.warnings[0].startswith(f"Read in part: {kept:,} of {len(levels):,} events, ")
    assert found.warnings[0].endswith(" to the end, since the whole needs more than 375 KiB of memory.")


def test_events_without_times_are_all_kept(path: Path, read: Read) -> None:
    data, levels = recorded(50)
    for entry in data["device_traces"][0]:
        del entry["time_us"]
    path.write_bytes(pickle.dumps(data))
    assert len(read(path, times=TimeRange(5, 6)).devices[0].trace) == len(levels)


def test_what_comes_after_the_stretch_and_contradicts_the_segments_is_told(path: Path, read: Read) -> None:
    data, _levels = recorded(50)
    late = BEGAN_US + 10**9
    data["device_traces"][0].append(event("free_completed", addr=5, size=100, time_us=late))
    data["device_traces"][0].append(event("free_completed", addr=5, size=100, time_us=late))
    path.write_bytes(pickle.dumps(data))
    found = read(path, times=TimeRange(None, late - 1))
    assert any("cannot be undone" in words for words in found.warnings)
    assert found.devices[0].segments == read(path).devices[0].segments


def test_running_out_of_memory_turns_to_the_sparing_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(source: object) -> None:
        raise MemoryError

    data, levels = recorded(50)
    path.write_bytes(pickle.dumps(data))
    monkeypatch.setattr(reading, "unpickled", fails)
    assert len(read_snapshot(path).devices[0].trace) == len(levels)


def test_of_several_devices_the_longest_trace_gives_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [[event("alloc", size=n, frames=FRAMES) for n in range(count)] for count in (2000, 0, 300)]
    path.write_bytes(pickle.dumps({**modern(), "segments": [], "device_traces": traces}))
    monkeypatch.setattr(trace_columns, "AT_ONCE", 100)
    monkeypatch.setattr(reading, "AT_ONCE", 100)
    monkeypatch.setattr(reading, "ROOM_PER_BYTE", 2**40)
    found = read_snapshot(path, limits=ReadLimits(memory_bytes=800 * reading.EVENT_BYTES))
    kept = {device.index: len(device.trace) for device in found.devices}
    assert kept[2] == 300 and 300 <= kept[0] <= 500
    assert found.devices[0].trace[-1].size == 1999
