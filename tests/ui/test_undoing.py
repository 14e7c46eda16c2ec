"""Undo and redo: one stack for recordings, marks, hidden curves and the layout."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit
from pytestqt.qtbot import QtBot

from gpudash.telemetry.records import REMOVED, Marker
from gpudash.ui.dashboard.tabs.rows import event_row
from gpudash.ui.features.view import add_mark
from gpudash.ui.widgets.undo import MOST_STEPS, Undoing
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.ui.recordings import open_recording
from tests.unit.telemetry.recordings import record

CTRL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


class Stack:
    """A stack whose clock stands still, and a list that its steps change."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.undoing = Undoing(clock=lambda: self.now_s)
        self.said: list[str] = []
        self.undoing.failed.connect(self.said.append)
        self.done: list[str] = []

    def push(self, name: str, kind: str = "") -> None:
        self.done.append(name)
        self.undoing.push(name, lambda: self.done.remove(name), lambda: self.done.append(name), kind=kind)


@pytest.fixture
def stack(qtbot: QtBot) -> Stack:
    return Stack()


def test_steps_are_taken_back_and_made_again_in_order(stack: Stack) -> None:
    for name in "abc":
        stack.push(name)
    stack.undoing.undo()
    stack.undoing.undo()
    assert (stack.done, stack.undoing.undo_text, stack.undoing.redo_text) == (["a"], "a", "b")
    stack.undoing.redo()
    assert stack.done == ["a", "b"]
    stack.push("d")
    assert stack.undoing.redo_text == ""


def test_a_hundred_steps_are_kept(stack: Stack) -> None:
    for number in range(MOST_STEPS + 20):
        stack.push(str(number))
    for _ in range(MOST_STEPS + 20):
        stack.undoing.undo()
    assert stack.done == [str(number) for number in range(20)]


def test_movements_of_one_drag_are_one_step(stack: Stack) -> None:
    places: list[int] = [0]
    for place in (1, 2, 3):
        before = place - 1
        stack.undoing.push(
            "Change Layout", lambda before=before: places.append(before), lambda p=place: places.append(p), kind="x"
        )
        stack.now_s += 0.5
    stack.undoing.undo()
    assert places[-1] == 0
    assert stack.undoing.undo_text == ""
    stack.undoing.redo()
    assert places[-1] == 3


def test_another_drag_is_another_step(stack: Stack) -> None:
    stack.push("a", kind="x")
    stack.now_s += 1.5
    stack.push("b", kind="x")
    stack.push("c")
    assert stack.undoing.count == 3


@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("closed"), ValueError("gone")])
def test_what_cannot_be_taken_back_is_said_and_forgotten(stack: Stack, error: Exception) -> None:
    def fail() -> None:
        raise error

    stack.undoing.push("x", fail, fail)
    stack.undoing.undo()
    assert stack.said == [str(error)]
    assert stack.undoing.undo_text == stack.undoing.redo_text == ""


def test_what_an_undo_changes_is_no_new_step(stack: Stack) -> None:
    stack.undoing.push("x", lambda: stack.push("y"), lambda: None)
    stack.undoing.undo()
    assert (stack.undoing.undo_text, stack.undoing.redo_text) == ("", "x")


def test_the_menu_names_what_would_be_undone(window: MainWindow) -> None:
    undo, redo = window.menus.actions["edit.undo"], window.menus.actions["edit.redo"]
    assert (undo.text(), undo.isEnabled(), redo.isEnabled()) == ("Undo", False, False)
    assert undo.toolTip().endswith("There is nothing to undo.")
    window.workspace.dashboard.plots.plot("memory").legend.toggle("this process")
    assert (undo.text(), undo.isEnabled()) == ("Undo Hide this process", True)
    undo.trigger()
    assert (redo.text(), redo.isEnabled()) == ("Redo Hide this process", True)


def test_hidden_curves_come_back_and_go_again(window: MainWindow) -> None:
    plot = window.workspace.dashboard.plots.plot("memory")
    plot.legend.toggle("this process")
    plot.legend.toggle("other processes")
    window.workspace.undo.undo()
    assert plot.hidden == {"this process"}
    window.workspace.undo.undo()
    assert plot.hidden == set()
    window.workspace.undo.redo()
    assert plot.hidden == {"this process"}


@pytest.mark.process
def test_showing_a_curve_alone_is_one_step(window: MainWindow) -> None:
    window.workspace.dashboard.select_device("GPU-00000000")
    settle(window)
    legend = window.workspace.dashboard.plots.plot("memory").legend
    legend.isolate("allocated")
    assert len(legend.hidden) > 1
    assert window.workspace.undo.undo_text == f"Hide {len(legend.hidden)} Curves"
    window.workspace.undo.undo()
    assert legend.hidden == set()


