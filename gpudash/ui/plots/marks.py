"""Marks: named moments of the session, and which of their labels find room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpudash.telemetry.records import EpochFinished, Event, Marker, SourceFailed, SourceRecovered

CATEGORIES = ("user", "run", "phase", "epoch", "warning", "source", "settings")
"""Kinds of marks that can be hidden on their own."""

_PRIORITY = {"user": 0, "warning": 1, "run": 2, "source": 3, "epoch": 4, "phase": 5, "settings": 6}


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at `time_s`."""

    time_s: float
    label: str
    category: str


@dataclass(frozen=True, slots=True)
class PlacedMark:
    """A mark at canvas x; `text` is what of its label has room at `text_x`, or ""."""

    mark: Mark
    x: float
    text: str
    text_x: float


def marks_of(markers: Iterable[Marker], events: Iterable[Event]) -> list[Mark]:
    """All marks in order of time: the store's markers, and epochs and lost or recovered sources from its events."""
    marks = [Mark(marker.time_s, marker.label, marker.category) for marker in markers]
    for event in events:
        match event:
            case EpochFinished(time_s=time_s, epoch=epoch):
                marks.append(Mark(time_s, f"epoch {epoch}", "epoch"))
            case SourceFailed(time_s=time_s, source=source):
                marks.append(Mark(time_s, f"{_short(source)} lost", "source"))
            case SourceRecovered(time_s=time_s, source=source):
                marks.append(Mark(time_s, f"{_short(source)} back", "source"))
    marks.sort(key=lambda mark: mark.time_s)
    return marks


def _short(source: str) -> str:
    """A source's name for a label; a UUID would fill the plot."""
    return "GPU" if source.startswith("GPU-") else source


def place(
    marks: Sequence[Mark],
    x_of: Callable[[float], float],
    left: float,
    right: float,
    width_of: Callable[[str], float],
    elide: Callable[[str, float], str],
) -> list[PlacedMark]:
    """Where marks and their labels go; lines always, labels by priority and never over one another.

    Args:
        marks: in order of time.
        x_of: session time to canvas x.
        left, right: ends of the plot area.
        width_of: width of a text in pixels.
        elide: shortens a text to a width.
    """
    xs = [x_of(mark.time_s) for mark in marks]
    inside = [i for i, x in enumerate(xs) if left <= x <= right]
    taken: list[tuple[float, float]] = []
    texts: dict[int, tuple[str, float]] = {}
    for i in sorted(inside, key=lambda i: (_PRIORITY.get(marks[i].category, 9), -marks[i].time_s)):
        room_left, room_right = _room(xs[i], left, right, taken)
        width = width_of(marks[i].label)
        if xs[i] + 3 + width <= room_right:
            start = xs[i] + 3
        elif room_right - width >= room_left and xs[i] - 3 - width >= room_left:
            start = xs[i] - 3 - width
        elif room_right - xs[i] - 3 >= 36 and width > 60:
            start = xs[i] + 3
            width = room_right - start
        else:
            continue
        text = elide(marks[i].label, width)
        if text:
            texts[i] = (text, start)
            taken.append((start - 4, start + width + 4))
    return [PlacedMark(marks[i], xs[i], *texts.get(i, ("", 0.0))) for i in inside]


def _room(x: float, left: float, right: float, taken: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The free stretch around ``x``; empty when ``x`` itself is taken."""
    for start, end in taken:
        if start <= x <= end:
            return x, x
        if end <= x:
            left = max(left, end)
        else:
            right = min(right, start)
    return left, right
