"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudash.system.files import written_whole


def test_a_file_is_replaced_when_it_is_whole_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    with written_whole(path) as part:
        part.write_text("new", encoding="utf-8")
        assert part.parent == tmp_path
        assert path.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_there_stays_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")

    def fail() -> None:
        with written_whole(path) as part:
            part.write_text("half", encoding="utf-8")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder / "file")
    with written_whole(link) as part:
        part.write_text("new", encoding="utf-8")
    assert link.is_symlink()
    assert (folder / "file").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 127])
def test_the_longest_names_can_be_written(tmp_path: Path, name: str) -> None:
    with written_whole(tmp_path / name) as part:
        part.write_text("new", encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_is_missing_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), written_whole(tmp_path / "none" / "file") as part:
        part.touch()
