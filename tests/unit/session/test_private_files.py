"""What a session leaves behind is its user's alone, whatever the umask and whoever wrote it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudash.session.recordings.folder import recording_target
from gpudash.session.watching import out_of_memory
from gpudash.session.watching.out_of_memory import FlightRecorder, Refused
from gpudash.system.folders import data_folder
from gpudash.system.settings import Settings, recordings_folder, save_settings
from gpudash.telemetry.recording.recorder import Recorder, log_files
from gpudash.telemetry.recording.retention import move_to_trash, purge_trash, trash_folder
from gpudash.telemetry.records import Note, Topic
from gpudash.units import GIB, MIB
from tests.unit.session.reports import leaking, refused
from tests.unit.session.watched import Surrounded


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home that is not there yet, in a process whose files are everybody's."""
    home = tmp_path / "data" / "gpudash"
    monkeypatch.setenv("GPUDASH_HOME", str(home))
    before = os.umask(0)
    yield home
    os.umask(before)


def modes(folder: Path) -> set[tuple[str, int]]:
    """Modes of a folder and of all that is in it, each with "file" or "folder"."""
    return {
        ("folder" if path.is_dir() else "file", path.stat().st_mode & 0o7777) for path in (folder, *folder.rglob("*"))
    }


PRIVATE = {("folder", 0o700), ("file", 0o600)}


def test_a_recording_and_all_that_lies_beside_it_is_its_users_alone(home: Path, tmp_path: Path) -> None:
    path = recording_target(Settings(), "monitor", file=None, record=True)
    assert path is not None
    recorder = Recorder(path, meta={})
    recorder.add(Note(time_s=1.0, topic=Topic.PROGRAM, text="a secret"))
    recorder.commit()
    assert all(file.exists() for file in (path, *log_files(path)))
    assert modes(tmp_path / "data") == PRIVATE
    copy = tmp_path / "copy.gpudash"
    recorder.copy_to(copy)
    assert copy.stat().st_mode & 0o7777 == 0o600
    recorder.close()
    save_settings({"notify": "ntfy:a-secret-topic"})
    move_to_trash(path, trash_folder(recordings_folder()))
    purge_trash(trash_folder(recordings_folder()), 0.0)
    assert data_folder() == home and modes(tmp_path / "data") == PRIVATE


def test_a_report_and_the_snapshot_that_the_program_wrote_are_their_users_alone(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = Surrounded(GIB)
    snapshot = tmp_path / "snapshot.pickle"
    snapshot.write_bytes(b"a snapshot")
    read, steps = leaking()
    found = out_of_memory.explanation_of(read, refused(steps))
    monkeypatch.setattr(out_of_memory, "explained", lambda *_facts: found)
    recorder = FlightRecorder(home / "reports", "train.py", around.store, around.output, dict)
    recorder.record(Refused("sim:0", snapshot, 0.0, GIB, MIB, steps=steps), lambda: False)
    assert recorder.folder is not None
    assert {path.name for path in recorder.folder.iterdir()} >= {"snapshot.pickle", "report.txt", "output.txt"}
    assert modes(tmp_path / "data") == PRIVATE


def test_a_folder_that_its_user_has_opened_to_others_stays_open(home: Path) -> None:
    home.mkdir(parents=True, mode=0o750)
    Recorder(home / "recordings" / "a.gpudash", meta={}).close()
    assert [path.stat().st_mode & 0o777 for path in (home, home / "recordings")] == [0o750, 0o700]
