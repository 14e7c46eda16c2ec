"""What a file is, told by its content."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.session.recordings.file_kinds import HEAD_BYTES, find_file, kind_of


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [{"segments": []}, [[]], {}])
def test_a_dict_or_a_list_in_any_pickle_may_be_a_snapshot(protocol: int, value: object) -> None:
    assert kind_of(pickle.dumps(value, protocol)) == "snapshot"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"SQLite format 3\x00\x10\x00", "recording"),
        (gzip.compress(b"x", mtime=0), "snapshot"),
        (json.dumps({"segments": []}).encode(), "snapshot"),
        (b"\xef\xbb\xbf\n  [1]", "snapshot"),
        (b"# GPU memory", None),
        (b"PK\x03\x04", None),
        (b"\x7fELF", None),
        (b"SQLite format 2\x00", None),
        (b"", None),
    ],
)
def test_the_first_bytes_tell_what_a_file_is(head: bytes, kind: str | None) -> None:
    assert kind_of(head) == kind


@given(st.binary(max_size=HEAD_BYTES))
def test_any_bytes_are_told_without_an_exception(head: bytes) -> None:
    assert kind_of(head) in ("recording", "snapshot", None)


def test_a_name_says_nothing_about_what_a_file_is(tmp_path: Path) -> None:
    file = tmp_path / "memory.gpudash"
    file.write_bytes(pickle.dumps({"segments": []}))
    found = find_file(file)
    assert (found.kind, found.path, found.title) == ("snapshot", file, "memory.gpudash")


def test_the_folder_of_a_report_means_the_snapshot_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "2026-11-21-train"
    folder.mkdir()
    (folder / "snapshot.pickle").write_bytes(pickle.dumps({"segments": []}))
    found = find_file(folder)
    assert (found.kind, found.path, found.title) == ("snapshot", folder / "snapshot.pickle", "2026-11-21-train")


def test_a_relative_path_is_the_same_file_as_the_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pickle").write_bytes(pickle.dumps({}))
    monkeypatch.chdir(tmp_path)
    assert find_file(Path("a.pickle")).path == find_file(tmp_path / "sub" / ".." / "a.pickle").path


def refused(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]+\.$") as error:
        find_file(path)
    return str(error.value)


def test_what_cannot_be_opened_is_told_in_one_sentence(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.pickle", tmp_path / "notes.txt"
    empty.touch()
    text.write_text("notes")
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    assert refused(tmp_path / "gone.pickle") == f"There is no file {tmp_path / 'gone.pickle'}."
    assert "without a snapshot.pickle" in refused(tmp_path)
    assert refused(empty) == "empty.pickle is empty; nothing was written into it."
    assert "neither a memory snapshot of PyTorch nor a recording" in refused(text)
    assert "is not a file" in refused(fifo)


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret.pickle"
    file.write_bytes(b"\x80\x04")

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Path, "open", refuse)
    assert refused(file) == f"{file} cannot be read: Permission denied."
