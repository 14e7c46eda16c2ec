"""Scalars of TensorBoard as losses of runs: from event files that are whole, cut off, damaged or hostile."""

from __future__ import annotations

import math
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.proto.tensor_pb2 import TensorProto

from gpudash.session.recordings.file_kinds import find_file
from gpudash.session.trackers.event_files import LONGEST_SCALAR, EventReader, find_event_files
from gpudash.session.trackers.tensorboard_log import TensorBoardReplay, write_recording
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import StepFinished

BEGAN_S = 1_795_255_200.0


def write(folder: Path, *steps: dict[str, float], began_s: float = BEGAN_S) -> Path:
    """An event file: at step 1, 2, ... the scalars of each, a second apart."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventsWriter(str(folder / "events"))
    for number, scalars in enumerate(steps, 1):
        for tag, value in scalars.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.write_event(Event(wall_time=began_s + number, step=number, summary=summary))
    writer.close()
    (path,) = folder.glob("events.out.tfevents.*")
    return path


def steps_of(place: Path, tmp_path: Path) -> tuple[dict[str, list[StepFinished]], list[str]]:
    """The steps of each run that a log becomes, and what is said of it."""
    target = tmp_path / "made.gpudash"
    notices = write_recording(place, target)
    with open_recording(target) as recording:
        names = {run.id: run.workload for run in recording.runs}
        found: dict[str, list[StepFinished]] = {name: [] for name in names.values()}
        for event in recording.events():
            if isinstance(event, StepFinished):
                found[names[event.run_id]].append(event)
    return found, notices


def test_each_folder_is_a_run_with_its_losses_by_step(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write(logs / "a" / "b", {"train/loss": 3.0, "val_loss": 4.0, "lr": 0.1}, {"train/loss": 2.0, "accuracy": 0.5})
    write(logs / "c", {"gan_loss": 1.0, "Loss": math.nan}, began_s=BEGAN_S + 60)
    found, notices = steps_of(logs, tmp_path)
    assert set(found) == {"a/b", "c"}
    assert [(step.step, step.loss, step.val_loss, step.accuracy) for step in found["a/b"]] == [
        (1, 3.0, 4.0, None),
        (2, 2.0, None, 0.5),
    ]
    (only,) = found["c"]
    assert only.loss is not None and math.isnan(only.loss) and only.losses == {"gan_loss": 1.0}
    assert only.time_s == 60.0
    assert notices == ["a/b: losses are shown, and not lr"]


def test_a_file_opens_as_a_replay_that_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "logs", {"loss": 3.0}, {"loss": 1.0})
    assert find_file(path).kind == find_file(path.parent).kind == "scalars"
    replay = TensorBoardReplay(path)
    private = replay.recording_path.parent
    (run,) = replay.store.end.runs
    assert (run.workload, run.status, run.step) == ("logs", "finished", 2) and private.exists()
    assert replay.close() and not private.exists()


def test_a_newer_writer_s_tensors_are_numbers_too(tmp_path: Path) -> None:
    writer = EventsWriter(str(tmp_path / "events"))
    tensors = [
        TensorProto(dtype=1, float_val=[2.5]),
        TensorProto(dtype=1, tensor_content=struct.pack("<f", 1.5)),
        TensorProto(dtype=1, float_val=[1.0, 2.0]),
    ]
    for step, tensor in enumerate(tensors, 1):
        summary = Summary(value=[Summary.Value(tag="loss", tensor=tensor)])
        writer.write_event(Event(wall_time=BEGAN_S, step=step, summary=summary))
    writer.close()
    found, _notices = steps_of(next(tmp_path.glob("events.*")), tmp_path)
    assert [step.loss for (step,) in [[one] for one in found[tmp_path.name]]] == [2.5, 1.5], "two numbers are none"


def record(data: bytes) -> bytes:
    header = struct.pack("<Q", len(data))
    return header + struct.pack("<I", masked(header)) + data + struct.pack("<I", masked(data))


def masked(data: bytes) -> int:
    found = crc32c(data)
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF


HUGE = struct.pack("<Q", 2**62)

HOSTILE = {
    "cut off": (lambda data: data[:-5], 2, False),
    "a wrong bit": (lambda data: data[:-10] + bytes([data[-10] ^ 1]) + data[-9:], 2, True),
    "a length of any size": (lambda data: data + HUGE + struct.pack("<I", masked(HUGE)) + b"x", 3, False),
    "a length that is wrong": (lambda data: data + HUGE + b"1234", 3, True),
    "no message": (lambda data: data + record(b"\xff" * 50), 3, False),
    "a long record": (lambda data: data + record(b"\x00" * (LONGEST_SCALAR + 1)), 3, False),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_came_before_is_read_of_a_file_that_is_not_whole(tmp_path: Path, case: str) -> None:
    change, count, is_damaged = HOSTILE[case]
    path = write(tmp_path / "logs", {"loss": 3.0}, {"loss": 2.0}, {"loss": 1.0})
    path.write_bytes(change(path.read_bytes()))
    reader = EventReader()
    assert len(list(reader.scalars(path))) == count
    assert [("is damaged behind" in notice) for notice in reader.notices] == [True] * is_damaged


def odd_places(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    yield write(tmp_path / "a", {"lr": 1.0}), "has no losses"
    yield write(tmp_path / "b"), "has no scalars"
    yield write(tmp_path / "c", {"loss": 1.0}, began_s=-1e300), "has no scalars"
    fifo = tmp_path / "d" / "x.tfevents.1"
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    yield fifo.parent, "cannot be read: it is a FIFO"


def test_a_log_without_losses_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for place, words in odd_places(tmp_path):
        with pytest.raises(RecordingError, match=words):
            write_recording(place, tmp_path / "made.gpudash")
    assert not (tmp_path / "made.gpudash").exists()


def test_folders_without_end_are_looked_at_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.session.trackers.event_files.MOST_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}.tfevents.x").touch()
    (tmp_path / "again").symlink_to(tmp_path)
    assert [path.name[0] for path in find_event_files(tmp_path)] == ["0", "1", "2"]


def test_without_its_package_the_line_that_brings_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "logs", {"loss": 3.0})
    hidden: Any = None
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", hidden)
    with pytest.raises(RecordingError, match=r'pip install "gpudash\[trackers\]"'):
        write_recording(path, tmp_path / "made.gpudash")
