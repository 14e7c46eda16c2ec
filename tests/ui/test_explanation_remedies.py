"""What would have fitted, in a line: as much as there is room for, the rest behind a button, a note below."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton
from pytestqt.qtbot import QtBot

from gpudash.telemetry.explanation import Remedy
from gpudash.ui.explanation.remedies import RemediesView, remedy_words
from gpudash.units import GIB

CHANGES = [Remedy(f"batch {number}", {"batch": number}, predicted_peak_bytes=GIB, fits=True) for number in range(6)]
NOTE = "train.py:46 (history += loss) keeps loss, and with it the graph that made it: keep loss.item() instead. " * 3


@pytest.fixture
def row(qtbot: QtBot) -> RemediesView:
    found = RemediesView()
    qtbot.addWidget(found)
    found.resize(1200, 80)
    found.show()
    QApplication.processEvents()
    return found


def seen(row: RemediesView, kind: type[QLabel | QPushButton] = QPushButton) -> list[str]:
    QApplication.processEvents()
    return [widget.text() for widget in row.findChildren(kind) if widget.isVisible() and widget.text()]


def test_it_is_resized_before_anything_is_shown(row: RemediesView) -> None:
    row.resize(300, 60)
    assert seen(row) == []


@pytest.mark.parametrize("width", [1200, 800, 500, 250])
def test_as_many_as_fit_are_seen_and_the_others_are_in_the_menu(row: RemediesView, width: int) -> None:
    row.show_remedies(CHANGES, commanding=True)
    row.resize(width, 80)
    *shown, more = seen(row)
    menu = [action.text() for action in row.more.menu().actions()]
    assert more == f"{len(menu)} more"
    assert [*shown, *menu] == [remedy_words(remedy) for remedy in CHANGES]
    assert 1 <= len(shown) <= 4 and (len(shown) == 4) == (width >= 800)
    if width >= 500:
        assert row.more.geometry().right() <= row.width()


@pytest.mark.parametrize("commanding", [True, False])
def test_one_that_is_too_long_for_the_line_ends_in_an_ellipsis_and_is_whole_again_with_room(
    row: RemediesView, commanding: bool
) -> None:
    long = Remedy("let go of what train.py:16 (losses.append(loss); ...) keeps at every step", {"batch": 1}, fits=True)
    row.show_remedies([long, CHANGES[0]], commanding=commanding)
    row.resize(400, 80)
    kind = QPushButton if commanding else QLabel
    words = next(text for text in seen(row, kind) if text.startswith("let go"))
    alone = next(widget for widget in row.findChildren(kind) if widget.text() == words)
    assert words.endswith("…") and alone.sizeHint().width() <= alone.width()
    row.resize(1200, 80)
    assert remedy_words(long) in seen(row, kind)


def test_a_remedy_of_the_menu_is_applied(row: RemediesView, qtbot: QtBot) -> None:
    row.show_remedies(CHANGES, commanding=True)
    with qtbot.waitSignal(row.applied) as applied:
        row.more.menu().actions()[-1].trigger()
    assert applied.args == [CHANGES[-1]]


def test_what_cannot_be_applied_here_is_words_and_no_button(row: RemediesView) -> None:
    row.show_remedies([CHANGES[0], Remedy("a card with 4 GiB", predicted_peak_bytes=3 * GIB)], commanding=False)
    assert seen(row) == []
    assert seen(row, QLabel) == ["Would have fitted:", "batch 0 (1.00 GiB)", "a card with 4 GiB (3.00 GiB)"]


def test_a_long_note_wraps_below_and_asks_for_no_width(row: RemediesView) -> None:
    row.show_remedies(CHANGES, NOTE)
    row.resize(600, row.sizeHint().height())
    QApplication.processEvents()
    assert row.note.isVisible() and row.note.width() <= 600
    assert row.note.heightForWidth(600) > 2 * row.note.fontMetrics().height()
    assert row.minimumSizeHint().width() == 0


def test_nothing_to_say_takes_no_room(row: RemediesView) -> None:
    row.show_remedies(CHANGES, NOTE)
    row.show_remedies([], "")
    assert row.isHidden()
    row.show_remedies([], NOTE, looking=True)
    assert seen(row, QLabel) == ["Looking for what would have fitted…"]
