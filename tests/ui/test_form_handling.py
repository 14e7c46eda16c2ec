"""The form under the mouse and the keyboard: it scrolls, and keeps its values until they are meant to change."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QApplication,
    QCheckBox,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QStyle,
    QStyleOptionComboBox,
    QStyleOptionFrame,
    QWidget,
)
from pytestqt.qtbot import QtBot

import gpudash.ui
from gpudash.specs import workloads
from gpudash.telemetry.runs import WATCH
from gpudash.ui.forms.spec_form import SpecForm
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.widgets.fields import ChoiceField
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu

FIELDS = (QComboBox, QLineEdit, QCheckBox, QPlainTextEdit)

NO_KEY = Qt.KeyboardModifier.NoModifier

UI = Path(gpudash.ui.__file__).parent


@pytest.fixture
def panel(qtbot: QtBot) -> WorkloadPanel:
    """In a window as low as the smallest, so that long forms scroll."""
    panel = WorkloadPanel()
    panel.resize(panel.width(), 560)
    qtbot.addWidget(panel)
    with qtbot.waitExposed(panel):
        panel.show()
    return panel


def open_more(panel: WorkloadPanel) -> None:
    """Show every field of the form."""
    for form in panel.findChildren(SpecForm):
        form.more.setChecked(True)


def choose(panel: WorkloadPanel, workload: str) -> None:
    panel.workload.setCurrentIndex(panel.workload.findData(workload))


def fields(panel: WorkloadPanel) -> list[QWidget]:
    found: list[QWidget] = [field for kind in FIELDS for field in panel.findChildren(kind)]
    return [field for field in found if field.isVisible()]


def held_by(field: QWidget) -> str | bool:
    match field:
        case QComboBox():
            return field.currentText()
        case QCheckBox():
            return field.isChecked()
        case QPlainTextEdit():
            return field.toPlainText()
        case QLineEdit():
            return field.text()
    raise TypeError(field)


def held(panel: WorkloadPanel) -> list[str | bool]:
    return [held_by(field) for field in fields(panel)]


def turn(field: QWidget, modifiers: Qt.KeyboardModifier = NO_KEY) -> None:
    """One notch of the wheel down over the middle of ``field``, as the window system sends it."""
    window = field.window()
    middle = field.mapTo(window, field.rect().center())
    QTest.wheelEvent(window.windowHandle(), middle, QPoint(0, -120), stateKey=modifiers)


@pytest.mark.parametrize("workload", [*workloads(), WATCH])
def test_the_wheel_over_a_field_never_changes_its_value(panel: WorkloadPanel, workload: str) -> None:
    choose(panel, workload)
    open_more(panel)
    before = held(panel)
    assert before
    for field in fields(panel):
        turn(field)
        field.setFocus()
        turn(field)
        assert held(panel) == before, field.accessibleName()


def test_the_wheel_over_a_field_scrolls_the_form(panel: WorkloadPanel) -> None:
    open_more(panel)
    QApplication.processEvents()
    area = panel.findChild(QScrollArea)
    assert area is not None and area.verticalScrollBar().maximum() > 0
    choice = panel.form.control("model")
    turn(choice)
    assert area.verticalScrollBar().value() > 0


def test_no_choice_anywhere_in_the_window_is_one_that_the_wheel_changes_by_itself() -> None:
    plain = [path.name for path in UI.rglob("*.py") if "QComboBox()" in path.read_text(encoding="utf-8")]
    assert plain == []
    assert any("ChoiceField()" in path.read_text(encoding="utf-8") for path in UI.rglob("*.py"))


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


@pytest.mark.parametrize("workload", [*workloads(), WATCH])
def test_what_is_typed_ends_in_the_field_where_typing_began(panel: WorkloadPanel, workload: str) -> None:
    choose(panel, workload)
    open_more(panel)
    QApplication.processEvents()
    area = panel.findChild(QScrollArea)
    assert area is not None
    lines = [field for field in fields(panel) if isinstance(field, QLineEdit | QPlainTextEdit) and field.isEnabled()]
    for line in lines:
        area.ensureWidgetVisible(line)
        QApplication.processEvents()
        line.setFocus()
        for _layout in range(10):  # those of the form, of what is scrolled and of the panel, inside each other
            QApplication.processEvents()
        others = {field: held_by(field) for field in fields(panel) if field not in (line, line.parent())}
        place = line.mapTo(panel, QPoint(0, 0))
        for key in "7,x 9":
            focused = QApplication.focusWidget()
            assert focused in (line, line.parent())  # an editable choice has the focus for its line
            QTest.keyClick(focused, key)
            QApplication.processEvents()  # the line of an error opens below
            assert line.mapTo(panel, QPoint(0, 0)) == place, f"{line.accessibleName()} moved"
        assert "7,x 9" in str(held_by(line))
        assert {field: held_by(field) for field in others} == others


def test_during_a_run_nothing_offers_to_start_one(open_window: OpenWindow) -> None:
    session = FakeSession().feed(2)
    window = open_window(session)
    offers = ("start", "run again", "run the")

    def offered() -> set[str]:
        buttons = [button for button in window.findChildren(QPushButton) if button.isEnabled()]
        reached = [button for button in buttons if not button.isHidden()]
        words = [f"{button.text()} {button.toolTip()}" for button in reached]
        words += [f"{command.label()} {command.tip}" for command in window.workspace.commands if not command.why_not()]
        return {text for text in words if text.lower().lstrip("▶ ").startswith(offers)}

    settle(window)
    before = offered()
    assert any(text.startswith("▶  Start run") for text in before)
    session.start()
    settle(window)
    assert offered() == set()


def test_tab_reaches_pause_within_eight_and_goes_through_the_panel_from_its_top_to_its_bottom(
    open_window: OpenWindow,
) -> None:
    window = open_window(FakeSession(gpu_problem="No NVIDIA card was found; everything runs on the CPU.").feed(2))
    dashboard, panel = window.workspace.dashboard, window.workspace.dashboard.panel
    for workload in ("pipeline", "training"):
        choose(panel, workload)
    open_more(panel)
    settle(window)
    window.setFocus()
    stops: list[QWidget] = []
    while panel.button not in stops:
        QTest.keyClick(QApplication.focusWidget(), Qt.Key.Key_Tab)
        stops.append(QApplication.focusWidget())
        assert len(stops) < 60
    assert dashboard.view_bar.pause in stops[:8]
    within = [stop for stop in stops if panel.isAncestorOf(stop)]
    inside = [stop for stop in within if panel.form.isAncestorOf(stop)]
    places = [stop.mapTo(panel.form, QPoint(0, 0)).y() for stop in inside]
    assert len(inside) > 15 and places == sorted(places)
    assert within[0] is panel.workload and within[-1] is panel.button
    assert within.index(panel.device) < within.index(inside[0])


def test_the_form_stays_where_it_was_scrolled_to_while_the_room_below_it_changes(panel: WorkloadPanel) -> None:
    open_more(panel)
    QApplication.processEvents()
    area, seed = panel.findChild(QScrollArea), panel.form.control("seed")
    assert area is not None
    area.verticalScrollBar().setValue(area.verticalScrollBar().maximum())
    place, beneath = seed.mapTo(panel, QPoint(0, 0)), area.height() - seed.mapTo(area, QPoint(0, 0)).y()
    for height in (640, 900, 1200, 500, 560):
        panel.resize(panel.width(), height)
        QApplication.processEvents()
        assert seed.mapTo(panel, QPoint(0, 0)) == place
    area.verticalScrollBar().setValue(0)
    QApplication.processEvents()
    area.verticalScrollBar().setValue(10_000)
    QApplication.processEvents()
    assert area.height() - seed.mapTo(area, QPoint(0, 0)).y() == beneath, "no blank room is left behind"


def test_no_field_is_scrolled_away_once_the_details_leave_room_for_all(panel: WorkloadPanel) -> None:
    open_more(panel)
    panel.resize(panel.width(), 500)
    QApplication.processEvents()
    area, workload = panel.findChild(QScrollArea), panel.form
    assert area is not None
    area.verticalScrollBar().setValue(area.verticalScrollBar().maximum())
    panel.resize(panel.width(), 1600)
    QApplication.processEvents()
    assert workload.mapTo(area, QPoint(0, 0)).y() < 0
    panel.fit.folded.emit()
    QApplication.processEvents()
    QApplication.processEvents()
    assert workload.mapTo(area, QPoint(0, 0)).y() >= 0


def whole_form_beside_its_scroll_bar(open_window: OpenWindow, workload: str) -> WorkloadPanel:
    """The panel of a window of 1280×800, with every field of the workload open."""
    window = open_window(FakeSession([gpu(0)]), size=(1280, 800))
    panel = window.workspace.dashboard.panel
    choose(panel, workload)
    open_more(panel)
    settle(window)
    area = panel.findChild(QScrollArea)
    assert area is not None
    area.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
    settle(window)
    assert area.verticalScrollBar().isVisible()
    return panel


@pytest.mark.parametrize("workload", sorted(workloads()))
def test_every_choice_is_read_without_an_ellipsis_beside_the_form_s_scroll_bar(
    open_window: OpenWindow, workload: str
) -> None:
    panel = whole_form_beside_its_scroll_bar(open_window, workload)
    choices = [box for form in panel.findChildren(SpecForm) for box in form.findChildren(ChoiceField)]
    seen = [box for box in choices if box.isVisible()]
    for box in seen:
        for row in range(box.count()):
            box.setCurrentIndex(row)
            option = QStyleOptionComboBox()
            box.initStyleOption(option)
            assert not option.currentText.endswith("…"), (box.accessibleName(), box.itemText(row))


@pytest.mark.parametrize("workload", sorted(workloads()))
def test_every_value_that_a_form_begins_with_is_read_whole_beside_its_scroll_bar(
    open_window: OpenWindow, workload: str
) -> None:
    panel = whole_form_beside_its_scroll_bar(open_window, workload)
    lines = [line for form in panel.findChildren(SpecForm) for line in form.findChildren(QLineEdit)]
    seen = [line for line in lines if line.isVisible() and line.text()]
    assert seen
    for line in seen:
        option = QStyleOptionFrame()
        line.initStyleOption(option)
        room = line.style().subElementRect(QStyle.SubElement.SE_LineEditContents, option, line).width()
        assert line.fontMetrics().horizontalAdvance(line.text()) + 4 <= room, (line.accessibleName(), line.text())


@pytest.mark.parametrize("workload", sorted(set(workloads()) - {"comparison"}))
def test_on_a_low_screen_the_form_is_seen_as_far_as_more(open_window: OpenWindow, workload: str) -> None:
    window = open_window(FakeSession([gpu(0)]), size=(1280, 692))
    panel = window.workspace.dashboard.panel
    choose(panel, workload)
    settle(window)
    area, more = panel.findChild(QScrollArea), panel.form.more
    assert area is not None and more.isVisible()
    assert more.visibleRegion().boundingRect() == more.rect()
    assert panel.workload.toolTip() and not area.verticalScrollBar().isVisible()


def test_what_is_wrong_with_values_together_names_the_fields_as_the_form_does(open_window: OpenWindow) -> None:
    panel = open_window(FakeSession([gpu(0)])).workspace.dashboard.panel
    choose(panel, "pipeline")
    panel.choose_device("cpu")
    move = panel.form.control("move")
    assert isinstance(move, QComboBox)
    move.setCurrentIndex(move.findData("pinned"))
    assert panel._caution.text().startswith("Move pinned: needs a CUDA device")


def first_ink(field: QWidget) -> int:
    """How far from its left edge the upright stroke begins with which its words do."""
    picture = field.grab().toImage()
    ground, height = picture.pixelColor(field.width() - 40, field.height() // 2), picture.height()
    columns = range(4, picture.width())
    strokes = {
        x: sum(abs(picture.pixelColor(x, y).lightness() - ground.lightness()) > 60 for y in range(8, height - 8))
        for x in columns
    }
    return next(x for x in columns if strokes[x] >= 4)


def test_what_stands_in_fields_and_in_choices_begins_below_one_another(open_window: OpenWindow) -> None:
    window = open_window(FakeSession([gpu(0)]))
    panel = window.workspace.dashboard.panel
    choose(panel, "pipeline")
    line, choice = panel.form.control("rows"), panel.form.control("dtype")
    assert isinstance(line, QLineEdit) and isinstance(choice, QComboBox)
    line.setText("HHH")
    choice.setItemText(choice.currentIndex(), "HHH")
    settle(window)
    assert first_ink(line) == first_ink(choice)
