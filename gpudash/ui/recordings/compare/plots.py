"""Plots that compare runs or GPUs on one shared axis, each for one quantity, and the letters, colours and line styles
that tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QGridLayout, QWidget

from gpudash.drawing.axes import Autoscale, Style, Ticks, Unit, format_value, value_ticks
from gpudash.telemetry.comparing import MOST_RUNS, ComparedRun, Curve
from gpudash.telemetry.comparing.comparison import LETTERS, MINUS, RUN_CURVES, value_text
from gpudash.telemetry.plots import CurveSpec, LineSpec, PlotSpec
from gpudash.telemetry.runs import ENDINGS, whose_peak
from gpudash.ui.colours import Palette
from gpudash.ui.plots.canvas import MIN_HEIGHT_PX, Drag, Gestures
from gpudash.ui.plots.overlay import PEN_STYLES
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.reading import PlotPoints, Row
from gpudash.ui.plots.time_axis import TimeAxis
from gpudash.ui.plots.view import SharedAxis, TimeView
from gpudash.ui.widgets.labels import discard
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_bytes

_LINE = QSize(46, 14)


class LinePiece(QWidget):
    """A sample of a run's line."""

    def __init__(self, place: int, palette: Palette) -> None:
        super().__init__()
        self._place, self._palette = place, palette
        self.setFixedSize(_LINE)
        self.setAccessibleName(f"{LETTERS[place]} is {STYLE_NAMES[place]}")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        pen = run_pen(self._place, self._palette)
        pen.setWidth(2)
        painter.setPen(pen)
        painter.drawLine(2, self.height() // 2, self.width() - 2, self.height() // 2)


@dataclass(frozen=True, slots=True)
class LegendRow:
    """The meaning of a letter: a name, its tooltip, and further text."""

    name: str
    more: str
    tip: str = ""


class LetterLegend(QWidget):
    """One row per letter: the letter, a sample of its line, and its meaning."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._rows: Sequence[LegendRow] = ()
        self._cells: list[QWidget] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(2)
        self._grid.setColumnStretch(3, 1)

    def show_rows(self, rows: Sequence[LegendRow]) -> None:
        """Show these rows, the first one as A."""
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
        """Use these colours."""
        self._palette = palette
        self.show_rows(self._rows)


def run_row(run: ComparedRun) -> LegendRow:
    """The legend row of a run: its recording, how it ended, and its results."""
    view = run.view
    more = [ENDINGS.get(view.status, view.status)]
    if view.peak_allocated_bytes is not None:
        more.append(f"peak allocated {format_bytes(view.peak_allocated_bytes)}")
    elif view.memory.used_bytes is not None:
        more.append(f"peak {whose_peak(view.device)} {format_bytes(view.memory.used_bytes)}")
    if "loss" in view.metrics:
        more.append(f"loss {value_text('', view.metrics['loss'].last)}")
    return LegendRow(run.label, " · ".join(more), run.recording)


_STYLES: tuple[Style, ...] = ("solid", "dash", "dot", "dashdot", "dashdotdot", "dash")

STYLE_NAMES = ("solid", "dashed", "dotted", "dash-dotted", "dash-dot-dotted", "dashed")

_ZERO = LineSpec("zero", "reference", value=0.0, style="dot", scales=False)

RIGHT_PX = 8.0
"""Margin at the right of the plot areas, where there is no axis."""

TIME_TICK_PX = 80.0

LEAST_PX = 56
"""Least height of a plot, which leaves room for the figures below."""


def run_pen(place: int, palette: Palette) -> QPen:
    """The pen that plots use for the run at index ``place``, from 0."""
    colour = palette.curves[RUN_CURVES[place % MOST_RUNS]]
    return QPen(QColor(colour), 1, PEN_STYLES[_STYLES[place % MOST_RUNS]])


class MovingGestures(Gestures):
    """Mouse gestures in a comparison: a drag shifts a curve instead of selecting, a double click shows everything.

    Signals:
        moved: a curve was dragged by this distance along the axis.
        reset: everything should be shown.
    """

    moved = Signal(float)
    reset = Signal()

    def drag_to(self, drag: Drag, geometry: Geometry, x: float) -> None:
        self.moved.emit((x - drag.last_x) * geometry.seconds_per_pixel)
        drag.last_x = x

    def double_click(self, event: QMouseEvent) -> None:
        event.accept()
        self.reset.emit()


@dataclass(slots=True)
class SignedScale(Autoscale):
    """A range that extends as far below 0 as above."""

    def _target(self, low: float, high: float) -> tuple[float, float]:
        reach = max(abs(low), abs(high)) * 1.1 or 1.0
        return -reach, reach


class OverlayPlot(TimePlot):
    """A plot of several curves on one axis, with a heading above.

    Args:
        title: what the plot shows.
        unit: how values are formatted.
        unit_name: what a "number" counts.
        axis: shared by all plots.
        palette: the colours in use.
        signed: whether it shows a difference, with an axis that extends below 0.

    Signals:
        outdated: the size or the range of values changed.
    """

    outdated = Signal()
    gestures: MovingGestures

    def __init__(
        self,
        title: str,
        unit: Unit,
        unit_name: str,
        axis: SharedAxis,
        palette: Palette,
        *,
        signed: bool = False,
    ) -> None:
        self._signed = signed
        spec = PlotSpec(title, title, (), unit, lines=(_ZERO,) if signed else (), unit_name=unit_name)
        super().__init__(spec, axis, palette)
        self._axis = axis
        self.gestures.reset.connect(self.reset_y)
        self.gestures.reset.connect(axis.show_whole)
        self.gestures.area_resized.connect(self.outdated)
        self.gestures.y_zoomed.connect(self.outdated)
        self.legend.hide()
        self.tighten(MIN_HEIGHT_PX - LEAST_PX)
        self.heading = PlainLabel(title, role="title")
        self.shown: list[Curve] = []

    def _new_scale(self, *, log: bool = False) -> Autoscale:
        if self._signed:
            return SignedScale(self.spec.unit)
        return Autoscale(self.spec.unit)

    def _new_gestures(self, view: TimeView) -> Gestures:
        return MovingGestures(view, self, self)

    def set_subject(self, title: str, unit: Unit, unit_name: str) -> None:
        """Show another quantity from the next `show_curves` on."""
        self.heading.setText(title)
        self.set_spec(replace(self.spec, title=title, unit=unit, unit_name=unit_name, curves=()))

    def show_curves(self, curves: Sequence[Curve]) -> None:
        """Set the curves, the first on top; `draw_together` draws them."""
        low, high = self._view.range()
        self.shown = [curve.drawn(low, high, self.columns) if len(curve.x) else curve for curve in curves]
        specs = list(map(self._curve_spec, range(len(curves))))
        self.set_spec(replace(self.spec, curves=tuple(reversed(specs))))
        self._scale.refit()
        points = {spec.name: (curve.x, curve.y) for spec, curve in zip(specs, self.shown, strict=True)}
        self.take(PlotPoints(points, levels=[line.value for line in self.spec.lines]), 0.0)

    def _curve_spec(self, place: int) -> CurveSpec:
        unit, unit_name = self.spec.unit, self.spec.unit_name
        if self._signed:
            return CurveSpec(("compared", "difference", None), MINUS, unit, "difference", unit_name=unit_name)
        colour, style = RUN_CURVES[place % MOST_RUNS], _STYLES[place % MOST_RUNS]
        letter = LETTERS[place]
        return CurveSpec(("compared", letter, None), letter, unit, colour, style, unit_name=unit_name)

    def rows(self) -> list[Row]:
        """The values at the cursor."""
        cursor = self._view.cursor_s
        if cursor is None:
            return []
        return [Row(self._curve_spec(place), curve.at(cursor), None) for place, curve in enumerate(self.shown)]

    def formatted(self, value: float) -> str:
        """A value, formatted as everywhere else."""
        return format_value(self.spec.unit, value, self.spec.unit_name)

    def text_at(self, place: float, curves: Sequence[Curve]) -> str:
        """The values of ``curves`` at ``place``, each after its letter."""
        values = [f"{letter} {self.formatted(curve.at(place))}" for letter, curve in zip(LETTERS, curves, strict=False)]
        return f"{self.spec.title.lower()}: {', '.join(values)}"

    def _left_ticks(self, count: int | None = None) -> Ticks:
        """At least two ticks: a single one does not show the scale."""
        ticks = super()._left_ticks(count)
        if len(ticks.marks) > 1 or count:
            return ticks
        return self._left_ticks(2 * self._tick_count)

    def _time_ticks(self, geometry: Geometry) -> Ticks:
        count = max(2, int(geometry.area.width() / TIME_TICK_PX))
        ticks = value_ticks("number", *self._view.range(), count, unit_name=self._axis.name)
        return Ticks(tuple((place - geometry.origin_s, text) for place, text in ticks.marks), ticks.name)


def draw_together(plots: Sequence[OverlayPlot], axis: TimeAxis) -> None:
    """Draw the plots' curves, with aligned left edges and the axis below."""
    left = max(plot.axis_widths()[0] for plot in plots)
    for plot in plots:
        plot.heading.setContentsMargins(round(left), 0, 0, 0)
        plot.set_frame(left, RIGHT_PX, shows_mark_labels=False)
        plot.draw((), plot.rows())
    geometry = plots[-1].geometry_now
    if geometry is not None:
        axis.show_ticks(geometry, plots[-1].time_ticks)
