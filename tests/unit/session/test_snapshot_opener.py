"""Snapshot files opened by a child process: what it says, what it may take, how it ends."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpudash.memory.snapshot.history.model import SnapshotError
from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
from gpudash.units import MIB
from tests.fuzzing.seeds import event, modern, segment

pytestmark = pytest.mark.process

PATIENCE_S = 30.0
MEMORY_BYTES = 256 * MIB
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, empty again after each test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Opens data, and closes what it opened."""
    kept: list[OpenedSnapshot] = []

    def open_(data: object, **options: Any) -> OpenedSnapshot:
        path = tmp_path / "snapshot.pickle"
        if data is not None:
            path.write_bytes(data if isinstance(data, bytes) else pickle.dumps(data))
        kept.append(OpenedSnapshot(path, **options))
        kept[-1].start()
        return kept[-1]

    yield open_
    assert all(one.close() for one in kept)


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_what_the_child_has_read_is_what_the_file_says(tmp_path: Path, opened: Any) -> None:
    one = opened({**modern(), "extra": 1})
    found, expected = one.wait(PATIENCE_S), read_snapshot(tmp_path / "snapshot.pickle")
    assert found is one.poll() is one.wait(0)
    for device, same in zip(found.devices, expected.devices, strict=True):
        assert (device.index, device.segments, device.settings) == (same.index, same.segments, same.settings)
        assert list(device.trace) == list(same.trace)
        assert (device.trace.columns.texts, device.stated_allocated) == (("step 1",), 1024)
        assert isinstance(device.trace.columns.address, np.memmap)
    assert list(found.stacks) == list(expected.stacks)
    kept = (found.settings, found.annotations, found.kind, found.events_in_file, found.warnings)
    assert kept == (
        expected.settings,
        expected.annotations,
        expected.kind,
        expected.events_in_file,
        expected.warnings,
    )
    size = (tmp_path / "snapshot.pickle").stat().st_size
    assert one.progress == (size, size)


def test_it_stays_usable_after_closing_and_leaves_no_file_while_open(nothing_is_left_behind: Path, opened: Any) -> None:
    one = opened(modern())
    found = one.wait(PATIENCE_S)
    assert list(nothing_is_left_behind.iterdir()) == []
    assert one.close()
    assert found.devices[0].trace[1].action == "free_completed"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, r"snapshot\.pickle cannot be read: No such file"),
        (b"", "is empty"),
        (pickle.dumps(modern())[:-40], "is cut off"),
        ([segment(size=1, blocks=7)], r"the blocks of segments\[0\]"),
    ],
)
def test_a_refusal_is_one_sentence(opened: Any, data: object, words: str) -> None:
    one = opened(data)
    for _again in range(2):
        with pytest.raises(SnapshotError, match=words):
            one.wait(PATIENCE_S)
    with pytest.raises(ValueError, match=words):
        one.answer(one.ask(0, None, None))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", "made the process that read it end .killed, perhaps"),
        ("import os; os.kill(os.getpid(), 11)", "made the process that read it end .signal SIGSEGV."),
        ("import os; os.kill(os.getpid(), 24)", "took far longer to read"),
        ("raise SystemExit(3)", "The process that read .* ended .exit code 3."),
        ("print('{\"read\": true}')", "could not be opened .FileNotFoundError"),
    ],
)
def test_a_child_that_ends_is_told_in_words(opened: Any, code: str, words: str) -> None:
    one = opened(modern(), process=script(code))
    with pytest.raises(SnapshotError, match=rf"snapshot\.pickle {words}|{words}"):
        one.wait(PATIENCE_S)


def test_a_child_that_cannot_be_started_is_told(opened: Any, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"could not be opened .FileNotFoundError"):
        opened(modern(), process=(str(tmp_path / "none"),)).wait(PATIENCE_S)


@pytest.mark.timed
def test_closing_ends_a_child_in_the_midst_of_reading_within_a_second(tmp_path: Path, opened: Any) -> None:
    told = tmp_path / "pid"
    os.mkfifo(told)
    busy = f"import os; open({str(told)!r}, 'w').write(str(os.getpid()))\nwhile True: pass"
    one = opened(modern(), process=script(busy))
    child = os.pidfd_open(int(told.read_text()))
    try:
        assert one.poll() is None
        began = time.monotonic()
        assert one.close()
        assert time.monotonic() - began < 1.0
        assert select.select([child], [], [], 0)[0]
    finally:
        os.close(child)
    with pytest.raises(SnapshotError, match="was closed before it was read"):
        one.poll()


