"""What the mouse does in a plot: drag selects, middle or Shift+drag pans, the wheel zooms, right click is the menu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from PySide6.QtCore import QObject, QPoint, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QMouseEvent, QWheelEvent

from gpudash.ui.plots.axes import Geometry
from gpudash.ui.plots.view import TimeView

EDGE_PX = 5.0
"""How near to an edge of the selection the pointer grips it."""

CLICK_PX = 4.0
"""A press that moves less than this is a click."""

NOTCH = 120.0
"""Wheel delta of one notch (Qt: eighths of a degree, 15 degrees a notch)."""

ZOOM_PER_NOTCH = 0.8


class Plot(Protocol):
    """What a gesture needs of its plot."""

    @property
    def geometry_now(self) -> Geometry | None: ...

    def zoom_y(self, factor: float, anchor_px: float) -> None: ...


@dataclass(slots=True)
class _Drag:
    kind: str
    start_x: float
    anchor_s: float
    last_x: float
    moved: bool = False


class Gestures(QObject):
    """Turns mouse events of one canvas into moves of the shared view.

    Signals:
        menu_requested: a global position.
        area_resized: the canvas has another size.
        y_zoomed: the left axis was zoomed.
    """

    menu_requested = Signal(QPoint)
    area_resized = Signal()
    y_zoomed = Signal()

    def __init__(self, view: TimeView, plot: Plot, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._view = view
        self._plot = plot
        self._drag: _Drag | None = None

    def resized(self) -> None:
        self.area_resized.emit()

    def press(self, event: QMouseEvent) -> None:
        geometry = self._plot.geometry_now
        event.accept()
        if geometry is None:
            return
        x = event.position().x()
        shift = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        left = event.button() is Qt.MouseButton.LeftButton
        if event.button() is Qt.MouseButton.MiddleButton or (left and shift):
            self._drag = _Drag("pan", x, geometry.time_at(x), x)
        elif left:
            edge = self._edge_under(geometry, x)
            anchor = geometry.time_at(self._clamped(geometry, x)) if edge is None else edge
            self._drag = _Drag("select", x, anchor, x, moved=edge is not None)

    def move(self, event: QMouseEvent) -> None:
        geometry = self._plot.geometry_now
        event.accept()
        if geometry is None:
            return
        x = event.position().x()
        drag = self._drag
        if drag is not None and abs(x - drag.start_x) >= CLICK_PX:
            drag.moved = True
        if drag is not None and drag.moved and drag.kind == "pan":
            self._view.pan((drag.last_x - x) * geometry.seconds_per_pixel)
            drag.last_x = x
        elif drag is not None and drag.moved:
            self._view.select(drag.anchor_s, geometry.time_at(self._clamped(geometry, x)))
        inside = geometry.area.left() <= x <= geometry.area.right()
        self._view.set_cursor(geometry.time_at(x) if inside else None)

    def release(self, event: QMouseEvent) -> None:
        event.accept()
        self._drag = None
        self._view.settle()

    def double_click(self, event: QMouseEvent) -> None:
        event.accept()
        self._drag = None
        if event.button() is Qt.MouseButton.LeftButton:
            self._view.zoom_to_selection()

    def wheel(self, event: QWheelEvent) -> None:
        geometry = self._plot.geometry_now
        event.accept()
        if geometry is None:
            return
        delta, sideways = event.angleDelta().y() / NOTCH, event.angleDelta().x() / NOTCH
        modifiers = event.modifiers()
        if modifiers & Qt.KeyboardModifier.ShiftModifier:
            self._view.pan(-(delta or sideways) * self._view.window_s * 0.1)
        elif abs(sideways) > abs(delta):
            self._view.pan(-sideways * self._view.window_s * 0.1)
        elif modifiers & Qt.KeyboardModifier.ControlModifier:
            self._plot.zoom_y(ZOOM_PER_NOTCH**delta, event.position().y())
            self.y_zoomed.emit()
        elif delta:
            self._view.zoom(ZOOM_PER_NOTCH**delta, geometry.time_at(event.position().x()))

    def leave(self) -> None:
        if self._drag is None:
            self._view.set_cursor(None)

    def menu(self, event: QContextMenuEvent) -> None:
        event.accept()
        self.menu_requested.emit(event.globalPos())

    def _edge_under(self, geometry: Geometry, x: float) -> float | None:
        """The *other* edge of the selection, when ``x`` grips one; dragging moves the gripped one."""
        selection = self._view.selection
        if selection is None:
            return None
        distances = [abs(geometry.x_of(edge) - x) for edge in selection]
        nearest = distances.index(min(distances))
        return selection[1 - nearest] if distances[nearest] <= EDGE_PX else None

    @staticmethod
    def _clamped(geometry: Geometry, x: float) -> float:
        return min(max(x, geometry.area.left()), geometry.area.right())
