"""The window by keyboard: what each key does, and where it does nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QInputDialog, QLabel, QLineEdit, QMenu, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.recordings.runs_list import RunsList
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import settle
from tests.ui.fake_session import FakeSession

Key = Qt.Key


def press(window: MainWindow, key: Qt.Key, modifiers: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    """Press a key wherever the focus is."""
    QTest.keyClick(QApplication.focusWidget() or window, key, modifiers)
    settle(window, 4)


def memory_plot(window: MainWindow) -> TimePlot:
    plot = window.workspace.dashboard.plots.plot("memory")
    assert plot is not None
    return plot


def focus_plot(window: MainWindow) -> None:
    window.workspace.dashboard.plots.plots[0].canvas.setFocus()
    assert window.workspace.dashboard.plots.focused is window.workspace.dashboard.plots.plots[0]


def test_space_pauses_the_view_and_everything_goes_on_being_stored(window: MainWindow, session: FakeSession) -> None:
    press(window, Key.Key_Space)
    assert not window.workspace.dashboard.view.following
    series = session.store.series("host", "used_bytes")
    assert series is not None
    before, shown = len(series), window.workspace.dashboard.view.range()
    session.feed(5.0)
    settle(window)
    assert len(series) == before + 50
    assert window.workspace.dashboard.view.range() == shown
    texts = [label.text() for label in window.workspace.dashboard.findChildren(QLabel) if label.isVisible()]
    assert len([text for text in texts if text.startswith("Paused 5 s behind")]) == 1
    press(window, Key.Key_Space)
    assert window.workspace.dashboard.view.following
    assert window.workspace.dashboard.view.range()[1] == session.now_s


def test_space_pauses_after_start_was_clicked(window: MainWindow, session: FakeSession) -> None:
    QTest.mouseClick(window.workspace.dashboard.panel.button, Qt.MouseButton.LeftButton)
    press(window, Key.Key_Space)
    assert not window.workspace.dashboard.view.following
    assert ("stop",) not in session.requested


def test_space_on_a_plot_pauses_too(window: MainWindow) -> None:
    focus_plot(window)
    press(window, Key.Key_Space)
    assert not window.workspace.dashboard.view.following


@pytest.mark.parametrize("control", ["legend", "field", "choice", "slider", "table"])
def test_space_on_a_control_means_the_control(window: MainWindow, control: str, qtbot: QtBot) -> None:
    legend = memory_plot(window).legend
    widget: Any = {
        "legend": next(button for button in legend.findChildren(QToolButton) if button.text() == "this process"),
        "field": window.workspace.dashboard.panel.form.control("steps"),
        "choice": window.workspace.dashboard.panel.form.control("optimizer"),
        "slider": window.workspace.dashboard.view_bar.smoothing,
        "table": window.workspace.dashboard.tabs.stages.view,
    }[control]
    widget.setFocus()
    assert widget.hasFocus()
    press(window, Key.Key_Space)
    assert window.workspace.dashboard.view.following
    if control == "legend":
        assert legend.hidden == {"this process"}
    if control == "field":
        assert widget.text() == " 300"  # it shows its beginning, where typing goes
    for popup in QApplication.topLevelWidgets():
        if popup is not window and popup.isVisible():
            popup.close()


def test_single_letters_type_into_a_field_and_do_nothing_else(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QInputDialog, "getText", lambda *_args: pytest.fail("a mark was asked for"))
    window.workspace.dashboard.view.select(12.0, 14.0)
    before = window.workspace.dashboard.view.range(), [plot.log for plot in window.workspace.dashboard.plots.plots]
    field = window.workspace.dashboard.panel.form.control("steps")
    assert isinstance(field, QLineEdit)
    field.setFocus()
    field.clear()
    QTest.keyClicks(field, "mlf0[]?")
    settle(window, 4)
    assert field.text() == "mlf0[]?"
    assert (
        window.workspace.dashboard.view.range(),
        [plot.log for plot in window.workspace.dashboard.plots.plots],
    ) == before
    assert not [widget for widget in QApplication.topLevelWidgets() if widget.isModal() and widget.isVisible()]


def test_single_letters_do_nothing_where_no_plot_has_the_focus(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QInputDialog, "getText", lambda *_args: pytest.fail("a mark was asked for"))
    window.setFocus()
    for key in (Key.Key_M, Key.Key_L, Key.Key_F):
        press(window, key)
    assert not any(plot.log for plot in window.workspace.dashboard.plots.plots)


def test_l_switches_the_loss_axis_of_a_plot(window: MainWindow) -> None:
    loss = window.workspace.dashboard.plots.plot("loss")
    assert loss is not None
    loss.canvas.setFocus()
    press(window, Key.Key_L)
    assert loss.log


def test_f5_starts_and_stops_from_anywhere(window: MainWindow, session: FakeSession) -> None:
    window.workspace.dashboard.panel.form.control("steps").setFocus()
    press(window, Key.Key_F5)
    assert session.requested[-1] == ("start", "training", "cpu")
    assert window.workspace.dashboard.panel.button.text() == "■  Stop run   F5"
    assert window.workspace.dashboard.panel.button.isEnabled()
    press(window, Key.Key_F5)
    assert session.requested[-1] == ("stop",)
    assert window.workspace.dashboard.panel.button.text() == "Stopping…"
    assert window.workspace.dashboard.panel.progress.label.text() == "Stopping after this step…"
    press(window, Key.Key_F5)
    assert session.requested.count(("stop",)) == 1
    session.end()
    settle(window)
    assert window.workspace.dashboard.panel.button.text() == "▶  Start run   F5"


def test_stop_answers_before_the_next_refresh(window: MainWindow, session: FakeSession) -> None:
    window.workspace.dashboard.panel.button.click()
    assert "Stop run" in window.workspace.dashboard.panel.button.text()
    window.workspace.dashboard.panel.button.click()
    assert window.workspace.dashboard.panel.progress.label.text() == "Stopping after this step…"
    assert not window.workspace.dashboard.panel.button.isEnabled()


def test_marks_are_named_and_jumped_to_by_key(window: MainWindow, session: FakeSession) -> None:
    focus_plot(window)
    window.workspace.dashboard.view.set_cursor(12.5, pinned=True)
    press(window, Key.Key_M)
    QTest.keyClicks(window.workspace.dashboard.plots.mark_field, "spike")
    press(window, Key.Key_Return)
    assert session.requested[-1] == ("mark", "spike", 12.5)
    press(window, Key.Key_M)
    press(window, Key.Key_Escape)
    assert len([call for call in session.requested if call[0] == "mark"]) == 1
    press(window, Key.Key_BracketLeft)
    assert window.workspace.dashboard.view.cursor_s == 10.0
    press(window, Key.Key_BracketRight)
    assert window.workspace.dashboard.view.cursor_s == 20.0


def test_a_run_started_from_a_field_frames_no_other_part_of_the_form(window: MainWindow) -> None:
    field = window.workspace.dashboard.panel.form.control("steps")
    field.setFocus()
    press(window, Key.Key_F5)
    assert not field.isEnabled()
    assert QApplication.focusWidget() is window


@pytest.mark.parametrize("place", ["output", "card", "smoothing", "window"])
def test_letters_of_the_plots_act_wherever_no_text_is_edited(window: MainWindow, place: str) -> None:
    dashboard = window.workspace.dashboard
    dashboard.tabs.show_output()
    settle(window)
    focused: QWidget = {
        "output": dashboard.tabs.output.text,
        "card": dashboard.cards.focus_group.members[0],
        "smoothing": dashboard.view_bar.smoothing,
        "window": window,
    }[place]
    focused.setFocus()
    assert focused.hasFocus()
    press(window, Key.Key_M)
    assert dashboard.plots.mark_field.isVisible()


@pytest.mark.parametrize("field", ["steps", "optimizer"])
def test_letters_in_a_field_are_its_own(window: MainWindow, field: str) -> None:
    dashboard = window.workspace.dashboard
    dashboard.panel.form.control(field).setFocus()
    press(window, Key.Key_M)
    assert not dashboard.plots.mark_field.isVisible()


def test_arrows_step_the_cursor_by_readings(window: MainWindow, session: FakeSession) -> None:
    focus_plot(window)
    window.workspace.dashboard.view.set_cursor(15.0, pinned=True)
    press(window, Key.Key_Left)
    assert window.workspace.dashboard.view.cursor_s == pytest.approx(14.9)
    press(window, Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    assert window.workspace.dashboard.view.cursor_s == pytest.approx(15.9)


def test_arrows_in_a_field_leave_the_cursor_alone(window: MainWindow) -> None:
    window.workspace.dashboard.view.set_cursor(15.0, pinned=True)
    window.workspace.dashboard.panel.form.control("steps").setFocus()
    press(window, Key.Key_Left)
    assert window.workspace.dashboard.view.cursor_s == 15.0


def test_ctrl_c_copies_the_selection_of_the_plots(window: MainWindow, session: FakeSession) -> None:
    window.workspace.dashboard.view.select(12.0, 12.3)
    focus_plot(window)
    press(window, Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    header, *rows = QGuiApplication.clipboard().text().rstrip("\n").split("\n")
    assert header.split("\t")[:2] == ["time (s)", "loss (nats)"]
    assert [float(row.split("\t")[0]) for row in rows] == pytest.approx([12.0, 12.1, 12.2, 12.3])


def test_ctrl_c_copies_the_table_that_has_the_focus(window: MainWindow) -> None:
    window.workspace.dashboard.tabs.stages.view.setFocus()
    press(window, Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    lines = QGuiApplication.clipboard().text().split("\n")
    assert lines[0].startswith("stage\tdevice")
    assert [line.split("\t")[0] for line in lines[1:]] == ["batch to device", "forward", "backward", "optimizer"]


def test_ctrl_c_in_a_field_copies_its_text(window: MainWindow) -> None:
    field = window.workspace.dashboard.panel.form.control("steps")
    assert isinstance(field, QLineEdit)
    field.setFocus()
    field.selectAll()
    press(window, Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "300"


def test_a_whole_session_by_keyboard(window: MainWindow, session: FakeSession) -> None:
    press(window, Key.Key_F5)
    session.train(3)
    settle(window)
    focus_plot(window)
    press(window, Key.Key_M)
    QTest.keyClicks(window.workspace.dashboard.plots.mark_field, "here")
    press(window, Key.Key_Return)
    window.workspace.dashboard.view.select(20.5, 21.5)
    press(window, Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    press(window, Key.Key_Return)
    assert window.workspace.dashboard.view.range() == pytest.approx((20.5, 21.5))
    press(window, Key.Key_Backspace)
    press(window, Key.Key_Escape)
    assert window.workspace.dashboard.view.selection is None
    press(window, Key.Key_End)
    assert window.workspace.dashboard.view.following
    press(window, Key.Key_F5)
    assert [call[0] for call in session.requested] == ["start", "mark", "stop"]
    assert QGuiApplication.clipboard().text().count("\n") > 10


def test_a_selection_shows_its_chip_and_filters_the_tables(window: MainWindow, session: FakeSession) -> None:
    window.workspace.dashboard.tabs.bar.setCurrentIndex(window.workspace.dashboard.tabs.bar.count() - 1)
    settle(window)
    everything = len(window.workspace.dashboard.tabs.events.model.rows)
    window.workspace.dashboard.view.select(19.5, 20.5)
    settle(window)
    assert window.workspace.dashboard.plots.strip.chip == "0:19.5 to 0:20.5 ×"
    assert 0 < len(window.workspace.dashboard.tabs.events.model.rows) < everything
    focus_plot(window)
    press(window, Key.Key_Escape)
    assert window.workspace.dashboard.plots.strip.chip == ""
    assert len(window.workspace.dashboard.tabs.events.model.rows) == everything


def test_a_hidden_curve_can_be_brought_back_by_its_chip(window: MainWindow) -> None:
    legend = memory_plot(window).legend
    legend.toggle("other processes")
    settle(window)
    chip = next(button for button in legend.findChildren(QToolButton) if "hidden" in button.text())
    assert chip.isVisible() and chip.text() == "1 hidden - show all"
    assert "other processes" not in [name for name, _value in window.workspace.dashboard.plots.readout.rows()]
    chip.click()
    assert legend.hidden == frozenset()


def menus(window: MainWindow) -> list[QMenu]:
    return window.menuBar().findChildren(QMenu)


def test_every_command_has_a_name_a_tip_and_a_menu_place(window: MainWindow) -> None:
    placed = {action for menu in menus(window) for action in menu.actions()}
    for name, action in window.menus.actions.items():
        assert action.text().strip(), name
        assert action.toolTip().strip() and action.toolTip() != action.text(), name
        assert action in placed, name
    titles = [action.text() for action in window.menuBar().actions()]
    assert titles == ["&File", "&Edit", "&Run", "&View", "&Analyse", "&Help"]


def test_no_key_means_two_things_in_one_context(window: MainWindow) -> None:
    keys = Counter(key.toString() for action in window.findChildren(QAction) for key in action.shortcuts())
    assert [key for key, count in keys.items() if count > 1] == []


def test_no_mnemonic_of_the_menu_bar_is_used_twice(window: MainWindow) -> None:
    letters = [action.text()[action.text().index("&") + 1].lower() for action in window.menuBar().actions()]
    assert len(set(letters)) == len(letters)


def test_single_keys_belong_to_the_plots_but_for_the_one_that_lists_them(window: MainWindow) -> None:
    for name, action in window.menus.actions.items():
        if name == "help.keys":
            assert action.shortcutContext() is Qt.ShortcutContext.WindowShortcut
            continue
        for key in action.shortcuts():
            plain = key.toString() and "+" not in key.toString() and not key.toString().startswith("F1")
            if plain and not key.toString()[1:].isdigit():
                assert action.shortcutContext() is Qt.ShortcutContext.WidgetWithChildrenShortcut, name


def test_no_menu_entry_is_a_greyed_promise(window: MainWindow) -> None:
    idle = {
        "Zoom to Selection": "No range is selected.",
        "Close Document": "No document is open.",
        "Next Tab": "No document is open.",
        "Reconnect": "The current tab has no machine over ssh.",
        "Save Snapshot Now": "No program of yours is running here.",
        "Profile Next Steps…": "No run is in progress.",
        "Undo": "There is nothing to undo.",
        "Redo": "There is nothing to redo.",
    }
    grey = [action for menu in menus(window) for action in menu.actions() if not action.isEnabled()]
    assert {action.text(): action.toolTip().split("\n")[-1] for action in grey} == idle
    window.workspace.dashboard.view.select(12.0, 13.0)
    settle(window)
    assert window.menus.actions["view.zoom_to_selection"].isEnabled()
    assert "No range" not in window.menus.actions["view.zoom_to_selection"].toolTip()


@pytest.mark.parametrize("place", ["list", "field"])
def test_the_keys_are_shown_from_a_list_and_typed_in_a_field(window: MainWindow, place: str, qtbot: QtBot) -> None:
    asked: list[bool] = []
    window.menus.actions["help.keys"].triggered.disconnect()
    window.menus.actions["help.keys"].triggered.connect(lambda *_: asked.append(True))
    field = window.workspace.dashboard.panel.form.control("steps")
    if place == "field":
        field.setFocus()
    else:
        window.workspace.dashboard.left.bar.setCurrentIndex(1)
        settle(window)
        window.findChild(RunsList).setFocus()
    press(window, Key.Key_Question)
    assert bool(asked) == (place == "list")


def test_a_key_of_a_command_closes_an_open_choice_and_runs_it(window: MainWindow, qtbot: QtBot) -> None:
    ended: list[bool] = []
    window.menus.actions["file.exit"].triggered.disconnect()
    window.menus.actions["file.exit"].triggered.connect(lambda *_: ended.append(True))
    choice = window.workspace.dashboard.panel.form.control("optimizer")
    assert isinstance(choice, ChoiceField)
    choice.showPopup()
    qtbot.waitUntil(choice.view().isVisible)
    QTest.keyClick(choice.view(), Key.Key_Q, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: bool(ended))
    assert not choice.view().isVisible()
