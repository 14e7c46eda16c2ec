"""Everything that one frame of all plots needs, copied from the store in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpudash.telemetry.series import Statistics
from gpudash.telemetry.store import Store
from gpudash.ui.plots.curve import CurveSpec
from gpudash.ui.plots.describe import describe_plot
from gpudash.ui.plots.marks import Mark, Marks
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.reading import (
    Group,
    Levels,
    PlotData,
    Smoothing,
    read_plot,
    read_row,
    read_statistics,
    visible_rows,
)
from gpudash.ui.plots.view import TimeView

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
        self._levels = Levels(store)
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
