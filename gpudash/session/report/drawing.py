"""A plot of a report as SVG: exact extremes of every pixel column, gaps as gaps, marks across it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gpudash.drawing.axes import format_value
from gpudash.drawing.page import FigureBlock, Key
from gpudash.drawing.scene import (
    Anchor,
    Floats,
    PlotScene,
    SceneArea,
    SceneAxis,
    SceneCurve,
    SceneFrame,
    SceneLevel,
    SceneMark,
    SceneNote,
)
from gpudash.drawing.shaping import pulses
from gpudash.drawing.svg import svg
from gpudash.session.predicting.ghosts import in_time, recorded_ghost
from gpudash.telemetry.plots import NEAR_RATIO, CurveSpec, PlotSpec
from gpudash.telemetry.readings import Key as SeriesKey
from gpudash.telemetry.records import Marker
from gpudash.telemetry.runs import RATES, RunView
from gpudash.telemetry.store import Store
from gpudash.units import (
    format_clock,
    format_percent,
    memory_unit,
    parse_size,
)

COLOURS = {
    "process": "cyan",
    "allocated": "cyan",
    "reserved": "blue",
    "other": "grey",
    "capacity": "red",
    "loss": "orange",
    "accuracy": "green",
    "val_loss": "sky",
    "throughput": "sky",
    "h2d": "green",
    "d2h": "purple",
    "h2h": "sky",
    "d2d": "grey",
    "gpu": "sky",
    "memory_controller": "orange",
    "cpu": "green",
}
"""Name of a curve's colour in the window → that of the page's style; other names are the page's own."""

MOST_MARKS = 60
"""Marks that are drawn; more would hide the curves. The table of warnings below holds them all."""

LABEL_PX, LABEL_LETTERS = 7.0, 40
"""Width of a letter of a label, and how many of them are shown, at most."""

STEP_COLUMNS = 48
"""Points of a predicted step."""

SHARES = SceneAxis(0.0, 1.0, tuple((share, f"{share:.0%}") for share in (0.0, 0.5, 1.0)))
"""The right axis."""

_OF_RUNS = ("run", "transfer")
"""Tables of what runs tell of themselves: loss, accuracy, throughput; and their copies."""

_KINDS = ("run", "user", "warning", "phase")
"""Kinds of marks, in the order in which their labels get room."""

