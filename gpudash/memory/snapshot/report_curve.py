"""The curve of a report: allocated and reserved memory over the events, as a drawing within the page."""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.snapshot.history import History
from gpudash.memory.snapshot.wording import moment_words
from gpudash.units import format_bytes

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 260, 76, 12, 12, 30
COLUMNS = 700
"""Of the curve: each shows the lowest and the highest of its events, so that no peak is lost."""

MOST_BANDS = 240
"""Bands that are drawn; of more only every so many would be seen."""


def curve(history: History, moment: int, capacity: int | None = None) -> str:
    """An SVG element; "" without events.

    Args:
        history: of the device.
        moment: that is marked.
        capacity: bytes that a what-if question asked about, drawn as a line that says so.
    """
    if not history.count:
        return ""
    top = max(int(history.reserved.max()), int(history.allocated.max()), capacity or 0, 1)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_words(history))}">',
        *_grid(top),
        _area(history.reserved, top, "reserved"),
        _area(history.allocated, top, "allocated"),
        *_bands(history),
    ]
    if capacity is not None:
        y = _y(capacity, top)
        parts.append(f'<line class="capacity" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT + 4}" y="{y - 4:.1f}">what if: {escape(format_bytes(capacity))}</text>')
    parts += [_mark(history, moment), *_ends(history), "</svg>"]
    return "".join(parts)


def _words(history: History) -> str:
    most = format_bytes(int(history.allocated.max()))
    return f"Allocated and reserved memory over {history.count} events, at most {most} allocated"


def _x(place: float, count: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * place / max(1, count)


def _y(size: float, top: int) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - size / (1.05 * top))


def _area(level: NDArray[np.int64], top: int, name: str) -> str:
    """A filled curve; of each column the lowest and the highest value, in their order."""
    count = len(level)
    bounds = np.unique(np.linspace(0, count, COLUMNS + 1).astype(np.int64))[:-1]
    low, high = np.minimum.reduceat(level, bounds), np.maximum.reduceat(level, bounds)
    points = [f"{LEFT},{_y(0, top):.1f}"]
    for place, least, most in zip(bounds.tolist(), low.tolist(), high.tolist(), strict=True):
        x = _x(place, count)
        points += [f"{x:.1f},{_y(least, top):.1f}", f"{x:.1f},{_y(most, top):.1f}"]
    points += [f"{WIDTH - RIGHT},{_y(int(level[-1]), top):.1f}", f"{WIDTH - RIGHT},{_y(0, top):.1f}"]
    return f'<polygon class="{name}" points="{" ".join(points)}"/>'


def _bands(history: History) -> list[str]:
    shown = history.phases if len(history.phases) <= MOST_BANDS else ()
    found = []
    for band in shown:
        x, end = _x(band.begin_event, history.count), _x(band.end_event, history.count)
        found.append(
            f'<rect class="{band.name}" x="{x:.1f}" y="{TOP}" width="{max(0.5, end - x):.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{band.name}</title></rect>'
        )
    return found


def _grid(top: int) -> list[str]:
    found = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share * top, top)
        found.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{format_bytes(share * top)}</text>')
    return found


def _mark(history: History, moment: int) -> str:
    x = _x(moment + 1, history.count + 1)
    name = "OOM" if moment in history.ooms.tolist() else "peak" if moment == history.peak else "here"
    anchor = "end" if x > WIDTH / 2 else "start"
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="mark" x="{x + (-5 if anchor == "end" else 5):.1f}" y="{TOP + 12}" text-anchor="{anchor}">'
        f"{name}</text>"
    )


def _ends(history: History) -> list[str]:
    last = escape(moment_words(history, history.last))
    y = HEIGHT - BOTTOM + 18
    return [
        f'<text x="{LEFT}" y="{y}">first event</text>',
        f'<text x="{WIDTH - RIGHT}" y="{y}" text-anchor="end">{last}</text>',
    ]
