"""The overview's grid: pointer, keyboard, and what stays where it is from one answer to the next."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QContextMenuEvent, QHelpEvent
from PySide6.QtWidgets import QApplication, QMenu, QToolTip
from pytestqt.qtbot import QtBot

from gpudash.ui.fleet.grid import REST_S
from tests.ui.fleet.conftest import OpenOverview, Overview
from tests.ui.fleet.fake_fleet import FakeFleet, by_fullness, generated, gpu

LEFT, CONTROL = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def fleet() -> FakeFleet:
    return FakeFleet(generated())


@pytest.fixture
def shown(overview: OpenOverview, fleet: FakeFleet) -> Overview:
    return overview(fleet)


def middle(shown: Overview, place: int) -> QPoint:
    left, top, width, height = shown.grid.layout_.rect(place)
    return QPoint(left + width // 2, top + height // 2 - shown.grid.verticalScrollBar().value())


def test_one_widget_draws_every_gpu(shown: Overview) -> None:
    assert len(shown.keys) == 512
    assert len(shown.grid.viewport().children()) == 0


def test_a_click_chooses_one_and_ctrl_a_second(shown: Overview, qtbot: QtBot) -> None:
    qtbot.mouseClick(shown.grid.viewport(), LEFT, pos=middle(shown, 2))
    assert shown.grid.chosen == [shown.keys[2]]
    qtbot.mouseClick(shown.grid.viewport(), LEFT, CONTROL, middle(shown, 8))
    assert shown.grid.chosen == [shown.keys[2], shown.keys[8]]
    qtbot.mouseClick(shown.grid.viewport(), LEFT, CONTROL, middle(shown, 2))
    assert shown.grid.chosen == [shown.keys[8]]
    qtbot.mouseClick(shown.grid.viewport(), LEFT, pos=QPoint(shown.grid.layout_.rect(0)[2] + 2, 2))
    assert shown.grid.chosen == []


def test_a_double_click_and_enter_open_a_gpu(shown: Overview, qtbot: QtBot) -> None:
    qtbot.mouseDClick(shown.grid.viewport(), LEFT, pos=middle(shown, 1))
    shown.grid.make_current(shown.keys[4])
    qtbot.keyClick(shown.grid, Qt.Key.Key_Return)
    assert [found.key for found in shown.opened] == [shown.keys[1], shown.keys[4]]


def test_arrows_home_end_and_pages_move_and_bring_into_sight(shown: Overview, qtbot: QtBot) -> None:
    grid, columns = shown.grid, shown.grid.layout_.columns
    for key, goal in (
        (Qt.Key.Key_Down, 0),
        (Qt.Key.Key_Right, 1),
        (Qt.Key.Key_Down, 1 + columns),
        (Qt.Key.Key_Left, columns),
        (Qt.Key.Key_Up, 0),
        (Qt.Key.Key_End, 511),
    ):
        qtbot.keyClick(grid, key)
        assert grid.current == shown.keys[goal]
    assert grid.verticalScrollBar().value() == grid.verticalScrollBar().maximum()
    qtbot.keyClick(grid, Qt.Key.Key_PageUp)
    assert shown.keys.index(grid.current) < 511 - columns
    qtbot.keyClick(grid, Qt.Key.Key_Home)
    assert (grid.current, grid.verticalScrollBar().value()) == (shown.keys[0], 0)


def test_space_chooses_with_the_keyboard_alone_and_escape_chooses_nothing(shown: Overview, qtbot: QtBot) -> None:
    grid = shown.grid
    qtbot.keyClick(grid, Qt.Key.Key_Home)
    qtbot.keyClick(grid, Qt.Key.Key_Right, CONTROL)
    qtbot.keyClick(grid, Qt.Key.Key_Right, CONTROL)
    qtbot.keyClick(grid, Qt.Key.Key_Space)
    assert grid.chosen == [shown.keys[0], shown.keys[2]]
    qtbot.keyClick(grid, Qt.Key.Key_Escape)
    assert grid.chosen == []


def test_typing_searches(shown: Overview, qtbot: QtBot) -> None:
    qtbot.keyClick(shown.grid, Qt.Key.Key_N)
    assert shown.document.controls.search.text() == "n"


def test_the_tooltip_and_the_accessible_description_tell_every_figure(shown: Overview) -> None:
    place = middle(shown, 0)
    where = shown.grid.viewport().mapToGlobal(place)
    QApplication.sendEvent(shown.grid.viewport(), QHelpEvent(QHelpEvent.Type.ToolTip, place, where))
    words = QToolTip.text()
    QToolTip.hideText()
    assert "Memory:" in words
    assert "Utilisation:" in words
    shown.grid.make_current(shown.keys[0])
    assert shown.grid.accessibleDescription() == words
    assert shown.grid.accessibleName()


def test_choice_scroll_and_places_stay_when_figures_change(shown: Overview, fleet: FakeFleet) -> None:
    grid, before = shown.grid, list(shown.keys)
    grid.make_current(shown.keys[100])
    scrolled = grid.verticalScrollBar().value()
    assert scrolled > 0
    fleet.change(before[3], 0.97)
    shown.later(1)
    assert (shown.keys, grid.current, grid.verticalScrollBar().value()) == (before, before[100], scrolled)
    assert grid.cells[before[3]].percent == "97 %"


def test_cells_rest_while_the_pointer_is_at_work_and_say_that_the_order_is_old(
    shown: Overview, fleet: FakeFleet, qtbot: QtBot
) -> None:
    before, old = list(shown.keys), shown.document.controls.old
    shown.later(60)
    qtbot.mouseMove(shown.grid.viewport(), middle(shown, 1))
    qtbot.mouseMove(shown.grid.viewport(), middle(shown, 2))
    fleet.change(before[-20], 1.0)
    shown.later(1)
    assert shown.keys == before
    assert old.isVisibleTo(shown.document)
    assert "Sort now" in old.text()
    shown.later(REST_S)
    assert shown.keys[0] == before[-20]
    assert not old.isVisibleTo(shown.document)


def test_sort_now_does_not_wait(shown: Overview, fleet: FakeFleet, qtbot: QtBot) -> None:
    before = list(shown.keys)
    shown.later(60)
    qtbot.keyClick(shown.grid, Qt.Key.Key_End)
    fleet.change(before[-20], 1.0)
    shown.later(1)
    qtbot.mouseClick(shown.document.controls.old, LEFT)
    assert shown.keys[0] == before[-20]
    assert shown.grid.verticalScrollBar().value() == 0


def test_a_gpu_that_is_gone_is_no_longer_chosen(overview: OpenOverview) -> None:
    fleet = FakeFleet(by_fullness([gpu("a", 0, full=0.9), gpu("b", 0, full=0.1)]))
    shown = overview(fleet)
    shown.grid.make_current("a/0")
    fleet.report((gpu("b", 0, full=0.1),))
    shown.later(1)
    assert (shown.keys, shown.grid.current, shown.grid.chosen) == (["b/0"], "", [])
    assert not shown.document.controls.open.isEnabled()


def test_the_menu_of_a_gpu_acts_on_it(shown: Overview) -> None:
    place = middle(shown, 3)
    event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, place, shown.grid.viewport().mapToGlobal(place))
    QApplication.sendEvent(shown.grid.viewport(), event)
    [menu] = shown.document.findChildren(QMenu)
    words = {action.text(): action for action in menu.actions()}
    assert set(words) >= {"Open", "Compare with another day", "Copy values"}
    words["Open"].trigger()
    menu.close()
    assert [found.key for found in shown.opened] == [shown.keys[3]]


def test_only_cells_in_sight_are_painted(shown: Overview) -> None:
    painted: list[object] = []
    paint = shown.grid._painter.paint
    shown.grid._painter.paint = lambda *args, **marks: (painted.append(args), paint(*args, **marks))[1]  # type: ignore[method-assign]
    shown.grid.viewport().repaint()
    assert 0 < len(painted) < 100


def test_a_search_makes_no_cell_larger(overview: OpenOverview) -> None:
    few = overview(FakeFleet(generated(2, 4)))
    many = overview(FakeFleet(generated()))
    many.document.controls.search.setText("gpu-node-007")
    many.document.refresh()
    assert 0 < len(many.grid.layout_.keys) <= len(few.grid.layout_.keys)
    assert many.grid.layout_.rect(0)[3] < few.grid.layout_.rect(0)[3]


@pytest.mark.parametrize("density", [0, 1])
def test_states_are_drawn_by_shape_and_not_by_colour_alone(overview: OpenOverview, density: int) -> None:
    """In grey, a stale or a warned cell still differs from a healthy one that is as full."""
    cells = []
    for stale, warned, simulated in (
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ):
        fleet = FakeFleet()
        fleet.report((gpu(full=0.95, stale=stale, simulated=simulated),), None if warned else ())
        shown = overview(fleet)
        shown.document.controls.density.setCurrentIndex(density)
        QApplication.processEvents()
        left, top, width, height = shown.grid.layout_.rect(0)
        image = shown.grid.viewport().grab().toImage().copy(left, top, width, height)
        dark = [[image.pixelColor(x, y).lightness() > 110 for x in range(image.width())] for y in range(image.height())]
        cells.append(dark)
    assert all(cells[0] != other for other in cells[1:])
