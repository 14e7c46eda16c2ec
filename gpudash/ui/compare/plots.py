"""Plots over one shared axis, of runs or of GPUs: each of one quantity of several of them; and the letter,
colour and line style by which they are told apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyqtgraph
from PySide6.QtCore import QObject, QPointF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QGridLayout, QWidget

from gpudash.devices.names import shown_name
from gpudash.telemetry.comparing import MOST_RUNS, ComparedRun, Curve
from gpudash.telemetry.plots import Unit
from gpudash.ui.colours import Palette
from gpudash.ui.plots.axes import Autoscale, format_value, value_ticks
from gpudash.ui.plots.canvas import label_font
from gpudash.ui.widgets.labels import discard
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

_LINE = QSize(46, 14)


class LinePiece(QWidget):
    """A piece of the line that a run is drawn with."""

    def __init__(self, place: int, palette: Palette) -> None:
        super().__init__()
        self._place, self._palette = place, palette
        self.setFixedSize(_LINE)
        self.setAccessibleName(f"{LETTERS[place]} is {STYLE_TEXT[place]}")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        pen = run_pen(self._place, self._palette)
        pen.setWidth(2)
        painter.setPen(pen)
        painter.drawLine(2, self.height() // 2, self.width() - 2, self.height() // 2)


@dataclass(frozen=True, slots=True)
class LegendRow:
    """What stands behind a letter: its name, the name's tooltip, and more words."""

    name: str
    more: str
    tip: str = ""


