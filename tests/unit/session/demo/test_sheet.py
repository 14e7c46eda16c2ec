"""The sheet: what is kept of guesses, by whom it can be read, and what a broken file does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpudash.session.demo.scenes import PlayedScene, Scene, SceneQuestion
from gpudash.session.lessons.lessons import MINE, find_lesson
from gpudash.session.lessons.sheet import MOST_GUESSES, Sheet, with_sheet

LESSON = find_lesson("move")
FIRST, SECOND, _COPIES, OWN = LESSON.scenes


def question_of(scene: Scene) -> SceneQuestion:
    question = scene.question("sim")
    assert question is not None
    return question


def note(sheet: Sheet, guess: float, answer: float | None, scene: Scene = FIRST) -> None:
    sheet.note(LESSON, scene, question_of(scene), guess, answer)


def test_a_guess_survives_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lessons.json"
    note(Sheet(path, clock=lambda: 5.0), 96.0, 128.0)
    again = Sheet(path)
    assert again.problem == ""
    kept = again.of(LESSON)[FIRST.title]
    assert (kept.guess, kept.came, kept.right, kept.time_s) == ("96 MiB", "128 MiB", False, 5.0)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_an_answer_joins_its_guess_and_another_guess_stands_behind_it(tmp_path: Path) -> None:
    sheet = Sheet(tmp_path / "s.json")
    note(sheet, 96.0, None)
    assert sheet.of(LESSON)[FIRST.title].came == ""
    note(sheet, 96.0, 128.0)
    note(sheet, 128.0, 128.0)
    assert [(guess.guess, guess.right) for guess in Sheet(sheet.path).guesses] == [("96 MiB", False), ("128 MiB", True)]


def test_lines_of_the_learner_s_own_are_kept_with_their_guess(tmp_path: Path) -> None:
    act = OWN.editable_lines
    assert act is not None
    sheet = Sheet(tmp_path / "s.json")
    note(sheet, 1.0, 2.0, replace(OWN, acts=(replace(act, source="a = 1"),)))
    assert Sheet(sheet.path).of(LESSON)[MINE].source == "a = 1"


def test_two_sheets_of_one_file_keep_the_guesses_of_both(tmp_path: Path) -> None:
    first, second = Sheet(tmp_path / "s.json"), Sheet(tmp_path / "s.json")
    note(first, 1.0, 128.0)
    note(second, 2.0, 128.0, SECOND)
    assert len(Sheet(first.path).guesses) == 2


def test_the_oldest_guesses_go_where_there_are_too_many(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    kept = {"lesson": "move", "scene": "x", "question": "?", "guess": "1"}
    path.write_text(json.dumps({"guesses": [kept] * MOST_GUESSES}))
    note(Sheet(path), 2.0, 128.0)
    again = Sheet(path)
    assert len(again.guesses) == MOST_GUESSES and again.guesses[-1].scene == FIRST.title


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_text("{"), "is no sheet of guesses; move it away"),
        (lambda path: path.write_text('{"format": 2, "guesses": []}'), "is no sheet of guesses; move it away"),
        (lambda path: path.write_text('{"guesses": [{"lesson": 3}]}'), "is no sheet of guesses; move it away"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is no text; move it away"),
        (lambda path: path.mkdir(), "cannot be read: it is a folder, not a file"),
        (lambda path: os.mkfifo(path), "cannot be read: it is a FIFO, not a regular file"),
    ],
    ids=["half", "newer", "other", "bytes", "folder", "fifo"],
)
def test_a_file_that_is_no_sheet_is_said_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "s.json"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    sheet = Sheet(path)
    assert said in sheet.problem and sheet.problem.count("\n") == 0
    note(sheet, 96.0, 128.0)
    assert sheet.of(LESSON)[FIRST.title].guess == "96 MiB", "it is there until the lesson is over"
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_sheet_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sheet = Sheet(tmp_path / "file" / "s.json")
    note(sheet, 96.0, 128.0)
    assert "guesses are not kept" in sheet.problem


def test_the_last_scene_shows_every_guess_beside_what_came(tmp_path: Path) -> None:
    sheet = Sheet(tmp_path / "s.json")
    scene = with_sheet(LESSON, sheet)[-1]
    assert scene.pictures(scene, PlayedScene())[0].sentence.startswith("No guess yet")
    note(sheet, 96.0, 128.0)
    note(sheet, 128.0, 128.0, SECOND)
    picture = scene.pictures(scene, PlayedScene())[0]
    assert [(row.guess, row.came, row.right) for row in picture.rows] == [
        ("96 MiB", "128 MiB", False),
        ("128 MiB", "128 MiB", True),
        ("", "", None),
        ("", "", None),
    ]
    assert picture.sentence.startswith("2 guesses are kept, 1 of them right.")
    assert "guessed 96 MiB, came 128 MiB" in picture.description
