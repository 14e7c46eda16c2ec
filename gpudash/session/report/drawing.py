"""A plot as an SVG element: exact extremes of every pixel column, gaps as gaps, marks across it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from gpudash.session.report.curves import WORDS, Curve, Plot
from gpudash.telemetry.records import Marker
from gpudash.telemetry.store import Store
from gpudash.units import format_clock, memory_unit, parse_size

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 210, 84, 44, 20, 26
COLUMNS = WIDTH - LEFT - RIGHT

NEAR_RATIO = 0.4
"""How full a memory must be for its axis to reach to the capacity."""

MOST_MARKS = 60
"""Marks that are drawn; more would hide the curves. The table of warnings below holds them all."""

LABEL_PX, LABEL_LETTERS = 7.0, 40
"""Width of a letter of a label, and how many of them are shown, at most."""

_KINDS = ("run", "user", "warning", "phase")
"""Kinds of marks, those whose label is told first in front."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A curve with its points: times in seconds, NaN where a value is missing."""

    curve: Curve
    times: Floats
    values: Floats

    @property
    def known(self) -> Floats:
        return self.values[np.isfinite(self.values)]


def read(store: Store, plot: Plot, span: tuple[float, float]) -> list[Drawn]:
    """The points of a plot's curves; called under the store's lock."""
    found = []
    for curve in plot.curves:
        series = store.series(*curve.key)
        if series is not None:
            times, values = series.window(*span, COLUMNS)
            found.append(Drawn(curve, times, values))
    return found


def draw(
    plot: Plot, curves: Sequence[Drawn], marks: Sequence[Marker], span: tuple[float, float], *, labelled: bool = True
) -> str:
    """The plot with its title and legend; "" where no curve has a value.

    Args:
        plot: what is drawn.
        curves: its points, as of `read`.
        marks: within the span.
        span: session time at the left and at the right edge.
        labelled: whether the marks carry their labels.
    """
    shown = [drawn for drawn in curves if len(drawn.known)]
    if not any(drawn.curve.style != "limit" for drawn in shown):
        return ""
    bottom, top = _range(plot, shown)
    scale = _Scale(span, bottom, top)
    inside = [drawn for drawn in shown if drawn.curve.style != "limit" or drawn.known.max() <= top]
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_words(plot, shown))}">',
        *_y_axis(plot, scale),
        *_x_axis(scale),
    ]
    if any(drawn.curve.right for drawn in shown):
        parts += _right_axis()
    paths = [_paths(drawn, scale) for drawn in inside]
    parts += [fill for fill, _ in reversed(paths)]  # what the first curve holds lies over what holds it
    parts += [line for _, line in paths]
    parts += [_mark(mark, scale) for mark in marks[:MOST_MARKS]]
    parts += [*(_labels(marks[:MOST_MARKS], scale) if labelled else ()), "</svg>"]
    legend = "".join(_entry(plot, drawn, drawn in inside) for drawn in shown)
    return f'<figure><h3>{escape(plot.title)}</h3><div class="legend">{legend}</div>{"".join(parts)}</figure>'


@dataclass(frozen=True, slots=True)
class _Scale:
    """From time and value to pixels."""

    span: tuple[float, float]
    bottom: float
    top: float

    def x(self, time_s: float) -> float:
        start, end = self.span
        return LEFT + COLUMNS * min(max((time_s - start) / (end - start), 0.0), 1.0)

    def y(self, value: float) -> float:
        share = (value - self.bottom) / (self.top - self.bottom)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(share, 0.0), 1.0))


def _range(plot: Plot, shown: Sequence[Drawn]) -> tuple[float, float]:
    """The axis of the left: from zero, but for a loss, whose shape counts."""
    if plot.unit == "ratio":
        return 0.0, 1.0
    left = [drawn.known for drawn in shown if drawn.curve.style != "limit" and not drawn.curve.right]
    if not left:
        return 0.0, 1.0
    most = max(float(known.max()) for known in left)
    least = min(float(known.min()) for known in left)
    if plot.unit == "nats":
        margin = (most - least) * 0.06 or abs(most) * 0.1 or 1.0
        return least - margin, most + margin
    limits = [float(drawn.known.max()) for drawn in shown if drawn.curve.style == "limit"]
    if limits and most > NEAR_RATIO * max(limits):
        most = max(most, *limits)
    return min(0.0, least), most * 1.06 or 1.0


def _ticks(bottom: float, top: float, unit: float = 1.0, wanted: int = 4) -> list[float]:
    """Round values of ``unit`` from ``bottom`` to ``top``: multiples of 1, 2 or 5 times a power of ten."""
    rough = (top - bottom) / unit / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999) * unit
    first = math.ceil(bottom / step)
    return [number * step for number in range(first, math.floor(top / step + 1e-9) + 1)]


