"""The plots of a comparison: loss, throughput and memory of every run over one axis, and a difference below.

One plot of an overlay: the same quantity of several runs, or the difference of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyqtgraph
from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QColor, QPen
from PySide6.QtWidgets import QComboBox, QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from gpudash.telemetry.comparing import ComparedRun, Curve
from gpudash.telemetry.comparing.alignment import MEMORY, Alignment, Quantity, aligned, shared_memory
from gpudash.telemetry.comparing.curves import EMPTY, difference
from gpudash.telemetry.comparing.words import MINUS
from gpudash.telemetry.plots import Unit
from gpudash.ui.colours import Palette
from gpudash.ui.compare.legend import LETTERS, run_pen
from gpudash.ui.plots.axes import Autoscale, value_ticks
from gpudash.ui.plots.canvas import label_font
from gpudash.ui.plots.curve import format_value
from gpudash.ui.widgets.plain_text import PlainLabel

APART = "A and B have no common part: drag B over A."
"""What is said instead while there is nothing to subtract."""

HINT = "Drag moves B · Shift+drag pans · wheel zooms"

_PLAIN: dict[Quantity, tuple[str, Unit, str]] = {
    "loss": ("LOSS", "loss", ""),
    "accuracy": ("ACCURACY", "ratio", ""),
    "throughput": ("THROUGHPUT", "number", "items/s"),
}

_WHERE = {"start": "seconds from the start", "step": "steps", "mark": "seconds from the mark"}


@dataclass(frozen=True, slots=True)
class Laying:
    """How runs are laid over one another.

    Attributes:
        alignment: what is laid over what.
        mark: label of the mark, for "mark".
        offset: how far B is moved to the right, in seconds or steps.
    """

    alignment: Alignment = "start"
    mark: str = ""
    offset: float = 0.0


class Overlay(QFrame):
    """The plots under one another."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self._palette = palette
        self._runs: Sequence[ComparedRun] = ()
        self._laying = Laying()
        self._span: tuple[float, float] | None = None
        self._cursor = math.nan
        self._dirty = True
        self._drawn_columns = 0
        self._curves: dict[Quantity, list[Curve]] = {}
        self.plots: dict[Quantity, OverlayPlot] = {}
        self.difference = OverlayPlot(MINUS.upper(), "loss", signed=True)
        self.difference.setMinimumHeight(120)
        self.quantity = QComboBox()
        self.quantity.setAccessibleName("Quantity whose difference is drawn")
        self.quantity.setToolTip("What the lowest plot subtracts")
        self.quantity.currentIndexChanged.connect(lambda _row: self.touch())
        self.readout = PlainLabel()
        self.readout.setProperty("role", "muted")
        self.readout.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.readout.setWordWrap(True)
        self.readout.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.readout.setMinimumHeight(2 * self.readout.fontMetrics().lineSpacing())
        self.nothing = PlainLabel(
            "Neither loss, throughput nor memory was recorded of these runs; the figures are at the right."
        )
        self.nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.nothing.setWordWrap(True)
        self.nothing.setProperty("role", "muted")
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(6, 4, 10, 6)
        self._column.setSpacing(2)
        self._column.addWidget(self.nothing, 1)
        self._column.addWidget(self._chooser())
        self._column.addWidget(self.difference, 3)
        self._column.addWidget(self.readout)
        self._listen(self.difference)

    def _chooser(self) -> QWidget:
        self._chooser_row = QWidget()
        row = QHBoxLayout(self._chooser_row)
        row.setContentsMargins(4, 2, 0, 0)
        words = PlainLabel(f"{MINUS} of")
        words.setProperty("role", "muted")
        row.addWidget(words)
        row.addWidget(self.quantity)
        self.hint = PlainLabel(HINT)
        self.hint.setProperty("role", "legend")
        self.hint.setToolTip("A double click shows everything again")
        self.hint.setWordWrap(True)
        self.hint.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.hint.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        row.addWidget(self.hint, 1)
        return self._chooser_row

    def _listen(self, plot: OverlayPlot) -> None:
        plot.box.zoomed.connect(self.zoom)
        plot.box.panned.connect(self._pan)
        plot.box.reset.connect(self.show_all)
        plot.hovered.connect(self.set_cursor)

    def set_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Show these runs from now on, the first as A."""
        self._runs = list(runs)
        memory = shared_memory(self._runs)
        wanted: list[Quantity] = [name for name in ("loss", "throughput") if any(self._has(run, name) for run in runs)]
        if memory is not None:
            wanted.append(memory)
        for plot in self.plots.values():
            for gone in (plot.heading, plot):
                self._column.removeWidget(gone)
                gone.deleteLater()
        self.plots = {}
        self.quantity.blockSignals(True)
        self.quantity.clear()
        for place, name in enumerate(wanted):
            title, unit, unit_name = _PLAIN.get(name, (f"MEMORY, {name.upper()}", "bytes", ""))
            plot = self.plots[name] = OverlayPlot(title, unit, unit_name)
            self._listen(plot)
            self._column.insertWidget(2 * place, plot.heading)
            self._column.insertWidget(2 * place + 1, plot, 3)
            self.quantity.addItem(f"memory, {name}" if name in MEMORY else name, name)
        self.quantity.blockSignals(False)
        for part in (self._chooser_row, self.difference, self.readout):
            part.setVisible(bool(wanted))
        self.nothing.setVisible(not wanted)
        self.set_palette(self._palette)

    def _has(self, run: ComparedRun, name: Quantity) -> bool:
        return len(aligned(run, name, "start").x) > 0

    def set_laying(self, laying: Laying) -> None:
        """Lay the runs over one another in another way; the view stays where the axis stays the same."""
        before, self._laying = self._laying, laying
        self._curves = {
            name: [self._laid(place, run, name) for place, run in enumerate(self._runs)] for name in self.plots
        }
        if self._span is None or (before.alignment, before.mark) != (laying.alignment, laying.mark):
            self.show_all()
        self.touch()

    def _laid(self, place: int, run: ComparedRun, name: Quantity) -> Curve:
        curve = aligned(run, name, self._laying.alignment, self._laying.mark)
        return curve.moved(self._laying.offset) if place == 1 else curve

    @property
    def span(self) -> tuple[float, float]:
        """The part of the axis that is shown."""
        return self._span or (0.0, 1.0)

    def show_all(self) -> None:
        """Show every run whole."""
        extents = [curve.extent for curves in self._curves.values() for curve in curves]
        known = [extent for extent in extents if extent is not None]
        low = min((extent[0] for extent in known), default=0.0)
        high = max((extent[1] for extent in known), default=1.0)
        self._span = (low, max(high, low + MIN_SPAN))
        self.touch()

    def zoom(self, factor: float, place: float) -> None:
        """Make the shown part ``factor`` times as wide around ``place``."""
        low, high = self.span
        factor = max(factor, MIN_SPAN / (high - low))
        self._span = (place - (place - low) * factor, place + (high - place) * factor)
        self.touch()

    def _pan(self, by: float) -> None:
        self._span = (self.span[0] - by, self.span[1] - by)
        self.touch()

    def set_cursor(self, place: float) -> None:
        """Tell the values at ``place``; NaN for nowhere."""
        self._cursor = place
        self._tell()
        for plot in (*self.plots.values(), self.difference):
            plot.set_cursor(place)

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        for plot in self.plots.values():
            plot.set_look(palette, shows_places=False)
        self.difference.set_look(palette, shows_places=True)
        self.touch()

    def touch(self) -> None:
        """Draw anew at the next `refresh`."""
        self._dirty = True

    def refresh(self) -> bool:
        """Draw what changed; answers whether anything was drawn."""
        columns = self.difference.columns
        if not self.plots or not (self._dirty or columns != self._drawn_columns):
            return False
        self._dirty, self._drawn_columns = False, columns
        pens = [run_pen(place, self._palette) for place in range(len(self._runs))]
        for name, plot in self.plots.items():
            plot.show_curves(self._curves.get(name, ()), pens, *self.span)
            plot.setAccessibleDescription(self._description(name))
        self._draw_difference(columns)
        self._tell()
        return True

    def _draw_difference(self, columns: int) -> None:
        name: Quantity = self.quantity.currentData()
        plot = self.plots[name]
        self.difference.set_unit(plot.unit, plot.unit_name)
        self.difference.set_title(f"{MINUS.upper()}, {plot.title}")
        self.difference.places.setLabel(_WHERE[self._laying.alignment])
        curve = self._difference(name, columns)
        self.hint.setText(HINT if len(curve.x) else APART)
        self.difference.show_curves([curve], [pyqtgraph.mkPen(self._palette.text, width=1)], *self.span)
        self.difference.setAccessibleDescription(f"{MINUS}; above 0 B has more.")

    def _difference(self, name: Quantity, columns: int) -> Curve:
        curves = self._curves.get(name, [])
        return difference(curves[0], curves[1], *self.span, columns) if len(curves) > 1 else EMPTY

    def _description(self, name: Quantity) -> str:
        plot, parts = self.plots[name], []
        for letter, curve in zip(LETTERS, self._curves.get(name, ()), strict=False):
            known = curve.y[np.isfinite(curve.y)]
            words = f"{letter} ends at {self._words(plot, float(known[-1]))}" if len(known) else f"{letter} has none"
            parts.append(words)
        return f"{plot.title.capitalize()}: {', '.join(parts)}."

    def _words(self, plot: OverlayPlot, value: float) -> str:
        return format_value(plot.unit, value, plot.unit_name)

    def _tell(self) -> None:
        """The values at the cursor, of every run and quantity."""
        if math.isnan(self._cursor):
            self.readout.setText("Point at a plot to read values.")
            return
        where = f"{self._cursor:.0f}" if self._laying.alignment == "step" else f"{self._cursor:.2f} s"
        parts = [f"{'step ' if self._laying.alignment == 'step' else ''}{where}"]
        for name, plot in self.plots.items():
            values = [_at(curve, self._cursor) for curve in self._curves.get(name, ())]
            told = [f"{letter} {self._words(plot, value)}" for letter, value in zip(LETTERS, values, strict=False)]
            parts.append(f"{plot.title.lower()}: {', '.join(told)}")
        self.readout.setText("   ".join(parts))


def _at(curve: Curve, place: float) -> float:
    """The newest value at or before ``place``; NaN outside the curve."""
    extent = curve.extent
    if extent is None or not extent[0] <= place <= extent[1]:
        return math.nan
    return float(curve.y[int(np.searchsorted(curve.x, place, "right")) - 1])


AXIS_PX = 62
"""Width of every value axis, so that the plots share their left edge."""

TICK_PX = 34.0
TIME_TICK_PX = 80.0

ZOOM = 0.85
"""How much narrower one notch of the wheel makes the view."""

MIN_SPAN = 1e-3
"""Narrowest view, in seconds or steps."""


class ValueAxis(pyqtgraph.AxisItem):  # type: ignore[misc]
    """An axis whose ticks are written as everywhere else."""

    def __init__(self, side: str, unit: Unit, unit_name: str = "") -> None:
        self.unit, self.unit_name = unit, unit_name
        self._words: dict[float, str] = {}
        super().__init__(side)
        self.enableAutoSIPrefix(False)  # the ticks carry their prefix

    def tickValues(self, low: float, high: float, size: float) -> list[tuple[float, list[float]]]:
        count = max(2, int(size / (TICK_PX if self.orientation == "left" else TIME_TICK_PX)))
        ticks = value_ticks(self.unit, low, high, count, unit_name=self.unit_name)
        self._words = dict(ticks.marks)
        marks = list(self._words)
        return [(marks[1] - marks[0] if len(marks) > 1 else 1.0, marks)]

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        return [self._words.get(value, "") for value in values]

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
        self.heading = PlainLabel()
        self.heading.setProperty("role", "title")
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

    def set_look(self, palette: Palette, *, shows_places: bool) -> None:
        """Colours, and whether this plot carries the words of the shared axis."""
        self.setBackground(palette.panel)
        font = label_font(self)
        for axis in (self.values, self.places):
            axis.setPen(QPen(QColor(palette.border)))
            axis.setTextPen(QColor(palette.muted))
            axis.setTickFont(font)
        self.places.setStyle(showValues=shows_places)
        self.places.setHeight(None if shows_places else 8)
        self.showGrid(x=True, y=True, alpha=0.16)
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
