"""What is asked of git, and what it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpudash.session.predicting.bisecting.changed_lines import changed_lines, largest, mapped, split_place
from gpudash.session.predicting.bisecting.peaks import SearchedProgram
from gpudash.session.predicting.bisecting.repository import BisectError, Repository, hunks_of
from gpudash.session.predicting.bisecting.search import Threshold, bisect
from gpudash.units import GIB
from tests.unit.session.bisecting.histories import History
from tests.unit.session.bisecting.targets import target


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setenv("GPUDASH_HOME", str(tmp_path / "home"))
    made = History(tmp_path / "repository")
    made.commit("first", train__py="a\nb\nc\n")
    made.commit("second", train__py="a\nnew\nb\nc\n")
    return made


def state_of(history: History) -> tuple[str, ...]:
    """All of a working tree that a search might change."""
    files = sorted((path.name, path.read_bytes()) for path in history.folder.iterdir() if path.is_file())
    shown = (
        ("status", "--porcelain"),
        ("rev-parse", "HEAD"),
        ("branch", "--list"),
        ("worktree", "list"),
        ("stash", "list"),
    )
    return (str(files), *(history.git(*words) for words in shown))


def test_commits_are_checked_out_beside_the_tree_which_stays_as_it_is_with_its_changes(history: History) -> None:
    (history.folder / "train.py").write_text("mine\n")
    (history.folder / "untracked.txt").write_text("mine\n")
    before = state_of(history)
    repository = history.repository
    assert repository.is_dirty
    with repository.checkout(repository.commit("HEAD")) as checkout:
        folder = checkout.folder
        for name, text in (("HEAD", "a\nnew\nb\nc\n"), ("HEAD~1", "a\nb\nc\n")):
            checkout.move_to(repository.commit(name))
            assert (folder / "train.py").read_text() == text
            (folder / "train.py").write_text("changed by a run\n")
            (folder / "left.txt").write_text("left by a run\n")
        checkout.move_to(repository.commit("HEAD"))
        assert not (folder / "left.txt").exists()
        assert folder.stat().st_mode & 0o077 == 0 or folder.parent.stat().st_mode & 0o077 == 0
    assert not folder.exists() and state_of(history) == before


def test_the_user_s_hooks_do_not_run(history: History, tmp_path: Path) -> None:
    hook = history.folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    repository = history.repository
    with repository.checkout(repository.commit("HEAD")) as checkout:
        checkout.move_to(repository.commit("HEAD~1"))
    assert not (tmp_path / "ran").exists()


def asked(folder: Path, good: str, bad: str) -> BisectError:
    """How a search is refused."""
    subject = SearchedProgram(("true",), "", folder, 24 * GIB, target())
    with pytest.raises(BisectError) as raised:
        bisect(good, bad, subject, Threshold(), lambda: False, lambda _text: None)
    return raised.value


def test_commits_that_cannot_be_searched_are_refused_in_a_sentence(history: History) -> None:
    history.git("checkout", "--quiet", "--orphan", "apart")
    history.commit("apart", other__py="1\n")
    history.git("checkout", "--quiet", "-b", "side", "main~1")
    history.commit("side", side__py="1\n")
    folder = history.folder
    base = history.git("rev-parse", "main~1")
    cases = {
        ("nowhere", "main"): ("There is no commit 'nowhere' here.", "git log"),
        ("main", "--upload-pack=x"): ("There is no commit '--upload-pack=x' here.", "git log"),
        ("main", "main"): ("main and main are the same commit.", "before the rise"),
        ("main", "main~1"): ("main comes after main~1.", "--lowered"),
        ("side", "main"): ("side is not in the history of main.", base[:12]),
        ("apart", "main"): ("apart is not in the history of main.", "no common ancestor"),
    }
    for (good, bad), (said, remedy) in cases.items():
        error = asked(folder, good, bad)
        assert str(error) == said and remedy in error.remedy, (good, bad)


def test_a_shallow_clone_says_so_where_it_lacks_a_commit(history: History, tmp_path: Path) -> None:
    clone = tmp_path / "shallow"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", f"file://{history.folder}", str(clone)],
        check=True,
        capture_output=True,
    )
    error = asked(clone, history.git("rev-parse", "HEAD~1"), "HEAD")
    assert "There is no commit" in str(error) and "git fetch --unshallow" in error.remedy


def test_a_folder_without_a_repository_or_a_machine_without_git_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "empty").mkdir()
    assert "lies in no git repository" in str(asked(tmp_path / "empty", "a", "b"))
    bare = tmp_path / "bare.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(bare)], check=True)
    assert "git cannot use" in str(asked(bare, "a", "b"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BisectError, match="There is no git"):
        Repository.around(tmp_path)


def test_a_script_that_no_commit_has_is_refused_for_it_would_import_the_user_s_own_tree(history: History) -> None:
    (history.folder / "bench.py").write_text("import train\n")
    subject = SearchedProgram(("python", "bench.py"), "", history.folder, 24 * GIB, target())
    with pytest.raises(BisectError, match=r"bench.py is not in the commit") as raised:
        bisect("main~1", "main", subject, Threshold(), lambda: False, lambda _text: None)
    assert "--callable" in raised.value.remedy


DIFF = """\
diff --git a/model.py b/model.py
index 1..2 100644
--- a/model.py
+++ b/model.py
@@ -2,0 +3,2 @@
+one
+two
@@ -10,2 +13 @@
-    x = f(y)
-gone
+x = f(y)
@@ -20 +22 @@
-before
+after
diff --git a/old.py b/new.py
similarity index 100%
rename from old.py
rename to new.py
diff --git a/left.py b/left.py
deleted file mode 100644
--- a/left.py
+++ /dev/null
@@ -1,2 +0,0 @@
-a
-b
"""


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (("model.py", 2), ("model.py", 2)),
        (("model.py", 3), ("model.py", 5)),
        (("model.py", 10), ("model.py", 13)),
        (("model.py", 11), None),
        (("model.py", 12), ("model.py", 14)),
        (("model.py", 20), ("model.py", 22)),
        (("model.py", 21), ("model.py", 23)),
        (("old.py", 5), ("new.py", 5)),
        (("left.py", 1), None),
        (("other.py", 4), ("other.py", 4)),
    ],
)
def test_a_line_is_found_in_the_later_commit(place: tuple[str, int], expected: tuple[str, int] | None) -> None:
    assert mapped(*place, hunks_of(DIFF)) == expected


def test_lines_that_moved_have_not_changed_and_those_that_went_are_told_as_gone() -> None:
    hunks = hunks_of(DIFF)
    before = {"model.py:3": 10, "model.py:11": 40, "model.py:20, in lib.py:4": 50, "model.py:20, in lib.py:9": 50}
    after = {"model.py:5": 10, "model.py:22, in lib.py:4": 150, "model.py:3": 1}
    found = changed_lines(before, after, hunks, hunks)
    assert [(one.file, one.line, one.difference, one.is_gone) for one in found] == [
        ("model.py", 22, 50, False),
        ("model.py", 11, -40, True),
        ("model.py", 3, 1, False),
    ]
    assert found[0].hunk is not None and found[0].hunk.new_start == 22 and found[1].hunk is None
    assert [one.difference for one in largest(found)] == [50, -40]


def test_lines_that_changed_as_the_peak_did_stand_before_one_that_changed_by_more_the_other_way() -> None:
    before, after = {"a.py:1": 100, "a.py:2": 10}, {"a.py:2": 90, "a.py:3": 60}
    risen = largest(changed_lines(before, after, [], []))
    assert [one.difference for one in risen] == [80, 60, -100]
    fallen = largest(changed_lines(after, before, [], []))
    assert [one.difference for one in fallen] == [-80, -60, 100]


def test_a_place_is_a_file_and_a_line_whatever_library_it_led_to() -> None:
    assert split_place("a/b.py:12, in torch/nn.py:4") == ("a/b.py", 12)
    assert split_place("") == ("", 0)
