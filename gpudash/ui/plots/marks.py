"""Marks: named moments of the session, and which of their labels find room."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from gpudash.telemetry.records import REMOVED, EpochFinished, Event, Marker, SourceFailed, SourceRecovered
from gpudash.telemetry.store import MAX_EVENTS, Store

CATEGORIES = ("user", "run", "phase", "epoch", "warning", "source")
"""Kinds of marks that can be hidden on their own."""

MOST = 4 * MAX_EVENTS
"""Marks above which those are let go that the store let go (it has at most half as many), so that this is rare."""

_PRIORITY = {"user": 0, "warning": 1, "run": 2, "source": 3, "epoch": 4, "phase": 5}


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


class Marks:
    """The marks of a store, brought up to date event by event.

    Attributes:
        shown: the marks that are not hidden, in order of time.
        hidden: categories that are left out of `shown`.
    """

    def __init__(self, store: Store) -> None:
        self.shown: list[Mark] = []
        self.hidden: frozenset[str] = frozenset()
        self._store = store
        self._all: list[Mark] = []
        self._seen = 0
        self._rewound = store.rewound
        self._last_marker: Marker | None = None

    def hide(self, categories: Iterable[str]) -> None:
        """Leave out marks of these categories, and of no others."""
        self.hidden = frozenset(categories) & frozenset(CATEGORIES)
        self.shown = [mark for mark in self._all if mark.category not in self.hidden]

    def follow(self) -> None:
        """Take in what happened since the last call. Called under the store's lock."""
        new = self._store.event_count - self._seen
        markers = self._store.markers
        rewound, self._rewound = self._store.rewound != self._rewound, self._store.rewound
        if not rewound and not new and (not markers or markers[-1] is self._last_marker):
            return
        if rewound or len(self._all) > MOST:
            new = self._begin_anew()
        for marker in reversed(list(takewhile(lambda m: m is not self._last_marker, reversed(markers)))):
            self._last_marker = marker
            if marker.category == REMOVED:
                self._remove(Mark(marker.time_s, marker.label, "user"))
            else:
                self._add(Mark(marker.time_s, marker.label, marker.category))
        for event in reversed(list(islice(reversed(self._store.events), new))):
            if (mark := _mark_of(event)) is not None:
                self._add(mark)
        self._seen = self._store.event_count

    def _begin_anew(self) -> int:
        """Forget marks whose events the store let go, or has yet to come to; returns how many events are to be read."""
        self._all, self.shown, self._last_marker = [], [], None
        return len(self._store.events)

    def _add(self, mark: Mark) -> None:
        insort(self._all, mark, key=_time)
        if mark.category not in self.hidden:
            insort(self.shown, mark, key=_time)

    def _remove(self, mark: Mark) -> None:
        for marks in (self._all, self.shown):
            if mark in marks:
                marks.remove(mark)


def _time(mark: Mark) -> float:
    return mark.time_s


def _mark_of(event: Event) -> Mark | None:
    """The mark for an event for which the store makes no marker; ``None`` when it has none."""
    match event:
        case EpochFinished(time_s=time_s, epoch=epoch):
            return Mark(time_s, f"epoch {epoch}", "epoch")
        case SourceFailed(time_s=time_s, source=source):
            return Mark(time_s, f"{_short(source)} lost", "source")
        case SourceRecovered(time_s=time_s, source=source):
            return Mark(time_s, f"{_short(source)} back", "source")
        case _:
            return None


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
    first = bisect_left(marks, left, key=lambda mark: x_of(mark.time_s))
    marks = marks[first : bisect_right(marks, right, key=lambda mark: x_of(mark.time_s))]
    xs = [x_of(mark.time_s) for mark in marks]
    taken: list[tuple[float, float]] = []
    texts: dict[int, tuple[str, float]] = {}
    for i in sorted(range(len(marks)), key=lambda i: (_PRIORITY.get(marks[i].category, 9), -marks[i].time_s)):
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
    return [PlacedMark(mark, x, *texts.get(i, ("", 0.0))) for i, (mark, x) in enumerate(zip(marks, xs, strict=True))]


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