def test_one_that_was_never_started_closes_and_does_not_start_any_more(tmp_path: Path) -> None:
    one = OpenedSnapshot(tmp_path / "none")
    assert one.close()
    one.start()
    with pytest.raises(SnapshotError, match="was closed"):
        one.wait(0)


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(modern()))
    code = (
        "import sys, pathlib, subprocess\n"
        "from gpudash.session.recordings.snapshot_opener import OpenedSnapshot\n"
        f"one = OpenedSnapshot(pathlib.Path({str(path)!r}))\n"
        "one.start(); one.wait(30)\n"
        "import psutil, os; print(psutil.Process().children()[0].pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(script(code), cwd=ROOT, stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        try:
            assert select.select([child], [], [], PATIENCE_S)[0]
        finally:
            os.close(child)


def test_what_a_killed_parent_has_left_is_swept_away_by_the_next(nothing_is_left_behind: Path, opened: Any) -> None:
    code = (
        "import os, pathlib, signal, sys, tempfile, threading\n"
        "from gpudash.session.recordings import snapshot_opener\n"
        "from gpudash.system import opened_file\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "opened_file.ChildProcess = lambda command: os.kill(os.getpid(), signal.SIGKILL)\n"
        "snapshot_opener.OpenedSnapshot(pathlib.Path('none')).start(); threading.Event().wait()\n"
    )
    subprocess.run([*script(code), str(nothing_is_left_behind)], cwd=ROOT, check=False)
    assert len(list(nothing_is_left_behind.iterdir())) == 1
    assert opened(modern()).wait(PATIENCE_S) is not None
    assert list(nothing_is_left_behind.iterdir()) == []


def test_what_if_questions_are_answered_by_number(opened: Any) -> None:
    one = opened(modern())
    number = one.ask(0, 5 * MIB, None)
    assert one.wait(PATIENCE_S) is not None
    while (answer := _answer(one, number)) is None:
        with one._changed:
            one._changed.wait(PATIENCE_S)
    assert answer
    unknown = one.ask(7, None, None)
    while (answer := _answer(one, unknown)) is None:
        with one._changed:
            one._changed.wait(PATIENCE_S)
    assert answer == "The snapshot has no device 7."


def _answer(one: OpenedSnapshot, number: int) -> str | None:
    with one._changed:
        try:
            found = one.answer(number)
        except ValueError as error:
            return str(error)
        return None if found is None else found.sentence


LAUNCHER = """
import json, resource, subprocess, sys
request = json.loads(sys.argv[1]); request["parent"] = __import__("os").getpid()
given = json.dumps(request).encode() + b"\\n"
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
child.stdin.write(given); child.stdin.flush()
last = [line for line in iter(child.stdout.readline, b"") if b"progress" not in line][:1]
child.stdin.close(); child.stderr.read(); status = child.wait()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([last and json.loads(last[0]), status, used.ru_maxrss * 1024]))
"""
"""A small process that starts the child, whose own memory is not counted among the child's."""

HOSTILE = {
    "a number for the memo beyond all": b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b".",
    "a memo that grows and grows": b"\x80\x02"
    + b"".join(b"]r" + struct.pack("<I", 900_000 * number) + b"0" for number in range(1, 200))
    + b"].",
    "lists within lists": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "tuples within tuples": b"\x80\x02)" + b"\x85" * 1_000_000 + b".",
    "tuples within tuples as a key": b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns.",
    "dictionaries within dictionaries": b"\x80\x02" + b"}K\x01" * 500_000 + b"N" + b"s" * 500_000 + b".",
    "lists shared twice at every level": b"\x80\x04}\x8c\x08segments]\x94"
    + b"".join(b"](h" + bytes([level]) + b"h" + bytes([level]) + b"e\x94" for level in range(200))
    + b"s.",
    "a giant integer": b"\x80\x02\x8b" + struct.pack("<i", 10_000_000) + b"\x7f" * 10_000_000 + b".",
    "an integer longer than the file": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a text longer than the file": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"abc.",
    "bytes longer than memory": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"abc.",
    "a giant text": b"\x80\x04X" + struct.pack("<I", 60_000_000) + b"a" * 60_000_000 + b".",
    "integers without end": b"\x80\x04](" + (b"\x8a\x08" + b"\x7f" * 8) * 4_000_000 + b"e.",
    "frames that share names": b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](" + b"}" * 3_000_000 + b"eeu.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_end_in_a_sentence_or_the_child_within_its_memory(tmp_path: Path, kind: str) -> None:
    path, folder = tmp_path / "hostile.pickle", tmp_path / "out"
    path.write_bytes(HOSTILE[kind])
    folder.mkdir()
    request = {"path": str(path), "folder": str(folder), "memory_bytes": MEMORY_BYTES, "times": None}
    launcher = [sys.executable, "-c", LAUNCHER, json.dumps(request), *OpenedSnapshot.command()]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    told, status, peak_bytes = json.loads(done.stdout)
    assert peak_bytes < MEMORY_BYTES + 100 * MIB
    if kind == "tuples within tuples as a key" and not told:
        assert status == -signal.SIGSEGV  # of CPython's own stack
    else:
        (message,) = [told] if isinstance(told, dict) else told
        assert message["refused"].endswith(".") and "\n" not in message["refused"]
        assert status == 0
    assert list(folder.iterdir()) == []


def test_a_trace_too_long_for_the_memory_is_read_in_part(opened: Any) -> None:
    events = [event("alloc", size=number, time_us=number, frames=[]) for number in range(200_000)]
    found = opened({**modern(), "segments": [], "device_traces": [events]}, memory_bytes=32 * MIB).wait(PATIENCE_S)
    (device,) = found.devices
    assert found.events_in_file == 200_000
    assert 50_000 < len(device.trace) < 200_000
    assert device.trace[-1].size == 199_999
    assert found.warnings[0].startswith(f"Read in part: {len(device.trace):,} of 200,000 events")
