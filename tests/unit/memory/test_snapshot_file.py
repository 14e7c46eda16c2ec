"""Reading torch's memory snapshots, and refusing everything else."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.snapshot_file import SnapshotError, TraceEntry, read_snapshot
from gpudash.units import MIB

FRAMES = [{"filename": "train.py", "line": 3, "name": "step"}, {"filename": "main.py", "line": 9, "name": "main"}]
STACK = (("train.py", 3, "step"), ("main.py", 9, "main"))
SEGMENT: dict[str, Any] = {
    "device": 0,
    "address": 0x7F0000000000,
    "total_size": 2 * MIB,
    "allocated_size": 1024,
    "stream": 0,
    "segment_type": "small",
    "segment_pool_id": (0, 0),
    "is_expandable": False,
    "frames": FRAMES,
    "blocks": [
        {
            "address": 0x7F0000000000,
            "size": 1024,
            "requested_size": 1000,
            "state": "active_awaiting_free",
            "frames": FRAMES,
        },
        {
            "address": 0x7F0000000400,
            "size": 2 * MIB - 1024,
            "requested_size": 0,
            "state": "inactive",
            "frames": [],
        },
    ],
}
EVENT: dict[str, Any] = {
    "action": "alloc",
    "addr": 0x7F0000000000,
    "size": 1000,
    "stream": 0,
    "time_us": 5,
    "frames": FRAMES,
    "compile_context": "N/A",
}
MODERN: dict[str, Any] = {
    "segments": [SEGMENT],
    "device_traces": [[EVENT, {"action": "oom", "size": 77, "stream": 0, "time_us": 6, "device_free": 12}], []],
    "allocator_settings": {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": 64 * MIB,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": True,
        "roundup_power2_divisions": {"1": 4, "2": 0},
    },
    "external_annotations": [{"stage": "START", "name": "step", "device": 0, "time_us": 4}],
}

BYTEARRAY8 = 0x96
"""CPython's unpickler complains on standard error when this one is cut off, besides raising."""

Write = Callable[[object], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(data: object) -> Path:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(data if isinstance(data, bytes) else pickle.dumps(data))
        return path

    return write


def altered(**changes: object) -> dict[str, Any]:
    return {**MODERN, **changes}


def test_a_snapshot_of_today_is_read(write: Write) -> None:
    found = read_snapshot(write(MODERN))
    (device,) = found.devices
    (segment,) = device.segments
    assert (device.index, segment.total_size, segment.is_small, segment.pool_id) == (0, 2 * MIB, True, (0, 0))
    assert [block.state for block in segment.blocks] == ["active_pending_free", "inactive"]
    assert found.stacks[segment.blocks[0].owner] == STACK
    assert segment.blocks[1].owner is None
    assert device.trace == (
        TraceEntry("alloc", 0x7F0000000000, 1000, 0, 5, 0),
        TraceEntry("oom", 0, 77, 0, 6, None, None, 12),
    )
    assert device.settings == AllocatorSettings(
        max_split_size=64 * MIB, expandable_segments=True, roundup_power2_divisions={1: 4}
    )
    assert found.settings["max_split_size"] == 64 * MIB
    assert found.annotations == (("START", "step", 0, 4),)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:64"}, {"large_segment_size": 64 * MIB}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": False}, {}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "something_newer:5", "max_split_size": -1}, {}),
        ({"max_split_size": 32 * MIB}, {"max_split_size": 32 * MIB}),
    ],
)
def test_recorded_settings_are_those_of_the_environment_and_of_the_program(
    write: Write, recorded: dict[str, object], expected: dict[str, int]
) -> None:
    found = read_snapshot(write(altered(allocator_settings=recorded))).devices[0].settings
    assert found == replace(AllocatorSettings(), **expected)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol_is_read(write: Write, protocol: int) -> None:
    assert read_snapshot(write(pickle.dumps(MODERN, protocol))) == read_snapshot(write(MODERN))


def test_a_stack_is_kept_once_however_often_it_occurs(write: Write) -> None:
    copied = {**EVENT, "frames": [dict(frame) for frame in FRAMES]}
    assert read_snapshot(write(altered(device_traces=[[EVENT, EVENT, copied]]))).stacks == [STACK]


def test_a_bare_list_of_segments_is_read(write: Write) -> None:
    found = read_snapshot(write([{**SEGMENT, "device": 1}]))
    assert [(device.index, len(device.segments), device.trace) for device in found.devices] == [(1, 1, ())]
    assert found.devices[0].settings == AllocatorSettings()


def test_blocks_with_a_history_are_read(write: Write) -> None:
    history = [{"addr": 0x7F0000000000, "real_size": 1000, "frames": FRAMES}]
    blocks = [
        {"size": 1024, "state": "active_allocated", "history": history},
        {"size": 2 * MIB - 1024, "state": "inactive"},
    ]
    old = {key: value for key, value in SEGMENT.items() if key not in ("segment_pool_id", "is_expandable", "frames")}
    found = read_snapshot(write({"segments": [{**old, "blocks": blocks}], "device_traces": [[]]}))
    first, second = found.devices[0].segments[0].blocks
    assert (first.address, first.requested_size, found.stacks[first.owner]) == (0x7F0000000000, 1000, STACK)
    assert (second.address, second.state) == (0x7F0000000400, "inactive")


