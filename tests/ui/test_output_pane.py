"""What a program prints, in the window: followed, held still, searched, copied, bounded."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from gpudash.session.watching.output.log import OutputLine, OutputLog, Stream
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.tabs import output_pane
from gpudash.ui.dashboard.tabs.output_pane import LINES_A_FRAME, MOST_LINES, OutputPane
from gpudash.units import format_count
from tests.ui.conftest import IN_BOTH_THEMES

Key = Qt.Key


def lines(count: int, stream: Stream = "stdout", first: int = 0) -> list[OutputLine]:
    return [OutputLine(stream, f"line {number}") for number in range(first, first + count)]


@pytest.fixture
def log() -> OutputLog:
    return OutputLog()


@pytest.fixture
def pane(qtbot: QtBot, palette: Palette) -> OutputPane:
    pane = OutputPane()
    pane.set_palette(palette)
    qtbot.addWidget(pane)
    pane.resize(640, 240)
    pane.show()
    return pane


def shown(pane: OutputPane) -> list[str]:
    return pane.text.toPlainText().split("\n")


def at_end(pane: OutputPane) -> bool:
    bar = pane.text.verticalScrollBar()
    return bar.value() == bar.maximum()


def drain(pane: OutputPane, log: OutputLog) -> None:
    """Refresh until everything that was printed is shown."""
    for _ in range(MOST_LINES // LINES_A_FRAME + 2):
        pane.refresh(log)


def test_an_empty_pane_says_what_will_appear_and_how(pane: OutputPane) -> None:
    assert "appears here" in pane.text.placeholderText() and "My script" in pane.text.placeholderText()
    assert pane.text.line_count == 0 and pane.status.text() == ""


def test_lines_are_shown_in_order_and_the_newest_is_in_sight(pane: OutputPane, log: OutputLog) -> None:
    log.add([OutputLine("stdout", ""), *lines(100)])
    pane.refresh(log)
    log.add(lines(2, first=100))
    pane.refresh(log)
    assert shown(pane) == ["", *(f"line {number}" for number in range(102))]
    assert at_end(pane) and pane.following and not pane.follow_button.isVisible()


@IN_BOTH_THEMES
def test_the_error_stream_is_named_beside_its_lines_and_not_in_what_is_copied(
    pane: OutputPane, log: OutputLog, palette: Palette
) -> None:
    log.add([*lines(1), *lines(1, "stderr", 1)])
    pane.refresh(log)
    image = pane.text._gutter.grab().toImage()
    height = pane.text.fontMetrics().lineSpacing()
    top = pane.text.contentOffset().y()
    painted = [
        any(
            image.pixelColor(x, y) == QColor(palette.warn)
            for x in range(image.width())
            for y in range(round(top + row * height) + 1, round(top + (row + 1) * height) - 1)
        )
        for row in range(2)
    ]
    assert painted == [False, True]
    pane.copy_all()
    assert QGuiApplication.clipboard().text() == "line 0\nline 1"


def test_scrolling_up_holds_the_lines_still_and_says_how_far_they_are_behind(pane: OutputPane, log: OutputLog) -> None:
    log.add(lines(100))
    pane.refresh(log)
    bar = pane.text.verticalScrollBar()
    bar.setValue(10)
    assert not pane.following and pane.follow_button.isVisible()
    before = pane.text.toPlainText()
    log.add(lines(1234, first=100))
    pane.refresh(log)
    assert bar.value() == 10 and pane.text.toPlainText() == before
    assert pane.status.text() == f"Paused, {format_count(1234)} lines behind"
    pane.follow_button.click()
    drain(pane, log)
    assert shown(pane)[-1] == "line 1333" and at_end(pane) and pane.status.text() == ""


def test_scrolling_to_the_end_follows_again(pane: OutputPane, log: OutputLog) -> None:
    log.add(lines(100))
    pane.refresh(log)
    bar = pane.text.verticalScrollBar()
    bar.setValue(10)
    bar.setValue(bar.maximum())
    assert pane.following


def test_the_end_key_follows_again(pane: OutputPane, log: OutputLog) -> None:
    log.add(lines(100))
    pane.refresh(log)
    pane.text.verticalScrollBar().setValue(0)
    QTest.keyClick(pane, Key.Key_End)
    assert pane.following and at_end(pane)


def test_a_flood_is_taken_in_by_pieces_and_bounded(pane: OutputPane, log: OutputLog) -> None:
    log.add(lines(3 * LINES_A_FRAME))
    pane.refresh(log)
    assert pane.text.line_count == LINES_A_FRAME
    log.add(lines(2 * MOST_LINES))
    drain(pane, log)
    assert pane.text.line_count <= MOST_LINES
    assert shown(pane)[-1] == f"line {2 * MOST_LINES - 1}"


def test_lines_that_were_left_out_are_counted_where_they_are_missing(
    pane: OutputPane, log: OutputLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudash.session.watching.output.log.MOST_LINES", 20)
    log.add(lines(2))
    pane.refresh(log)
    log.add(lines(12324, first=2))
    pane.refresh(log)
    left_out = f"{format_count(12304)} lines were left out"
    assert shown(pane)[:4] == ["line 0", "line 1", f"… {left_out}", "line 12306"]
    assert pane.status.text() == left_out
    log.add(lines(21))
    pane.refresh(log)
    assert "… 1 line was left out" in shown(pane)


def test_another_program_begins_with_an_empty_pane(pane: OutputPane, log: OutputLog) -> None:
    log.add(lines(100))
    pane.refresh(log)
    pane.text.verticalScrollBar().setValue(0)
    log.begin()
    log.add(lines(1, first=500))
    pane.begin()
    pane.refresh(log)
    assert shown(pane) == ["line 500"] and pane.following and pane.status.text() == ""


def test_words_are_found_from_the_newest_on_and_round_the_end(pane: OutputPane, log: OutputLog) -> None:
    log.add([OutputLine("stdout", f"step {number} loss {number}") for number in range(60)])
    pane.refresh(log)
    QTest.keyClicks(pane.search, "STEP 5")
    assert pane._matches.text() == "11 found"
    assert pane.text.textCursor().block().text().startswith("step 59") and not pane.following
    QTest.keyClick(pane.search, Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    assert pane.text.textCursor().block().text().startswith("step 58")
    for expected in ("step 59", "step 5 "):
        QTest.keyClick(pane.search, Key.Key_Return)
        assert pane.text.textCursor().block().text().startswith(expected)
    QTest.keyClicks(pane.search, "nowhere")
    assert pane._matches.text() == "not found"
    QTest.keyClick(pane.search, Key.Key_Escape)
    assert pane.search.text() == "" and pane._matches.text() == "" and pane.text.hasFocus()


def test_finding_nothing_leaves_the_newest_lines_followed(pane: OutputPane, log: OutputLog) -> None:
    log.add(lines(100))
    pane.refresh(log)
    QTest.keyClicks(pane.search, "zebra")
    assert pane.following


def test_what_is_selected_is_copied_else_everything(pane: OutputPane, log: OutputLog, qtbot: QtBot) -> None:
    log.add(lines(3))
    pane.refresh(log)
    with qtbot.waitSignal(pane.reported) as told:
        pane.copy()
    assert told.args == ["Copied 3 lines"]
    assert QGuiApplication.clipboard().text() == "line 0\nline 1\nline 2"
    cursor = pane.text.textCursor()
    cursor.setPosition(0)
    cursor.setPosition(6, cursor.MoveMode.KeepAnchor)
    pane.text.setTextCursor(cursor)
    pane.copy()
    assert QGuiApplication.clipboard().text() == "line 0"


def test_text_that_looks_like_markup_is_shown_as_it_is(pane: OutputPane, log: OutputLog) -> None:
    log.add([OutputLine("stdout", "<b>loss</b> & more")])
    pane.refresh(log)
    assert shown(pane) == ["<b>loss</b> & more"]


def test_every_control_has_a_name_and_a_tip(pane: OutputPane) -> None:
    assert pane.search.accessibleName() and pane.search.toolTip()
    assert pane.text.accessibleName() and pane.follow_button.toolTip()
    assert output_pane.EMPTY.endswith(".")


def test_the_lines_are_called_by_their_program(pane: OutputPane) -> None:
    pane.begin("train.py")
    assert "train.py" in pane.status.text()
    assert pane.text.placeholderText() == output_pane.SILENT
