"""The drawing surface of one plot: its layers, its curves, its plot area and its mouse gestures.

It knows pixels and ranges, not the store. Dragging selects, a middle or Shift+drag pans, the wheel zooms, and a right
click opens the menu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyqtgraph
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFont,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPen,
    QResizeEvent,
    QTransform,
    QWheelEvent,
)
from PySide6.QtWidgets import QGraphicsItem, QGraphicsView, QSizePolicy, QStyleOptionGraphicsItem, QToolTip, QWidget

from gpudash.drawing.axes import Style
from gpudash.drawing.shaping import Floats, Points, dashes
from gpudash.telemetry.plots import CurveSpec
from gpudash.ui.colours import Palette
from gpudash.ui.plots.overlay import FAINT_ALPHA, PEN_STYLES, PlotOverlay
from gpudash.ui.plots.painting.dissolving import RibbonsLayer
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Bands, PlotFrame
from gpudash.ui.plots.prediction.copies import CopiesLayer
from gpudash.ui.plots.prediction.deviations import DeviationsLayer
from gpudash.ui.plots.prediction.ghost import GhostLayer, RunningGhostLayer
from gpudash.ui.plots.prediction.remedy import RemedyLayer
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.widgets.text_size import text_scale

EDGE_PX = 5.0
"""The pointer grips an edge of the selection within this distance."""

CLICK_PX = 4.0
"""A press that moves less than this counts as a click."""

NOTCH = 120.0
"""Wheel delta of one notch (Qt: eighths of a degree, 15 degrees a notch)."""

ZOOM_PER_NOTCH = 0.8


class Plot(Protocol):
    """What the gestures need from their plot."""

    @property
    def geometry_now(self) -> Geometry | None: ...

    def zoom_y(self, factor: float, anchor_px: float) -> None: ...


@dataclass(slots=True)
class Drag:
    """A drag in progress: what it does, where it began (canvas x and session time), and its last canvas x."""

    kind: str
    start_x: float
    anchor_s: float
    last_x: float
    moved: bool = False


class Gestures(QObject):
    """Turns the mouse events of one canvas into changes of the shared view.

    Signals:
        menu_requested: the menu was requested at this global position.
        area_resized: the canvas was resized.
        y_zoomed: the left axis was zoomed.
    """

    menu_requested = Signal(QPoint)
    area_resized = Signal()
    y_zoomed = Signal()

    def __init__(self, view: TimeView, plot: Plot, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._view = view
        self._plot = plot
        self._drag: Drag | None = None

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
        # The middle button, or Shift with the left one: a touchpad has no middle button.
        if event.button() is Qt.MouseButton.MiddleButton or (left and shift):
            self._drag = Drag("pan", x, geometry.time_at(x), x)
        elif left:
            edge = self._edge_under(geometry, x)
            if edge is None:
                anchor = geometry.time_at(self._clamped(geometry, x))
            else:
                anchor = edge
            # A press on an edge is a drag from its first pixel; anywhere else it may still turn out to be a click.
            self._drag = Drag("select", x, anchor, x, moved=edge is not None)

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
            self.drag_to(drag, geometry, x)
        # During a drag too: the readout follows the pointer while it selects.
        inside = geometry.area.left() <= x <= geometry.area.right()
        self._view.set_cursor(geometry.time_at(x) if inside else None)

    def drag_to(self, drag: Drag, geometry: Geometry, x: float) -> None:
        """Extend the drag to canvas ``x``; the left button is held."""
        self._view.select(drag.anchor_s, geometry.time_at(self._clamped(geometry, x)))

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
        # Touchpads and tilting wheels scroll sideways too; the stronger direction wins.
        elif abs(sideways) > abs(delta):
            self._view.pan(-sideways * self._view.window_s * 0.1)
        elif modifiers & Qt.KeyboardModifier.ControlModifier:
            self._plot.zoom_y(ZOOM_PER_NOTCH**delta, event.position().y())
            self.y_zoomed.emit()
        elif delta:
            self._view.zoom(ZOOM_PER_NOTCH**delta, geometry.time_at(event.position().x()))

    def leave(self) -> None:
        # During a drag the pointer may leave the canvas; the cursor then stays where it was.
        if self._drag is None:
            self._view.set_cursor(None)

    def menu(self, event: QContextMenuEvent) -> None:
        event.accept()
        self.menu_requested.emit(event.globalPos())

    def _edge_under(self, geometry: Geometry, x: float) -> float | None:
        """The *other* edge of the selection if ``x`` grips one: dragging moves only the gripped one."""
        selection = self._view.selection
        if selection is None:
            return None
        distances = [abs(geometry.x_of(edge) - x) for edge in selection]
        nearest = distances.index(min(distances))
        if distances[nearest] <= EDGE_PX:
            return selection[1 - nearest]
        return None

    @staticmethod
    def _clamped(geometry: Geometry, x: float) -> float:
        return min(max(x, geometry.area.left()), geometry.area.right())


MIN_HEIGHT_PX, TIGHT_HEIGHT_PX = 84, 30
"""Minimum height of a canvas in logical pixels: normally, and when the stage cannot fit all plots at that height."""

DENSE = 1.5
"""Points per pixel column above which a curve is a comb of vertical strokes. Antialiasing it only costs time."""

WIDE_POINTS = 200
"""Points above which a pen wider than one device pixel is drawn without antialiasing (together they cost 60 times as
much) and as thin strokes side by side (a tenth of the cost of Qt's own wide strokes)."""

_EMPTY = np.empty(0)


def label_font(widget: QWidget) -> QFont:
    """The font of ticks and labels: slightly smaller than the widget's."""
    font = QFont(widget.font())
    font.setPointSizeF(max(7.0, font.pointSizeF() - 1.5))
    return font


class Line(pyqtgraph.PlotCurveItem):  # type: ignore[misc]
    """A curve whose bounds are the shown range. Computing the data's own bounds takes a fifth of each frame."""

    def __init__(self) -> None:
        self._shown = QRectF(0, 0, 1, 1)
        super().__init__(antialias=True, connect="finite", skipFiniteCheck=False)
        # The canvas itself handles the mouse (`Gestures`); items would intercept its presses.
        self.setAcceptedMouseButtons(Qt.MouseButton.NoButton)

    def set_shown(self, shown: QRectF) -> None:
        self.prepareGeometryChange()
        self._shown = shown

    def boundingRect(self) -> QRectF:
        return self._shown

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        pen, path = self.opts["pen"], self.getPath()
        width = pen.width()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, on=bool(self.opts["antialias"]))
        # A wide antialiased pen is used for few points only (`_set`), where its cost does not matter.
        if width == 1 or self.opts["antialias"]:
            painter.setPen(pen)
            painter.drawPath(path)
            return
        thin = QPen(pen)
        thin.setWidth(1)
        painter.setPen(thin)
        # Shift each stroke by one device pixel, right or down: side by side, thin strokes look like one wide pen.
        world, pixel = painter.worldTransform(), 1 / painter.device().devicePixelRatio()
        for across, down in [(0, 0), *((i, 0) for i in range(1, width)), *((0, i) for i in range(1, width))]:
            painter.setWorldTransform(world * QTransform.fromTranslate(across * pixel, down * pixel))
            painter.drawPath(path)


