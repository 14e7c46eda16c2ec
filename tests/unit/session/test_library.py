"""The folder of recordings: what is told of it, and deleting, bringing back, locking and renaming."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudash.session.recordings import library as library_module
from gpudash.session.recordings.folder import tidy
from gpudash.session.recordings.library import LibraryEntry, LibraryWatcher, load_cache
from gpudash.system.folders import data_folder
from gpudash.system.settings import Settings, recordings_folder
from gpudash.telemetry.recording.facts import Facts, read_facts, set_locked
from gpudash.telemetry.recording.recorder import RecordingError, log_files
from gpudash.telemetry.recording.retention import INDEX, trash_folder
from tests.unit.session.conftest import PATIENCE_S
from tests.unit.telemetry.recordings import begin, dated, record


@pytest.fixture
def folder() -> Path:
    """Three recordings, the oldest first by name and by date."""
    folder = recordings_folder()
    for number, workload in enumerate(("training", "transfer", "pressure")):
        dated(record(folder / f"{number}.gpudash", workload=workload), 1000.0 + number)
    return folder


@pytest.fixture
def librarian(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LibraryWatcher]:
    """Looks at the folder; it is told to look, and does not wait a second."""
    monkeypatch.setattr(library_module, "POLL_S", 0.005)
    librarian = LibraryWatcher()
    until(lambda: not librarian.library.reading)
    yield librarian
    assert librarian.close()


def until(true: Callable[[], object]) -> None:
    """Wait until ``true()`` is, and fail when it does not become so."""
    never, rounds = threading.Event(), 0
    while not true():
        never.wait(0.005)
        rounds += 1
        assert rounds < PATIENCE_S / 0.005


def entry(librarian: LibraryWatcher, name: str) -> LibraryEntry:
    return next(entry for entry in librarian.library.entries if entry.path.name == name)


def names(entries: tuple[LibraryEntry, ...]) -> list[str]:
    return [entry.path.name for entry in entries]


def test_every_recording_is_told_the_newest_first(librarian: LibraryWatcher) -> None:
    entries = librarian.library.entries
    assert names(entries) == ["2.gpudash", "1.gpudash", "0.gpudash"]
    runs = [run.workload for entry in entries if entry.facts is not None for run in entry.facts.runs]
    assert runs == ["pressure", "transfer", "training"]
    assert librarian.library.bytes == sum(entry.path.stat().st_size for entry in entries)
    assert entries[0].title == "2"


def test_recordings_that_come_and_go_are_noticed(librarian: LibraryWatcher, folder: Path) -> None:
    record(folder / "new.gpudash")
    until(lambda: len(librarian.library.entries) == 4 and not librarian.library.reading)
    (folder / "0.gpudash").unlink()
    until(lambda: names(librarian.library.entries) == ["new.gpudash", "2.gpudash", "1.gpudash"])


def test_what_is_deleted_and_restored_is_byte_identical(librarian: LibraryWatcher, folder: Path) -> None:
    path = folder / "1.gpudash"
    before, changed = path.read_bytes(), path.stat().st_mtime_ns
    trashed = librarian.delete(path)
    assert trashed == folder.parent / "trash" / "1.gpudash"
    assert not path.exists()
    until(lambda: names(librarian.library.trash) == ["1.gpudash"])
    assert librarian.library.trash_bytes == len(before)
    assert librarian.restore(trashed, path) == path
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, changed)
    until(lambda: len(librarian.library.entries) == 3)


def test_the_log_that_a_crash_left_goes_and_comes_back_too(librarian: LibraryWatcher, folder: Path) -> None:
    log = log_files(folder / "1.gpudash")[0]
    log.write_bytes(b"a log")
    librarian.restore(librarian.delete(folder / "1.gpudash"))
    assert log.read_bytes() == b"a log"


def test_the_traces_of_its_profiles_count_go_and_come_back_with_it(librarian: LibraryWatcher, folder: Path) -> None:
    before = entry(librarian, "1.gpudash").bytes
    trace = folder / "1-step-3.trace.json.gz"
    trace.write_bytes(b"trace")
    until(lambda: entry(librarian, "1.gpudash").bytes == before + 5)
    trashed = librarian.delete(folder / "1.gpudash")
    assert not trace.exists()
    librarian.restore(trashed)
    assert trace.read_bytes() == b"trace"


def test_a_name_that_was_taken_meanwhile_is_not_overwritten(librarian: LibraryWatcher, folder: Path) -> None:
    trashed = librarian.delete(folder / "1.gpudash")
    (folder / "1.gpudash").write_bytes(b"other")
    assert librarian.restore(trashed, folder / "1.gpudash") == folder / "1-2.gpudash"
    assert (folder / "1.gpudash").read_bytes() == b"other"


def test_one_that_is_being_recorded_stays(librarian: LibraryWatcher, folder: Path) -> None:
    recorder = begin(folder / "live.gpudash")
    until(lambda: any(entry.written and entry.facts is not None for entry in librarian.library.entries))
    try:
        with pytest.raises(RecordingError, match=r"^live\.gpudash is being recorded; end its session first\.$"):
            librarian.delete(recorder.path)
        assert recorder.path.exists()
    finally:
        recorder.close()
    until(lambda: not entry(librarian, "live.gpudash").written)


def test_a_locked_one_stays_until_it_is_unlocked(librarian: LibraryWatcher, folder: Path) -> None:
    path = folder / "0.gpudash"
    librarian.lock(path, True)
    until(lambda: (facts := entry(librarian, "0.gpudash").facts) is not None and facts.locked)
    with pytest.raises(RecordingError, match="is locked; unlock it first"):
        librarian.delete(path)
    librarian.lock(path, False)
    until(lambda: (facts := entry(librarian, "0.gpudash").facts) is not None and not facts.locked)
    librarian.delete(path)


def test_one_that_has_not_been_read_yet_is_asked_itself(folder: Path) -> None:
    set_locked(folder / "0.gpudash", True)
    librarian = LibraryWatcher()
    assert librarian.close()
    with pytest.raises(RecordingError, match="is locked; unlock it first"):
        librarian.delete(folder / "0.gpudash")


def test_what_is_wished_after_it_was_closed_is_done_at_once_or_refused(folder: Path) -> None:
    librarian = LibraryWatcher()
    assert librarian.close()
    librarian.rename(folder / "0.gpudash", "Baseline")
    assert read_facts(folder / "0.gpudash").title == "Baseline"
    with pytest.raises(RecordingError, match="does not exist"):
        librarian.rename(folder / "gone.gpudash", "Baseline")


def test_what_was_wished_before_it_was_closed_is_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(folder.glob("*.gpudash"))
    begun, go = threading.Event(), threading.Event()

    def slow(path: Path, locked: bool) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)
        set_locked(path, locked)

    monkeypatch.setattr(library_module, "set_locked", slow)
    monkeypatch.setattr(library_module, "JOIN_S", PATIENCE_S)
    librarian = LibraryWatcher(folder)
    librarian.lock(paths[0], True)
    assert begun.wait(PATIENCE_S)
    librarian.lock(paths[1], True)
    with librarian._condition:
        librarian._closed = True
    go.set()
    assert librarian.close()
    assert [read_facts(path).locked for path in paths] == [True, True, False]


def test_a_session_that_begins_deletes_what_was_in_the_trash_for_a_month(folder: Path) -> None:
    trash = trash_folder(folder)
    for name in ("old.gpudash", "new.gpudash"):
        record(trash / name)
    (trash / INDEX).write_text(json.dumps({"old.gpudash": 1000.0}))
    assert tidy(Settings(), folder / "2.gpudash") is None
    assert [path.name for path in trash.glob("*.gpudash")] == ["new.gpudash"]


def test_a_title_replaces_the_name(librarian: LibraryWatcher, folder: Path) -> None:
    librarian.rename(folder / "2.gpudash", "Baseline")
    until(lambda: entry(librarian, "2.gpudash").title == "Baseline")
    librarian.rename(folder / "2.gpudash", "")
    until(lambda: entry(librarian, "2.gpudash").title == "2")


def test_what_cannot_be_changed_is_answered_in_one_sentence(librarian: LibraryWatcher, folder: Path) -> None:
    answers: list[str] = []
    librarian.lock(folder / "gone.gpudash", True)
    until(lambda: answers.extend(librarian.answers()) or answers)
    assert answers == [f"{folder / 'gone.gpudash'} does not exist."]


def test_a_read_only_one_and_one_that_is_gone_are_refused_in_one_sentence(
    librarian: LibraryWatcher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RecordingError, match="is not there any more"):
        librarian.delete(folder / "gone.gpudash")
    with pytest.raises(RecordingError, match="is not in the trash any more"):
        librarian.restore(librarian.trash / "gone.gpudash")
    monkeypatch.setattr(os, "access", lambda *_args: False)  # root may write everything
    with pytest.raises(RecordingError, match="read-only"):
        librarian.delete(folder / "1.gpudash")


def test_a_move_that_fails_leaves_the_recording_where_it_is(
    librarian: LibraryWatcher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RecordingError, match=r"^1\.gpudash cannot be deleted \(No space left on device\)\.$"):
        librarian.delete(folder / "1.gpudash")
    with pytest.raises(RecordingError, match="cannot be brought back"):
        librarian.restore(folder / "1.gpudash")
    assert (folder / "1.gpudash").exists()


def test_the_emptied_trash_is_empty(librarian: LibraryWatcher, folder: Path) -> None:
    librarian.delete(folder / "1.gpudash")
    until(lambda: librarian.library.trash)
    librarian.empty_trash()
    until(lambda: not librarian.library.trash)
    assert not list(librarian.trash.glob("*.gpudash"))


def test_a_damaged_file_is_listed_with_its_damage(librarian: LibraryWatcher, folder: Path) -> None:
    (folder / "torn.gpudash").write_bytes(b"SQLite format 3\0")
    until(lambda: any(e.facts is not None and e.facts.damage for e in librarian.library.entries))
    assert "torn.gpudash" in (entry(librarian, "torn.gpudash").facts or Facts()).damage


def test_what_has_been_read_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = LibraryWatcher()
    until(lambda: not first.library.reading)
    assert first.close()
    assert {Path(path).name for path in load_cache()} == {"0.gpudash", "1.gpudash", "2.gpudash"}
    monkeypatch.setattr(library_module, "read_facts", lambda *_args: pytest.fail("read again"))
    second = LibraryWatcher()
    until(lambda: not second.library.reading)
    assert second.close()
    assert second.library.entries == first.library.entries


@pytest.mark.parametrize("content", ["", "[]", '{"version": "0"}', '{"files": {}}', '"another version"\n[1, 2]'])
def test_a_cache_that_cannot_be_used_is_made_anew(folder: Path, content: str) -> None:
    data_folder().mkdir(exist_ok=True)
    (data_folder() / "library.json").write_text(content)
    librarian = LibraryWatcher()
    until(lambda: not librarian.library.reading)
    assert librarian.close()
    assert len(load_cache()) == 3


def test_a_line_of_the_cache_that_is_cut_makes_all_be_read_again(folder: Path) -> None:
    first = LibraryWatcher()
    until(lambda: not first.library.reading)
    assert first.close()
    kept = data_folder() / "library.json"
    kept.write_text(kept.read_text()[:-20])
    assert load_cache() == {}
    second = LibraryWatcher()
    until(lambda: not second.library.reading)
    assert second.close() and len(load_cache()) == 3


def test_a_folder_in_which_nothing_changes_stays_the_same_library(librarian: LibraryWatcher, folder: Path) -> None:
    before = librarian.library
    done: list[bool] = []
    librarian.scan()
    librarian._request(lambda: done.append(True))
    until(lambda: done)
    assert librarian.library is before
    dated(folder / "1.gpudash", 5000.0)
    until(lambda: librarian.library is not before and not librarian.library.reading)
    same = [new is old for new in librarian.library.entries for old in before.entries if new.path == old.path]
    assert sorted(same) == [False, True, True]


def test_a_file_of_the_same_size_and_date_that_was_changed_is_read_again(
    librarian: LibraryWatcher, folder: Path
) -> None:
    before = entry(librarian, "0.gpudash")
    librarian.rename(folder / "0.gpudash", "x")
    until(lambda: entry(librarian, "0.gpudash").title == "x")
    after = entry(librarian, "0.gpudash")
    assert (after.bytes, after.changed_s) == (before.bytes, before.changed_s)


def test_a_folder_that_is_not_there_is_an_empty_library() -> None:
    librarian = LibraryWatcher()
    until(lambda: not librarian.library.reading)
    assert librarian.close()
    assert librarian.library.entries == ()
    assert librarian.library.problem == ""


def test_a_thread_that_breaks_says_so_and_closes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> Facts:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(library_module, "read_facts", broken)
    librarian = LibraryWatcher()
    until(lambda: librarian.library.problem)
    assert librarian.library.problem == "The recordings are not watched any more (ZeroDivisionError: x)."
    assert librarian.close()


def test_nothing_is_looked_at_while_nobody_looks(librarian: LibraryWatcher, folder: Path) -> None:
    librarian.watch(False)
    librarian.scan()
    record(folder / "new.gpudash")
    librarian.watch(True)
    until(lambda: len(librarian.library.entries) == 4)
