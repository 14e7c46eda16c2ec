"""Paints a scene in the window, with a style for each kind of item; `gpudash.drawing.svg` does the same for pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyqtgraph import functions
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from gpudash.drawing.scene import (
    Floats,
    Item,
    PlotScene,
    SceneArea,
    SceneAxis,
    SceneBand,
    SceneCurve,
    SceneDot,
    SceneFrame,
    SceneLevel,
    SceneMark,
    SceneNote,
    SceneRibbons,
    outline,
    pieces,
)
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedWidget

DrawScene = Callable[[SceneFrame, Callable[[float], float]], PlotScene]
"""Makes a scene that fills a frame. Its second argument scales lengths in pixels."""

TICK_GAP_PX = 6.0
"""Gap between an axis and its tick labels."""


@dataclass(frozen=True, slots=True)
class ItemStyle:
    """How to paint the items of one kind.

    Attributes:
        colour: "#rrggbb".
        width: line width in logical pixels.
        dashes: alternating lengths of dashes and gaps in line widths; empty for a solid line.
        fill: opacity of areas and bands, from 0 to 1.
        bold: whether text is bold.
    """

    colour: str
    width: float = 1.0
    dashes: Sequence[float] = ()
    fill: float = 1.0
    bold: bool = False


class SceneWidget(PaintedWidget):
    """A scene that is made for the current size of the widget.

    Args:
        palette: the colours in use.
        styles: a style for every kind of item in the scene.
        margins: around the plot area, in pixels at the default text size.
    """

    def __init__(
        self,
        palette: Palette,
        styles: Callable[[Palette], Mapping[str, ItemStyle]],
        margins: SceneFrame,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(palette, parent)
        self._styles = styles
        self._margins = margins
        self._draw: DrawScene | None = None
        self.setMinimumHeight(90)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def show_scene(self, name: str, description: str, draw: DrawScene) -> None:
        """Paint the scene that ``draw`` makes of a frame. The name and the description go to screen readers."""
        self._draw = draw
        self.setAccessibleName(name)
        self.setAccessibleDescription(description)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(400, 180)

    @property
    def scene(self) -> PlotScene | None:
        """The scene that is painted; ``None`` before the first `show_scene`."""
        if self._draw is None:
            return None
        margins = self._margins
        around = (scaled(margins.left), scaled(margins.right), scaled(margins.top), scaled(margins.bottom))
        return self._draw(SceneFrame(self.width(), self.height(), *around), scaled)

    def paintEvent(self, event: QPaintEvent) -> None:
        scene = self.scene
        if scene is None:
            return
        painter = QPainter(self)
        font = QFont(self.font())
        font.setPixelSize(scaled(11))
        painter.setFont(font)
        paint_scene(painter, scene, self._styles(self._palette), self._palette)
        painter.end()


def paint_scene(painter: QPainter, scene: PlotScene, styles: Mapping[str, ItemStyle], palette: Palette) -> None:
    """Paint axes and items with the painter's font. The frame starts at the painter's origin.

    Args:
        styles: a style for every kind in the scene; the grid, ticks and text without a kind use the palette.
    """
    usual = {"grid": ItemStyle(palette.grid), "": ItemStyle(palette.muted)}
    _ScenePainter(painter, scene, {**usual, **styles}, palette).paint()


class _ScenePainter:
    def __init__(self, painter: QPainter, scene: PlotScene, styles: Mapping[str, ItemStyle], palette: Palette) -> None:
        self._painter = painter
        self._scene = scene
        self._styles = styles
        self._palette = palette
        frame = scene.frame
        across, down = frame.width - frame.left - frame.right, frame.height - frame.top - frame.bottom
        self._plot = QRectF(frame.left, frame.top, across, down)

    def paint(self) -> None:
        painter = self._painter
        painter.save()
        self._paint_axes()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        # half of a line at the edge lies outside and must stay visible
        painter.setClipRect(self._plot.adjusted(-1, -1, 1, 1))
        for item in self._scene.items:
            if not isinstance(item, SceneNote | SceneDot):
                self._paint(item)
        painter.setClipping(False)
        # texts and rings lie over the lines and may leave the plot area
        for item in self._scene.items:
            if isinstance(item, SceneNote | SceneDot):
                self._paint(item)
        painter.restore()

    def _paint_axes(self) -> None:
        painter, scene, plot = self._painter, self._scene, self._plot
        metrics = painter.fontMetrics()
        line = metrics.height()
        self._take(self._styles["grid"])
        for value, _label in scene.left.ticks:
            y = float(scene.y(value))
            painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        painter.setPen(QColor(self._styles[""].colour))
        middle = Qt.AlignmentFlag.AlignVCenter
        for value, label in scene.left.ticks:
            box = QRectF(0, float(scene.y(value)) - line / 2, plot.left() - TICK_GAP_PX, line)
            painter.drawText(box, Qt.AlignmentFlag.AlignRight | middle, label)
        for value, label in () if scene.right is None else scene.right.ticks:
            y = float(scene.y(value, scene.right))
            box = QRectF(plot.right() + TICK_GAP_PX, y - line / 2, scene.frame.right, line)
            painter.drawText(box, Qt.AlignmentFlag.AlignLeft | middle, label)
        for place, label in scene.across.ticks:
            wide = metrics.horizontalAdvance(label)
            # a label at either end of the axis stays within the frame
            left = min(max(float(scene.x(place)) - wide / 2, 0.0), scene.frame.width - wide)
            painter.drawText(QPointF(left, plot.bottom() + line), label)

    def _paint(self, item: Item) -> None:
        painter, scene, plot = self._painter, self._scene, self._plot
        match item:
            case SceneCurve():
                self._take(self._styles[item.kind])
                for x, y in pieces(item.x, item.y):
                    painter.drawPolyline(_polygon(scene.x(x), scene.y(y, self._axis(item))))
            case SceneArea():
                self._fill(self._styles[item.kind])
                axis = self._axis(item)
                zero = np.repeat(scene.y(0.0, axis), 2)
                for x, y in pieces(item.x, item.y):
                    across = scene.x(x)
                    ends = across[[-1, 0]]
                    shape = np.concatenate((across, ends)), np.concatenate((scene.y(y, axis), zero))
                    painter.drawPolygon(_polygon(*shape))
            case SceneBand():
                self._fill(self._styles[item.kind])
                left = float(scene.x(item.start))
                painter.drawRect(QRectF(left, plot.top(), float(scene.x(item.end)) - left, plot.height()))
            case SceneLevel():
                self._take(self._styles[item.kind])
                level = float(scene.y(item.value))
                painter.drawLine(QPointF(plot.left(), level), QPointF(plot.right(), level))
            case SceneMark():
                self._take(self._styles[item.kind])
                place = float(scene.x(item.place))
                painter.drawLine(QPointF(place, plot.top()), QPointF(place, plot.bottom()))
            case SceneRibbons():
                low = np.zeros(len(item.x) - 1)
                for high, kind in zip(item.tops, item.kinds, strict=True):
                    self._fill(self._styles[kind])
                    for x, y in outline(item.x, low, high):
                        painter.drawPolygon(_polygon(scene.x(x), scene.y(y)))
                    low = high
            case SceneDot():
                self._take(self._styles[item.kind])
                painter.setBrush(QColor(self._palette.panel))
                at = QPointF(float(scene.x(item.place)), float(scene.y(item.value)))
                painter.drawEllipse(at, item.radius, item.radius)
            case SceneNote():
                self._paint_note(item)

    def _paint_note(self, note: SceneNote) -> None:
        painter, style = self._painter, self._styles[note.kind]
        font = painter.font()
        written = painter.font()
        written.setBold(style.bold)
        painter.setFont(written)
        painter.setPen(QColor(style.colour))
        wide = painter.fontMetrics().horizontalAdvance(note.text)
        shift = {"start": 0.0, "middle": wide / 2, "end": float(wide)}[note.anchor]
        x = float(self._scene.x(note.place)) + note.right - shift
        painter.drawText(QPointF(x, float(self._scene.y(note.value)) + note.down), note.text)
        painter.setFont(font)

    def _axis(self, item: SceneCurve | SceneArea) -> SceneAxis:
        if item.right and self._scene.right is not None:
            return self._scene.right
        return self._scene.left

    def _take(self, style: ItemStyle) -> None:
        """Set up the painter for lines without fill."""
        pen = QPen(QColor(style.colour), style.width)
        if style.dashes:
            pen.setDashPattern(list(style.dashes))
        self._painter.setPen(pen)
        self._painter.setBrush(Qt.BrushStyle.NoBrush)

    def _fill(self, style: ItemStyle) -> None:
        """Set up the painter for fills without lines."""
        colour = QColor(style.colour)
        colour.setAlphaF(style.fill)
        self._painter.setPen(Qt.PenStyle.NoPen)
        self._painter.setBrush(colour)


def _polygon(x: Floats, y: Floats) -> QPolygonF:
    shape: QPolygonF = functions.arrayToQPolygonF(x, y)
    return shape
