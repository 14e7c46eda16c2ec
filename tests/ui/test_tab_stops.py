"""What somebody without a mouse, or with a screen reader, meets in the window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QAccessible, QAccessibleInterface
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QComboBox,
    QDialog,
    QLabel,
    QLineEdit,
    QWidget,
)

from gpudash.ui.plots.canvas import Canvas
from gpudash.ui.widgets.theme import restyle
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui import test_explanation as explained
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, simulated_gpu
from tests.ui.words import complaints

Role = QAccessible.Role

MOST_STOPS = 20
"""Of the Tab key: nine of them fields of the default workload."""

LEAST_TARGET = 24
"""Logical pixels of what is clicked, or of the room that it has for itself (WCAG 2.2, 2.5.8)."""


STATES = pytest.mark.parametrize("state", ["first screen", "form", "training"])

SAID = {
    Role.Button,
    Role.ButtonMenu,
    Role.CheckBox,
    Role.ComboBox,
    Role.EditableText,
    Role.List,
    Role.MenuItem,
    Role.PageTab,
    Role.ProgressBar,
    Role.RadioButton,
    Role.Slider,
    Role.SpinBox,
    Role.Table,
    Role.Tree,
}
"""Roles of what is used: each has to say what it is."""

VALUED = {Role.ProgressBar, Role.Slider, Role.SpinBox}
"""Those that always have a value; what is typed into may be empty."""


@pytest.fixture(params=["first screen", "form", "training"])
def window(open_window: OpenWindow, request: pytest.FixtureRequest) -> MainWindow:
    """The window as it opens, with the form of the default workload, and while that runs."""
    return opened_as(request.param, open_window, (1280, 800))


def opened_as(state: str, open_window: OpenWindow, size: tuple[int, int]) -> MainWindow:
    session = FakeSession([simulated_gpu(0, 8 * GIB)]).feed(5.0)
    if state == "training":
        session.train(10)
    opened = open_window(session, size=size, first_screen=state == "first screen")
    settle(opened)
    return opened


@dataclass(frozen=True)
class Part:
    """What a screen reader finds: kept without Qt's interface to it, which must not outlive the window."""

    role: QAccessible.Role
    name: str
    value: str


def tree(part: QAccessibleInterface | None) -> Iterator[Part]:
    """A part that is seen, and what is in it."""
    if part is None or not part.isValid() or part.state().invisible:
        return
    name, widget = part.text(QAccessible.Text.Name), part.object()
    # Qt gives a choice its value for a name, and leaves it to the label beside it to say what it is.
    if isinstance(widget, QComboBox):
        name = name_of(widget)
    yield Part(part.role(), name, part.text(QAccessible.Text.Value))
    for place in range(part.childCount()):
        yield from tree(part.child(place))


def parts_of(top: QWidget) -> list[Part]:
    return list(tree(QAccessible.queryAccessibleInterface(top)))


def mute(top: QWidget) -> list[Part]:
    """What is used in ``top`` and has no name, or no value where there has to be one."""
    parts = parts_of(top)
    nameless = [part for part in parts if part.role in SAID and not part.name]
    return nameless + [part for part in parts if part.role in VALUED and not part.value]


def test_everything_that_is_used_says_what_it_is_and_what_it_is_set_to(window: MainWindow) -> None:
    assert len([part for part in parts_of(window) if part.role in SAID]) > 30
    assert mute(window) == []


def test_everything_in_a_dialog_says_what_it_is(open_window: OpenWindow) -> None:
    window = opened_as("form", open_window, (1280, 800))
    for command in ("edit.preferences", "run.attach", "help.keys"):
        window.menus.actions[command].trigger()
        [dialog] = [dialog for dialog in window.findChildren(QDialog) if dialog.isVisible()]
        assert mute(dialog) == [], command
        assert [widget for widget in stops(dialog) if not name_of(widget)] == [], command
        dialog.close()


@STATES
@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize(("scale", "size"), [(1.5, (1280, 800)), (2.0, (1920, 1200))])
def test_larger_words_lose_nothing_that_is_read_at_the_usual_size(
    open_window: OpenWindow, state: str, scale: float, size: tuple[int, int]
) -> None:
    window = opened_as(state, open_window, size)
    before = complaints(window)
    restyle(window, window.workspace.colours, scale)
    settle(window, 10)
    assert [complaint for complaint in complaints(window) if complaint not in before] == []


