"""Several buttons that are one stop of the Tab key."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from gpudash.ui.widgets.focus_group import FocusGroup

Key = Qt.Key


class Window(QWidget):
    """A field, three buttons of one group, a field."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = QLineEdit(), QLineEdit()
        self.buttons = [QPushButton(name) for name in "abc"]
        column = QVBoxLayout(self)
        for part in (self.before, *self.buttons, self.behind):
            column.addWidget(part)
        self.group = FocusGroup(self, self.buttons)
        self.seeks = 0
        QShortcut(QKeySequence(Key.Key_Right), self, self._sought)

    def _sought(self) -> None:
        self.seeks += 1


@pytest.fixture
def window(qtbot: QtBot) -> Window:
    window = Window()
    qtbot.addWidget(window)
    window.show()
    window.activateWindow()
    window.before.setFocus()
    return window


def press(window: Window, key: Qt.Key) -> QWidget | None:
    focused = window.focusWidget()
    assert focused is not None
    QTest.keyClick(focused, key)
    return window.focusWidget()


def test_tab_stops_once_and_arrows_go_round(window: Window) -> None:
    a, b, c = window.buttons
    assert press(window, Key.Key_Tab) is a
    assert press(window, Key.Key_Right) is b
    assert press(window, Key.Key_Down) is c
    assert press(window, Key.Key_Right) is a
    assert press(window, Key.Key_Left) is c
    assert press(window, Key.Key_Tab) is window.behind
    assert window.seeks == 0, "the keys of the window are the group's while one of it has the focus"


def test_tab_comes_back_to_where_the_focus_was_and_a_member_that_is_hidden_or_disabled_is_left_out(
    window: Window,
) -> None:
    a, b, c = window.buttons
    assert press(window, Key.Key_Tab) is a and press(window, Key.Key_Right) is b
    assert press(window, Key.Key_Tab) is window.behind
    window.before.setFocus()
    assert press(window, Key.Key_Tab) is b
    window.before.setFocus()
    b.hide()
    a.setEnabled(False)
    assert press(window, Key.Key_Tab) is c and press(window, Key.Key_Right) is c


def test_a_group_that_joins_another_is_one_stop_with_it_and_goes_with_its_parent(qtbot: QtBot) -> None:
    window = Window()
    qtbot.addWidget(window)
    more = QWidget(window)
    row = QVBoxLayout(more)
    others = [QPushButton(name) for name in "de"]
    for button in others:
        row.addWidget(button)
    column = window.layout()
    assert column is not None
    column.addWidget(more)
    joining = FocusGroup(more, others)
    joining.join(window.group)
    window.show()
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    everyone = [*window.buttons, *others]
    assert [button.text() for button in everyone if button.focusPolicy() & Qt.FocusPolicy.TabFocus] == ["a"]
    window.buttons[2].setFocus()
    QTest.keyClick(window.buttons[2], Key.Key_Right)
    assert others[0].hasFocus()
    QTest.keyClick(others[0], Key.Key_Left)
    assert window.buttons[2].hasFocus()
    more.hide()
    QTest.keyClick(window.buttons[2], Key.Key_Right)
    assert window.buttons[0].hasFocus()
    more.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    QTest.keyClick(window.buttons[0], Key.Key_Left)
    assert window.buttons[2].hasFocus()