def test_devices_without_segments_or_events_are_left_out(write: Write) -> None:
    found = read_snapshot(write(altered(device_traces=[[], [], [{**EVENT, "action": "something new"}]])))
    assert [device.index for device in found.devices] == [0, 2]
    assert found.devices[1].trace[0].action == "something new"


def test_a_snapshot_of_nothing_has_an_empty_first_device(write: Write) -> None:
    (device,) = read_snapshot(write({"segments": [], "device_traces": [[]]})).devices
    assert (device.index, device.segments, device.trace) == (0, (), ())


class Innocent:
    """Pickled as a call, as anything harmful would be."""

    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("harm",))


def test_a_file_that_would_run_something_is_refused_and_runs_nothing(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SnapshotError, match=r"asks for the Python object (builtins|__builtin__)\.print"):
        read_snapshot(write(altered(segments=[Innocent()])))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'echo harm'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x09echo harm\x85R.",
        b"(S'echo harm'\nios\nsystem\n.",
        b"\x80\x02cbuiltins\neval\nU\x0b__import__1q\x00\x85R.",
    ],
)
def test_every_way_to_a_global_is_refused(write: Write, program: bytes) -> None:
    with pytest.raises(SnapshotError, match=r"asks for the Python object (os\.system|builtins\.eval)"):
        read_snapshot(write(program))


@pytest.mark.parametrize("program", [b"P123\n.", b"\x80\x02K\x01Q."])
def test_references_to_outside_are_refused(write: Write, program: bytes) -> None:
    with pytest.raises(SnapshotError, match=r"refers to objects outside itself"):
        read_snapshot(write(program))


def test_a_file_that_is_cut_off_says_so(write: Write) -> None:
    whole = pickle.dumps(MODERN)
    for end in (len(whole) // 3, len(whole) // 2, len(whole) - 1):
        with pytest.raises(SnapshotError, match=r"is cut off"):
            read_snapshot(write(whole[:end]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello, this is text\n", "it is no pickle"),
        (b"\x7fELF" + bytes(100), "it is no pickle"),
        (b"\xff\xd8\xff" + bytes(100), "it is no pickle"),
        (b"PK\x03\x04" + bytes(100), "is an archive"),
    ],
)
def test_what_is_no_pickle_is_refused(write: Write, content: bytes, words: str) -> None:
    with pytest.raises(SnapshotError, match=words):
        read_snapshot(write(content))


def test_a_file_above_the_cap_is_not_opened(write: Write) -> None:
    path = write(MODERN)
    with pytest.raises(SnapshotError, match=r"bytes, more than the 100 that are opened"):
        read_snapshot(path, max_bytes=100)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (5, "at the top"),
        ({}, "at the top"),
        ({"segments": 5}, "segments is a int, not a list"),
        ([5], r"segments\[0\] is a int, not a dictionary"),
        ([{**SEGMENT, "address": "here"}], r"`address` of segments\[0\] is 'here', not an integer"),
        ([{**SEGMENT, "total_size": -2}], r"`total_size` of segments\[0\] is negative"),
        ([{**SEGMENT, "total_size": True}], r"`total_size` of segments\[0\] is True, not an integer"),
        ([{**SEGMENT, "blocks": None}], r"the blocks of segments\[0\] is a NoneType"),
        ([{**SEGMENT, "blocks": [{"size": 5, "state": "odd"}]}], "the state of .* is 'odd'"),
        ([{**SEGMENT, "segment_pool_id": "x"}], "the pool of"),
        (altered(device_traces=5), "device_traces is a int"),
        (altered(device_traces=[5]), r"device_traces\[0\] is a int"),
        (altered(device_traces=[[{"size": 5}]]), "`action` of"),
        (altered(device_traces=[[{**EVENT, "frames": 7}]]), "the frames of"),
        (altered(device_traces=[[{**EVENT, "frames": [{"line": 7}]}]]), r"`filename` of device_traces\[0\]\[0\]"),
        (altered(device_traces=[[{**EVENT, "frames": [{"filename": "f", "name": "n", "line": "1"}]}]]), "has the line"),
        (altered(allocator_settings=[]), "allocator_settings is a list"),
        (altered(allocator_settings={"max_split_size": 5}), "its allocator settings cannot be right"),
        (altered(external_annotations=[{"stage": 5}]), "`stage` of"),
    ],
)
def test_another_shape_is_refused_with_its_place(write: Write, data: object, words: str) -> None:
    with pytest.raises(SnapshotError, match=rf"^snapshot.pickle is a pickle but no memory snapshot: .*{words}"):
        read_snapshot(write(data))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255).filter(lambda byte: byte != BYTEARRAY8))
def test_a_damaged_file_is_read_or_refused_in_a_sentence(write: Write, place: int, byte: int) -> None:
    damaged = bytearray(pickle.dumps(MODERN))
    damaged[place % len(damaged)] = byte
    try:
        read_snapshot(write(bytes(damaged)))
    except SnapshotError as error:
        sentence = str(error)
        assert sentence.endswith(".") and "\n" not in sentence
