"""From the store to the plots: everything that one frame needs, copied in one go under the store's lock.

Smoothing is exponential, and a view of the samples: the data stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""Columns to ask of a window that shall not be thinned."""

STALE_S = 2.0
"""How long after its newest sample a curve still has a value: longer, and nothing is drawn there."""

MARGIN_SHARE = 0.06
"""Share of the range shown that may lie behind a run's end and still belong to it."""


@dataclass(slots=True)
class PlotData:
    """What a plot draws: points by curve name, smoothed points where asked for, levels of its lines.

    `known` holds all samples of the bands where thinning kept different times of each.
    """

    points: dict[str, Points] = field(default_factory=dict)
    smoothed: dict[str, Points] = field(default_factory=dict)
    known: dict[str, Points] = field(default_factory=dict)
    levels: list[float | None] = field(default_factory=list)


class SmoothedSeries:
    """The smoothed view of one series, brought up to date sample by sample."""

    def __init__(self, weight: float) -> None:
        self._smoother = Smoother(weight)
        self._seen = 0
        self._newest = -math.inf
        self.series = Series()

    def follow(self, raw: Series) -> None:
        """Take in what ``raw`` has got since the last call. Called under the store's lock."""
        # Counted by samples and not by time: several may have the same time.
        new = len(raw) - self._seen
        extent = raw.extent()
        if new <= 0 or extent is None:
            return
        since = max(self._newest, extent[0])
        # `window` leaves out its end, and the newest sample belongs to what is new.
        times, values = raw.window(since, math.nextafter(max(extent[1], since), math.inf), ALL_SAMPLES)
        # A series that was thinned meanwhile has fewer left than have come.
        new = min(new, len(times))
        for t, v in zip(times[-new:].tolist(), self._smoother.extend(values[-new:]).tolist(), strict=True):
            self.series.append(t, v)
        self._seen, self._newest = len(raw), extent[1]


class Smoothing:
    """The slider's setting and the smoothed view of each curve it applies to. 0 is raw."""

    def __init__(self, weight: float = 0.0) -> None:
        self._weight = weight
        self._by_key: dict[Key, SmoothedSeries] = {}

    @property
    def weight(self) -> float:
        return self._weight

    def set_weight(self, weight: float) -> None:
        """Smooth with another weight from now on.

        Raises:
            ValueError: when ``weight`` is not from 0 to below 1.
        """
        # Raises where the weight cannot be one, before anything is changed.
        Smoother(weight)
        if weight != self._weight:
            self._weight = weight
            self._by_key.clear()

    def of(self, curve: CurveSpec, raw: Series) -> Series | None:
        """The smoothed view of ``raw``, up to date; ``None`` where the curve is shown raw."""
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
            return smoothed.series.until(until)  # a replay went back; what is smoothed looks back only
        return smoothed.series


@dataclass(frozen=True, slots=True)
class Row:
    """One curve in the readout: value at the cursor, ``None`` where nothing is drawn, NaN where a run computed NaN.

    Attributes:
        text: what is written in place of the value; "" for the value.
        then: what it would be with a change; "" for nothing.
        kind: "sum" of the rows above it, or the "rest" below that; "" for a curve.
    """

    curve: CurveSpec
    value: float | None
    smoothed: float | None
    text: str = ""
    then: str = ""
    kind: str = ""


def read_plot(
    store: Store, spec: PlotSpec, hidden: Iterable[str], span: tuple[float, float], columns: int, smoothing: Smoothing
) -> PlotData:
    """What ``spec`` shows of ``span`` on ``columns`` columns. The caller holds ``store.lock``."""
    data = PlotData()
    for curve in spec.curves:
        series = None
        if curve.name not in hidden:
            series = store.series(*curve.key)
        if series is None:
            continue
        data.points[curve.name] = series.window(*span, columns)
        smoothed = smoothing.of(curve, series)
        if smoothed is not None and smoothed.extent() is not None:
            data.smoothed[curve.name] = smoothed.window(*span, columns)
    bands = [curve for curve in spec.curves if curve.stack and curve.name in data.points]
    # Thinning keeps the extremes of each curve, at times that differ; sums need all bands at one time.
    if len({data.points[curve.name][0].tobytes() for curve in bands}) > 1:
        for curve in bands:
            series = store.series(*curve.key)
            if series is not None:
                data.known[curve.name] = series.window(*span, ALL_SAMPLES)
    return data


