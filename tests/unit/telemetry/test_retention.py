"""Names of recordings, which of them leave when there are too many, and how long the trash keeps them."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from gpudash.telemetry.recording.recorder import Recorder, RecordingError, log_files
from gpudash.telemetry.recording.retention import (
    INDEX,
    KEPT_S,
    empty_trash,
    move_to_trash,
    prune,
    prune_reports,
    purge_trash,
    trash_folder,
)
from gpudash.telemetry.recording.schema import recording_name
from tests.unit.telemetry.recordings import dated, record

NOON = datetime(2025, 3, 4, 12, 5, 6).astimezone()

DAY_S = 86400.0


def test_a_recording_is_named_by_moment_and_workload(tmp_path: Path) -> None:
    assert recording_name(tmp_path, "training", NOON) == tmp_path / "2025-03-04-120506-training.gpudash"


def test_a_recording_whose_name_is_taken_gets_a_number_unless_the_user_has_chosen_it(tmp_path: Path) -> None:
    path = recording_name(tmp_path, "training", NOON)
    (tmp_path / "2025-03-04-120506-training-2.gpudash").symlink_to(tmp_path / "nowhere")
    for expected in ("training", "training-3", "training-4"):
        recorder = Recorder(path, meta={}, may_number=True)
        assert recorder.path == tmp_path / f"2025-03-04-120506-{expected}.gpudash"
        recorder.close()
    with pytest.raises(RecordingError, match="exists already; choose another name"):
        Recorder(path, meta={})


@pytest.mark.parametrize(("workload", "part"), [("my/own ü:x", "my-own-ü-x"), ("../..", "session"), ("", "session")])
def test_a_workload_of_any_name_stays_in_the_folder(tmp_path: Path, workload: str, part: str) -> None:
    path = recording_name(tmp_path, workload, NOON)
    assert path.parent == tmp_path
    assert path.name == f"2025-03-04-120506-{part}.gpudash"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four recordings, the oldest first by name and by time."""
    folder = tmp_path / "recordings"
    for number in range(4):
        path = folder / f"{number}.gpudash"
        Recorder(path, meta={}).close()
        os.utime(path, (1000 + number, 1000 + number))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def test_the_oldest_beyond_the_count_go_to_the_trash(folder: Path) -> None:
    moved = prune(folder, 10**9, 2)
    assert [path.name for path in moved] == ["0.gpudash", "1.gpudash"]
    assert names(folder) == ["2.gpudash", "3.gpudash"]
    assert names(trash_folder(folder)) == ["0.gpudash", "1.gpudash"]


def test_the_oldest_beyond_the_size_go_to_the_trash(folder: Path) -> None:
    size = (folder / "3.gpudash").stat().st_size
    assert len(prune(folder, size * 3, 100)) == 1
    assert prune(folder, size * 3, 100) == []


def test_nothing_goes_while_there_is_room(folder: Path) -> None:
    assert prune(folder, 10**9, 100) == []
    assert not trash_folder(folder).exists()


def test_the_current_the_locked_and_the_read_only_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(folder / "0.gpudash")) as connection:
        connection.execute("INSERT INTO meta VALUES ('locked', '1')")
        connection.commit()
    os.utime(folder / "0.gpudash", (1000, 1000))
    # Root may write everything, so permission bits alone would not show it.
    writable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "1.gpudash" and writable(path, mode))
    assert [path.name for path in prune(folder, 0, 1, keep=folder / "2.gpudash")] == ["3.gpudash"]
    assert names(folder) == ["0.gpudash", "1.gpudash", "2.gpudash"]


def test_one_that_is_being_written_stays(folder: Path) -> None:
    recorder = Recorder(folder / "live.gpudash", meta={})
    os.utime(folder / "live.gpudash", (1, 1))
    prune(folder, 0, 0)
    assert names(folder) == ["live.gpudash", "live.gpudash-shm", "live.gpudash-wal"]
    recorder.close()


def test_a_log_goes_with_its_recording(folder: Path) -> None:
    source = Recorder(folder.parent / "source.gpudash", meta={})
    for old, new in zip(log_files(source.path), log_files(folder / "0.gpudash"), strict=True):
        shutil.copyfile(old, new)
    source.close()
    prune(folder, 10**9, 3)
    assert names(trash_folder(folder)) == ["0.gpudash", "0.gpudash-shm", "0.gpudash-wal"]


