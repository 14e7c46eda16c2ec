"""Reading torch's memory snapshots in every form that is known."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.snapshot.history.model import ACTIONS, NONE, Snapshot, TraceEntry
from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.memory.snapshot.reading.source import ReadLimits
from gpudash.units import MIB
from tests.fuzzing.seeds import BASE, FRAMES, event, legacy, modern, segment

STACK = (("train.py", 3, "step"), ("main.py", 9, "main"))

Write = Callable[[object], Path]


def told(snapshot: Snapshot) -> tuple[object, ...]:
    """All that a snapshot says, stacks written out."""
    devices = [
        (
            device.index,
            [
                (
                    replace(s, blocks=()),
                    [replace(b, owner=None if b.owner is None else device.stacks[b.owner]) for b in s.blocks],
                )
                for s in device.segments
            ],
            [entry._replace(stack=None) for entry in device.trace],
            [None if entry.stack is None else device.stacks[entry.stack] for entry in device.trace],
            device.settings,
        )
        for device in snapshot.devices
    ]
    return (devices, snapshot.settings, snapshot.annotations, snapshot.warnings, snapshot.events_in_file)


def traced(*events: object) -> dict[str, Any]:
    return {**modern(), "device_traces": [list(events)]}


def test_a_snapshot_of_today_is_read(write: Write, read: Callable[..., Snapshot]) -> None:
    found = read(write(modern()))
    (device,) = found.devices
    (kept,) = device.segments
    assert (device.index, kept.total_size, kept.is_small, kept.pool_id) == (0, 2 * MIB, True, (0, 0))
    assert [block.state for block in kept.blocks] == ["active_allocated", "inactive"]
    assert found.stacks[kept.blocks[0].owner] == STACK
    assert kept.blocks[1].owner is None
    assert list(device.trace)[2:] == [
        TraceEntry("segment_alloc", BASE, 2**21, 0, 5, 0),
        TraceEntry("alloc", BASE, 1000, 0, 5, 0),
        TraceEntry("oom", 0, 77, 0, 6, 1, None, 12),
        TraceEntry("something new", BASE, 1000, 0, 5, 0),
    ]
    assert device.trace[0].pool_id == (0, 1)
    assert (found.kind, found.events_in_file, device.stated_allocated) == ("pickle protocol 4", 6, 1024)
    assert found.annotations == (("START", "step", 0, 4),)
    assert found.warnings == ()


def test_columns_keep_unknown_actions_and_what_events_are_tagged_with(
    write: Write, read: Callable[..., Snapshot]
) -> None:
    columns = read(write(modern())).devices[0].trace.columns
    assert columns.actions == (*ACTIONS, "something new")
    assert columns.texts == ("step 1",)
    assert columns.metadata.tolist() == [NONE, NONE, NONE, 0, NONE, NONE]
    assert columns.context.tolist() == [NONE] * 6
    assert (columns.pools, columns.pool.tolist()) == (((0, 1),), [0, *[NONE] * 5])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("data", [modern(), legacy(), [segment()]], ids=["modern", "legacy", "bare list"])
def test_every_pickle_protocol_is_read_alike(
    write: Write, read: Callable[..., Snapshot], protocol: int, data: object
) -> None:
    found = read(write(pickle.dumps(data, protocol)))
    assert found.kind == (f"pickle protocol {protocol}" if protocol > 1 else "pickle")
    assert told(found) == told(read_snapshot(write(data)))


@pytest.mark.parametrize("data", [modern(), legacy(), [segment()]], ids=["modern", "legacy", "bare list"])
def test_json_of_the_same_structure_is_read_alike(write: Write, data: object) -> None:
    found = read_snapshot(write(b"\n " + json.dumps(data).encode()))
    assert found.kind == "JSON"
    assert told(found) == told(read_snapshot(write(data)))


def test_frames_that_json_has_as_texts_are_taken_apart(write: Write) -> None:
    told_frames = ["a/b.py:12:forward", "C:\\x.py:3:f", "no place"]
    found = read_snapshot(write(json.dumps(traced(event("alloc", frames=told_frames))).encode()))
    stack = found.devices[0].trace[0].stack
    assert stack is not None
    assert found.stacks[stack] == (("a/b.py", 12, "forward"), ("C:\\x.py", 3, "f"), ("", 0, "no place"))


def test_json_with_null_for_what_is_missing_is_read(write: Write) -> None:
    absent = {"addr": None, "time_us": None, "frames": None, "pool_id": None, "user_metadata": None}
    found = read_snapshot(write(json.dumps(traced(event("snapshot", **absent), event("alloc"))).encode()))
    assert found.devices[0].trace[0] == TraceEntry("snapshot", 0, 1000, 0)


def test_a_compressed_file_is_read_alike(write: Write, read: Callable[..., Snapshot]) -> None:
    plain = pickle.dumps(modern())
    found = read(write(gzip.compress(plain)))
    assert found.kind == "pickle protocol 4, gzip"
    assert told(found) == told(read_snapshot(write(plain)))
    assert read(write(gzip.compress(json.dumps(modern()).encode()))).kind == "JSON, gzip"


def test_the_misspelt_twin_of_a_state_is_known(write: Write, read: Callable[..., Snapshot]) -> None:
    blocks = [
        {"address": BASE, "size": 512, "state": state, "requested_size": 5, "frames": []}
        for state in ("active_awaiting_free", "active_pending_free")
    ]
    found = read(write([segment(blocks=blocks)])).devices[0].segments[0]
    assert {block.state for block in found.blocks} == {"active_pending_free"}


def test_private_pools_are_known_as_tuples_and_as_lists(write: Write, read: Callable[..., Snapshot]) -> None:
    for pool in ((0, 3), [0, 3]):
        found = read(write({**traced(event("alloc", pool_id=pool)), "segments": [segment(segment_pool_id=pool)]}))
        assert found.devices[0].segments[0].pool_id == (0, 3)
        assert found.devices[0].trace[0].pool_id == (0, 3)


def test_blocks_with_a_history_are_read(write: Write, read: Callable[..., Snapshot]) -> None:
    found = read(write(legacy()))
    first, second = found.devices[0].segments[0].blocks
    assert (first.address, first.requested_size, found.stacks[first.owner]) == (BASE, 1000, STACK)
    assert (second.address, second.state) == (BASE + 1024, "inactive")


def test_every_device_with_segments_or_events_is_kept(write: Write, read: Callable[..., Snapshot]) -> None:
    data = {**modern(), "segments": [segment(device=3)], "device_traces": [[], [event("alloc")], [], []]}
    assert [(device.index, len(device.trace)) for device in read(write(data)).devices] == [(1, 1), (3, 0)]
    (empty,) = read(write({"segments": [], "device_traces": [[]]})).devices
    assert (empty.index, empty.segments, len(empty.trace)) == (0, (), 0)


def test_a_stack_is_kept_once_however_often_it_occurs(write: Write, read: Callable[..., Snapshot]) -> None:
    copied = [dict(frame) for frame in FRAMES]
    found = read(write(traced(event("alloc"), event("free_requested"), event("free_completed", frames=copied))))
    assert list(found.stacks) == [STACK]


def test_stacks_are_a_sequence_of_frames_that_no_terminal_is_steered_by(
    write: Write, read: Callable[..., Snapshot]
) -> None:
    odd = {"filename": "\x1b[31m/tmp/ü.py\n", "line": 3, "name": "f\u202e"}
    stacks = read(write(traced(event("alloc"), event("oom", frames=[odd]), event("snapshot", frames=None)))).stacks
    assert set(stacks) == {STACK, (("\ufffd[31m/tmp/ü.py\ufffd", 3, "f\ufffd"),)}
    assert stacks == [stacks[0], stacks[1]] == stacks[:] and stacks[-1] is stacks[1] and stacks != [STACK]
    for outside in (2, -3):
        with pytest.raises(IndexError):
            stacks[outside]


def test_a_stack_longer_than_a_pickle_writes_at_once_is_whole(write: Write, read: Callable[..., Snapshot]) -> None:
    frames = [{"filename": "f.py", "line": number, "name": "f"} for number in range(2500)]
    found = read(write(traced(event("alloc", frames=frames), event("free_requested", frames=frames))))
    assert {len(found.stacks[entry.stack]) for entry in found.devices[0].trace} == {2500}


def test_frames_of_compiled_code_keep_their_place_and_a_line_of_minus_one_is_none(
    write: Write, read: Callable[..., Snapshot]
) -> None:
    frames = [{**FRAMES[0], "fx_node_op": "call"}, {"fx_node_op": "x", **FRAMES[1], "line": 2**64 - 1}]
    found = read(write(traced(event("alloc", frames=frames))))
    stack = found.devices[0].trace[0].stack
    assert stack is not None
    assert found.stacks[stack] == (("train.py", 3, "step"), ("main.py", 0, "main"))


def test_keys_that_are_not_known_are_named_in_a_warning(write: Write, read: Callable[..., Snapshot]) -> None:
    data = {**traced(event("alloc", colour=1), event("free_requested", shape=2)), "extra": 5}
    warnings = read(write(data)).warnings
    assert any("keys that are not known here: colour, shape" in words for words in warnings)
    assert any("parts that are not known here: extra" in words for words in warnings)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:64"}, {"large_segment_size": 64 * MIB}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": False}, {}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "something_newer:5", "max_split_size": -1}, {}),
        ({"max_split_size": 32 * MIB}, {"max_split_size": 32 * MIB}),
        ({"roundup_power2_divisions": {"1": 4, "2": 0}}, {"roundup_power2_divisions": {1: 4}}),
        ({"max_cached_size": 0, "max_split_size": -1}, {"oldest_first": True}),
    ],
)
def test_recorded_settings_are_those_of_the_environment_and_of_the_program(
    write: Write, recorded: dict[str, object], expected: dict[str, int]
) -> None:
    found = read_snapshot(write({**modern(), "allocator_settings": recorded})).devices[0].settings
    assert found == replace(AllocatorSettings(), **expected)


def test_settings_that_nest_without_end_are_left_out_with_a_warning(write: Write) -> None:
    nested: dict[str, object] = {}
    for _level in range(200):
        nested = {"a": nested, "b": nested}
    found = read_snapshot(write({**modern(), "allocator_settings": {"x": nested, "max_split_size": -1}}))
    assert dict(found.settings) == {"max_split_size": -1}
    assert any("1 of the allocator's settings" in words for words in found.warnings)


def test_progress_is_told_up_to_the_end_of_the_file(write: Write, read: Callable[..., Snapshot]) -> None:
    seen: list[tuple[int, int]] = []
    path = write(traced(*(event("alloc", size=number) for number in range(100_000))))
    read(path, progress=lambda done, total: seen.append((done, total)))
    size = path.stat().st_size
    assert size > 2 * MIB
    assert seen == sorted(seen) and len(seen) >= 2 and seen[-1] == (size, size)


def test_a_limit_that_allows_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_bytes must be at least 1"):
        ReadLimits(memory_bytes=0)