def read_row(store: Store, curve: CurveSpec, time_s: float | None, smoothing: Smoothing) -> Row:
    """The curve's value at ``time_s``, else its newest. The caller holds ``store.lock``."""
    series = store.series(*curve.key)
    if series is None:
        return Row(curve, None, None)
    smoothed = smoothing.of(curve, series)
    ended_s = None
    if store.run is not None:
        ended_s = store.run.ended_s
    # Of a run's end its last value is asked for, which may be a NaN that the series has as a gap.
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
    """Whether the run's newest value is a number's absence computed by the run, which a series keeps as a gap."""
    table, name, _device = curve.key
    metric = None
    if table == "run" and store.run is not None:
        metric = store.run.metrics.get(name)
    return metric is not None and metric.count > 0 and math.isnan(metric.last)


def read_statistics(store: Store, curves: Iterable[CurveSpec], span: tuple[float, float]) -> list[Statistics | None]:
    """Figures of the raw samples in ``span``, one entry per curve. The caller holds ``store.lock``."""
    result: list[Statistics | None] = []
    for curve in curves:
        series = store.series(*curve.key)
        result.append(None if series is None else series.statistics(*span))
    return result


def value_at(series: Series, time_s: float) -> float | None:
    """The value drawn at ``time_s``; ``None`` before the first sample, in a gap and past the end."""
    extent = series.extent()
    if extent is None or time_s > extent[1] + STALE_S:
        return None
    return series.at(time_s)


class PlotLevels:
    """The levels of lines across plots; a capacity is still the capacity while its source is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[Key, float | None] = {}
        self._before: dict[tuple[Key, float], float | None] = {}

    def of(self, line: LineSpec) -> float | None:
        """The level now; ``None`` where it was never known. The caller holds the store's lock."""
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
        if value is None:  # as a program ends its card falls silent before its run is over
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
        """The newest value that is no gap; the history is searched for it at most once."""
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


def visible_rows(
    store: Store,
    specs: Iterable[PlotSpec],
    hidden: Mapping[str, frozenset[str]],
    time_s: float | None,
    smoothing: Smoothing,
) -> list[Group]:
    """The readout: per plot a row for each curve that is not hidden. The caller holds ``store.lock``."""
    groups = []
    for spec in specs:
        out_of_sight = hidden.get(spec.id, frozenset())
        shown = [curve for curve in spec.curves if curve.name not in out_of_sight]
        groups.append((spec, [read_row(store, curve, time_s, smoothing) for curve in shown]))
    return groups


Floats = NDArray[np.float64]


@dataclass(slots=True)
class Smoother:
    """Bias-corrected exponential moving average, sample by sample.

    The average after n samples weighs them by weight^age, normalised: m += (x − m)·(1 − weight)/(1 − weight^n), which
    is Adam's bias correction (Kingma and Ba 2015, section 3) rearranged so that a constant stays that constant exactly.
    A sample that is not finite breaks the line and the average starts anew behind it.

    Attributes:
        weight: of the past, 0 (raw) up to but not 1.
    """

    weight: float
    _mean: float = 0.0
    _decay: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight < 1:
            raise ValueError(f"smoothing {self.weight} is outside 0 to below 1")

    def extend(self, values: Floats) -> Floats:
        """The averages at ``values``, shape (n,), going on from earlier calls; NaN where a value is not finite."""
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
"""Shortest time between two updates of the words for a screen reader."""

STATISTICS_S = 0.4
"""Shortest time between two updates of the strip's figures while nothing but the data changes."""


@dataclass(frozen=True, slots=True)
class PlotRequest:
    """A plot as far as reading it goes: what it shows, names of hidden curves, pixel columns to thin for."""

    spec: PlotSpec
    hidden: frozenset[str]
    columns: int

    @property
    def curves(self) -> list[CurveSpec]:
        """The curves that are not hidden."""
        return [curve for curve in self.spec.curves if curve.name not in self.hidden]


@dataclass(frozen=True, slots=True)
class FrameData:
    """One frame.

    `groups` are of the moment `read_s`, ``None`` for the newest. `statistics` and `descriptions` are ``None`` when they
    are not due.
    """

    plots: list[PlotData]
    groups: list[Group]
    read_s: float | None
    marks: list[Mark]
    statistics: tuple[list[CurveSpec], list[Statistics | None]] | None
    descriptions: list[str] | None


@dataclass(frozen=True, slots=True)
class SessionShape:
    """The whole session in outline.

    Attributes:
        start_s, end_s: session time, of the first and the newest reading.
        memory: times and bytes, thinned to a few samples a pixel.
        runs: when each run began and ended.
    """

    start_s: float
    end_s: float
    memory: Points
    runs: tuple[tuple[float, float], ...] = ()