def test_tables_panel_and_splitter_come_back(window: MainWindow) -> None:
    tabs, panel = window.workspace.dashboard.tabs, window.menus.actions["view.panel"]
    collapsed = tabs.collapsed
    window.menus.actions["view.tables"].trigger()
    assert tabs.collapsed is not collapsed
    panel.trigger()
    assert not window.workspace.dashboard.panel.isVisible()
    settle(window)
    window.workspace.undo.undo()
    assert window.workspace.dashboard.panel.isVisible()
    window.workspace.undo.undo()
    assert tabs.collapsed is collapsed


def test_a_dragged_splitter_goes_back_where_it_was(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session, size=(1440, 1400))
    window.workspace.undo._clock = lambda: 0.0  # the movements are one drag however long they take here
    splitter = window.workspace.dashboard.splitter
    before = splitter.sizes()
    for step in (10, 20, 30):
        splitter.moveSplitter(before[0] + step, 1)
    assert splitter.sizes() != before
    settle(window)
    window.workspace.undo.undo()
    assert splitter.sizes() == before
    settle(window)
    assert splitter.sizes() == before
    window.workspace.undo.redo()
    assert splitter.sizes()[0] == before[0] + 30


def test_a_view_of_a_recording_is_undone_as_the_live_one_is(window: MainWindow, qtbot: QtBot, tmp_path: Path) -> None:
    dashboard = open_recording(window, record(tmp_path / "run.gpudash"), qtbot).dashboard
    assert dashboard is not None
    plot = dashboard.plots.plot("memory")
    plot.legend.toggle("this process")
    assert window.workspace.undo.undo_text == "Hide this process"
    window.workspace.undo.undo()
    assert plot.hidden == set()


def test_what_the_window_does_by_itself_is_no_step(window: MainWindow) -> None:
    window.resize(1280, 700)
    settle(window)
    assert window.workspace.dashboard.tabs.collapsed
    assert window.workspace.undo.undo_text == ""
    window.workspace.dashboard.tabs.show_output()
    assert window.workspace.undo.undo_text == ""


def test_a_mark_is_taken_back_by_a_marker_that_says_so(window: MainWindow, session: FakeSession) -> None:
    add_mark(window.workspace, 12.5)
    field = window.workspace.dashboard.plots.mark_field
    QTest.keyClicks(field, "here")
    QTest.keyClick(field, Qt.Key.Key_Return)
    assert window.workspace.undo.undo_text == "Mark “here”"
    window.workspace.undo.undo()
    window.workspace.undo.redo()
    assert session.requested[-3:] == [("mark", "here", 12.5), ("unmark", "here", 12.5), ("mark", "here", 12.5)]


def test_a_removed_mark_is_drawn_no_more_until_it_is_made_again(window: MainWindow, session: FakeSession) -> None:
    def user_marks() -> list[str]:
        settle(window)
        return [mark.label for mark in window.workspace.dashboard.plots.marks if mark.category == "user"]

    session.apply(Marker(time_s=12.5, label="here"), Marker(time_s=12.5, label="there"))
    assert sorted(user_marks()) == ["here", "there"]
    session.apply(Marker(time_s=12.5, label="here", category=REMOVED))
    assert user_marks() == ["there"]
    session.apply(Marker(time_s=12.5, label="here"))
    assert sorted(user_marks()) == ["here", "there"]
    told = event_row(Marker(time_s=12.5, label="here", category=REMOVED), 0.0)
    assert told is not None
    assert tuple(told[-2:]) == ("mark removed", "here")


def test_ctrl_z_in_a_field_is_the_fields(window: MainWindow) -> None:
    window.workspace.dashboard.plots.plot("memory").legend.toggle("this process")
    field = window.workspace.dashboard.panel.form.control("steps")
    assert isinstance(field, QLineEdit)
    field.setFocus()
    before = field.text()
    field.selectAll()
    QTest.keyClicks(field, "7")
    QTest.keyClick(field, Qt.Key.Key_Z, CTRL)
    assert field.text() == before
    assert window.workspace.dashboard.plots.plot("memory").hidden == {"this process"}
    window.workspace.dashboard.plots.plot("memory").canvas.setFocus()
    QTest.keyClick(window.workspace.dashboard.plots.plot("memory").canvas, Qt.Key.Key_Z, CTRL)
    assert window.workspace.dashboard.plots.plot("memory").hidden == set()
    QTest.keyClick(window.workspace.dashboard.plots.plot("memory").canvas, Qt.Key.Key_Z, CTRL | SHIFT)
    assert window.workspace.dashboard.plots.plot("memory").hidden == {"this process"}
