"""From the store to the plots: copies everything that one frame needs, once, under the store's lock.

Smoothing is exponential and applies to a copy: the samples stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpudash.drawing.axes import format_value
from gpudash.drawing.shaping import Points
from gpudash.telemetry.plots import CurveSpec, LineSpec, PlotSpec, run_in_view
from gpudash.telemetry.readings import Key
from gpudash.telemetry.runs import WATCH
from gpudash.telemetry.series import Series, Statistics
from gpudash.telemetry.store import Store
from gpudash.ui.plots.overlay import Mark, Marks
from gpudash.ui.plots.view import TimeView
from gpudash.units import format_bytes, format_pair

ALL_SAMPLES = 1 << 40
"""Columns to request when a window must not be thinned."""

STALE_S = 2.0
"""A curve has a value for this long after its newest sample; beyond that nothing is drawn."""

MARGIN_SHARE = 0.06
"""This share of the shown range may lie after the end of a run and still show the run's last values."""


@dataclass(slots=True)
class PlotPoints:
    """What a plot draws: raw points by curve name, smoothed ones where requested, and the levels of its lines.

    `known` holds all samples of the bands if thinning kept different times for them.
    """

    raw: dict[str, Points] = field(default_factory=dict)
    smoothed: dict[str, Points] = field(default_factory=dict)
    known: dict[str, Points] = field(default_factory=dict)
    levels: list[float | None] = field(default_factory=list)


class SmoothedSeries:
    """The smoothed samples of one series, updated sample by sample."""

    def __init__(self, weight: float) -> None:
        self._smoother = Smoother(weight)
        self._seen = 0
        self._newest = -math.inf
        self.series = Series()

    def follow(self, raw: Series) -> None:
        """Add what ``raw`` received since the last call. The caller holds the store's lock."""
        # Count samples, not times: several samples may share a time.
        new = len(raw) - self._seen
        extent = raw.extent()
        if new <= 0 or extent is None:
            return
        since = max(self._newest, extent[0])
        # `window` excludes its end, and the newest sample is needed.
        times, values = raw.window(since, math.nextafter(max(extent[1], since), math.inf), ALL_SAMPLES)
        # A series that was thinned meanwhile holds fewer samples than it received.
        new = min(new, len(times))
        for t, v in zip(times[-new:].tolist(), self._smoother.extend(values[-new:]).tolist(), strict=True):
            self.series.append(t, v)
        self._seen, self._newest = len(raw), extent[1]


class Smoothing:
    """The smoothing weight and the smoothed samples of each curve it applies to. 0 is raw."""

    def __init__(self, weight: float = 0.0) -> None:
        self._weight = weight
        self._by_key: dict[Key, SmoothedSeries] = {}

    @property
    def weight(self) -> float:
        return self._weight

    def set_weight(self, weight: float) -> None:
        """Smooth with another weight from now on.

        Raises:
            ValueError: ``weight`` is not in [0, 1).
        """
        # Raises for an invalid weight before anything changes.
        Smoother(weight)
        if weight != self._weight:
            self._weight = weight
            self._by_key.clear()

    def of(self, curve: CurveSpec, raw: Series) -> Series | None:
        """The updated smoothed samples of ``raw``; ``None`` if the curve is shown raw."""
        if not curve.smoothed or self._weight == 0:
            return None
        smoothed = self._by_key.setdefault(curve.key, SmoothedSeries(self._weight))
        smoothed.follow(raw)
        newest, last = smoothed.series.last(), raw.last()
        if last is None:
            until = -math.inf
        else:
            until = last[0]
        if newest is not None and until < newest[0]:
            return smoothed.series.until(until)  # a replay went back; smoothing only uses the past
        return smoothed.series


@dataclass(frozen=True, slots=True)
class Row:
    """One curve in the readout: its value at the cursor. ``None`` if nothing is drawn there, NaN if the run computed
    NaN.

    Attributes:
        text: shown in place of the value; "" for the value.
        then: the value with a change applied; "" for none.
        kind: "sum" for the total of the rows above, "rest" for the row below that; "" for a curve.
    """

    curve: CurveSpec
    value: float | None
    smoothed: float | None
    text: str = ""
    then: str = ""
    kind: str = ""