def test_a_name_taken_in_the_trash_is_not_overwritten(folder: Path) -> None:
    trash_folder(folder).mkdir()
    (trash_folder(folder) / "0.gpudash").write_text("older")
    prune(folder, 10**9, 3)
    assert names(trash_folder(folder)) == ["0-2.gpudash", "0.gpudash"]


def test_a_folder_that_is_not_there_needs_nothing(tmp_path: Path) -> None:
    assert prune(tmp_path / "missing", 0, 0) == []


def report(folder: Path, name: str, size: int, changed: float) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "snapshot.pickle").write_bytes(b"x" * size)
    os.utime(path, (changed, changed))
    return path


def test_the_oldest_reports_go_to_the_trash_until_both_limits_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    first, second, third = (report(folder, f"{number}-train", 100, number) for number in range(3))
    report(folder, ".pending-x", 1000, 0.0)
    assert prune_reports(folder, 1000, 3) == []
    assert prune_reports(folder, 1000, 2) == [trash_folder(folder) / first.name]
    assert prune_reports(folder, 150, 2, keep=second) == [trash_folder(folder) / third.name]
    assert sorted(path.name for path in folder.iterdir()) == [".pending-x", second.name]
    assert (trash_folder(folder) / first.name / "snapshot.pickle").is_file()


def test_reports_of_one_name_do_not_replace_each_other_in_the_trash(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    for _ in range(2):
        report(folder, "train", 10, 1.0)
        prune_reports(folder, 0, 1)
    assert sorted(path.name for path in trash_folder(folder).iterdir()) == ["train", "train-2"]
    assert prune_reports(tmp_path / "none", 0, 1) == []


@pytest.fixture
def trash(tmp_path: Path) -> Path:
    """A trash with a recording that is years old and has just been deleted."""
    folder = tmp_path / "trash"
    move_to_trash(dated(record(tmp_path / "recordings" / "a.gpudash"), 1000.0), folder)
    return folder


def in_trash(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name != INDEX)


def test_what_is_deleted_stays_30_days_from_when_it_was_deleted(trash: Path) -> None:
    assert purge_trash(trash, 50 * 365 * DAY_S) == []
    assert purge_trash(trash, 50 * 365 * DAY_S + KEPT_S) == []
    assert purge_trash(trash, 50 * 365 * DAY_S + KEPT_S + 1) == ["a.gpudash"]
    assert in_trash(trash) == []


def test_a_report_goes_with_everything_in_its_folder(trash: Path) -> None:
    (trash / "report").mkdir()
    (trash / "report" / "snapshot.pickle").write_bytes(b"x")
    purge_trash(trash, 0.0)
    assert sorted(purge_trash(trash, 31 * DAY_S)) == ["a.gpudash", "report"]
    assert in_trash(trash) == []


def test_a_link_goes_and_what_it_leads_to_stays(trash: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (trash / "link").symlink_to(tmp_path / "kept")
    assert empty_trash(trash) == []
    assert in_trash(trash) == []
    assert (tmp_path / "kept" / "file").exists()


def test_what_was_restored_and_deleted_again_begins_anew(trash: Path) -> None:
    purge_trash(trash, 0.0)
    content = (trash / "a.gpudash").read_bytes()
    (trash / "a.gpudash").unlink()
    purge_trash(trash, 29 * DAY_S)
    (trash / "a.gpudash").write_bytes(content)
    purge_trash(trash, 29.5 * DAY_S)
    assert purge_trash(trash, 31 * DAY_S) == []


@pytest.mark.parametrize("index", ["", "[1]", "{", '{"a.gpudash": "long ago"}', '{"a.gpudash": 1e300}'])
def test_an_index_that_cannot_be_read_keeps_everything_longer(trash: Path, index: str) -> None:
    (trash / INDEX).write_text(index)
    assert purge_trash(trash, 40 * DAY_S) == []
    assert json.loads((trash / INDEX).read_text()) == {"a.gpudash": 40 * DAY_S}


def test_what_cannot_be_deleted_is_named_and_stays(trash: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError

    purge_trash(trash, 0.0)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert empty_trash(trash) == ["a.gpudash"]
    assert purge_trash(trash, 31 * DAY_S) == []
    assert in_trash(trash) == ["a.gpudash"]


def test_no_trash_needs_nothing(tmp_path: Path) -> None:
    assert purge_trash(tmp_path / "trash", 0.0) == []
    assert empty_trash(tmp_path / "trash") == []
    assert not (tmp_path / "trash").exists()