class LetterLegend(QWidget):
    """One row a letter: the letter, a piece of its line, and what it stands for."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._rows: Sequence[LegendRow] = ()
        self._cells: list[QWidget] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(2)
        self._grid.setColumnStretch(3, 1)

    def show_rows(self, rows: Sequence[LegendRow]) -> None:
        """Tell these apart, the first as A."""
        self._rows = list(rows)
        discard(self._cells, self._grid)
        for place, row in enumerate(self._rows):
            letter, name, more = PlainLabel(LETTERS[place]), PlainLabel(row.name), PlainLabel(row.more)
            letter.setProperty("role", "figure-small")
            name.setToolTip(plain_tip(row.tip))
            more.setProperty("role", "muted")
            for column, widget in enumerate((letter, LinePiece(place, self._palette), name, more)):
                self._grid.addWidget(widget, place, column)
                self._cells.append(widget)

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        self.show_rows(self._rows)


def run_row(run: ComparedRun) -> LegendRow:
    """What stands behind the letter of a run: its recording, and how it ended."""
    status = run.view.status.replace("_", " ")
    return LegendRow(run.label, f"{run.view.workload} on {shown_name(run.view.device)}, {status}", run.recording)


LETTERS = "ABCDEF"

_CURVES = ("allocated", "loss", "h2d", "d2h", "link", "capacity")
"""Names in `Palette.curves` whose colours lie far apart, also for the colour-blind."""

_STYLES = (
    Qt.PenStyle.SolidLine,
    Qt.PenStyle.DashLine,
    Qt.PenStyle.DotLine,
    Qt.PenStyle.DashDotLine,
    Qt.PenStyle.DashDotDotLine,
    Qt.PenStyle.DashLine,
)

STYLE_TEXT = ("solid", "dashed", "dotted", "dash-dotted", "dash-dot-dotted", "dashed")


def run_colour(place: int, palette: Palette) -> str:
    """The colour of the run at ``place``, from 0."""
    return palette.curves[_CURVES[place % MOST_RUNS]]


def run_pen(place: int, palette: Palette, ratio: float = 1.0) -> QPen:
    """The pen of the run at ``place``, a logical pixel wide, since a wider one costs many times as much.

    Args:
        place: from 0.
        palette: colours in force.
        ratio: device pixels per pixel.
    """
    pen = QPen(QColor(run_colour(place, palette)), max(1, round(ratio)), _STYLES[place % MOST_RUNS])
    pen.setCosmetic(True)
    return pen


AXIS_PX = 62
"""Width of every value axis, so that the plots share their left edge."""

TICK_PX = 34.0
TIME_TICK_PX = 80.0

GRID_ALPHA = 0.5

ZOOM = 0.85
"""How much narrower one notch of the wheel makes the view."""

MIN_SPAN = 1e-3
"""Narrowest view, in seconds or steps."""


EDGE = 0.06
"""Share of an axis at either end: two ticks between tell its scale, one alone does not."""


class ValueAxis(pyqtgraph.AxisItem):  # type: ignore[misc]
    """An axis whose ticks are written as everywhere else."""

    def __init__(self, side: str, unit: Unit, unit_name: str = "") -> None:
        self.unit, self.unit_name = unit, unit_name
        self._text: dict[float, str] = {}
        super().__init__(side)
        self.enableAutoSIPrefix(False)  # the ticks carry their prefix

    def tickValues(self, low: float, high: float, size: float) -> list[tuple[float, list[float]]]:
        count = max(2, int(size / (TICK_PX if self.orientation == "left" else TIME_TICK_PX)))
        choices = [value_ticks(self.unit, low, high, n, unit_name=self.unit_name).marks for n in (count, 2 * count)]
        edge = EDGE * (high - low)  # a tick there has no room for its words
        inner = ([low + edge < place < high - edge for place, _text in marks].count(True) for marks in choices)
        self._text = dict(next((marks for marks, seen in zip(choices, inner, strict=True) if seen > 1), choices[-1]))
        marks = list(self._text)
        return [(marks[1] - marks[0] if len(marks) > 1 else 1.0, marks)]

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        return [self._text.get(value, "") for value in values]

    def name(self, low: float, high: float) -> str:
        """The unit in which the ticks of a range are written."""
        return value_ticks(self.unit, low, high, 5, unit_name=self.unit_name).name


class OverlayBox(pyqtgraph.ViewBox):  # type: ignore[misc]
    """The area of a plot: a drag moves the compared run, with Shift or the middle button the view; the wheel zooms.

    Signals:
        moved: the compared run was dragged by so much.
        panned: the view was dragged by so much.
        zoomed: factor and place.
        reset: everything is to be shown.
    """

    moved = Signal(float)
    panned = Signal(float)
    zoomed = Signal(float, float)
    reset = Signal()

    def __init__(self) -> None:
        super().__init__(enableMenu=False)
        self.setMouseEnabled(x=False, y=False)

    def wheelEvent(self, event: Any, axis: int | None = None) -> None:
        notches = event.delta() / 120
        self.zoomed.emit(ZOOM**notches, self.mapSceneToView(event.scenePos()).x())
        event.accept()

    def mouseDragEvent(self, event: Any, axis: int | None = None) -> None:
        event.accept()
        now, before = self.mapSceneToView(event.scenePos()), self.mapSceneToView(event.lastScenePos())
        pans = event.button() == Qt.MouseButton.MiddleButton or event.modifiers() & Qt.KeyboardModifier.ShiftModifier
        (self.panned if pans else self.moved).emit(now.x() - before.x())

    def mouseDoubleClickEvent(self, event: Any) -> None:
        event.accept()
        self.reset.emit()


class OverlayPlot(pyqtgraph.PlotWidget):  # type: ignore[misc]
    """A plot of several curves over one axis, and the heading that stands above it.

    Args:
        title: what is drawn.
        unit: how values are written.
        unit_name: what a "number" counts.
        signed: a difference, whose axis reaches below 0.

    Signals:
        hovered: the mouse points at this place of the axis; NaN when it left.
    """

    hovered = Signal(float)

    def __init__(
        self, title: str, unit: Unit, unit_name: str = "", *, signed: bool = False, parent: QWidget | None = None
    ) -> None:
        self.box = OverlayBox()
        self.values = ValueAxis("left", unit, unit_name)
        self.places = ValueAxis("bottom", "number")
        super().__init__(parent, viewBox=self.box, axisItems={"left": self.values, "bottom": self.places})
        self.unit, self.unit_name = unit, unit_name
        self.heading = PlainLabel(role="title")
        self.heading.setContentsMargins(AXIS_PX, 0, 0, 0)
        self.set_title(title)
        self._signed = signed
        self._items: list[Any] = []
        self.shown: list[Curve] = []
        self.hideButtons()
        self.setMinimumHeight(90)
        self.values.setWidth(AXIS_PX)
        self.cursor = pyqtgraph.InfiniteLine(angle=90, movable=False)
        self.zero = pyqtgraph.InfiniteLine(pos=0, angle=0, movable=False)
        for line in (self.cursor, self.zero):
            line.hide()
            self.addItem(line, ignoreBounds=True)
        self.zero.setVisible(signed)
        self.scene().sigMouseMoved.connect(self._mouse_moved)

    @property
    def columns(self) -> int:
        """Pixel columns to thin for."""
        return max(50, round(float(self.box.width())))

    def set_appearance(self, palette: Palette, *, shows_places: bool) -> None:
        """Colours, and whether this plot carries the words of the shared axis."""
        self.setBackground(palette.panel)
        font = label_font(self)
        for axis in (self.values, self.places):
            axis.setPen(QPen(QColor(palette.border)))
            axis.labelStyle["font-size"] = f"{font.pointSizeF():g}pt"
            axis.setTextPen(QColor(palette.muted))
            axis.setTickFont(font)
        self.places.setStyle(showValues=shows_places)
        self.places.setHeight(None if shows_places else 8)
        self.showGrid(x=True, y=True, alpha=GRID_ALPHA)
        self.cursor.setPen(pyqtgraph.mkPen(palette.muted, width=1))
        self.zero.setPen(pyqtgraph.mkPen(palette.muted, width=1, style=Qt.PenStyle.DotLine))

    def set_title(self, title: str) -> None:
        """Call the plot ``title``."""
        self.title = title
        self.heading.setText(title)
        self.setAccessibleName(title)

    def set_unit(self, unit: Unit, unit_name: str) -> None:
        """Write values otherwise."""
        self.unit, self.unit_name = unit, unit_name
        self.values.unit, self.values.unit_name = unit, unit_name

    def show_curves(self, curves: Sequence[Curve], pens: Sequence[QPen], low: float, high: float) -> None:
        """Draw ``curves`` from ``low`` to ``high``, the first on top."""
        while len(self._items) < len(curves):
            item = pyqtgraph.PlotCurveItem(antialias=True, connect="finite")
            item.setZValue(-len(self._items))
            self._items.append(item)
            self.addItem(item, ignoreBounds=True)
        self.shown = [curve.drawn(low, high, self.columns) if len(curve.x) else curve for curve in curves]
        for place, item in enumerate(self._items):
            there = place < len(curves)
            item.setVisible(there)
            if there:
                item.setPen(pens[place])
                item.setData(self.shown[place].x, self.shown[place].y)
        self.box.setXRange(low, high, padding=0)
        bottom, top = self._range(low, high)
        self.box.setYRange(bottom, top, padding=0)
        name = self.values.name(bottom, top)
        self.values.setLabel(name or None)

    def _range(self, low: float, high: float) -> tuple[float, float]:
        inside = [curve.y[(curve.x >= low) & (curve.x <= high)] for curve in self.shown]
        values = np.concatenate([*inside, np.empty(0)])
        values = values[np.isfinite(values)]
        if not len(values):
            return (-1.0, 1.0) if self._signed else (0.0, 1.0)
        least, most = float(values.min()), float(values.max())
        if self._signed:
            reach = max(abs(least), abs(most)) * 1.1 or 1.0
            return -reach, reach
        return Autoscale(self.unit).update(least, most, 0.0)

    def label(self, value: float) -> str:
        """A value, written as everywhere else."""
        return format_value(self.unit, value, self.unit_name)

    def text_at(self, place: float, curves: Sequence[Curve]) -> str:
        """The values of ``curves`` at ``place``, each behind its letter."""
        reported = [f"{letter} {self.label(curve.at(place))}" for letter, curve in zip(LETTERS, curves, strict=False)]
        return f"{self.title.lower()}: {', '.join(reported)}"

    def set_cursor(self, place: float) -> None:
        """Draw the cursor line at ``place``; NaN takes it away."""
        self.cursor.setVisible(not math.isnan(place))
        if not math.isnan(place):
            self.cursor.setPos(place)

    def _mouse_moved(self, position: QPointF) -> None:
        inside = self.box.sceneBoundingRect().contains(position)
        self.hovered.emit(self.box.mapSceneToView(position).x() if inside else math.nan)

    def leaveEvent(self, event: Any) -> None:
        super().leaveEvent(event)
        self.hovered.emit(math.nan)


class SharedAxis(QObject):
    """The axis that several plots share: the part of it that is shown, and the cursor.

    Args:
        bounded: whether the view stays within the whole.

    Signals:
        changed: another part is shown.
        pointed: the cursor is at this place; NaN for nowhere.

    Attributes:
        span: the part that is shown.
        whole: what `show_all` shows.
        cursor: its place; NaN for nowhere.
    """

    changed = Signal()
    pointed = Signal(float)

    def __init__(self, *, bounded: bool = False, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bounded, self._least = bounded, MIN_SPAN
        self.whole = self.span = (0.0, 1.0)
        self.cursor = math.nan

    def listen(self, plot: OverlayPlot) -> None:
        """Let the mouse in ``plot`` move the view and the cursor of all plots."""
        plot.box.zoomed.connect(self.zoom)
        plot.box.panned.connect(self.pan)
        plot.box.reset.connect(self.show_all)
        plot.hovered.connect(self.point)
        self.pointed.connect(plot.set_cursor)

    def set_whole(self, low: float, high: float, least: float | None = None) -> None:
        """Take this for everything there is; the view stays where it is until `show_all`."""
        self._least = self._least if least is None else least
        self.whole = (low, max(high, low + self._least))

    def show_all(self) -> None:
        """Show everything there is."""
        self._show(*self.whole)

    def zoom(self, factor: float, place: float) -> None:
        """Make the shown part ``factor`` times as wide around ``place``."""
        low, high = self.span
        factor = max(factor, self._least / (high - low))
        low, high = place - (place - low) * factor, place + (high - place) * factor
        if self._bounded:
            low, high = max(low, self.whole[0]), min(high, self.whole[1])
        self._show(low, high)

    def pan(self, by: float) -> None:
        """Move what is shown ``by`` so much to the right, as the mouse drags it."""
        low, high = self.span
        if self._bounded:
            by = -min(max(-by, self.whole[0] - low), self.whole[1] - high)
        self._show(low - by, high - by)

    def point(self, place: float) -> None:
        """Put the cursor at ``place``; NaN takes it away."""
        self.cursor = place
        self.pointed.emit(place)

    def _show(self, low: float, high: float) -> None:
        self.span = (low, high)
        self.changed.emit()
