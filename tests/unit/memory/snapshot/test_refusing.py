"""Files that are no snapshots, or hostile ones: no code runs, one sentence each, in both ways of reading."""

from __future__ import annotations

import copyreg
import gzip
import io
import json
import os
import pickle
import resource
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudash.memory.snapshot.history.model import Snapshot, SnapshotError
from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.memory.snapshot.reading.source import ReadLimits
from gpudash.units import MIB
from tests.fuzzing.seeds import FRAMES, event, modern, segment

BYTEARRAY8 = 0x96
"""CPython's unpickler complains on standard error when this one is cut off, besides raising."""

Read = Callable[..., Snapshot]
Write = Callable[[object], Path]


def refused(read: Read, path: Path, words: str = ".", **options: Any) -> None:
    with pytest.raises(SnapshotError, match=words) as caught:
        read(path, **options)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 500


def altered(**changes: object) -> dict[str, Any]:
    return {**modern(), **changes}


def short(text: bytes) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text


class Canary:
    """Pickled as a call that makes a file, by any protocol."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (self._path,))


def programs(canary: bytes) -> dict[str, bytes]:
    """Pickles that make a folder at ``canary`` if anything of theirs runs: each way to an object of a class."""
    name = short(canary)
    mkdir = b"cos\nmkdir\n"
    return {
        "GLOBAL, REDUCE": mkdir + b"(V" + canary + b"\ntR.",
        "STACK_GLOBAL, REDUCE": b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + name + b"\x85R.",
        "INST": b"(V" + canary + b"\nios\nmkdir\n.",
        "OBJ": b"(" + mkdir + b"V" + canary + b"\no.",
        "NEWOBJ": b"\x80\x02cpathlib\nPath\n" + b"V" + canary + b"\n\x85\x81.",
        "NEWOBJ_EX": b"\x80\x04cpathlib\nPath\n" + name + b"\x85}\x92.",
        "BUILD": mkdir + b"}(V__dict__\nV" + canary + b"\nub.",
        "EXT1": b"\x80\x02\x82\x01" + b"V" + canary + b"\n\x85R.",
        "EXT2": b"\x80\x02\x83\x01\x00" + b"V" + canary + b"\n\x85R.",
        "EXT4": b"\x80\x02\x84\x01\x00\x00\x00" + b"V" + canary + b"\n\x85R.",
        "PERSID": b"P" + canary + b"\n.",
        "BINPERSID": b"\x80\x02V" + canary + b"\nQ.",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "READONLY_BUFFER": b"\x80\x05\x97\x98.",
        "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 3) + b"abc.",
        "REDUCE of a text": b"\x80\x04" + name + name + b"\x85R.",
        "BUILD of a dictionary": b"\x80\x04}}" + short(b"__setstate__") + name + b"sb.",
        "eval": b"cbuiltins\neval\n(V__import__('os').mkdir('" + canary + b"')\ntR.",
    }


@pytest.mark.parametrize("kind", programs(b"x"))
def test_no_way_to_an_object_runs_anything(tmp_path: Path, write: Write, read: Read, kind: str) -> None:
    canary = tmp_path / "canary"
    refused(read, write(programs(str(canary).encode())[kind]))
    assert not canary.exists()


def test_registered_extensions_are_refused_also_when_python_has_loaded_them_before(
    tmp_path: Path, write: Write, read: Read
) -> None:
    canary = tmp_path / "canary"
    copyreg.add_extension("os", "mkdir", 1)
    try:
        pickle.loads(b"\x80\x02\x82\x01.")
        for kind in ("EXT1", "EXT2", "EXT4"):
            refused(read, write(programs(str(canary).encode())[kind]))
    finally:
        copyreg.remove_extension("os", "mkdir", 1)
    assert not canary.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_call_hidden_in_a_snapshot_is_refused_by_name(
    tmp_path: Path, write: Write, read: Read, protocol: int
) -> None:
    canary = tmp_path / "canary"
    for data in (
        altered(segments=[segment(), Canary(canary)]),
        altered(device_traces=[[event("alloc", frames=[*FRAMES, Canary(canary)])]]),
        altered(allocator_settings={"expandable_segments": Canary(canary)}),
    ):
        refused(read, write(pickle.dumps(data, protocol)), r"asks for the Python object posix\.mkdir")
    assert not canary.exists()


def test_names_of_globals_cannot_spoil_the_sentence(write: Write, read: Read) -> None:
    refused(
        read, write(b"\x80\x04" + short(b"a\nb" * 80) + short(b"\x1b[31m") + b"\x93."), "asks for the Python object"
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_off_anywhere_is_refused(write: Write, read: Read, compressed: bool) -> None:
    whole = pickle.dumps(altered(device_traces=[[event("alloc", size=number) for number in range(300)]]))
    whole = gzip.compress(whole) if compressed else whole
    for end in range(1, len(whole), max(1, len(whole) // 400)):
        refused(read, write(whole[:end]), "." if end < 12 else "is cut off")


def test_json_cut_off_anywhere_is_refused(write: Write) -> None:
    whole = json.dumps(modern()).encode()
    for end in range(1, len(whole), 7):
        refused(read_snapshot, write(whole[:end]), "cut off|is wrong at line 1")


def archive() -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as file:
        file.writestr("archive/data.pkl", b"x")
    return kept.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty: record"),
        (gzip.compress(b"", mtime=0), "is empty once it is expanded"),
        (b"hello, this is text\n", "neither a pickle nor JSON"),
        (b"\x7fELF" + bytes(100), "is a program"),
        (b"\xff\xd8\xff" + bytes(100), "neither a pickle nor JSON"),
        (archive(), r"is an archive, as torch\.save"),
        (b"SQLite format 3\x00" + bytes(90), "is a database"),
        (b"memray\x00" + bytes(90), "is a recording of memray"),
        (b"<!DOCTYPE html><html></html>", "is a page for a browser"),
        (b'{"traceEvents": [], "schemaVersion": 1}', r"a trace of torch\.profiler"),
        (b'{"cells": []}', "it is a notebook"),
        (b"[1, 2", "is cut off"),
        (b"{]", "its JSON is wrong at line 1"),
        (b'{"segments": [NaN]}', "it holds NaN"),
        (b'{"segments": [1e999]}', r"segments\[0\] is inf"),
        (b"[" + b"9" * 5000 + b"]", "its JSON cannot be read"),
        (b"[" * 100_000, "nested without end"),
        (b"\xef\xbb\xbf\xff[]", "its JSON cannot be read"),
        (b"\x1f\x8b\x08damaged file", "is (damaged|cut off)"),
        (b"BZh9" + bytes(30), "expand it first"),
    ],
)
def test_what_is_none_is_refused_in_words_for_what_it_is(write: Write, content: bytes, words: str) -> None:
    refused(read_snapshot, write(content), words)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(read_snapshot, tmp_path / "pipe", "it is a FIFO, not a regular file")
    refused(read_snapshot, tmp_path, "it is a folder, not a file")
    with pytest.raises(FileNotFoundError):
        read_snapshot(tmp_path / "none")


def test_a_name_cannot_spoil_the_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a\nb\x1b.pickle"
    path.write_bytes(b"")
    refused(read_snapshot, path, r"a\\nb\\x1b\.pickle is empty")


def test_files_above_the_limits_are_refused(write: Write) -> None:
    refused(read_snapshot, write(modern()), "more than the 100 that are opened", limits=ReadLimits(file_bytes=100))
    bomb = gzip.compress(b"\x80\x04" + b"N0" * 5_000_000 + b"].")
    assert len(bomb) < 20_000
    refused(read_snapshot, write(bomb), "expands to more than the 1,000,000", limits=ReadLimits(expanded_bytes=10**6))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (5, "at the top"),
        ({}, "at the top"),
        ({"segments": 5}, "segments is 5, not a list"),
        ([5], r"segments\[0\] is 5, not a dictionary"),
        ([segment(address="here")], r"`address` of segments\[0\] is 'here', not an integer"),
        ([segment(address=-1)], r"`address` of segments\[0\] is negative"),
        ([segment(address=2**64)], r"`address` of segments\[0\] is 18446744073709551616, more than 64 bits hold"),
        ([segment(total_size=-2)], r"`total_size` of segments\[0\] is negative"),
        ([segment(total_size=True)], r"`total_size` of segments\[0\] is True, not an integer"),
        ([segment(total_size=float("nan"))], r"`total_size` of segments\[0\] is nan, not an integer"),
        ([segment(allocated_size="x")], r"`allocated_size` of segments\[0\] is 'x'"),
        ([segment(blocks=None)], r"the blocks of segments\[0\] is None"),
        ([segment(blocks=[{"size": 5, "state": "odd"}])], "the state of .* is 'odd'"),
        ([segment(blocks=[{"size": 2**63 - 1, "state": "inactive"}])], "ends beyond what 64 bits hold"),
        ([segment(segment_pool_id="x")], "the pool of"),
        ([segment(segment_pool_id=(2**70, 0))], "the pool of"),
        (altered(device_traces=5), "device_traces is 5"),
        (
            altered(device_traces=[[event("alloc", size=2**61)] * 3]),
            "the sizes of device 0 add up to more than 64 bits",
        ),
        ([segment(total_size=2**61, address=place << 40) for place in range(3)], "the sizes of device 0 add up to"),
        (altered(device_traces=[5]), r"device_traces\[0\] is 5"),
        (altered(device_traces=[[event("alloc"), 7]]), r"device_traces\[0\]\[1\] is 7, not a dictionary"),
        (altered(device_traces=[[event("alloc", size=None), event("alloc", size=-1)]]), r"\[0\]\[1\] is negative"),
        (altered(device_traces=[[event("alloc", size=2**63)]]), r"more than 64 bits hold"),
        (altered(device_traces=[[event("alloc", size=True)]]), r"`size` of device_traces\[0\]\[0\] is True"),
        (altered(device_traces=[[event("alloc", size=float("nan"))]]), r"\[0\]\[0\] is nan, not an integer"),
        (altered(device_traces=[[event("alloc", size=2**500)]]), r"an integer of 501 bits"),
        (altered(device_traces=[[event("alloc", frames=7)]]), "the frames of"),
        (altered(device_traces=[[event("alloc", frames=[{"line": 7}])]]), r"`filename` of a frame"),
        (altered(device_traces=[[event("alloc", frames=[{**FRAMES[0], "line": "1"}])]]), "has the line '1'"),
        (
            altered(device_traces=[[event("alloc", frames=[{**FRAMES[0], "line": 2**65}])]]),
            "a frame of .* has the line",
        ),
        (altered(device_traces=[[event("alloc", frames=[{**FRAMES[0], "line": True}])]]), "has the line True"),
        (altered(device_traces=[[event("alloc", frames=[{**FRAMES[0], "name": None}])]]), "`name` of a frame"),
        (altered(device_traces=[[event("alloc", frames=[("a.py", "1", "f")])]]), "a frame of .* is a tuple"),
        (altered(device_traces=[[event("alloc", pool_id=(0, "x"))]]), "the pool of"),
        (altered(device_traces=[[event(str(number)) for number in range(300)]]), "more than 255 different actions"),
        (altered(allocator_settings=[1]), "allocator_settings is a list"),
        (altered(allocator_settings={"max_split_size": 5}), "its allocator settings cannot be right"),
        (altered(allocator_settings={"garbage_collection_threshold": "x"}), "is 'x', not a number"),
        (altered(allocator_settings={"roundup_power2_divisions": {"x": 1}}), "cannot hold 'x'"),
        (altered(external_annotations=[{"stage": 5}]), "`stage` of"),
    ],
)
def test_another_shape_is_refused_with_its_place(write: Write, read: Read, data: object, words: str) -> None:
    refused(read, write(data), rf"^snapshot.pickle is a pickle but no memory snapshot: .*{words}")


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.tuples(st.integers(), st.text()),
    st.sets(st.integers(), max_size=2),
    st.sampled_from([10**400, float("nan"), (), [[[]]], {"": {}}]),
)


def places(value: object, at: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The way to everything in nested lists and dictionaries."""
    inside = list(value.items()) if isinstance(value, dict) else []
    inside = list(enumerate(value)) if isinstance(value, list) else inside
    return [at, *(place for key, inner in inside for place in places(inner, (*at, key)))]


