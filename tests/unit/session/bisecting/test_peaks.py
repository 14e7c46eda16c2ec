"""The peak at a commit, by tests that measure it; their pytest is a script that reports what the commit says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpudash.session.predicting.bisecting import peaks as peaks_module
from gpudash.session.predicting.bisecting.peaks import PeakFinder, SearchedProgram
from gpudash.session.predicting.bisecting.repository import BisectError
from gpudash.session.predicting.bisecting.search import Threshold, bisect
from gpudash.units import GIB
from tests.unit.session.bisecting.histories import History
from tests.unit.session.bisecting.targets import target

PYTEST = """#!/bin/sh
echo run >> {log}
echo "path $PYTHONPATH"
echo "words $*"
for word in "$@"; do
  case $word in --gpu-memory-report=*) report=${{word#*=}};; esac
done
test -f said || {{ echo "ImportError: no module"; exit 4; }}
cat said
test -f report && cat report > "$report"
exit 0
"""


def report(*tests: tuple[str, str, int]) -> str:
    """What the plug-in writes: name, outcome and peak of tests."""
    written = [
        {"name": name, "outcome": outcome, "peak_bytes": size, "lines": {"train.py:3": size}, "message": "why"}
        for name, outcome, size in tests
    ]
    return json.dumps({"tests": written})


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setenv("GPUDASH_HOME", str(tmp_path / "home"))
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "pytest"
    program.write_text(PYTEST.format(log=tmp_path / "runs"), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return History(tmp_path / "repository")


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


def subject(folder: Path, *words: str) -> SearchedProgram:
    return SearchedProgram(("pytest", *words), "", folder, 24 * GIB, target())


def test_tests_tell_their_peaks_and_a_second_search_runs_nothing(history: History, tmp_path: Path) -> None:
    history.commit("good", said="x", report=report(("test_a", "passed", 100)))
    history.commit("broken", said="x", report=report(("test_a", "failed", 1)))
    history.commit("without", report=report())
    (history.folder / "said").unlink()
    history.commit("no import")
    history.commit("bad", said="x", report=report(("test_a", "grown", 300), ("test_b", "passed", 5)))
    said: list[str] = []

    def found() -> tuple[str, int, int]:
        answer = bisect("HEAD~4", "HEAD", subject(history.folder), Threshold(), lambda: False, said.append)
        named = answer.commit.subject if answer.commit else f"{len(answer.suspects)} suspects"
        assert answer.test == "test_a" and answer.measured
        assert {one.commit.subject: one.reason for one in answer.skipped} == {
            "broken": "test_a failed: why",
            "without": "It has no test_a.",
            "no import": "pytest ended with exit code 4, and the last that it said is: ImportError: no module",
        }
        return named, answer.estimates, answer.kept

    assert found() == ("4 suspects", 5, 0)
    before = runs(tmp_path)
    assert found() == ("4 suspects", 5, 5) and runs(tmp_path) == before == 5


def test_modules_come_from_the_commit_and_not_from_the_user_s_tree(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (history.folder / "src").mkdir()
    history.commit("only", **{"src/a__py": "", "said": "", "report": report(("test_a", "passed", 1))})
    monkeypatch.setenv("PYTHONPATH", f"{history.folder}/src:/elsewhere")
    repository = history.repository
    commit = repository.commit("HEAD")
    with repository.checkout(commit) as checkout:
        finder = PeakFinder(repository, checkout, subject(history.folder), commit, lambda: False)
        assert finder.at(commit).peaks["test_a"].lines == {"train.py:3": 1}
        printed = (checkout.folder.parent / "output").read_text()
        path = printed.split("path ")[1].splitlines()[0].split(":")
        assert path == [str(checkout.folder), str(checkout.folder / "src"), "/elsewhere"]


def test_a_pytest_without_gpudash_and_a_program_that_is_not_there_are_said(history: History) -> None:
    history.commit("only", said="error: unrecognized arguments: --gpu-memory-report=x", report="")
    (history.folder / "report").unlink()
    history.commit("other")
    with pytest.raises(BisectError, match="does not know gpudash"):
        bisect("HEAD~1", "HEAD", subject(history.folder), Threshold(), lambda: False, lambda _text: None)
    missing = SearchedProgram(("no-such-program",), "", history.folder, 24 * GIB, target())
    with pytest.raises(BisectError, match="There is no program 'no-such-program'"):
        bisect("HEAD~1", "HEAD", missing, Threshold(), lambda: False, lambda _text: None)


def test_a_search_that_is_interrupted_ends_and_leaves_no_worktree(history: History) -> None:
    history.commit("one", said="", report=report(("test_a", "passed", 1)))
    history.commit("two", said="2", report=report(("test_a", "passed", 9)))
    with pytest.raises(KeyboardInterrupt):
        bisect("HEAD~1", "HEAD", subject(history.folder), Threshold(), lambda: True, lambda _text: None)
    assert len(history.git("worktree", "list").splitlines()) == 1


def test_what_is_kept_depends_on_the_command_and_the_card_and_damage_is_overlooked(
    history: History, tmp_path: Path
) -> None:
    history.commit("one", said="", report=report(("test_a", "passed", 1)))
    repository = history.repository
    commit = repository.commit("HEAD")

    def kept(asked: SearchedProgram) -> bool:
        with repository.checkout(commit) as checkout:
            return PeakFinder(repository, checkout, asked, commit, lambda: False).at(commit).kept

    first = subject(history.folder)
    assert [kept(first), kept(first)] == [False, True]
    other = SearchedProgram(("pytest",), "", history.folder, 8 * GIB, target())
    assert [kept(subject(history.folder, "-q")), kept(other)] == [False, False]
    for file in (tmp_path / "home" / "bisected").iterdir():
        assert file.stat().st_mode & 0o077 == 0
        file.write_text('{"peaks": [1]}')
    assert [kept(first), kept(first)] == [False, True]


def test_a_script_outside_the_repository_is_found_from_the_checkout_and_asked_anew_once_it_changes(
    history: History, tmp_path: Path
) -> None:
    history.commit("one", said="", report=report(("test_a", "passed", 1)))
    repository = history.repository
    commit = repository.commit("HEAD")
    beside = tmp_path / "beside"
    beside.mkdir()
    script = beside / "settings.py"
    script.write_text("size = 1")
    program = subject(history.folder, "../beside/settings.py", "--config=../beside/settings.py", "said")

    def kept() -> bool:
        with repository.checkout(commit) as checkout:
            answer = PeakFinder(repository, checkout, program, commit, lambda: False).at(commit)
            output = checkout.folder.parent / "output"
            assert answer.kept or f"words {script} --config={script} said " in output.read_text()
        return answer.kept

    assert [kept(), kept()] == [False, True]
    script.write_text("size = 10")
    assert [kept(), kept()] == [False, True]
    (beside / "imported.py").write_text("")
    assert [kept(), kept()] == [False, True]


@pytest.mark.parametrize(
    ("command", "runs_pytest"),
    [
        (("pytest", "-q"), True),
        (("/env/bin/python", "-m", "pytest", "tests"), True),
        (("python3", "-X", "dev", "-m", "pytest"), True),
        (("python", "train.py", "pytest"), False),
        ((), False),
    ],
)
def test_a_command_of_pytest_is_known(command: tuple[str, ...], runs_pytest: bool) -> None:
    assert SearchedProgram(command, "", Path(), GIB, target()).runs_pytest is runs_pytest


@pytest.mark.process
def test_versions_are_those_of_the_python_that_runs_the_program(tmp_path: Path) -> None:
    assert len(peaks_module._versions(sys.executable)) == 64
    with pytest.raises(BisectError, match="could not be started"):
        peaks_module._versions(str(tmp_path / "python"))
