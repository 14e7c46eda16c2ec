"""``gpudash lesson``: the list, the sheet, and guesses that are typed."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudash.cli import run
from gpudash.cli.lesson import typed_guess
from gpudash.cli.terminal.interruption import Interruption
from gpudash.session.demo.scenes import SceneQuestion
from gpudash.session.lessons.lessons import find_lesson
from gpudash.session.lessons.sheet import Sheet

NUMBER = SceneQuestion("How much?", unit="MiB")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Types into what the command reads: a terminal, a line at a time."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r", closefd=True) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield ours
    os.close(ours)


def test_the_lessons_are_listed_with_what_was_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    lesson = find_lesson("move")
    scene = lesson.scenes[0]
    question = scene.question("sim")
    assert question is not None
    Sheet().note(lesson, scene, question, 128.0, 128.0)
    assert run(["lesson"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("move", "devices", "precision", "training", "remedies", "worth"))
    assert "1, 1 right" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["precison"], "There is no lesson 'precison' (did you mean precision?). There is: move, "),
        (["move", "--force"], "--force is for --export. Leave it out, or add --export sheet.ipynb."),
        (["--export", "sheet.txt"], "sheet.txt is not the name of a notebook; end it in .ipynb."),
        (["--export", "/nowhere/sheet.ipynb"], "/nowhere/sheet.ipynb cannot be written (the folder /nowhere does not "),
    ],
)
def test_a_wrong_request_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lesson", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(said) and err.count("\n") == 1


def test_the_sheet_is_written_as_a_notebook_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sheet.ipynb"
    assert run(["lesson", "move", "--export", str(out)]) == 0
    assert "Create, move, compute, and back" in out.read_text() and "Precision" not in out.read_text()
    assert run(["lesson", "--export", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(["lesson", "--export", str(out), "--force"]) == 0
    assert "Precision" in out.read_text()


def test_a_typed_guess_is_asked_for_until_it_is_one(terminal: int, capsys: pytest.CaptureFixture[str]) -> None:
    os.write(terminal, b"much\n-3\n128\n")
    assert typed_guess(NUMBER, Interruption(""), lambda: None) == 128
    found = capsys.readouterr()
    assert found.out.count("Your guess (MiB), or Enter to see the answer: ") == 3
    assert [line.partition(" is ")[0] for line in found.err.splitlines()] == ["'much'", "'-3'"]


def test_enter_the_end_of_the_input_and_an_interruption_are_no_guess(
    terminal: int, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = SceneQuestion("Which?", ("a", "b", "c"))
    os.write(terminal, b"\n")
    assert typed_guess(choice, Interruption(""), lambda: None) is None
    assert "   2  b" in capsys.readouterr().out
    os.write(terminal, b"\x04")
    assert typed_guess(choice, Interruption(""), lambda: None) is None
    interruption = Interruption("")

    def interrupt() -> None:
        interruption.requested = True

    assert typed_guess(choice, interruption, interrupt) is None