PLACES = places(modern())


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES[1:]), odd=ODD, protocol=st.integers(2, 5))
def test_any_type_in_any_field_is_read_or_refused_in_a_sentence(
    write: Write, read: Read, place: tuple[Any, ...], odd: object, protocol: int
) -> None:
    data: Any = pickle.loads(pickle.dumps(modern()))
    inside = data
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = odd
    read_or_refused(read, write(pickle.dumps(data, protocol)))


@contextmanager
def little_memory() -> Iterator[None]:
    """As in the child that reads: a byte can have CPython's unpickler make room for a thousand million objects."""
    kept = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 512 * MIB, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, kept)


def read_or_refused(read: Read, path: Path) -> None:
    try:
        with little_memory():
            read(path)
    except SnapshotError as error:
        sentence = str(error)
        assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 500


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255).filter(lambda byte: byte != BYTEARRAY8))
def test_a_damaged_file_is_read_or_refused_in_a_sentence(write: Write, read: Read, place: int, byte: int) -> None:
    damaged = bytearray(pickle.dumps(modern()))
    damaged[place % len(damaged)] = byte
    read_or_refused(read, write(bytes(damaged)))


def test_two_devices_with_one_list_of_events_are_refused(write: Write, read: Read) -> None:
    events = [event("alloc")]
    refused(
        read,
        write(pickle.dumps(altered(device_traces=[events, events]))),
        r"device_traces\[1\] is the same list as device_traces\[0\]",
    )
