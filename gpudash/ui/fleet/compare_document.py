"""Two GPUs, or two days of one, overlaid on one axis, and how their figures compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QLabel, QSizePolicy, QVBoxLayout, QWidget

from gpudash.devices.names import SIMULATED
from gpudash.drawing.axes import NO_VALUE, Unit, format_value
from gpudash.system.foreign_text import tab_separated
from gpudash.telemetry.comparing.curves import EMPTY, Curve
from gpudash.telemetry.metrics import SENSORS
from gpudash.ui.dashboard.document import Document
from gpudash.ui.fleet.gpu_document import points_for
from gpudash.ui.fleet.header import ProblemStrip, Range, RangeBar, range_text
from gpudash.ui.fleet.labels import gpu_name
from gpudash.ui.plots.time_axis import TimeAxis
from gpudash.ui.plots.view import SharedAxis
from gpudash.ui.recordings.compare.plots import LegendRow, LetterLegend, OverlayPlot, draw_together
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel

if TYPE_CHECKING:
    from gpudash.session.fleet import FleetView
    from gpudash.session.remote.memory_views import MemoryView
    from gpudash.telemetry.fleet_gpu import FleetGpu
    from gpudash.telemetry.series import Series, Statistics
    from gpudash.ui.colours import Palette


POINT = "Point at a plot to read values · wheel zooms · drag pans · a double click shows everything again"

NOTHING = "Neither has readings in this time range."

DAYS = (*range(15), 21, 28, 30, 60, 90, 180, 365)
"""How many days earlier B can be."""

MIN_SHARE = 1e-4
"""Narrowest view, as a fraction of the range."""


@dataclass(frozen=True, slots=True)
class GpuSide:
    """One side: a view of its history, and the GPU, or machine's memory, it belongs to."""

    view: FleetView | MemoryView
    gpu: FleetGpu

    def series(self, metric: ComparedMetric) -> Series | None:
        """The readings of a metric. The caller holds the store's lock."""
        if self.gpu.is_host:
            return self.view.store.series("host", OF_A_MACHINE.get(metric.column, metric.column), None)
        return self.view.store.series("gpu", metric.column, self.gpu.uuid or self.gpu.key)


