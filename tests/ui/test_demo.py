"""The stage: nothing is cut and no two texts overlap at any size, in either theme; its keys; what leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import pytest
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QFontInfo
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.devices.names import simulated_gpu
from gpudash.drawing.stages import StageBlock, StageChart, StageColumn
from gpudash.session import Replay
from gpudash.session.demo.demo_scenes import SCENES
from gpudash.session.demo.ladder import RungResult, ladder
from gpudash.session.demo.pictures import StagePicture, code_of
from gpudash.session.demo.scenes import LinesAct, PlayedScene, Scene
from gpudash.session.demo.show import Show, ShowPace
from gpudash.session.recordings.samples import samples
from gpudash.ui.colours import LIGHT
from gpudash.ui.features.help import play_demo
from gpudash.ui.stage import StageWindow
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, MIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.unit.session.demo.fake_playing import FakeLines, FakeRungs
from tests.unit.session.demo.summaries import estimate, placed, trained
from tests.unit.session.demo.traces import failed, leak, three_lines

NEVER = ShowPace(step=1e9, wrong=1e9, end=1e9)

SIZES = [(1024, 768), (1280, 800), (2560, 1440)]

MOVE, WRONG, COPY, DEVICES, FULL, PRECISIONS, LADDER, MINE = SCENES


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([simulated_gpu(0, 8 * GIB)]).feed(5.0)


@pytest.fixture
def lines() -> FakeLines:
    return FakeLines()


Opening = Callable[..., StageWindow]


@contextmanager
def stages(window: MainWindow, session: FakeSession, lines: FakeLines, name: str = "") -> Iterator[Opening]:
    """Opens the stage with scenes; time passes only when the test says so."""
    opened: list[StageWindow] = []

    def open_one(
        scenes: Sequence[Scene] = (MINE,), size: tuple[int, int] = (1280, 800), **options: object
    ) -> StageWindow:
        show = Show(
            session,  # type: ignore[arg-type]  # as much as a rung asks
            scenes=scenes,
            lines=lines,  # type: ignore[arg-type]  # as much as a rung asks
            estimates=FakeRungs,  # type: ignore[arg-type]  # as much as a rung asks
            **{"pace": NEVER, **options},  # type: ignore[arg-type]  # each test names what it sets
        )
        stage = StageWindow(window.workspace, show=show, name=name)
        stage._timer.setInterval(10_000_000)
        opened.append(stage)
        stage.begin(full=False)
        stage.resize(*size)
        settle_stage(stage)
        return stage

    yield open_one
    for stage in opened:
        if not stage.is_over:
            stage.leave()


@pytest.fixture
def open_stage(window: MainWindow, session: FakeSession, lines: FakeLines) -> Iterator[Opening]:
    with stages(window, session, lines) as opening:
        yield opening


def settle_stage(stage: StageWindow) -> None:
    for _ in range(3):
        stage.refresh()
        QApplication.processEvents()


def play(stage: StageWindow, lines: FakeLines) -> None:
    """The lines that are on come to their end."""
    settle_stage(stage)
    lines.answer = three_lines()
    settle_stage(stage)


def overlapping(stage: StageWindow) -> list[tuple[str, str]]:
    """Pairs of texts that lie over one another."""
    stage.grab()
    drawn = [one for one in stage.canvas.drawn if one.text.strip()]
    found = []
    for first, second in combinations(drawn, 2):
        crossed = first.place.intersected(second.place.adjusted(1, 3, -1, -3))
        # letters are lower than their line: a pixel or two of two lines may cross
        if crossed.width() > 1 and crossed.height() > 2:
            found.append((first.text, second.text))
    return found


def beyond(stage: StageWindow) -> list[str]:
    """Texts and buttons that are cut, or reach over the edge."""
    stage.grab()
    whole = QRectF(stage.canvas.rect())
    found = [one.text for one in stage.canvas.drawn if one.cut or not whole.contains(one.place)]
    shown = [button for button in stage.buttons if button.isVisible()]
    found += [button.label for button in shown if button.width() < button.sizeHint().width()]
    label = stage.step_label
    if label.width() < label.sizeHint().width() or label.geometry().right() > stage.width():
        found.append(label.text())
    return found


def results_of(scene: Scene) -> tuple[Any, ...]:
    """What comes of a scene on a machine without a GPU."""
    rungs = ladder()[1]
    ladder_results = [RungResult(rung, estimate(12 * GIB // (place + 1))) for place, rung in enumerate(rungs)]
    found = {
        MOVE.title: (three_lines(),),
        WRONG.title: (three_lines(), failed("Expected all tensors to be on the same device, but found sim:0 and cpu!")),
        COPY.title: (placed("resident", 3 * MIB), placed("moved", 10 * MIB), placed("pingpong", 20 * MIB)),
        DEVICES.title: (trained("cpu", 2.4, 123456.0), trained("sim:0", 2.4, 123456.0, 6 * MIB)),
        FULL.title: (leak(6), three_lines()),
        PRECISIONS.title: tuple(trained("sim:0", 2.5, 123456.0, place * 20 * MIB) for place in (3, 2, 2)),
        LADDER.title: tuple(ladder_results),
        MINE.title: (three_lines(),),
    }
    return found[scene.title]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_nothing_is_cut_and_no_text_lies_over_another(open_stage: Opening, scene: Scene) -> None:
    stage = open_stage([scene])
    results = results_of(scene)
    for size in SIZES:
        stage.resize(*size)
        settle_stage(stage)
        assert stage.size().toTuple() == size
        smallest = max(13, round(24 * min(size[0] / 2560, size[1] / 1440)))
        for count in range(len(results) + 1):
            played = PlayedScene(results[:count], device="sim:0")
            for picture in scene.pictures(scene, played):
                stage.canvas.show_picture(picture)
                assert beyond(stage) == [], picture.sentence
                assert overlapping(stage) == [], picture.sentence
                assert min(one.place.height() for one in stage.canvas.drawn) >= smallest, "18 pt on a large screen"


def test_a_long_failure_and_its_remedy_take_two_rows_and_are_whole(open_stage: Opening) -> None:
    stage = open_stage([MINE], (683, 512))
    sentence = "Line 5 asks for 36 MiB more, but 249 MiB of 256 MiB are taken: out of memory."
    remedy = "write losses.append(loss.item())"
    stage.canvas.show_picture(StagePicture("", sentence=sentence, remark=remedy, tone="wrong"))
    stage.grab()
    first, *others, last = (one for one in stage.canvas.drawn if one.text != "nothing yet")
    assert " ".join(one.text for one in (first, *others)) == sentence and last.text == remedy
    assert first.place.bottom() <= last.place.top() + 3, "the remedy is in the second row"
    assert not any(one.cut for one in stage.canvas.drawn)


def test_a_remedy_stands_below_its_error_as_large_and_bolder(open_stage: Opening) -> None:
    stage = open_stage([MINE], (1024, 768))
    error, remedy = "Line 2: TypeError: no numpy.", "instead: x.cpu().numpy()"
    stage.canvas.show_picture(StagePicture("", sentence=error, remark=remedy, tone="wrong"))
    stage.grab()
    first, last = (one.place for one in stage.canvas.drawn if one.text in (error, remedy))
    assert last.top() >= first.bottom() - 3 and last.left() == first.left()
    assert last.height() >= first.height()
    widths = [one.place.width() / len(one.text) for one in stage.canvas.drawn if one.text == remedy]
    stage.canvas.show_picture(StagePicture("", sentence=remedy, tone="plain"))
    stage.grab()
    bold = [one.place.width() / len(one.text) for one in stage.canvas.drawn if one.text == remedy]
    assert widths == bold, "in the weight that a sentence has elsewhere"


@pytest.mark.parametrize("held", [240, 249, 255])
def test_no_total_lies_on_the_line_of_the_limit(open_stage: Opening, held: int) -> None:
    stage = open_stage([MINE], (1024, 768))
    columns = tuple(
        StageColumn(f"step {size}", (StageBlock("x", size * MIB, "weights"),), figure=f"{size}", is_peak=size == held)
        for size in (200, held)
    )
    chart = StageChart("GPU MEMORY", columns, 256.0 * MIB)
    stage.canvas.show_picture(StagePicture("", chart=chart))
    stage.grab()
    (total,) = (one.place for one in stage.canvas.drawn if one.text == f"{held}" and one.place.height() > 23)
    (limit,) = (one.place for one in stage.canvas.drawn if one.text == "256")  # of the axis, beside the line
    assert not total.top() + 3 < limit.center().y() < total.bottom() - 3


def test_the_names_of_figures_beside_one_another_are_apart_and_a_cpu_is_named_in_place_of_a_card(
    open_stage: Opening,
) -> None:
    stage = open_stage([DEVICES], (1024, 768))
    runs = (trained("cpu", 2.4, 123456.0, 6 * MIB), trained("sim:0", 2.4, 123456.0, 6 * MIB))
    (*_others, picture) = DEVICES.pictures(DEVICES, PlayedScene(runs, device="cpu"))
    stage.canvas.show_picture(picture)
    stage.grab()
    names = [one.place for one in stage.canvas.drawn if one.text in ("items/s, CPU", "peak")]
    assert len(names) == 4
    assert min(after.left() - before.right() for before, after in zip(names[::2], names[1::2], strict=True)) >= 8
    assert "CPU, without a card" in [one.text for one in stage.canvas.drawn]


def test_no_sentence_is_in_smaller_type_than_the_remark_beside_it(open_stage: Opening) -> None:
    stage = open_stage([MINE], (1024, 768))
    remark = "instead: losses.append(loss.item())"
    whole = "Line 5 asks for 36 MiB more, but 249 MiB of 256 MiB are taken: full."
    for words in range(4, 15):
        sentence = " ".join(whole.split()[:words])
        stage.canvas.show_picture(StagePicture("", sentence=sentence, remark=remark, tone="wrong"))
        stage.grab()
        *_others, first, last = (one for one in stage.canvas.drawn if one.text != "nothing yet")
        assert last.text == remark and first.place.height() >= last.place.height() - 1, sentence
        assert not first.cut and not last.cut


def test_the_name_of_a_long_expression_is_whole_and_has_its_figure(open_stage: Opening) -> None:
    stage = open_stage([MINE], (1024, 768))
    block = StageBlock("y.sum().backward() ×2", 16.0 * MIB, "temporary", named=False, remark="no name")
    columns = tuple(StageColumn(f"line {place}", (block,)) for place in range(5))
    stage.canvas.show_picture(StagePicture("", blocks=(block,), chart=StageChart("GPU MEMORY", columns, 48.0 * MIB)))
    stage.grab()
    texts = [one.text for one in stage.canvas.drawn]
    assert texts.count(block.name) == 6 and texts.count("16") >= 5
    assert not any(one.cut for one in stage.canvas.drawn)


def test_the_code_keeps_its_place_and_its_size_when_figures_appear(open_stage: Opening) -> None:
    stage = open_stage([MINE])
    before = MINE.pictures(MINE, PlayedScene())
    after = MINE.pictures(MINE, PlayedScene((three_lines(),)))
    code = [line.text for line in after[0].code]
    for size in SIZES:
        stage.resize(*size)
        places = set()
        for picture in (replace(before[0], code=code_of(code)), *after):
            stage.canvas.show_picture(picture)
            stage.grab()
            places.add(tuple(one.place.toRect().getRect() for one in stage.canvas.drawn if one.text in code))
        assert len(places) == 1 and len(places.pop()) == len(code)


@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene.questions], ids=lambda scene: scene.title)
def test_no_verdict_is_cut(open_stage: Opening, scene: Scene) -> None:
    stage = open_stage([scene])
    last = scene.pictures(scene, PlayedScene(results_of(scene), device="sim:0"))[-1]
    verdicts = {question.verdict(*pair) for question in scene.questions for pair in permutations(range(3), 2)}
    for size in SIZES:
        stage.resize(*size)
        for verdict in verdicts:
            stage.canvas.show_picture(replace(last, verdict=verdict))
            stage.grab()
            assert [one.text for one in stage.canvas.drawn if one.cut] == []


@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene.questions], ids=lambda scene: scene.title)
def test_a_question_and_its_choices_are_whole(open_stage: Opening, scene: Scene) -> None:
    stage = open_stage([scene, MINE])
    question = stage.play.question
    assert question is not None and stage.play.asking
    assert [button.label for button in stage.choices] == list(question.choices)
    assert all(button.isVisible() for button in (*stage.choices, stage.skip)) and not stage.next.isVisible()
    for size in SIZES:
        stage.resize(*size)
        settle_stage(stage)
        assert beyond(stage) == [] and overlapping(stage) == []


def test_type_is_as_large_as_the_last_row_needs(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE], (2560, 1440))
    play(stage, lines)
    stage.play.forward()
    stage.refresh()
    stage.grab()
    assert stage.canvas.px(28) == 28 and stage.canvas.px(56) == 56
    heights = [one.place.height() for one in stage.canvas.drawn]
    assert min(heights) >= 24, "18 pt are 24 pixels"
    stage.resize(1024, 768)
    settle_stage(stage)
    assert stage.canvas.px(28) >= 13


def test_all_columns_have_one_width_and_the_limit_is_in_sight(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    stage.grab()
    texts = [one.text for one in stage.canvas.drawn]
    assert "limit 320 MiB" in texts and "line 3: relu" in texts
    assert "64 left at the peak" in texts


def test_space_goes_on_and_the_left_arrow_back(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    QTest.keyClick(stage, Qt.Key.Key_Space)
    QTest.keyClick(stage, Qt.Key.Key_Right)
    assert stage.play.step == 2 and stage.step_label.text() == "step 3 of 6 · scene 1 of 1"
    QTest.keyClick(stage, Qt.Key.Key_Left)
    assert stage.play.step == 1 and stage.play.paused and stage.pause.label == "go on"
    QTest.keyClick(stage, Qt.Key.Key_P)
    assert not stage.play.paused


def test_a_presenter_s_remote_goes_step_by_step(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE, MINE])
    play(stage, lines)
    QTest.keyClick(stage, Qt.Key.Key_PageDown)
    QTest.keyClick(stage, Qt.Key.Key_PageDown)
    assert (stage.play.position, stage.play.step) == (0, 2)
    QTest.keyClick(stage, Qt.Key.Key_PageUp)
    assert (stage.play.position, stage.play.step) == (0, 1)
    assert stage.scene.isVisible() and stage.scene.accessibleName() == "next scene (N)"


def test_a_key_too_many_at_the_end_does_not_leave_and_enter_does(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    QTest.keyClick(stage, Qt.Key.Key_Return)
    for _ in range(9):
        QTest.keyClick(stage, Qt.Key.Key_Space)
    assert stage.play.at_end and not stage.is_over and not stage.next.isVisible()
    QTest.keyClick(stage, Qt.Key.Key_N)
    assert not stage.is_over
    QTest.keyClick(stage, Qt.Key.Key_Return)
    assert stage.is_over


def test_buttons_do_what_their_keys_do(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    stage.next.click()
    assert stage.play.step == 1
    stage.back.click()
    assert stage.play.step == 0
    stage.leave_key.click()
    assert stage.is_over


@pytest.mark.parametrize("asking", [True, False])
def test_escape_leaves_at_any_moment_and_the_window_is_as_it_was(
    open_stage: Opening, window: MainWindow, lines: FakeLines, asking: bool
) -> None:
    panel = window.workspace.dashboard.panel
    before = panel.spec(), panel.isVisible(), window.workspace.dashboard.tabs.bar.currentIndex()
    stage = open_stage([WRONG if asking else MINE])
    assert window.workspace.playing_demo and stage.play.asking == asking
    QTest.keyClick(stage, Qt.Key.Key_Escape)
    assert stage.is_over and not stage.isVisible() and lines.closed
    assert not window.workspace.playing_demo
    assert (panel.spec(), panel.isVisible(), window.workspace.dashboard.tabs.bar.currentIndex()) == before


def test_a_number_is_a_guess_and_space_shows_without_one(open_stage: Opening) -> None:
    stage = open_stage([WRONG, WRONG])
    QTest.keyClick(stage, Qt.Key.Key_2)
    assert stage.play.guess == 1 and not stage.play.asking and not stage.choices[0].isVisible()
    QTest.keyClick(stage, Qt.Key.Key_N)
    assert stage.play.position == 1 and stage.play.asking
    QTest.keyClick(stage, Qt.Key.Key_Space)
    assert stage.play.guess is None and not stage.play.asking
    QTest.keyClick(stage, Qt.Key.Key_B)
    assert stage.play.position == 0 and stage.play.guess == 1 and not stage.play.asking
    QTest.keyClick(stage, Qt.Key.Key_PageDown, Qt.KeyboardModifier.ControlModifier)
    assert stage.play.position == 1
    QTest.keyClick(stage, Qt.Key.Key_PageUp, Qt.KeyboardModifier.ControlModifier)
    assert stage.play.position == 0


def test_the_lines_are_edited_in_their_place_and_run_on_a_card_of_the_size_that_is_asked(
    open_stage: Opening, lines: FakeLines
) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    QTest.keyClick(stage, Qt.Key.Key_E)
    editor = stage.editor
    mine = MINE.acts[0]
    assert isinstance(mine, LinesAct)
    assert editor.isVisible() and editor.text.toPlainText() == mine.source
    assert editor.geometry().topLeft() == stage.canvas.code_place.toRect().topLeft()
    assert editor.text.verticalScrollBar().value() == 0, "the first line is in sight"
    editor.text.setPlainText("a = 1 ")
    editor.limit.setText("512")
    QTest.keyClick(editor.text, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    settle_stage(stage)
    assert not editor.isVisible() and lines.requested[-1] == ("a = 1", 512 * MIB)


def test_escape_in_the_editor_closes_it_and_not_the_stage(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    stage.edit.click()
    QTest.keyClick(stage.editor.text, Qt.Key.Key_Escape)
    assert not stage.editor.isVisible() and not stage.is_over
    assert len(lines.requested) == 1


@pytest.mark.parametrize("size", SIZES)
def test_lines_that_cannot_be_read_are_refused_in_the_editor(
    open_stage: Opening, lines: FakeLines, size: tuple[int, int]
) -> None:
    stage = open_stage([MINE], size)
    play(stage, lines)
    for source, problem in (("  \n", "There is no line to run."), ("a = 1\nb = (2", "Line 2: '(' was never closed.")):
        stage.edit.click()
        stage.editor.text.setPlainText(source)
        QTest.keyClick(stage.editor.text, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
        settle_stage(stage)
        assert stage.editor.isVisible() and len(lines.requested) == 1
        label = stage.editor.problem
        assert label.isVisible() and label.text().startswith(problem)
        assert label.height() >= label.heightForWidth(label.width())
        QTest.keyClick(stage.editor.text, Qt.Key.Key_Escape)
    stage.edit.click()
    assert not stage.editor.problem.isVisible()


def test_what_was_wrong_with_the_lines_is_gone_when_they_are_corrected(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    stage.edit.click()
    stage.editor.text.setPlainText("a = (1")
    stage.editor.run.click()
    assert stage.editor.problem.isVisible()
    stage.editor.text.setPlainText("a = (1)")
    assert not stage.editor.problem.isVisible()


def test_while_lines_are_edited_only_the_editor_has_keys(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    stage.refresh()
    place = stage.canvas.geometry()
    stage.edit.click()
    settle_stage(stage)
    assert not any(button.isVisible() for button in stage.buttons)
    assert stage.canvas.geometry() == place, "the picture does not move"
    QTest.keyClick(stage.editor.text, Qt.Key.Key_Escape)
    assert stage.edit.isVisible() and stage.leave_key.isVisible()


def test_a_scene_played_alone_says_its_number_of_all(window: MainWindow) -> None:
    stage = StageWindow(window.workspace, scenes=[COPY], first=3, count=len(SCENES))
    stage.begin(full=False)
    assert stage.step_label.text().endswith("scene 3 of 8")
    stage.leave()


def test_a_card_without_a_size_is_asked_for_again(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    stage.edit.click()
    stage.editor.limit.setText("0")
    stage.editor.run.click()
    assert stage.editor.isVisible() and len(lines.requested) == 1


def test_the_editor_s_lines_and_buttons_are_in_sight(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    stage.edit.click()
    editor = stage.editor
    for size in SIZES:
        stage.resize(*size)
        settle_stage(stage)
        assert stage.rect().contains(editor.geometry())
        assert QFontInfo(editor.text.font()).pixelSize() == stage.canvas.code_pixels, "as large as the code below it"
        assert editor.text.viewport().height() >= 3 * editor.text.fontMetrics().height()
        for part in (editor.card, editor.unit, editor.run, editor.cancel):
            assert editor.rect().contains(part.geometry()) and part.width() >= part.sizeHint().width() - 1
        assert editor.limit.width() > 1.5 * editor.limit.fontMetrics().horizontalAdvance(editor.limit.text())


def test_lines_that_are_on_have_a_button_that_stops_them(open_stage: Opening, lines: FakeLines) -> None:
    stage = open_stage([MINE])
    settle_stage(stage)
    assert stage.stop.isVisible()
    QTest.keyClick(stage, Qt.Key.Key_S)
    assert lines.stops == 1
    play(stage, lines)
    assert not stage.stop.isVisible()


def test_a_run_of_the_users_is_stopped_by_its_own_button_only(open_stage: Opening, session: FakeSession) -> None:
    session.start()
    stage = open_stage([replace(PRECISIONS, questions=())])
    assert stage.stop_run.isVisible() and ("stop",) not in session.requested
    stage.stop_run.click()
    assert ("stop",) in session.requested


def test_the_stage_takes_the_colours_of_the_other_theme(open_stage: Opening, window: MainWindow) -> None:
    stage = open_stage([MINE])
    before = stage.grab().toImage().pixelColor(3, 3)
    window.set_palette(LIGHT)
    assert stage.grab().toImage().pixelColor(3, 3) != before


def test_every_button_and_the_picture_have_names_for_those_who_do_not_see_them(
    open_stage: Opening, lines: FakeLines
) -> None:
    stage = open_stage([MINE])
    play(stage, lines)
    stage.play.forward()
    stage.refresh()
    assert all(button.accessibleName() for button in stage.buttons if button.isVisible())
    assert all(button.height() >= 24 for button in stage.buttons if button.isVisible())
    assert "Now line 1" in stage.canvas.accessibleDescription()


@pytest.mark.process
def test_help_begins_the_demo_once(window: MainWindow, qtbot: QtBot) -> None:
    window.menus.actions["help.demo"].trigger()
    stage = window.findChild(StageWindow)
    assert isinstance(stage, StageWindow) and play_demo(window.workspace) is stage
    stage.leave()


def test_closing_the_window_ends_the_stage(open_stage: Opening, window: MainWindow) -> None:
    stage = open_stage([MINE])
    window.close()
    settle(window)
    assert stage.is_over


def test_the_demo_recordings_are_in_the_menu_and_open(window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(window.workspace, "open", opened.append)
    for found in samples():
        action = window.menus.actions[f"help.sample.{found.path.name}"]
        assert action.toolTip() == found.description
        action.trigger()
    assert opened == [found.path for found in samples()]


def test_a_recordings_window_offers_no_demo(open_window: OpenWindow) -> None:
    window = open_window(Replay(samples()[0].path))
    assert "help.demo" not in window.menus.actions
    assert f"help.sample.{samples()[0].path.name}" in window.menus.actions