Style = Literal["line", "dashed", "area", "pulses", "limit"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A curve with its points: times in seconds, NaN where a value is missing.

    Attributes:
        style: "area" is filled down to zero; "pulses" stand on zero, so that the narrowest is seen; "limit" is a dashed
            line that need not be on the plot.
        right: whether it is drawn against the right axis, a ratio from 0 to 1.
    """

    name: str
    colour: str
    style: Style
    right: bool
    times: Floats
    values: Floats

    @property
    def known(self) -> Floats:
        """The values that are there."""
        return self.values[np.isfinite(self.values)]


def read(
    store: Store, plot: PlotSpec, span: tuple[float, float], own: tuple[float, float] | None = None
) -> list[Drawn]:
    """The points of a plot's curves, then of its limits; called under the store's lock.

    Args:
        store: of the recording.
        plot: what is drawn.
        span: session time at the left and at the right edge.
        own: session time at which the run that is shown began and ended: a loss or a copy before or after it is
            another run's.
    """
    wanted: list[tuple[SeriesKey, str, str, Style, bool]] = [
        (curve.key, curve.name, curve.colour, _style(plot, curve), curve.axis == "right") for curve in plot.curves
    ]
    wanted += [(line.key, line.name, line.colour, "limit", False) for line in plot.lines if line.key is not None]
    columns = SceneFrame().columns
    found = []
    for key, name, colour, style, right in wanted:
        series = store.series(*key)
        if series is not None:
            times, values = series.window(*span, columns)
            if own is not None and key[0] in _OF_RUNS:
                inside = (own[0] <= times) & (times <= own[1])
                times, values = times[inside], values[inside]
            found.append(Drawn(name, COLOURS.get(colour, colour), style, right, times, values))
    return found


def predicted(store: Store, run: RunView, span: tuple[float, float]) -> Drawn | None:
    """What a run was predicted to hold, step under step in its time; ``None`` where that was not recorded, and on the
    CPU, of whose memory a run's tensors are a part. Called under the store's lock.
    """
    ghost = recorded_ghost(run)
    if ghost is None or run.device == "cpu":
        return None
    running = in_time(ghost, run, store, span)
    if running is None:
        return None
    times: list[Floats] = []
    values: list[Floats] = []
    for panel, start, end in running.pieces(span[1]):
        held = panel.columns(STEP_COLUMNS).edges[-1]
        times.append(np.linspace(start, end, len(held), endpoint=False))
        values.append(held)
    if not times:
        return None
    return Drawn("predicted", "purple", "dashed", False, np.concatenate(times), np.concatenate(values))


def _style(plot: PlotSpec, curve: CurveSpec) -> Style:
    if curve.pulses:
        return "pulses"
    if plot.nested:
        return "area"
    if curve.style == "dash":
        return "dashed"
    return "line"


def figure(
    plot: PlotSpec,
    curves: Sequence[Drawn],
    marks: Sequence[Marker],
    span: tuple[float, float],
    *,
    labelled: bool = True,
) -> FigureBlock | None:
    """The plot with its title and legend; ``None`` where no curve has a value.

    Args:
        plot: what is drawn.
        curves: its points, as of `read`.
        marks: within the span.
        span: session time at the left and at the right edge.
        labelled: whether the marks carry their labels.
    """
    shown = [drawn for drawn in curves if len(drawn.known)]
    if not any(drawn.style != "limit" for drawn in shown):
        return None
    left = _left_axis(plot, shown)
    inside = [drawn for drawn in shown if drawn.style != "limit" or drawn.known.max() <= left.high]
    marks = marks[:MOST_MARKS]
    scene = PlotScene(
        description=_description(plot, shown),
        across=_time_axis(span),
        left=left,
        right=SHARES if any(drawn.right for drawn in shown) else None,
        items=(
            SceneLevel(left.low, "axis"),
            *(_filling(drawn) for drawn in reversed(inside) if drawn.style in ("area", "pulses")),
            *map(_line, inside),
            *(SceneMark(mark.time_s, f"mark {_kind(mark)}", f"{mark.label}, {mark.time_s:.3f} s") for mark in marks),
        ),
    )
    if labelled:
        scene = replace(scene, items=(*scene.items, *_labels(marks, scene)))
    return FigureBlock(plot.title, [_key(plot, drawn, drawn in inside) for drawn in shown], svg(scene))


def _left_axis(plot: PlotSpec, shown: Sequence[Drawn]) -> SceneAxis:
    low, high = _range(plot, shown)
    unit = 1.0
    if plot.unit == "bytes":
        unit = float(parse_size(f"1{memory_unit(high)}"))
    plain = plot.unit_name in RATES
    ticks = []
    for value in _ticks(low, high, unit):
        text = f"{value:g}"
        if value and not plain:
            text = _written(plot, value)
        ticks.append((value, text))
    return SceneAxis(low, high, ticks)


def _range(plot: PlotSpec, shown: Sequence[Drawn]) -> tuple[float, float]:
    """From zero, but for a loss, whose shape counts."""
    if plot.unit == "ratio":
        return 0.0, 1.0
    left = [drawn.known for drawn in shown if drawn.style != "limit" and not drawn.right]
    if not left:
        return 0.0, 1.0
    most = max(float(known.max()) for known in left)
    least = min(float(known.min()) for known in left)
    if plot.unit in ("nats", "loss"):
        margin = (most - least) * 0.06 or abs(most) * 0.1 or 1.0
        return least - margin, most + margin
    limits = [float(drawn.known.max()) for drawn in shown if drawn.style == "limit"]
    if limits and most > NEAR_RATIO * max(limits):
        most = max(most, *limits)
    return min(0.0, least), most * 1.06 or 1.0


def _time_axis(span: tuple[float, float]) -> SceneAxis:
    start, end = span
    if end - start < 60:
        ticks = [(time_s, f"{time_s:g} s") for time_s in _ticks(start, end, 1.0, 8)]
    else:
        ticks = [(time_s, format_clock(time_s)) for time_s in _ticks(start, end, 60.0, 8)]
    return SceneAxis(start, end, ticks)


def _ticks(bottom: float, top: float, unit: float = 1.0, wanted: int = 4) -> list[float]:
    """Round values of ``unit`` from ``bottom`` to ``top``: multiples of 1, 2 or 5 times a power of ten."""
    rough = (top - bottom) / unit / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999) * unit
    first = math.ceil(bottom / step)
    return [number * step for number in range(first, math.floor(top / step + 1e-9) + 1)]


def _filling(drawn: Drawn) -> SceneArea:
    """What the first curve holds lies over what holds it, so that areas are painted from the last one on."""
    return SceneArea(drawn.times, drawn.values, f"fill c-{drawn.colour}", drawn.right)


def _line(drawn: Drawn) -> SceneCurve:
    points = drawn.times, drawn.values
    if drawn.style == "pulses":
        points = pulses(*points, bridged_s=0.0)
    return SceneCurve(*points, _line_kind(drawn), drawn.right)


def _line_kind(drawn: Drawn) -> str:
    """The classes of a curve's line."""
    return f"line c-{drawn.colour}{' dashed' if drawn.style in ('dashed', 'limit') else ''}"


def _kind(mark: Marker) -> str:
    if mark.category in _KINDS:
        return mark.category
    return "user"


def _labels(marks: Sequence[Marker], scene: PlotScene) -> Iterator[SceneNote]:
    """The labels that have room above the plot, those of runs before others."""
    taken: list[tuple[float, float]] = []
    for mark in sorted(marks, key=lambda mark: _KINDS.index(_kind(mark))):
        label = str(mark.label)[:LABEL_LETTERS]
        x, width = float(scene.x(mark.time_s)), LABEL_PX * len(label)
        sides: tuple[tuple[float, Anchor], ...] = ((x, "start"), (x - width, "end"))
        for left, anchor in sides:
            inside = left >= 0 and left + width <= scene.frame.width
            if inside and all(left >= end or left + width <= begin for begin, end in taken):
                taken.append((left, left + width))
                yield SceneNote(mark.time_s, scene.left.high, label, _kind(mark), anchor, down=-6)
                break


def _written(plot: PlotSpec, value: float) -> str:
    """A value of the left axis in words; a loss is a plain number."""
    if plot.unit in ("nats", "loss"):
        return f"{value:.3g}"
    return format_value(plot.unit, value, plot.unit_name)


def _formatted(plot: PlotSpec, drawn: Drawn, value: float) -> str:
    if drawn.right:
        return format_percent(value)
    return _written(plot, value)


def _key(plot: PlotSpec, drawn: Drawn, inside: bool) -> Key:
    least, most = (_formatted(plot, drawn, float(value)) for value in (drawn.known.min(), drawn.known.max()))
    text = f"{least} to {most}"
    if drawn.style == "limit":
        if inside:
            text = most
        else:
            text = f"{most}, above the axis"
    return Key(_line_kind(drawn), drawn.name, text)


def _description(plot: PlotSpec, shown: Sequence[Drawn]) -> str:
    parts = [f"{drawn.name} at most {_formatted(plot, drawn, float(drawn.known.max()))}" for drawn in shown]
    return f"{plot.title}: {', '.join(parts)}"