class FleetComparison(Document):
    """Each plot shows the same metric of both sides; A is solid, B dashed.

    Args:
        sides: A and B; their views are closed with the document.
        palette: current colours.
        chosen: time range of A.
        days: how many days earlier B is: 0 for the same time, ``None`` if this cannot be chosen.
        wall_clock: seconds since the epoch.
    """

    pictured = "the comparison"

    def __init__(
        self,
        sides: tuple[GpuSide, GpuSide],
        palette: Palette,
        *,
        chosen: Range,
        days: int | None = 0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        a, b = (gpu_name(side.gpu) for side in sides)
        if a != b:
            self.title = f"{a} vs {b}"
        else:
            self.title = f"{a}, two days"
        self.setAccessibleName(f"Comparison of {self.title}")
        self.sides = sides
        self._palette, self._wall_clock = palette, wall_clock
        self._span = chosen.seconds
        self._awaited, self._drawn = True, ()
        self._requested_s = wall_clock()
        self.axis = SharedAxis(bounded=True, parent=self)
        self.axis.cursor_changed.connect(self._show_values)
        self._show_whole()
        self.plots: dict[ComparedMetric, OverlayPlot] = {}
        self._figures: dict[ComparedMetric, QLabel] = {}
        self._build(chosen, days)

    _drawn: tuple[object, ...]

    def _build(self, chosen: Range, days: int | None) -> None:
        self.bar = RangeBar(chosen, self._wall_clock)
        self.bar.changed.connect(self.ask)
        self.bar.whole_wanted.connect(self.axis.show_whole)
        self.problem = ProblemStrip()
        choices = [(_days_text(choice), choice) for choice in DAYS]
        self.days = ChoiceField("How much earlier B is than A", "How many days earlier B is than A", choices)
        self.days.setCurrentIndex(DAYS.index(days or 0))
        self.days.currentIndexChanged.connect(lambda _row: self.ask())
        earlier = PlainLabel("B is", role="muted")
        for part in (earlier, self.days):
            part.setVisible(days is not None)
        row = in_row((self.bar, 1), earlier, self.days, spacing=8)
        self._legend = LetterLegend(self._palette)
        self._panel = QFrame()
        self._panel.setProperty("role", "panel")
        self._column = QVBoxLayout(self._panel)
        self._column.setContentsMargins(6, 6, 10, 6)
        self._column.setSpacing(2)
        self.label = PlainLabel(role="muted", wraps=True)
        self.label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._column.addWidget(self.label, 1)
        self.places = TimeAxis(self._palette)
        self.readout = PlainLabel(POINT, role="muted")
        self.readout.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        in_column(
            row,
            self.problem,
            self._legend,
            (self._panel, 1),
            self.readout,
            parent=self,
            margins=(12, 8, 12, 8),
            spacing=8,
        )
        self._show_legend()

    @property
    def points(self) -> int:
        """Points per curve to query: one per pixel column."""
        return points_for(self.width())

    def ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The time ranges of A and of B, in seconds since the epoch."""
        now = self._wall_clock()
        chosen, days = self.bar.range, self.days.currentData()
        return chosen.at(now), (chosen.days_before(days, now) if days else chosen).at(now)

    def ask(self) -> None:
        """Query the ranges set in the rows of controls."""
        began, ended = self.ranges()[0]
        self._span, self._awaited = ended - began, True
        self._request()

    def _request(self) -> None:
        self._requested_s = self._wall_clock()
        for side, (began, ended) in zip(self.sides, self.ranges(), strict=True):
            side.view.show_range(began, ended, self.points)
        self._show_legend()

    @property
    def loading(self) -> bool:
        """Whether a query of either side is still running."""
        return any(side.view.loading for side in self.sides)

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer while the tab is in front."""
        now_is_shown = self.bar.range.ended_wall_s is None and self.axis.range() == self.axis.whole
        if (
            now_is_shown
            and any(side.view.grows for side in self.sides)
            and self._wall_clock() - self._requested_s >= LIVE_S
        ):
            self._request()
        loading = self.loading
        if self._awaited and not loading:
            self._awaited = False
            self._show_whole()
            self._show_legend()
        self._show_state(loading)
        if not self._awaited:
            self._make_plots()
        self._draw()

    def _show_state(self, loading: bool) -> None:
        notices = [notice for side in self.sides for notice in side.view.notices]
        self.bar.show_state("Loading…" if loading else "")
        self.bar.whole.setEnabled(self.axis.range() != self.axis.whole)
        self.problem.report(notices)
        if not self.plots:
            self.label.setText("Loading…" if loading else NOTHING)

    def _make_plots(self) -> None:
        """Create a plot for each metric that either side has."""
        wanted = []
        for metric in METRICS:
            for side in self.sides:
                with side.view.store.lock:
                    if has(side, metric):
                        wanted.append(metric)
                        break
        if wanted == list(self.plots):
            return
        for metric in list(self.plots):
            for gone in (self.plots.pop(metric), self._figures.pop(metric)):
                self._column.removeWidget(gone)
                gone.deleteLater()
        self.label.setVisible(not wanted)
        for metric in wanted:
            self._add_plot(metric)
        self._column.removeWidget(self.places)
        self._column.addWidget(self.places)
        self.places.setVisible(bool(wanted))
        self._drawn = ()

    def _add_plot(self, metric: ComparedMetric) -> None:
        plot = self.plots[metric] = OverlayPlot(metric.title, metric.unit, metric.unit_name, self.axis, self._palette)
        figures = self._figures[metric] = PlainLabel()
        figures.setProperty("role", "muted")
        figures.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        heading = QWidget()
        in_row(plot.heading, (figures, 1), parent=heading, margins=(0, 0, 0, 0), spacing=14)
        figures.destroyed.connect(heading.deleteLater)
        self._column.addWidget(heading)
        self._column.addWidget(plot, 3)
        plot.gestures.moved.connect(lambda by: self.axis.pan(-by))
        plot.outdated.connect(self._touch)

    def _touch(self) -> None:
        """Redraw at the next `refresh`."""
        self._drawn = ()

    def _draw(self) -> None:
        if not self.plots:
            return
        stores = [side.view.store for side in self.sides]
        columns = next(iter(self.plots.values())).columns
        shifts = [side.view.shift_s for side in self.sides]
        key = (
            self.axis.range(),
            self.axis.cursor_s,
            *shifts,
            *((store.version, store.sharpened, store.rewound) for store in stores),
        )
        if key == self._drawn:
            return
        self._drawn = key
        unit, name = axis_of(self._span)
        self.axis.name = f"{name} from the beginning"
        begin, end = (edge * unit for edge in self.axis.range())
        for metric, plot in self.plots.items():
            curves, found = [], []
            for side, store in zip(self.sides, stores, strict=True):
                with store.lock:
                    curves.append(curve_of(side, metric, begin, end, columns))
                    found.append(statistics_of(side, metric, begin, end))
            plot.show_curves([Curve(c.x / unit, c.y) if len(c.x) else EMPTY for c in curves])
            text = comparison_text(metric, *found)
            self._figures[metric].setText(text)
            plot.set_description(f"{metric.title.capitalize()}. {text}")
        draw_together(list(self.plots.values()), self.places)
        self._show_values()

    def _show_whole(self) -> None:
        """Show the whole range, on an axis with a suitable unit."""
        length = self._span / axis_of(self._span)[0]
        self.axis.set_whole(0.0, length, MIN_SHARE * length)
        self.axis.show_whole()

    def _show_values(self) -> None:
        cursor = self.axis.cursor_s
        if cursor is None:
            self.readout.setText(POINT)
            return
        values = [plot.text_at(cursor, plot.shown[:2]) for plot in self.plots.values()]
        self.readout.setText("   ".join([f"{cursor:.1f} {axis_of(self._span)[1]}", *values]))

    def _show_legend(self) -> None:
        rows = []
        for side, (began, ended) in zip(self.sides, self.ranges(), strict=True):
            simulated = ""
            if side.gpu.simulated:
                simulated = f" · {SIMULATED}"
            rows.append(LegendRow(gpu_name(side.gpu), f"{range_text(began, ended)} · {side.gpu.product}{simulated}"))
        self._legend.show_rows(rows)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self.places.set_palette(palette)
        for plot in self.plots.values():
            plot.set_palette(palette)
        self._drawn = ()
        self._legend.set_palette(palette)

    def copy_values(self) -> None:
        """Copy the comparison of each metric."""
        lines = [(metric.title.lower(), label.text()) for metric, label in self._figures.items()]
        QGuiApplication.clipboard().setText(tab_separated(lines))
        self.said.emit("Copied the figures." if lines else "There is nothing to copy yet.")

    def close_document(self) -> None:
        """Stop querying the server."""
        for side in self.sides:
            side.view.close()


def _days_text(days: int) -> str:
    if not days:
        return "at the same time"
    return f"{days} {'day' if days == 1 else 'days'} earlier"


NOISE = 0.02
"""Two means that differ by less than this fraction of the larger are called the same."""


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """What is drawn for each side: column of the reading table, title, unit."""

    column: str
    title: str
    unit: Unit
    unit_name: str = ""


METRICS = (
    ComparedMetric("used_bytes", "MEMORY USED", "bytes"),
    ComparedMetric("gpu_utilisation", "UTILISATION", "ratio"),
    *(ComparedMetric(metric.name, metric.title.upper(), metric.scale, metric.unit) for metric in SENSORS),
)

OF_A_MACHINE = {"gpu_utilisation": "cpu_utilisation"}
"""The host's metric that takes the place of a GPU's, for a machine's memory."""

LIVE_S = 1.0
"""Seconds between updates of the range of live readings."""

AXES = ((600.0, 1.0, "seconds"), (3 * 3600.0, 60.0, "minutes"), (3 * 86_400.0, 3600.0, "hours"))
"""Longest range, seconds per unit of its axis, and the unit's name; beyond these, days."""


def axis_of(seconds: float) -> tuple[float, str]:
    """Seconds per unit of the axis for a range, and the unit's name."""
    return next(((unit, name) for longest, unit, name in AXES if seconds <= longest), (86_400.0, "days"))


def has(side: GpuSide, metric: ComparedMetric) -> bool:
    """Whether a side has any reading of a metric. The caller holds the store's lock."""
    series = side.series(metric)
    return series is not None and series.statistics(-math.inf, math.inf) is not None


def curve_of(side: GpuSide, metric: ComparedMetric, begin: float, end: float, columns: int) -> Curve:
    """The curve of a metric between two times of the range. The caller holds the store's lock."""
    series, shift_s = side.series(metric), side.view.shift_s
    if series is None:
        return EMPTY
    x, y = series.window(begin + shift_s, end + shift_s, columns)
    return Curve(np.asarray(x, dtype=float) - shift_s, np.asarray(y, dtype=float))


def statistics_of(side: GpuSide, metric: ComparedMetric, begin: float, end: float) -> Statistics | None:
    """Statistics of a metric between two times of the range. The caller holds the store's lock."""
    series, shift_s = side.series(metric), side.view.shift_s
    if series is None:
        return None
    return series.statistics(begin + shift_s, end + shift_s)


def comparison_text(metric: ComparedMetric, a: Statistics | None, b: Statistics | None) -> str:
    """Mean and maximum of both sides, and how B compares to A: more, less or the same."""
    if a is None or b is None:
        parts = [f"{letter}: {_figures(metric, found)}" for letter, found in (("A", a), ("B", b))]
        return "   ".join(parts)
    apart = b.mean - a.mean
    larger = max(abs(a.mean), abs(b.mean))
    if abs(apart) <= NOISE * larger:
        verdict = "the same on average"
    else:
        if metric.unit == "ratio":
            amount = f"{abs(apart) * 100:.0f} points"
        else:
            amount = _format(metric, abs(apart))
        verdict = f"B has {amount} {'more' if apart > 0 else 'less'} on average"
    return f"A: {_figures(metric, a)}   B: {_figures(metric, b)}   {verdict}"


def _figures(metric: ComparedMetric, found: Statistics | None) -> str:
    if found is None:
        return NO_VALUE
    return f"mean {_format(metric, found.mean)}, highest {_format(metric, found.max)}"


def _format(metric: ComparedMetric, value: float) -> str:
    return format_value(metric.unit, value, metric.unit_name)
