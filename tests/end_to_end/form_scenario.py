"""A hand on the form of the real window: the wheel over every field, and typing into each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, QPoint
from PySide6.QtGui import QWindow
from PySide6.QtWidgets import (
    QAbstractButton,
    QCheckBox,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QScrollArea,
    QWidget,
)

from gpudash.telemetry.runs import WATCH
from gpudash.ui.forms.spec_form import SpecForm
from tests.end_to_end.hand import hand, laid_out
from tests.end_to_end.player import Player, Steps

if TYPE_CHECKING:
    from gpudash.ui.forms.workload_panel import WorkloadPanel

TYPED = "7,x9"


class _Heard(QObject):
    """Counts what the window system has told the window."""

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self.wheels = self.releases = 0
        handle = window.windowHandle()
        assert isinstance(handle, QWindow)
        handle.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        self.wheels += event.type() == QEvent.Type.Wheel
        self.releases += event.type() == QEvent.Type.KeyRelease
        return False


def form(player: Player) -> Steps:
    """Every field of a script and of a training: the wheel without and with the focus, then some keys."""
    window, panel = player.window, player.window.workspace.dashboard.panel
    window.resize(1280, 800)
    window.move(0, 0)
    yield window.isActiveWindow
    heard, area = _Heard(window), panel.findChild(QScrollArea)
    assert area is not None
    player.seen.update(fields=0, typed=0, changed=[], moved=[], elsewhere=[], scrolled=False)
    for workload in (WATCH, "training"):
        panel.workload.setCurrentIndex(panel.workload.findData(workload))
        for part in panel.findChildren(SpecForm):
            part.more.setChecked(True)
        yield laid_out()
        for field in _fields(panel):
            yield from _bring(area, panel, field)
            yield from _turn_over(player, panel, area, field, heard)
            yield from _bring(area, panel, field)
            if isinstance(field, QLineEdit | QPlainTextEdit) and field.isEnabled():
                yield from _type_into(player, panel, field, heard)
    player.picture("form")


def _turn_over(player: Player, panel: WorkloadPanel, area: QScrollArea, field: QWidget, heard: _Heard) -> Steps:
    before, scrolled = _held(panel), area.verticalScrollBar().value()
    yield from _turn(panel, field, "5", heard)
    player.seen["scrolled"] |= area.verticalScrollBar().value() != scrolled
    yield from _bring(area, panel, field)
    if isinstance(field, QLineEdit | QPlainTextEdit):
        yield from _hand(field, ["click", "1"])
    else:
        field.setFocus()
    yield from _turn(panel, field, "4", heard)
    player.seen["fields"] += 1
    if _held(panel) != before:
        player.seen["changed"].append(f"{panel.workload.currentText()}: {field.accessibleName()}")


def _turn(panel: WorkloadPanel, field: QWidget, way: str, heard: _Heard) -> Steps:
    """One notch over ``field``; another one where a tooltip that was about to go has taken it."""
    wheels = heard.wheels
    while heard.wheels == wheels:
        yield from _hand(field, ["click", way])
        yield laid_out()


def _type_into(player: Player, panel: WorkloadPanel, field: QLineEdit | QPlainTextEdit, heard: _Heard) -> Steps:
    name = f"{panel.workload.currentText()}: {field.accessibleName() or field.parent()}"
    others = {other: text for other, text in _held(panel).items() if other not in (field, field.parent())}
    place, releases = field.mapToGlobal(QPoint(0, 0)), heard.releases
    yield from _hand(field, ["click", "1", "type", TYPED])
    yield lambda: heard.releases >= releases + len(TYPED)
    player.seen["typed"] += 1
    text = field.toPlainText() if isinstance(field, QPlainTextEdit) else field.text()
    changed = [now for other, now in _held(panel).items() if now != others.get(other, now)]
    if TYPED not in text or changed:
        player.seen["elsewhere"].append(f"{name} holds {text!r}, others changed to {changed}")
    if field.mapToGlobal(QPoint(0, 0)) != place:
        player.seen["moved"].append(name)
    field.undo()
    yield laid_out()


def _bring(area: QScrollArea, panel: WorkloadPanel, field: QWidget) -> Steps:
    """Scroll a field of the form to the middle, where the verdict at the edge does not cover it."""
    yield laid_out()  # the line of an error that has been corrected closes first
    if area.isAncestorOf(field):
        # Not ensureWidgetVisible, which leaves a field alone that lies within the viewport, covered or not.
        middle = field.mapTo(area.viewport(), field.rect().center()).y()
        bar = area.verticalScrollBar()
        bar.setValue(bar.value() + middle - area.viewport().height() // 2)
    yield laid_out()


def _hand(field: QWidget, deeds: Sequence[str]) -> Steps:
    """Let the mouse go to the middle of ``field`` and do something there."""
    yield from hand(field.mapToGlobal(field.rect().center()), deeds)


def _fields(panel: WorkloadPanel) -> list[QWidget]:
    kinds: tuple[type[QWidget], ...] = (QComboBox, QLineEdit, QPlainTextEdit, QCheckBox)
    found = [field for kind in kinds for field in panel.findChildren(kind)]
    return [field for field in found if field.isVisible() and not isinstance(field.parent(), QComboBox)]


def _held(panel: WorkloadPanel) -> dict[QWidget, str | bool]:
    """What stands in every field."""
    held: dict[QWidget, str | bool] = {}
    for field in _fields(panel):
        if isinstance(field, QAbstractButton):
            held[field] = field.isChecked()
        elif isinstance(field, QComboBox):
            held[field] = field.currentText()
        elif isinstance(field, QPlainTextEdit):
            held[field] = field.toPlainText()
        elif isinstance(field, QLineEdit):
            held[field] = field.text()
    return held