def read_row(store: Store, curve: CurveSpec, time_s: float | None, smoothing: Smoothing) -> Row:
    """The curve's value at ``time_s``, or its newest. The caller holds ``store.lock``."""
    series = store.series(*curve.key)
    if series is None:
        return Row(curve, None, None)
    smoothed = smoothing.of(curve, series)
    ended_s = None
    if store.run is not None:
        ended_s = store.run.ended_s
    # At the end of a run its last value is wanted, which may be a NaN that the series stores as a gap.
    newest = time_s is None or time_s == ended_s
    if time_s is None:
        time_s = store.newest_s
    if newest and _ended_in_nan(store, curve):
        return Row(curve, math.nan, None)
    value = value_at(series, time_s)
    if smoothed is None or value is None or math.isnan(value):
        return Row(curve, value, None)
    return Row(curve, value, value_at(smoothed, time_s))


def _ended_in_nan(store: Store, curve: CurveSpec) -> bool:
    """Whether the run's last value is a NaN that the run computed; a series stores it as a gap."""
    table, name, _device = curve.key
    metric = None
    if table == "run" and store.run is not None:
        metric = store.run.metrics.get(name)
    return metric is not None and metric.count > 0 and math.isnan(metric.last)


def value_at(series: Series, time_s: float) -> float | None:
    """The value drawn at ``time_s``; ``None`` before the first sample, in a gap and after the end."""
    extent = series.extent()
    if extent is None or time_s > extent[1] + STALE_S:
        return None
    return series.at(time_s)


class PlotLevels:
    """The levels of the lines across plots. A capacity keeps its value while its source is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[Key, float | None] = {}
        self._before: dict[tuple[Key, float], float | None] = {}

    def of(self, line: LineSpec) -> float | None:
        """The current level; ``None`` if it was never known. The caller holds the store's lock."""
        if line.key is None:
            value = line.value
        else:
            value = self._then(line.key, line.until_s)
        if value is None or math.isnan(value):
            return None
        return value * line.factor

    def _then(self, key: Key, time_s: float | None) -> float | None:
        series = None
        if time_s is not None:
            series = self._store.series(*key)
        if series is None or time_s is None:
            return self._newest(key)
        value = series.at(time_s)
        if value is None:  # when a program ends, its card's readings stop before its run is over
            if (key, time_s) not in self._before:
                statistics = series.statistics(-math.inf, time_s)
                if statistics is None:
                    self._before[key, time_s] = None
                else:
                    self._before[key, time_s] = statistics.end
            value = self._before[key, time_s]
        if value is None:
            return self._newest(key)
        return value

    def _newest(self, key: Key) -> float | None:
        """The newest value that is not a gap; the history is searched for it at most once."""
        series = self._store.series(*key)
        last = None
        if series is not None:
            last = series.last()
        if series is None or last is None:
            return None
        if not math.isnan(last[1]):
            self._known[key] = last[1]
        elif key not in self._known:
            statistics = series.statistics(-math.inf, math.inf)
            if statistics is None:
                self._known[key] = None
            else:
                self._known[key] = statistics.end
        return self._known[key]


Group = tuple[PlotSpec, list[Row]]


Floats = NDArray[np.float64]


@dataclass(slots=True)
class Smoother:
    """Bias-corrected exponential moving average, sample by sample.

    The average after n samples weighs them by weight^age, normalised: m += (x − m)·(1 − weight)/(1 − weight^n). This
    is Adam's bias correction (Kingma and Ba 2015, section 3), rearranged so that a constant stays exactly that
    constant. A non-finite sample breaks the line, and the average restarts after it.

    Attributes:
        weight: weight of the past, from 0 (raw) to just below 1.
    """

    weight: float
    _mean: float = 0.0
    _decay: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight < 1:
            raise ValueError(f"smoothing {self.weight} is outside 0 to below 1")

    def extend(self, values: Floats) -> Floats:
        """The averages at ``values``, shape (n,), continued from earlier calls; NaN where a value is not finite."""
        if self.weight == 0:
            return np.where(np.isfinite(values), values, np.nan)
        weight, mean, decay = self.weight, self._mean, self._decay
        result: list[float] = []
        for value in values.tolist():
            if math.isfinite(value):
                decay *= weight
                if decay == weight:
                    mean = value
                else:
                    mean = mean + (value - mean) * ((1 - weight) / (1 - decay))
                result.append(mean)
            else:
                decay = 1.0
                result.append(math.nan)
        self._mean, self._decay = mean, decay
        return np.array(result, dtype=np.float64)