def test_up_and_down_go_from_plot_to_plot_and_left_and_right_stay_the_cursor_s(open_window: OpenWindow) -> None:
    window = opened_as("training", open_window, (1280, 800))
    plots = window.workspace.dashboard.plots
    first, second, *_, last = (plot.canvas for plot in plots.plots)
    first.setFocus()
    QTest.keyClick(first, Qt.Key.Key_Down)
    assert second.hasFocus()
    QTest.keyClick(second, Qt.Key.Key_Right)
    assert second.hasFocus()
    QTest.keyClick(second, Qt.Key.Key_Up)
    QTest.keyClick(first, Qt.Key.Key_Up)
    assert last.hasFocus() and [canvas for canvas in stops(window) if isinstance(canvas, Canvas)] == [last]
    QTest.mouseClick(second.viewport(), Qt.MouseButton.LeftButton)
    assert second.hasFocus()


def stops(window: QWidget) -> list[QWidget]:
    """What the Tab key comes to, in its order."""
    found = []
    widget = window.nextInFocusChain()
    while widget is not window:
        tabbed = widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        if tabbed and widget.isVisible() and widget.isEnabled() and widget.focusProxy() is None:
            found.append(widget)
        widget = widget.nextInFocusChain()
    return found


def name_of(widget: QWidget) -> str:
    """What a screen reader says of it: its name, else its label or the words on it, never its value."""
    if widget.accessibleName():
        return widget.accessibleName()
    for label in widget.window().findChildren(QLabel):
        if label.buddy() is widget:
            return label.text()
    if isinstance(widget, QAbstractButton):
        return widget.text()
    return ""


def test_the_tab_key_has_few_stops_and_each_has_a_name_and_a_role(window: MainWindow) -> None:
    found = stops(window)
    assert [widget for widget in found if not name_of(widget)] == []
    roles = [QAccessible.queryAccessibleInterface(widget).role() for widget in found]
    assert QAccessible.Role.NoRole not in roles
    assert len(found) <= MOST_STOPS, [f"{type(widget).__name__} {name_of(widget)}" for widget in found]


def test_no_list_is_named_by_its_value(window: MainWindow) -> None:
    choices = [widget for widget in window.findChildren(QComboBox) if widget.isVisible()]
    assert choices
    assert [choice.currentText() for choice in choices if name_of(choice) in ("", choice.currentText())] == []


def test_every_target_is_as_large_as_a_finger_needs_or_stands_alone(window: MainWindow) -> None:
    places = {widget: _place(window, widget) for widget in _targets(window)}
    assert len(places) > 20
    narrow = [widget for widget, place in places.items() if min(place.width(), place.height()) < LEAST_TARGET]
    crowded = [
        f"{type(widget).__name__} {name_of(widget)}"
        for widget in narrow
        for other, place in places.items()
        if other is not widget and _distance(places[widget].center(), place) < LEAST_TARGET / 2
    ]
    assert crowded == []


@pytest.mark.parametrize("shown", ["script", "out of memory", "explanation"])
def test_what_is_clicked_of_a_script_and_of_a_full_memory_is_large_enough_and_named(
    open_window: OpenWindow, shown: str, tmp_path: Path
) -> None:
    session = explained.Session()
    window = open_window(session, size=(1280, 800))
    dashboard = window.workspace.dashboard
    if shown == "script":
        script = tmp_path / "train.py"
        script.write_text("import torch")
        dashboard.panel.take_script(script)
        dashboard.panel.script.simulate.set_card("1 GiB")
        settle(window)
        assert len(stops(window)) <= MOST_STOPS
        dashboard.panel.script.more.setChecked(True)
    else:
        explained.failed(session)
        settle(window)
    if shown == "explanation":
        dashboard.explanation.show_newest()
    settle(window)
    places = {f"{type(widget).__name__} {name_of(widget)}": _place(window, widget) for widget in _targets(window)}
    assert len(places) > 8
    small = {name: place for name, place in places.items() if min(place.width(), place.height()) < LEAST_TARGET}
    assert small == {}
    assert mute(window) == []
    assert [widget for widget in stops(window) if not name_of(widget)] == []
    more = 3 if shown == "script" else 0  # fields that the user has unfolded
    assert len(stops(window)) <= MOST_STOPS + more


def _targets(window: MainWindow) -> Iterator[QWidget]:
    for kind in (QAbstractButton, QComboBox, QLineEdit):
        for widget in window.findChildren(kind):
            inside = isinstance(widget.parent(), QComboBox)  # a list that is typed into
            if not inside and not widget.visibleRegion().isEmpty():
                yield widget


def _place(window: MainWindow, widget: QWidget) -> QRect:
    return QRect(widget.mapTo(window, QPoint(0, 0)), widget.size())


def _distance(centre: QPoint, place: QRect) -> float:
    """Logical pixels from a point to a rectangle; 0 inside."""
    near = QPointF(
        min(max(centre.x(), place.left()), place.right()),
        min(max(centre.y(), place.top()), place.bottom()),
    )
    away = QPointF(centre) - near
    return float((away.x() ** 2 + away.y() ** 2) ** 0.5)
