"""How long the trash keeps what is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpudash.telemetry.recording.retention import INDEX, KEPT_S, empty_trash, move_to_trash, purge_trash
from tests.unit.telemetry.recordings import dated, record

DAY_S = 86400.0


@pytest.fixture
def trash(tmp_path: Path) -> Path:
    """A trash with a recording that is years old and has just been deleted."""
    folder = tmp_path / "trash"
    move_to_trash(dated(record(tmp_path / "recordings" / "a.gpudash"), 1000.0), folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name != INDEX)


def test_what_is_deleted_stays_30_days_from_when_it_was_deleted(trash: Path) -> None:
    assert purge_trash(trash, 50 * 365 * DAY_S) == []
    assert purge_trash(trash, 50 * 365 * DAY_S + KEPT_S) == []
    assert purge_trash(trash, 50 * 365 * DAY_S + KEPT_S + 1) == ["a.gpudash"]
    assert names(trash) == []


def test_a_report_goes_with_everything_in_its_folder(trash: Path) -> None:
    (trash / "report").mkdir()
    (trash / "report" / "snapshot.pickle").write_bytes(b"x")
    purge_trash(trash, 0.0)
    assert sorted(purge_trash(trash, 31 * DAY_S)) == ["a.gpudash", "report"]
    assert names(trash) == []


def test_a_link_goes_and_what_it_leads_to_stays(trash: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (trash / "link").symlink_to(tmp_path / "kept")
    assert empty_trash(trash) == []
    assert names(trash) == []
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
    assert names(trash) == ["a.gpudash"]


def test_no_trash_needs_nothing(tmp_path: Path) -> None:
    assert purge_trash(tmp_path / "trash", 0.0) == []
    assert empty_trash(tmp_path / "trash") == []
    assert not (tmp_path / "trash").exists()