DESCRIBE_S = 1.0
"""Shortest time between two updates of the screen reader's description."""

STATISTICS_S = 0.4
"""Shortest time between two updates of the strip's statistics while only the data change."""


@dataclass(frozen=True, slots=True)
class PlotRequest:
    """What to read for a plot: its spec, the names of hidden curves, and the pixel columns to thin to."""

    spec: PlotSpec
    hidden: frozenset[str]
    columns: int

    @property
    def curves(self) -> list[CurveSpec]:
        """The curves that are not hidden."""
        return [curve for curve in self.spec.curves if curve.name not in self.hidden]


@dataclass(frozen=True, slots=True)
class FrameData:
    """The data of one frame.

    `groups` are for the time `read_s`; ``None`` means the newest. `statistics` and `descriptions` are ``None`` if they
    are not due.
    """

    points: list[PlotPoints]
    groups: list[Group]
    read_s: float | None
    marks: list[Mark]
    statistics: tuple[list[CurveSpec], list[Statistics | None]] | None
    descriptions: list[str] | None


@dataclass(frozen=True, slots=True)
class SessionShape:
    """An outline of the whole session.

    Attributes:
        start_s, end_s: session times of the first and the newest reading.
        memory: times and bytes, thinned to a few samples per pixel.
        runs: the start and the end of each run.
    """

    start_s: float
    end_s: float
    memory: Points
    runs: tuple[tuple[float, float], ...] = ()


def session_shape(store: Store, specs: Sequence[PlotSpec], columns: int) -> SessionShape | None:
    """The outline of the session: memory in use, or else the first curve with data. The caller holds ``store.lock``.

    Args:
        store: holds the samples.
        specs: the shown plots, the most important first.
        columns: width of the outline in pixels.
    """
    curves = [curve for spec in specs for curve in spec.curves]
    used = [("used_bytes", curve.key[0], curve.key[2]) for curve in curves if curve.unit == "bytes"]
    # Memory in use says most about a session; without it, take the first curve with data.
    keys = [*((table, name, device) for name, table, device in used), *(curve.key for curve in curves)]
    known = [series for key in keys if (series := store.series(*key)) is not None and series.extent() is not None]
    if not known:
        return None
    extents = [extent for series in known if (extent := series.extent()) is not None]
    begins, ends = zip(*extents, strict=True)
    start, end = min(begins), max(ends)
    if start >= end:
        return None
    runs = tuple((run.began_s, end if run.ended_s is None else run.ended_s) for run in store.runs)
    return SessionShape(start, end, known[0].window(start, end, columns), runs)


