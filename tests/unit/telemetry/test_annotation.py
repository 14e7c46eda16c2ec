"""What the user says of a recording is kept in it, and nothing else of it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpudash.telemetry.recording.facts import read_facts
from gpudash.telemetry.recording.marks import set_locked, set_title
from gpudash.telemetry.recording.reading import is_locked, open_recording
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.recording.retention import prune
from tests.unit.telemetry.recordings import begin, dated, record


def test_a_locked_recording_is_not_tidied_away_until_it_is_unlocked(tmp_path: Path) -> None:
    path = record(tmp_path / "recordings" / "a.gpudash")
    set_locked(path, True)
    assert is_locked(path)
    assert prune(path.parent, 0, 1) == []
    set_locked(path, False)
    assert not is_locked(path)
    assert len(prune(path.parent, 0, 1)) == 1


def test_a_title_is_kept_and_can_be_taken_away(tmp_path: Path) -> None:
    path = record(tmp_path / "a.gpudash")
    set_title(path, "  Baseline ü, batch 48 ")
    assert read_facts(path).title == "Baseline ü, batch 48"
    set_title(path, "")
    with open_recording(path) as recording:
        assert "title" not in recording.meta


def test_the_date_of_the_file_stays(tmp_path: Path) -> None:
    path = dated(record(tmp_path / "a.gpudash"), 1234.0)
    set_title(path, "Baseline")
    assert path.stat().st_mtime == 1234.0


def test_rows_and_events_stay(tmp_path: Path) -> None:
    path = record(tmp_path / "a.gpudash")
    with open_recording(path) as recording:
        before = list(recording.records())
    set_locked(path, True)
    with open_recording(path) as recording:
        assert list(recording.records()) == before


def test_one_that_is_being_recorded_is_refused_in_one_sentence(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "a.gpudash")
    try:
        with pytest.raises(RecordingError, match=r"^a\.gpudash is being recorded; it can be changed when"):
            set_locked(recorder.path, True)
    finally:
        recorder.close()


def test_a_read_only_one_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record(tmp_path / "a.gpudash")
    monkeypatch.setattr(os, "access", lambda *_args: False)  # root may write everything
    with pytest.raises(RecordingError, match="read-only"):
        set_locked(path, True)


def refusal(path: Path) -> str | None:
    """Why the recording cannot be locked; ``None`` when it was."""
    try:
        set_locked(path, True)
    except RecordingError as error:
        return str(error)
    return None


def test_one_that_is_cut_off_is_left_as_it_is_or_locked_whole(tmp_path: Path) -> None:
    content = record(tmp_path / "a.gpudash").read_bytes()
    refused = 0
    for offset in range(0, len(content), 511):
        torn = tmp_path / "torn.gpudash"
        torn.write_bytes(content[:offset])
        why = refusal(torn)
        if why is not None:
            refused += 1
            assert "\n" not in why
            assert torn.read_bytes() == content[:offset]
        else:
            assert is_locked(torn)
        torn.unlink()
    assert refused > 1


@pytest.mark.parametrize("content", [None, b"", b"hello"])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.gpudash"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordingError):
        set_title(path, "x")