def session_shape(store: Store, specs: Sequence[PlotSpec], columns: int) -> SessionShape | None:
    """The outline of what there is: the memory in use, else the first curve with data. The caller holds ``store.lock``.

    Args:
        store: read.
        specs: the plots that are shown, the most important first.
        columns: pixels the outline is drawn on.
    """
    curves = [curve for spec in specs for curve in spec.curves]
    used = [("used_bytes", curve.key[0], curve.key[2]) for curve in curves if curve.unit == "bytes"]
    # Memory in use says most about a session; where there is none, whatever curve comes first.
    keys = [*((table, name, device) for name, table, device in used), *(curve.key for curve in curves)]
    known = [series for key in keys if (series := store.series(*key)) is not None and series.extent() is not None]
    if not known:
        return None
    extents = [extent for series in known if (extent := series.extent()) is not None]
    start, end = min(first for first, _ in extents), max(last for _, last in extents)
    if start >= end:
        return None
    runs = tuple((run.began_s, end if run.ended_s is None else run.ended_s) for run in store.runs)
    return SessionShape(start, end, known[0].window(start, end, columns), runs)


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

    def read(
        self, drawn: Sequence[PlotRequest], plots: Sequence[PlotRequest], *, measure: bool, force: bool
    ) -> FrameData:
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
        read_s = self._read_s(span)
        groups = visible_rows(self._store, [plot.spec for plot in plots], hidden, read_s, self.smoothing)
        self.marks_kept.follow()
        curves = [curve for plot in plots for curve in plot.curves]
        return FrameData(
            data,
            groups,
            read_s,
            self.marks_kept.shown,
            self._statistics(curves, force=force) if measure else None,
            self._descriptions(drawn, data, force=force),
        )

    def _read_s(self, span: tuple[float, float]) -> float | None:
        """Whose values the readout shows: those at the cursor, else the last ones of the range shown; ``None`` for now.

        Behind a run's end little of it is left: where the margin of the range lies there, they are those of the end.
        """
        if self._view.cursor_s is not None:
            return self._view.cursor_s
        if self._view.following:
            return None
        left, right = span
        run = run_in_view(self._store, span)
        if (
            # The margin behind a run's end is there for looks: values of its end are what one wants to read there.
            run is not None
            and run.ended_s is not None
            and right - (right - left) * MARGIN_SHARE <= run.ended_s <= right
        ):
            # A program goes on for a while behind its last step, and its memory is gone before it is.
            if run.workload == WATCH and run.stepped_s is not None:
                return run.stepped_s
            return run.ended_s
        if right >= self._store.newest_s:
            return None
        return right

    def _read_plot(self, plot: PlotRequest, span: tuple[float, float]) -> PlotData:
        data = read_plot(self._store, plot.spec, plot.hidden, span, plot.columns, self.smoothing)
        data.levels = [self._levels.of(line) for line in plot.spec.lines]
        return data

    def _statistics(
        self, curves: list[CurveSpec], *, force: bool
    ) -> tuple[list[CurveSpec], list[Statistics | None]] | None:
        key = (self._view.selection, tuple(curves))
        due = self._clock() - self._measured_at >= STATISTICS_S
        # Cheap figures are due at once when what they are of changes; else now and then, since they read all samples.
        if not (due or force or key != self._measured_key):
            return None
        self._measured_at, self._measured_key = self._clock(), key
        return curves, read_statistics(self._store, curves, self._view.selection or self._view.range())

    def _descriptions(self, drawn: Sequence[PlotRequest], data: Sequence[PlotData], *, force: bool) -> list[str] | None:
        if self._clock() - self._described_at < DESCRIBE_S and not force:
            return None
        self._described_at = self._clock()
        descriptions = []
        for plot, fresh in zip(drawn, data, strict=True):
            rows = [read_row(self._store, curve, None, self.smoothing) for curve in plot.curves]
            descriptions.append(describe_plot(self._store, plot.spec, fresh, rows))
        return descriptions


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
    values = [f"{row.curve.name} {format_value(row.curve.unit, row.value, row.curve.unit_name)}" for row in rows]
    return f"{spec.title}, now {', '.join(values) if values else 'every curve hidden'}"


def _memory(store: Store, spec: PlotSpec, data: PlotData, bands: list[Row]) -> str:
    known = [row.value for row in bands if row.value is not None]
    if not known:
        return "no reading now"
    used = sum(known)
    capacity = next((v for line, v in zip(spec.lines, data.levels, strict=False) if line.colour == "capacity"), None)
    if capacity is None:
        text = f"now {format_bytes(used)}"
    else:
        text = f"now {format_pair(used, capacity)}"
    before = _total(store, [row.curve for row in bands], store.newest_s - SLOPE_S)
    # Half of a trend is no trend: a memory without a value 5 s ago has none.
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