class FrameReader:
    """Reads frames and caches what need not be read again.

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
        """Make the strip's statistics due at once."""
        self._measured_key = None

    def read(
        self, drawn: Sequence[PlotRequest], plots: Sequence[PlotRequest], *, measure: bool, force: bool
    ) -> FrameData:
        """Copy one frame. The caller holds the store's lock.

        Args:
            drawn: the plots in view.
            plots: all plots, for the readout and the statistics.
            measure: whether the strip shows statistics.
            force: whether everything is due.
        """
        span = self._view.range()
        points = [self._read_plot(plot, self._view.drawn()) for plot in drawn]
        read_s = self._read_s(span)
        groups = [
            (plot.spec, [read_row(self._store, curve, read_s, self.smoothing) for curve in plot.curves])
            for plot in plots
        ]
        self.marks_kept.follow()
        curves = [curve for plot in plots for curve in plot.curves]
        return FrameData(
            points,
            groups,
            read_s,
            [mark for mark in self.marks_kept.shown if mark.time_s >= self._view.since_s],
            self._statistics(curves, force=force) if measure else None,
            self._descriptions(drawn, points, force=force),
        )

    def _read_s(self, span: tuple[float, float]) -> float | None:
        """The time of the readout's values: the cursor's, or the end of the shown range; ``None`` for now.

        If a run ends within the right margin of the range, the values are those of its end, as few exist after it. The
        same holds for a program that has ended, while its run goes on to find out what would have fitted.
        """
        if self._view.cursor_s is not None:
            return self._view.cursor_s
        if self._view.following:
            return None
        left, right = span
        run = run_in_view(self._store, span)
        if run is not None and run.ended_s is None and run.workload == WATCH and self._view.held:
            return run.stepped_s or right  # a run that goes on is held once its program has ended
        if (
            # The margin after the end of a run is only for looks: there, the values at its end are of interest.
            run is not None
            and run.ended_s is not None
            and right - (right - left) * MARGIN_SHARE <= run.ended_s <= right
        ):
            # A program keeps running after its last step, and its memory is freed before it ends.
            if run.workload == WATCH and run.stepped_s is not None:
                return run.stepped_s
            return run.ended_s
        if right >= self._store.newest_s:
            return None
        return right

    def _read_plot(self, plot: PlotRequest, span: tuple[float, float]) -> PlotPoints:
        """What ``plot`` shows of ``span``, thinned to its columns."""
        points = PlotPoints(levels=list(map(self._levels.of, plot.spec.lines)))
        found = {curve.name: series for curve in plot.curves if (series := self._store.series(*curve.key)) is not None}
        for curve in plot.curves:
            series = found.get(curve.name)
            if series is None:
                continue
            points.raw[curve.name] = series.window(*span, plot.columns)
            smoothed = self.smoothing.of(curve, series)
            if smoothed is not None and smoothed.extent() is not None:
                points.smoothed[curve.name] = smoothed.window(*span, plot.columns)
        bands = [curve.name for curve in plot.curves if curve.stack and curve.name in points.raw]
        # Thinning keeps each curve's extremes, at different times; sums need all bands at the same times.
        if len({points.raw[name][0].tobytes() for name in bands}) > 1:
            points.known = {name: found[name].window(*span, ALL_SAMPLES) for name in bands}
        return points

    def _statistics(
        self, curves: list[CurveSpec], *, force: bool
    ) -> tuple[list[CurveSpec], list[Statistics | None]] | None:
        key = (self._view.selection, tuple(curves))
        due = self._clock() - self._measured_at >= STATISTICS_S
        # Due at once when the range or the curves change, else from time to time, since they read all samples.
        if not (due or force or key != self._measured_key):
            return None
        self._measured_at, self._measured_key = self._clock(), key
        span = self._view.selection or self._view.range()
        found = [self._store.series(*curve.key) for curve in curves]
        return curves, [None if series is None else series.statistics(*span) for series in found]

    def _descriptions(
        self, drawn: Sequence[PlotRequest], points: Sequence[PlotPoints], *, force: bool
    ) -> list[str] | None:
        if self._clock() - self._described_at < DESCRIBE_S and not force:
            return None
        self._described_at = self._clock()
        descriptions = []
        for plot, drawn_points in zip(drawn, points, strict=True):
            rows = [read_row(self._store, curve, None, self.smoothing) for curve in plot.curves]
            descriptions.append(describe_plot(self._store, plot.spec, drawn_points, rows))
        return descriptions


SLOPE_S = 5.0
"""How far back the trend is measured."""

_STEADY = 1024 * 1024
"""Bytes per second below which memory counts as steady."""


def describe_plot(store: Store, spec: PlotSpec, points: PlotPoints, rows: list[Row]) -> str:
    """One sentence on what the plot shows now. The caller holds ``store.lock``.

    Args:
        store: for the trend.
        spec: the plot.
        points: as drawn, for the capacity.
        rows: the newest values of the visible curves.
    """
    bands = [row for row in rows if row.curve.stack and not row.curve.faint]
    if bands:
        return f"{spec.title}, {_memory(store, spec, points, bands)}"
    values = [f"{row.curve.name} {format_value(row.curve.unit, row.value, row.curve.unit_name)}" for row in rows]
    return f"{spec.title}, now {', '.join(values) if values else 'every curve hidden'}"


def _memory(store: Store, spec: PlotSpec, points: PlotPoints, bands: list[Row]) -> str:
    known = [row.value for row in bands if row.value is not None]
    if not known:
        return "no reading now"
    used = sum(known)
    capacity = next((v for line, v in zip(spec.lines, points.levels, strict=False) if line.colour == "capacity"), None)
    if capacity is None:
        text = f"now {format_bytes(used)}"
    else:
        text = f"now {format_pair(used, capacity)}"
    before = _total(store, [row.curve for row in bands], store.newest_s - SLOPE_S)
    # No trend without both ends: the curve has no value 5 s ago.
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
        value = None
        if series is not None:
            value = value_at(series, time_s)
        if value is not None:
            total += value
    if total == 0.0 or math.isnan(total):
        return None
    return total
