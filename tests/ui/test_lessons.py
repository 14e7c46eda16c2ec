"""Lessons on the stage: a number is guessed by keyboard alone, nothing is cut, and the menu has all six."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMenu

from gpudash.devices.names import simulated_gpu
from gpudash.session import Replay
from gpudash.session.demo.pictures import StagePicture
from gpudash.session.demo.scenes import PlayedScene, Scene
from gpudash.session.demo.show import HELD
from gpudash.session.lessons.lesson_list import listed_lessons
from gpudash.session.lessons.lessons import Lesson, find_lesson, lessons
from gpudash.session.lessons.sheet import Sheet, with_sheet
from gpudash.session.recordings.samples import samples
from gpudash.ui.features.lessons import play_lesson, write_sheet
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow
from tests.ui.fake_session import FakeSession
from tests.ui.test_demo import SIZES, Opening, beyond, overlapping, settle_stage, stages
from tests.unit.session.demo.fake_playing import FakeLines
from tests.unit.session.demo.traces import three_lines

MOVE = find_lesson("move")


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([simulated_gpu(0, 8 * GIB)]).feed(5.0)


@pytest.fixture
def lines() -> FakeLines:
    return FakeLines()


@pytest.fixture
def open_stage(window: MainWindow, session: FakeSession, lines: FakeLines) -> Iterator[Opening]:
    with stages(window, session, lines, MOVE.title) as opening:
        yield partial(opening, pace=HELD)


def shown(title: str, pictures: list[StagePicture]) -> Scene:
    """A scene that only shows."""
    return Scene(title, "", (), lambda _scene, _played: pictures)


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.name)
def test_no_question_reason_or_verdict_is_cut(open_stage: Opening, lesson: Lesson) -> None:
    for scene in lesson.scenes:
        stage = open_stage([scene, scene])
        for size in SIZES:
            stage.resize(*size)
            settle_stage(stage)
            assert beyond(stage) == [] and overlapping(stage) == [], scene.title
        first = scene.pictures(scene, PlayedScene(device="sim:0"))[0]
        for question in scene.questions:
            answers = range(3) if question.choices else (1023.0, 1.5)
            verdict = max((question.verdict(*pair) for pair in permutations(answers, 2)), key=len)
            stage.canvas.show_picture(replace(first, sentence=question.why, remark="", verdict=verdict))
            for size in SIZES:
                stage.resize(*size)
                stage.grab()
                assert [one.text for one in stage.canvas.drawn if one.cut] == [], scene.title
        stage.leave()


def test_a_number_is_guessed_by_keyboard_alone(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MOVE.scenes[0], MOVE.scenes[0]])
    field = stage.entry.field
    assert field.isVisible() and stage.focusWidget() is field
    assert field.accessibleName() == f"{MOVE.scenes[0].questions[0].text} Your guess in MiB"
    QTest.keyClicks(field, "96")
    QTest.keyClick(field, Qt.Key.Key_Return)
    assert stage.play.guess == 96 and not field.isVisible() and stage.focusWidget() is not field
    lines.answer = three_lines()
    settle_stage(stage)
    while not stage.play.at_end:
        QTest.keyClick(stage, Qt.Key.Key_Space)
    stage.grab()
    texts = [one.text for one in stage.canvas.drawn]
    assert "256 MiB. You said 96 MiB." in texts
    assert "the line is your guess, 96 MiB" in texts
    QTest.keyClick(stage, Qt.Key.Key_Space)
    assert stage.play.position == 1 and field.isVisible() and field.text() == "", "the next question begins anew"


@pytest.mark.parametrize("typed", ["many", "-1", "1e999", "nan", "9 miles"])
def test_what_is_no_number_is_said_and_asked_for_again(open_stage: Opening, typed: str) -> None:
    stage = open_stage([MOVE.scenes[0]], (1024, 768))
    QTest.keyClicks(stage.entry.field, typed)
    stage.enter.click()
    assert stage.play.asking and stage.entry.field.selectedText() == typed
    assert beyond(stage) == []
    said = next(one.text for one in stage.canvas.drawn if repr(typed) in one.text)
    assert "write" in said.lower() and stage.entry.field.accessibleDescription() == said
    QTest.keyClicks(stage.entry.field, "128")
    stage.enter.click()
    stage.grab()
    assert stage.play.guess == 128 and not [one.text for one in stage.canvas.drawn if "write" in one.text.lower()]


def test_nothing_typed_is_no_guess_yet_and_space_shows_without_one(open_stage: Opening) -> None:
    stage = open_stage([MOVE.scenes[0]])
    stage.enter.click()
    assert stage.play.asking and stage.entry.problem == ""
    QTest.keyClick(stage.entry.field, Qt.Key.Key_Space)
    assert not stage.play.asking and stage.play.guess is None


def test_a_space_behind_a_number_is_typed_and_the_key_that_still_skips_is_named(open_stage: Opening) -> None:
    stage = open_stage([MOVE.scenes[0]])
    assert stage.show_me.accessibleName() == "just show me (Space)"
    QTest.keyClicks(stage.entry.field, "1 ")
    assert stage.entry.field.text() == "1 " and stage.show_me.accessibleName() == "just show me (PgDn)"
    QTest.keyClick(stage.entry.field, Qt.Key.Key_PageDown)
    assert not stage.play.asking and stage.play.guess is None


def test_escape_and_the_next_scene_work_from_the_field_too(open_stage: Opening) -> None:
    stage = open_stage([MOVE.scenes[0], MOVE.scenes[1]])
    assert stage.scene.accessibleName() == "next scene (Ctrl+PgDn)"
    QTest.keyClick(stage.entry.field, Qt.Key.Key_PageDown, Qt.KeyboardModifier.ControlModifier)
    assert stage.play.position == 1 and stage.play.asking
    QTest.keyClick(stage.entry.field, Qt.Key.Key_Escape)
    assert stage.is_over


def test_tab_leads_from_the_field_over_the_keys_and_back(open_stage: Opening) -> None:
    stage = open_stage([MOVE.scenes[0]])
    stops = []
    for _ in range(6):
        stops.append(stage.focusWidget())
        QTest.keyClick(stage.focusWidget(), Qt.Key.Key_Tab)
    assert stops[0] is stage.entry.field and stage.entry.field in stops[1:]
    assert {stage.enter, stage.show_me, stage.leave_key} <= set(stops)
    names = [QAccessible.queryAccessibleInterface(stop).text(QAccessible.Text.Name) for stop in stops]
    assert all(names)


def test_the_sheet_shows_guesses_beside_what_came_at_every_size(open_stage: Opening, tmp_path: Path) -> None:
    lesson = find_lesson("devices")
    sheet = Sheet(tmp_path / "s.json")
    for scene in lesson.scenes:
        question = scene.question("sim")
        assert question is not None
        sheet.note(lesson, scene, question, 2.0, 1.0)
    stage = open_stage([with_sheet(lesson, sheet)[-1]])
    for size in SIZES:
        stage.resize(*size)
        settle_stage(stage)
        assert beyond(stage) == [] and overlapping(stage) == []
    texts = [one.text for one in stage.canvas.drawn]
    assert "Nowhere: an error" in texts and "Still on the CPU" in texts and "your guess" in texts
    assert "Nowhere: an error" in stage.canvas.accessibleDescription()


def test_help_has_every_lesson_and_the_sheet_and_over_a_recording_none(
    window: MainWindow, open_window: OpenWindow
) -> None:
    titles = [command.title for command in window.workspace.commands if command.menu == "Help/Lessons"]
    assert titles == [*(lesson.title for lesson in listed_lessons()), "Save the Sheet…"]
    entries = window.menus.actions["help.demo"].associatedObjects()
    menu = next(entry for entry in entries if isinstance(entry, QMenu))
    texts = [action.text().replace("&", "") for action in menu.actions()]
    assert texts[texts.index("Demo") + 1] == "Lessons", "one looks for them together"
    over = open_window(Replay(samples()[0].path))
    assert not [command for command in over.workspace.commands if command.menu == "Help/Lessons"]


@pytest.mark.process
def test_a_lesson_of_the_menu_keeps_its_guesses_whenever_it_is_left(window: MainWindow) -> None:
    stage = play_lesson(window.workspace, "devices")
    stage._timer.setInterval(10_000_000)
    assert stage.windowTitle() == "Devices that differ – gpudash" and stage.accessibleName() == "Devices that differ"
    assert play_lesson(window.workspace, "move") is stage, "one at a time"
    QTest.keyClick(stage, Qt.Key.Key_1)
    QTest.keyClick(stage, Qt.Key.Key_Escape)
    assert stage.is_over
    lesson = find_lesson("devices")
    assert Sheet().of(lesson)[lesson.scenes[0].title].guess == "On the GPU"


def test_the_sheet_is_saved_and_a_place_that_will_not_do_is_said(window: MainWindow, tmp_path: Path) -> None:
    write_sheet(window.workspace, tmp_path / "sheet.ipynb")
    assert (tmp_path / "sheet.ipynb").read_text().startswith("{")
    write_sheet(window.workspace, tmp_path / "none" / "sheet.ipynb")
    assert "does not exist" in window.workspace.notice.text
