"""Everything that one frame of all plots needs, copied from the store in one go; and a plot in words, for screen
readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.series import Statistics
from gpudash.telemetry.store import Store
from gpudash.ui.plots.curve import format_value
from gpudash.ui.plots.overlay import Mark, Marks
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.reading import (
    Group,
    PlotData,
    PlotLevels,
    Row,
    Smoothing,
    read_plot,
    read_row,
    read_statistics,
    value_at,
    visible_rows,
)
from gpudash.ui.plots.view import TimeView
from gpudash.units import format_bytes, format_pair

DESCRIBE_S = 1.0
"""Shortest time between two updates of the words for a screen reader."""

STATISTICS_S = 0.4
"""Shortest time between two updates of the strip's figures while nothing but the data changes."""


@dataclass(frozen=True, slots=True)
class FrameData:
    """One frame. `statistics` and `words` are ``None`` when they are not due."""

    plots: list[PlotData]
    groups: list[Group]
    marks: list[Mark]
    statistics: tuple[list[CurveSpec], list[Statistics | None]] | None
    words: list[str] | None


class FrameReader:
    """Reads frames, and remembers what need not be read anew.

    Args:
        store: read under its lock, which the caller of `read` holds.
        view: the shared time axis.
        clock: monotonic seconds.
    """

    def __init__(self, store: Store, view: TimeView, clock: Callable[[], float]) -> None:
        self.smoothing = Smoothing()
        self.marks_kept = Marks(store)
        self._levels = PlotLevels(store)
        self._store = store
        self._view = view
        self._clock = clock
        self._described_at = self._measured_at = float("-inf")
        self._measured_key: object = None

    def remeasure(self) -> None:
        """Let the figures of the strip be due at once."""
        self._measured_key = None

    def read(self, drawn: Sequence[TimePlot], plots: Sequence[TimePlot], *, measure: bool, force: bool) -> FrameData:
        """Copy one frame. The caller holds the store's lock.

        Args:
            drawn: the plots that are seen.
            plots: all plots, for the readout and the figures.
            measure: whether the strip shows figures.
            force: whether everything is due.
        """
        span = self._view.range()
        data = [self._read_plot(plot, span) for plot in drawn]
        hidden = {plot.spec.id: plot.hidden for plot in plots}
        groups = visible_rows(self._store, [plot.spec for plot in plots], hidden, self._view.cursor_s, self.smoothing)
        self.marks_kept.follow()
        curves = [curve for plot in plots for curve in plot.visible_curves]
        return FrameData(
            data,
            groups,
            self.marks_kept.shown,
            self._statistics(curves, force=force) if measure else None,
            self._words(drawn, data, force=force),
        )

    def _read_plot(self, plot: TimePlot, span: tuple[float, float]) -> PlotData:
        data = read_plot(self._store, plot.spec, plot.hidden, span, plot.columns, self.smoothing)
        data.levels = [self._levels.of(line) for line in plot.spec.lines]
        return data

    def _statistics(
        self, curves: list[CurveSpec], *, force: bool
    ) -> tuple[list[CurveSpec], list[Statistics | None]] | None:
        key = (self._view.selection, tuple(curves))
        due = self._clock() - self._measured_at >= STATISTICS_S
        if not (due or force or key != self._measured_key):
            return None
        self._measured_at, self._measured_key = self._clock(), key
        return curves, read_statistics(self._store, curves, self._view.selection or self._view.range())

    def _words(self, drawn: Sequence[TimePlot], data: Sequence[PlotData], *, force: bool) -> list[str] | None:
        if self._clock() - self._described_at < DESCRIBE_S and not force:
            return None
        self._described_at = self._clock()
        words = []
        for plot, fresh in zip(drawn, data, strict=True):
            rows = [read_row(self._store, curve, None, self.smoothing) for curve in plot.visible_curves]
            words.append(describe_plot(self._store, plot.spec, fresh, rows))
        return words


SLOPE_S = 5.0
"""How far back a trend is measured."""

_STEADY = 1024 * 1024
"""Bytes a second below which memory counts as steady."""


def describe_plot(store: Store, spec: PlotSpec, data: PlotData, rows: list[Row]) -> str:
    """One sentence: what the plot shows now. The caller holds ``store.lock``.

    Args:
        store: for the trend.
        spec: the plot.
        data: as drawn, for the capacity.
        rows: newest values of the visible curves.
    """
    bands = [row for row in rows if row.curve.stack and not row.curve.faint]
    if bands:
        return f"{spec.title}, {_memory(store, spec, data, bands)}"
    words = [f"{row.curve.name} {format_value(row.curve.unit, row.value, row.curve.unit_name)}" for row in rows]
    return f"{spec.title}, now {', '.join(words) if words else 'every curve hidden'}"


def _memory(store: Store, spec: PlotSpec, data: PlotData, bands: list[Row]) -> str:
    known = [row.value for row in bands if row.value is not None]
    if not known:
        return "no reading now"
    used = sum(known)
    capacity = next((v for line, v in zip(spec.lines, data.levels, strict=False) if line.colour == "capacity"), None)
    text = f"now {format_bytes(used)}" if capacity is None else f"now {format_pair(used, capacity)}"
    before = _total(store, [row.curve for row in bands], store.newest_s - SLOPE_S)
    if before is None:
        return text
    slope = (used - before) / SLOPE_S
    if abs(slope) < _STEADY:
        return f"{text}, steady"
    return f"{text}, {'rising' if slope > 0 else 'falling'} {format_bytes(abs(slope))}/s"


def _total(store: Store, curves: list[CurveSpec], time_s: float) -> float | None:
    total = 0.0
    for curve in curves:
        series = store.series(*curve.key)
        value = None if series is None else value_at(series, time_s)
        if value is not None:
            total += value
    return None if total == 0.0 or math.isnan(total) else total
