"""Traces of which only a part fits into memory."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudash.memory.allocator import CachingAllocator, DeviceMemory
from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.memory.snapshot.reading import reader as reading
from gpudash.memory.snapshot.reading import trace_columns
from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.memory.snapshot.reading.source import ReadLimits
from gpudash.memory.snapshot.replay.trace_program import compiled
from gpudash.units import GIB, MIB
from tests.fuzzing.seeds import FRAMES, event, modern

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


def allocated(segments: Any) -> int:
    return sum(segment.allocated_size for segment in segments)


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
    minutes, tenths = divmod(len(levels) - kept, 600)
    since = f"{minutes:02d}:{tenths // 10:02d}.{tenths % 10}"
    assert found.events_in_file == len(levels)
    (words,) = found.warnings
    assert words.startswith(f"Read in part: {kept:,} of {len(levels):,} events, {since} to the end, since the whole ")
    assert words.endswith(" needs more than 375 KiB of memory.")


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
