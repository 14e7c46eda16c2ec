"""torch's own reader of snapshots and this one say the same of a generated file."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

from gpudash.memory.snapshot.history.model import DeviceSnapshot
from gpudash.memory.snapshot.reading.reader import read_snapshot
from tests.benchmarks.generated_snapshot import data

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return data(6_000)


@pytest.fixture
def device(content: dict[str, Any], tmp_path: Path) -> DeviceSnapshot:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    (found,) = read_snapshot(path).devices
    return found


def figure(told: str, name: str) -> tuple[float, float]:
    """A figure of torch's summary in bytes, and how far it may be off, being of one decimal."""
    number, unit = re.findall(rf"{name}: ([\d.]+)([KMG]?i?B)", told)[0]
    return float(number) * UNITS[unit], 0.051 * UNITS[unit]


def test_the_summary_of_segments_is_torchs(content: dict[str, Any], device: DeviceSnapshot) -> None:
    told = _memory_viz.segsum(content)
    reserved = sum(segment.total_size for segment in device.segments)
    blocks = [block for segment in device.segments for block in segment.blocks]
    # torch counts here what was asked for, and takes the rest of the blocks for free
    allocated = sum(block.requested_size for block in blocks if block.state == "active_allocated")
    for name, size in (
        ("total_reserved", reserved),
        ("total_allocated", allocated),
        ("total_free", reserved - allocated),
    ):
        shown, off = figure(told, name)
        assert shown == pytest.approx(size, abs=off)
    assert re.findall(r"^segments: (\d+)", told, re.MULTILINE) == [str(len(device.segments))]


def test_the_trace_is_torchs(content: dict[str, Any], device: DeviceSnapshot) -> None:
    told = _memory_viz.trace(content)
    actions = Counter(entry.action for entry in device.trace)
    assert f"\n{len(device.trace)} entries\n" in told
    assert len(re.findall(r" = cudaMalloc\(", told)) == actions["segment_alloc"]
    assert len(re.findall(r" = \w+\[\d+:", told)) == actions["alloc"]
    assert len(re.findall(r"^# free completed for ", told, re.MULTILINE)) == actions["free_completed"]
