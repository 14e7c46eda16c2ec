"""Traces that contradict themselves or their segments are told so, and still shown."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from gpudash.memory.snapshot.reading.reader import read_snapshot
from tests.benchmarks.generated_snapshot import data
from tests.fuzzing.seeds import BASE, event, modern, segment

LIVE = segment()
GONE = segment(blocks=[{**LIVE["blocks"][0], "size": 2**21, "state": "inactive"}], allocated_size=0)
PENDING = segment(blocks=[{**LIVE["blocks"][0], "state": "active_pending_free"}, LIVE["blocks"][1]], allocated_size=0)
DISAGREE = "The trace and the segments of device 0 disagree: event "


def warnings(tmp_path: Path, segments: list[dict[str, Any]], *actions: str) -> tuple[str, ...]:
    path = tmp_path / "snapshot.pickle"
    trace = [event(action) for action in actions]
    path.write_bytes(pickle.dumps({**modern(), "segments": segments, "device_traces": [trace]}))
    found = read_snapshot(path)
    assert len(found.devices[0].trace) == len(actions)
    return found.warnings


@pytest.mark.parametrize(
    ("segments", "actions"),
    [
        ([LIVE], ["alloc"]),
        ([LIVE], ["free_completed", "alloc"]),
        ([LIVE], ["free_requested", "free_completed", "alloc", "snapshot", "something new"]),
        ([GONE], ["alloc", "free_requested", "free_completed"]),
        ([GONE], ["free_completed"]),
        ([], ["free_requested", "free_completed", "segment_free"]),
        ([PENDING], ["alloc", "free_requested"]),
        ([LIVE, segment(address=BASE + 2**30, blocks=[], allocated_size=0)], ["alloc"]),
    ],
)
def test_what_can_have_happened_is_not_warned_of(
    tmp_path: Path, segments: list[dict[str, Any]], actions: list[str]
) -> None:
    assert warnings(tmp_path, segments, *actions) == ()


@pytest.mark.parametrize(
    ("segments", "actions", "words"),
    [
        ([LIVE], ["alloc", "alloc"], f"{DISAGREE}1, `alloc` of 1,000 bytes at {BASE:#x}, does not follow"),
        ([LIVE], ["free_requested", "alloc"], f"{DISAGREE}1, `alloc`"),
        ([GONE], ["alloc", "free_completed"], f"{DISAGREE}1, `free_completed`"),
        ([GONE], ["alloc"], f"{DISAGREE}0, `alloc` of 1,000 bytes at {BASE:#x}, is not what the segments at the end"),
        ([LIVE], ["alloc", "free_requested", "free_completed"], f"{DISAGREE}2, `free_completed`"),
        ([PENDING], ["alloc"], f"{DISAGREE}0"),
        ([], ["alloc"], f"{DISAGREE}0"),
        ([segment(allocated_size=5)], ["alloc"], "say that 5 bytes are allocated, their blocks that 1,024 are."),
        ([LIVE, LIVE], ["alloc"], "cannot all be there: the one at 0x7f0000000000 begins within another."),
        ([segment(total_size=2**22)], ["alloc"], "do not add up to its size."),
        ([segment(blocks=[LIVE["blocks"][1], LIVE["blocks"][0]])], [], "do not lie one after the other."),
    ],
)
def test_what_cannot_have_happened_is_told_in_a_sentence(
    tmp_path: Path, segments: list[dict[str, Any]], actions: list[str], words: str
) -> None:
    found = warnings(tmp_path, segments, *actions)
    assert any(words in warning for warning in found)
    assert all(warning.endswith(".") for warning in found)


def test_a_run_of_thousands_of_events_agrees_with_its_segments(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data(5_000)))
    assert read_snapshot(path).warnings == ()
