"""Commands as data: their order, their availability, and the menus that are built from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMainWindow, QMenu
from pytestqt.qtbot import QtBot

from gpudash.ui.window.menus import Command, Menus, in_order
from gpudash.ui.window.palette import command_entries


def command(name: str, *, run: Callable[..., object] = lambda *_state: None, **known: object) -> Command:
    return Command("File", name.capitalize(), f"Does {name}", run, id=name, **known)  # type: ignore[arg-type]


@pytest.fixture
def window(qtbot: QtBot) -> QMainWindow:
    window = QMainWindow()
    qtbot.addWidget(window)
    return window


def listed(window: QMainWindow, menu: str = "File") -> list[str]:
    found = window.findChild(QMenu, menu)
    assert isinstance(found, QMenu)
    return [action.text() for action in found.actions() if not action.isSeparator()]


def test_a_command_stands_right_below_the_one_it_names() -> None:
    given = [command("a"), command("z"), command("b", after="a"), command("c", after="b"), command("d", after="a")]
    assert [one.id for one in in_order(given)] == ["a", "b", "c", "d", "z"]


def test_a_command_below_one_that_is_not_there_comes_last() -> None:
    assert [one.id for one in in_order([command("b", after="gone"), command("a")])] == ["b", "a"]
    assert [one.id for one in in_order([command("a"), command("b", after="gone")])] == ["a", "b"]


def test_two_commands_with_one_id_are_refused(window: QMainWindow) -> None:
    with pytest.raises(KeyError, match="save"):
        Menus(window, [command("save"), command("save")])


def test_a_command_says_itself_why_it_cannot_be_used(window: QMainWindow) -> None:
    why = "Nothing is open."
    close = command("close", why_not=lambda: why)
    menus = Menus(window, [close])
    action = menus.actions["close"]
    assert (action.isEnabled(), action.toolTip()) == (False, "Does close\nNothing is open.")
    (entry,) = command_entries([close])
    assert entry.why_not == why
    why = ""
    menus.refresh()
    assert (action.isEnabled(), action.toolTip()) == (True, "Does close")


def test_a_checkable_command_shows_what_is_the_case_and_not_what_was_asked(window: QMainWindow) -> None:
    asked: list[bool] = []
    menus = Menus(window, [command("lock", run=asked.append, checked=lambda: False)])
    menus.actions["lock"].trigger()
    assert asked == [True] and not menus.actions["lock"].isChecked()


def test_the_palette_asks_for_the_other_state(window: QMainWindow) -> None:
    asked: list[bool] = []
    commands = [
        command("lock", run=asked.append, checked=lambda: True),
        command("dark", run=asked.append, checked=lambda: True, group="theme"),
    ]
    entries = command_entries(commands)
    assert [entry.name for entry in entries] == ["Lock  ✓", "Dark  ✓"]
    for entry in entries:
        entry.run()
    assert asked == [False, True], "one of a group stays chosen"


def test_keys_that_mean_something_else_now_are_left_alone(window: QMainWindow) -> None:
    taken = True
    menus = Menus(window, [command("copy", keys=("Ctrl+C",), keys_taken=lambda: taken)])
    assert menus.actions["copy"].shortcuts() == []
    taken = False
    menus.refresh()
    assert [key.toString() for key in menus.actions["copy"].shortcuts()] == ["Ctrl+C"]


def test_what_stands_above_a_command_is_asked_for_whenever_the_menu_opens(window: QMainWindow) -> None:
    names = ["one", "two"]
    Menus(window, [command("clear", above=lambda menu: [QAction(name, menu) for name in names])])
    menu = window.findChild(QMenu, "File")
    assert isinstance(menu, QMenu)
    menu.aboutToShow.emit()
    assert listed(window) == ["one", "two", "Clear"]
    names.remove("one")
    menu.aboutToShow.emit()
    assert listed(window) == ["two", "Clear"]