class Canvas(pyqtgraph.GraphicsView):  # type: ignore[misc]
    """The bands, frame, curves and overlay of one plot, and its plot area in pixels."""

    def __init__(
        self, curves: Sequence[CurveSpec], palette: Palette, gestures: Gestures, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent, useOpenGL=False, background=None)
        # pyqtgraph's central item would lay out the scene on each resize; `set_margins` places the layers and the box.
        self.setCentralWidget(None)
        self.setCacheMode(QGraphicsView.CacheModeFlag.CacheNone)
        # Every frame that scrolls changes everything: finding the changed regions costs more than it saves.
        self.setViewportUpdateMode(QGraphicsView.ViewportUpdateMode.FullViewportUpdate)
        self.setMinimumHeight(MIN_HEIGHT_PX)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.viewport().setCursor(Qt.CursorShape.CrossCursor)
        self._gestures = gestures
        self._palette = palette
        font = label_font(self)
        self.bands = Bands()
        self.ribbons = RibbonsLayer(font, palette)
        self.frame = PlotFrame(font, palette)
        self.overlay = PlotOverlay(font, palette)
        self.ghost = GhostLayer(font, palette, self)
        self.remedy = RemedyLayer(font, palette, self)
        self.copies = CopiesLayer(font, palette)
        self.deviations = DeviationsLayer(font, palette)
        self.running_ghost = RunningGhostLayer(palette)
        self.box = pyqtgraph.ViewBox(enableMenu=False, enableMouse=False)
        # The shared view sets the ranges, never the data of one plot.
        self.box.disableAutoRange()
        self.box.setDefaultPadding(0)
        # Above the bands, for runs overlaid on them, and below the grid. pyqtgraph would put it below everything.
        self.box.setZValue(-12)
        predicted = (self.running_ghost, self.ghost, self.remedy, self.copies, self.deviations)
        self._layers = (self.bands, self.ribbons, self.frame, *predicted, self.overlay)
        for item in (*self._layers, self.box):
            self.scene().addItem(item)
        self._raw: dict[str, Line] = {}
        self._bold: dict[str, Line] = {}
        self._area = QRectF()
        self._range: tuple[float, float, float, float] | None = None
        self.set_curves(curves)

    def sizeHint(self) -> QSize:
        return QSize(400, 120)

    @property
    def layers(self) -> list[QGraphicsItem]:
        """All layers from bottom to top: bands, frame and predictions, then curves, then the overlay and deviations."""
        below = (self.running_ghost, self.bands, self.frame, self.ghost, self.remedy, self.copies)
        return [*below, self.box, self.overlay, self.deviations]

    @property
    def area(self) -> QRectF:
        """The plot area in canvas pixels."""
        return self._area

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self.frame.set_palette(palette)
        self.ribbons.set_palette(palette)
        self.overlay.set_palette(palette)
        self.ghost.set_palette(palette)
        self.remedy.set_palette(palette)
        self.copies.set_palette(palette)
        self.deviations.set_palette(palette)
        self.running_ghost.set_palette(palette)

    def set_curves(self, curves: Sequence[CurveSpec]) -> None:
        """Create items for new curves, keep the others. Later curves lie above earlier ones, bold ones above all."""
        self._specs = {curve.name: curve for curve in curves}
        self._keep(self._raw, {curve.name for curve in curves if not curve.stack})
        self._keep(self._bold, {curve.name for curve in curves if curve.smoothed})
        for position, name in enumerate(self._specs):
            for items, above in ((self._raw, 0), (self._bold, len(self._specs))):
                if name in items:
                    items[name].setZValue(position + above)
        # New items have no bounds yet: the next `set_range` must update them.
        self._range = None

    def _keep(self, lines: dict[str, Line], names: set[str]) -> None:
        for name in lines.keys() - names:
            self.box.removeItem(lines.pop(name))
        for name in names - lines.keys():
            lines[name] = self._new_line()

    def set_margins(self, left: float, top: float, right: float, bottom: float) -> None:
        """Set the margins around the plot area."""
        area = QRectF(left, top, max(10.0, self.width() - left - right), max(10.0, self.height() - top - bottom))
        bounds = QRectF(0, 0, self.width(), self.height())
        for layer in self._layers:
            layer.set_bounds(bounds)
        if area != self._area:
            self._area = area
            self.box.setGeometry(area)

    def set_range(self, geometry: Geometry) -> None:
        """Show this range. The transform of the curves is updated only if the range changed."""
        wanted = (geometry.x_low, geometry.x_high, geometry.y_low, geometry.y_high)
        if wanted != self._range:
            self._range = wanted
            self.box.setRange(xRange=wanted[:2], yRange=wanted[2:], padding=0, disableAutoRange=True)
            shown = QRectF(wanted[0], wanted[2], wanted[1] - wanted[0], wanted[3] - wanted[2])
            for line in (*self._raw.values(), *self._bold.values()):
                line.set_shown(shown)

    def show_curve(self, name: str, points: Points | None, smoothed: Points | None, geometry: Geometry) -> None:
        """Draw a curve from axis values. With ``smoothed``, that line is bold over the faint raw samples."""
        spec = self._specs[name]
        colour = QColor(self._palette.curves[spec.colour])
        if name in self._bold:
            self._set(self._bold[name], smoothed, QPen(colour, max(2, spec.width)), spec.style, geometry)
            if smoothed is not None:
                colour.setAlphaF(0.35)
        if spec.faint:
            colour.setAlphaF(FAINT_ALPHA)
        # Dashes would hide whole bursts, and the faint raw samples under a dashed smoothed line are drawn solid.
        style = "solid" if smoothed is not None or spec.pulses else spec.style
        self._set(self._raw[name], points, QPen(colour, spec.width), style, geometry)

    def _new_line(self) -> Line:
        line = Line()
        # `ignoreBounds`: otherwise the view box asks each curve for its extent in every frame.
        self.box.addItem(line, ignoreBounds=True)
        return line

    def _set(self, line: Line, points: Points | None, pen: QPen, style: Style, geometry: Geometry) -> None:
        if points is None or not len(points[0]):
            if line.xData is not None and len(line.xData):
                line.setData(_EMPTY, _EMPTY)
            return
        # Set once, not in every frame: `setData` repaints the line.
        t, y = points
        connect: object = "finite"
        if style != "solid" and (pattern := dashes(t, geometry.seconds_per_pixel, style)) is not None:
            connect = _connected(pattern, y)
        # Dashes built from the points themselves need a solid pen, or each dash would be dashed again.
        else:
            pen.setStyle(PEN_STYLES[style])
        # Cosmetic, with a width in device pixels: the transform of the view box would stretch it with the data.
        pen.setWidth(max(1, round(pen.width() * self.devicePixelRatioF() * text_scale())))
        pen.setCosmetic(True)
        if pen != line.opts["pen"]:
            line.setPen(pen)
        smooth_edges = len(t) < (DENSE * self._area.width() if pen.width() == 1 else WIDE_POINTS)
        # Relative to now: the transform uses single precision, and seconds since the start of a long session would
        # lose digits.
        line.setData(t - geometry.origin_s, y, connect=connect, antialias=smooth_edges)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        # Qt sends this from the base class's constructor, before our attributes exist.
        if event.type() is QEvent.Type.FontChange and hasattr(self, "frame"):
            font = label_font(self)
            self.frame.set_font(font)
            self.ribbons.set_font(font)
            self.overlay.set_font(font)
            self.ghost.set_font(font)
            self.remedy.set_font(font)
            self.copies.set_font(font)
            self.deviations.set_font(font)

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        super().resizeEvent(event)
        # As above: the base class resizes itself in its constructor.
        gestures = getattr(self, "_gestures", None)
        if gestures is not None:
            gestures.resized()

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.ToolTip and isinstance(event, QHelpEvent) and hasattr(self, "deviations"):
            point = QPointF(event.pos())
            QToolTip.showText(
                event.globalPos(), plain_tip(self.deviations.text_at(point) or self.ribbons.text_at(point)), self
            )
            return True
        return bool(super().viewportEvent(event))

    def leaveEvent(self, event: QEvent) -> None:
        self._gestures.leave()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._gestures.press(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._gestures.move(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._gestures.release(event)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self._gestures.double_click(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        self._gestures.wheel(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        self._gestures.menu(event)

    # Keys belong to the window's commands; pyqtgraph's base class would consume some of them.
    def keyPressEvent(self, event: QKeyEvent) -> None:
        event.ignore()

    def keyReleaseEvent(self, event: QKeyEvent) -> None:
        event.ignore()

    def drawForeground(self, painter: QPainter, rect: QRectF) -> None:
        if self.hasFocus():
            painter.setPen(QPen(QColor(self._palette.accent), 1))
            painter.drawRect(self._area.adjusted(-0.5, -0.5, 0.5, 0.5))


def _connected(pattern: NDArray[np.int32], y: Floats) -> NDArray[np.int32]:
    """The dash pattern, also broken at gaps."""
    there = np.isfinite(y)
    # A segment joins a point to the next one: both must exist.
    joined = pattern.astype(bool) & there
    joined[:-1] &= there[1:]
    return joined.astype(np.int32)


def drawn(values: Floats, *, log: bool) -> Floats:
    """Values as the axis draws them: decimal logarithms if ``log``, NaN where there is no value."""
    if not log:
        return values
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(values > 0, np.log10(values), math.nan)
