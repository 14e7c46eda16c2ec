"""What somebody without a mouse, or with a screen reader, meets in the window."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import (
    QAbstractButton,
    QComboBox,
    QLabel,
    QLineEdit,
    QWidget,
)

from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, simulated_gpu

MOST_STOPS = 20
"""Of the Tab key, in the window that opens: nine of them fields of the default workload."""

LEAST_TARGET = 24
"""Logical pixels of what is clicked, or of the room that it has for itself (WCAG 2.2, 2.5.8)."""


@pytest.fixture(params=["first screen", "form"])
def window(open_window: OpenWindow, request: pytest.FixtureRequest) -> MainWindow:
    """The window as it opens, and with the form of the default workload."""
    session = FakeSession([simulated_gpu(0, 8 * GIB)]).feed(5.0)
    opened = open_window(session, size=(1280, 800), first_screen=request.param == "first screen")
    settle(opened)
    return opened


def stops(window: MainWindow) -> list[QWidget]:
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
