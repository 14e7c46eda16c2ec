"""Folders that belong to one gpudash alone, and what becomes of those of a gpudash that was killed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from gpudash.system.files import PrivateFolder, runtime_folder
from tests.programs import python


def test_a_folder_is_its_users_alone_and_gone_when_it_is_removed(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path / "new", "gpudash-")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "agent").write_text("")
    folder.remove()
    folder.remove()
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.process
def test_the_next_one_sweeps_away_what_a_killed_one_has_left_and_nothing_else(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from gpudash.system.files import PrivateFolder\n"
        "print(PrivateFolder(Path(sys.argv[1]), 'gpudash-').path, flush=True); os.kill(os.getpid(), 9)\n"
    )
    killed = python("-c", program, str(tmp_path))
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    living = PrivateFolder(tmp_path, "gpudash-")
    (tmp_path / "gpudash-without-a-lock").mkdir()
    (tmp_path / "other-folder").mkdir()
    next_one = PrivateFolder(tmp_path, "gpudash-")
    assert not left.exists()
    assert living.path.is_dir() and next_one.path.is_dir()
    assert (tmp_path / "gpudash-without-a-lock").is_dir() and (tmp_path / "other-folder").is_dir()
    living.remove()
    next_one.remove()


def test_a_new_folder_that_another_one_sweeps_away_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = fcntl.flock, []

    def lock_late(descriptor: int, operation: int) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            PrivateFolder(tmp_path, "gpudash-").remove()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    folder = PrivateFolder(tmp_path, "gpudash-")
    assert folder.path.is_dir() and list(tmp_path.iterdir()) == [folder.path]
    assert len(swept) == 1 and swept != [folder.path]


def test_a_link_to_elsewhere_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text("")
    (tmp_path / "gpudash-link").symlink_to(elsewhere)
    PrivateFolder(tmp_path, "gpudash-").remove()
    assert (elsewhere / "lock").exists()


def test_the_users_runtime_folder_is_taken_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_folder() == tmp_path
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    assert runtime_folder().is_dir()
    assert os.access(runtime_folder(), os.W_OK)