def _y_axis(plot: Plot, scale: _Scale) -> Iterator[str]:
    unit = float(parse_size(f"1{memory_unit(scale.top)}")) if plot.unit == "bytes" else 1.0
    for value in _ticks(scale.bottom, scale.top, unit):
        y = scale.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(_tick_words(plot, value))}</text>'


def _tick_words(plot: Plot, value: float) -> str:
    return f"{value:g}" if plot.unit == "items" or not value else WORDS[plot.unit](value)


def _right_axis() -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
        yield f'<text x="{WIDTH - RIGHT + 6}" y="{y + 4:.1f}">{share:.0%}</text>'


def _x_axis(scale: _Scale) -> Iterator[str]:
    start, end = scale.span
    y = HEIGHT - BOTTOM
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
    short = end - start < 60
    for time_s in _ticks(start, end, 1.0 if short else 60.0, 8):
        words = f"{time_s:g} s" if short else format_clock(time_s)
        yield f'<text x="{scale.x(time_s):.1f}" y="{y + 17}" text-anchor="middle">{words}</text>'


def _paths(drawn: Drawn, scale: _Scale) -> tuple[str, str]:
    """The filling, "" for a line, and the line; both are broken where a value is missing."""
    curve, colour = drawn.curve, f"c-{drawn.curve.colour}"
    if curve.right:
        scale = _Scale(scale.span, 0.0, 1.0)
    lines, fill = [], []
    floor = f"{scale.y(0.0):.1f}"
    for piece in _pieces(drawn):
        points = [f"{scale.x(t):.1f},{scale.y(v):.1f}" for t, v in piece]
        first, last = points[0].split(",")[0], points[-1].split(",")[0]
        outline = f"M{first},{floor} L{' '.join(points)} {last},{floor}"
        fill.append(f"{outline}Z")
        if curve.style == "pulses":
            lines.append(outline)
        else:
            lines.append(f"M{' '.join(points)}" if len(points) > 1 else f"M{points[0]} h.1")
    filled = curve.style in ("area", "pulses")
    dashed = " dashed" if curve.style in ("dashed", "limit") else ""
    return (
        f'<path class="fill {colour}" d="{"".join(fill)}"/>' if filled else "",
        f'<path class="line {colour}{dashed}" d="{"".join(lines)}"/>',
    )


def _pieces(drawn: Drawn) -> Iterator[list[tuple[float, float]]]:
    piece: list[tuple[float, float]] = []
    for time_s, value in zip(drawn.times.tolist(), drawn.values.tolist(), strict=True):
        if math.isfinite(value):
            piece.append((time_s, value))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _mark(mark: Marker, scale: _Scale) -> str:
    x = scale.x(mark.time_s)
    return (
        f'<line class="mark {_kind(mark)}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
        f"<title>{escape(str(mark.label))}, {mark.time_s:.3f} s</title></line>"
    )


def _kind(mark: Marker) -> str:
    return mark.category if mark.category in _KINDS else "user"


def _labels(marks: Sequence[Marker], scale: _Scale) -> Iterator[str]:
    """The labels that have room, those of runs before others."""
    taken: list[tuple[float, float]] = []
    for mark in sorted(marks, key=lambda mark: _KINDS.index(_kind(mark))):
        label = str(mark.label)[:LABEL_LETTERS]
        x, width = scale.x(mark.time_s), LABEL_PX * len(label)
        for left, anchor in ((x, "start"), (x - width, "end")):
            if left >= 0 and left + width <= WIDTH and all(left >= b or left + width <= a for a, b in taken):
                taken.append((left, left + width))
                place = f'x="{x:.1f}" y="{TOP - 6}" text-anchor="{anchor}"'
                yield f'<text class="{_kind(mark)}" {place}>{escape(label)}</text>'
                break


def _entry(plot: Plot, drawn: Drawn, inside: bool) -> str:
    curve, known = drawn.curve, drawn.known
    write = WORDS["ratio" if curve.right else plot.unit]
    if curve.style == "limit":
        words = f"{write(float(known.max()))}{'' if inside else ', above the axis'}"
    else:
        words = f"{write(float(known.min()))} to {write(float(known.max()))}"
    dashed = " dashed" if curve.style in ("dashed", "limit") else ""
    swatch = f'<svg class="key" viewBox="0 0 22 8"><path class="line c-{curve.colour}{dashed}" d="M1,4 21,4"/></svg>'
    return f"<span>{swatch}{escape(curve.name)} <b>{escape(words)}</b></span>"


def _words(plot: Plot, shown: Sequence[Drawn]) -> str:
    write = WORDS[plot.unit]
    parts = [
        f"{drawn.curve.name} at most {(WORDS['ratio'] if drawn.curve.right else write)(float(drawn.known.max()))}"
        for drawn in shown
    ]
    return f"{plot.title}: {', '.join(parts)}"
