"""The form under the mouse and the keyboard: it scrolls, and keeps its values until they are meant to change."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QPlainTextEdit, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from gpudash.specs import workloads
from gpudash.ui.forms.run_progress import WATCH
from gpudash.ui.forms.workload_panel import WorkloadPanel

FIELDS = (QComboBox, QLineEdit, QCheckBox, QPlainTextEdit)

NO_KEY = Qt.KeyboardModifier.NoModifier


@pytest.fixture
def panel(qtbot: QtBot) -> WorkloadPanel:
    """In a window as low as the smallest, so that long forms scroll."""
    panel = WorkloadPanel()
    panel.resize(panel.width(), 560)
    qtbot.addWidget(panel)
    with qtbot.waitExposed(panel):
        panel.show()
    return panel


def choose(panel: WorkloadPanel, workload: str) -> None:
    panel.workload.setCurrentIndex(panel.workload.findData(workload))


def fields(panel: WorkloadPanel) -> list[QWidget]:
    found: list[QWidget] = [field for kind in FIELDS for field in panel.findChildren(kind)]
    return [field for field in found if field.isVisible()]


def held(panel: WorkloadPanel) -> list[str | bool]:
    return [
        field.currentText()
        if isinstance(field, QComboBox)
        else field.isChecked()
        if isinstance(field, QCheckBox)
        else field.toPlainText()
        if isinstance(field, QPlainTextEdit)
        else field.text()  # type: ignore[attr-defined]  # a QLineEdit
        for field in fields(panel)
    ]


def turn(field: QWidget, modifiers: Qt.KeyboardModifier = NO_KEY) -> None:
    """One notch of the wheel down over the middle of ``field``, as the window system sends it."""
    window = field.window()
    middle = field.mapTo(window, field.rect().center())
    QTest.wheelEvent(window.windowHandle(), middle, QPoint(0, -120), stateKey=modifiers)


@pytest.mark.parametrize("workload", [*workloads(), WATCH])
def test_the_wheel_over_a_field_never_changes_its_value(panel: WorkloadPanel, workload: str) -> None:
    choose(panel, workload)
    before = held(panel)
    assert before
    for field in fields(panel):
        turn(field)
        field.setFocus()
        turn(field)
        assert held(panel) == before, field.accessibleName()


def test_the_wheel_over_a_field_scrolls_the_form(panel: WorkloadPanel) -> None:
    area = panel.findChild(QScrollArea)
    assert area is not None and area.verticalScrollBar().maximum() > 0
    choice = panel.form.control("model")
    turn(choice)
    assert area.verticalScrollBar().value() > 0


def test_ctrl_and_the_wheel_change_the_choice_that_has_the_focus_and_no_other(panel: WorkloadPanel) -> None:
    choice, other = panel.form.control("model"), panel.form.control("mode")
    assert isinstance(choice, QComboBox) and isinstance(other, QComboBox)
    choice.setFocus()
    turn(choice, Qt.KeyboardModifier.ControlModifier)
    assert (choice.currentIndex(), other.currentIndex()) == (1, 0)
    turn(other, Qt.KeyboardModifier.ControlModifier)
    assert (choice.currentIndex(), other.currentIndex()) == (1, 0) and choice.hasFocus()


def test_my_script_is_the_first_workload_of_the_list_which_shows_all_of_them(
    panel: WorkloadPanel, qtbot: QtBot
) -> None:
    choice = panel.workload
    assert choice.itemData(0) == WATCH and choice.currentData() != WATCH
    choice.showPopup()
    view = choice.view()
    qtbot.waitUntil(view.isVisible)
    last = view.visualRect(view.model().index(choice.count() - 1, 0))
    assert last.bottom() <= view.viewport().height()
    choice.hidePopup()
