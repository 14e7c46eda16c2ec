"""What is drawn over the curves: event marks, levels, the selection, the cursor, the forecast and arrows.

`Marks` follows the store's markers and events, `place` positions their labels, and `PlotOverlay` paints everything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPainterPath, QPen, QPolygonF
from PySide6.QtWidgets import QStyleOptionGraphicsItem, QWidget

from gpudash.telemetry.readings import MAX_EVENTS
from gpudash.telemetry.records import REMOVED, EpochFinished, Event, Marker, SourceFailed, SourceRecovered
from gpudash.telemetry.store import BAD_ENDINGS, PLAIN_ENDINGS, Store
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Label, PaintedLayer, hatch

CATEGORIES = ("user", "run", "phase", "epoch", "warning", "source")
"""Categories of marks that can be hidden separately."""

MOST = 4 * MAX_EVENTS
"""With more marks than this, those that the store has dropped are dropped here too. The store keeps at most half as
many, so this is rare."""

_PRIORITY = {"user": 0, "warning": 1, "run": 2, "source": 3, "epoch": 4, "phase": 5}
"""Category → priority for space; lower goes first. A run that ended badly precedes all, a cleared warning comes
last."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at session time `time_s`."""

    time_s: float
    label: str
    category: str


@dataclass(frozen=True, slots=True)
class PlacedMark:
    """A mark at canvas x; `text` is the part of its label that fits at `text_x`, or ""."""

    mark: Mark
    x: float
    text: str
    text_x: float


class Marks:
    """The marks of a store, updated event by event.

    Attributes:
        shown: the visible marks in time order; within a run only the first and last crossing of a level.
        hidden: categories left out of `shown`.
    """

    def __init__(self, store: Store) -> None:
        self.shown: list[Mark] = []
        self.hidden: frozenset[str] = frozenset()
        self._store = store
        self._all: list[Mark] = []
        self._seen = 0
        self._begun = store.rewound, store.renamed
        self._last_marker: Marker | None = None

    def hide(self, categories: Iterable[str]) -> None:
        """Hide exactly these categories."""
        self.hidden = frozenset(categories) & frozenset(CATEGORIES)
        self._show_all()

    def follow(self) -> None:
        """Process everything new since the last call. The caller holds the store's lock."""
        new = self._store.event_count - self._seen
        markers = self._store.markers
        begun = self._store.rewound, self._store.renamed
        rewound, self._begun = begun != self._begun, begun
        # Nothing that makes a mark has changed since the last frame.
        if not rewound and not new and (not markers or markers[-1] is self._last_marker):
            return
        if rewound or len(self._all) > MOST:
            new = self._restart()
        added: list[Mark] = []
        # From the newest back to the last one seen: markers are only ever appended.
        for marker in reversed(list(takewhile(lambda m: m is not self._last_marker, reversed(markers)))):
            self._last_marker = marker
            if marker.category == REMOVED:
                self._remove(Mark(marker.time_s, marker.label, "user"), added)
            else:
                added.append(Mark(marker.time_s, marker.label, marker.category))
        events = reversed(list(islice(reversed(self._store.events), new)))
        added.extend(mark for mark in map(_mark_of, events) if mark is not None)
        self._add(sorted(added, key=_time))
        self._seen = self._store.event_count

    def _restart(self) -> int:
        """Forget all marks, as the store dropped events or was rewound; returns how many events to read again."""
        self._all, self.shown, self._last_marker = [], [], None
        return len(self._store.events)

    def _add(self, marks: list[Mark]) -> None:
        """Add marks, sorted by time."""
        late = bool(marks and self._all) and marks[0].time_s < self._all[-1].time_s
        self._all.extend(marks)
        if late:
            self._all.sort(key=_time)
            self._show_all()
            return
        for mark in marks:
            self._show(mark)

    def _show_all(self) -> None:
        self.shown = []
        for mark in self._all:
            self._show(mark)

    def _show(self, mark: Mark) -> None:
        """Show a mark that is later than all shown ones."""
        if mark.category in self.hidden:
            return
        if mark.category == "warning":
            before = self._crossings(mark.label)
            # A sawtooth crosses a level at every tooth: only the first and the newest crossing matter.
            if len(before) > 1:
                del self.shown[before[0]]
        self.shown.append(mark)

    def _crossings(self, label: str) -> list[int]:
        """Indices in `shown` of this level's crossings since a run last began or ended, the newest first."""
        found = []
        for place in range(len(self.shown) - 1, -1, -1):
            shown = self.shown[place]
            if shown.category == "run":
                break
            if shown.category == "warning" and shown.label == label:
                found.append(place)
        return found

    def _remove(self, mark: Mark, added: list[Mark]) -> None:
        """Forget a mark, including one that is just being added."""
        for marks in (added, self._all, self.shown):
            if mark in marks:
                marks.remove(mark)


def _time(mark: Mark) -> float:
    return mark.time_s


def _mark_of(event: Event) -> Mark | None:
    """The mark for an event that has no marker in the store; ``None`` for events without a mark."""
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
    """A source's name shortened for a label; a UUID would fill the plot."""
    if source.startswith("GPU-"):
        return "GPU"
    return source


def place(
    marks: Sequence[Mark],
    x_of: Callable[[float], float],
    left: float,
    right: float,
    width_of: Callable[[str], float],
    elide: Callable[[str, float], str],
) -> list[PlacedMark]:
    """Position marks and their labels: every line, and labels by priority without overlaps.

    Args:
        marks: in time order.
        x_of: session time to canvas x.
        left, right: ends of the plot area.
        width_of: width of a text in pixels.
        elide: shortens a text to a width in pixels.
    """
    first = bisect_left(marks, left, key=lambda mark: x_of(mark.time_s))
    marks = marks[first : bisect_right(marks, right, key=lambda mark: x_of(mark.time_s))]
    xs = [x_of(mark.time_s) for mark in marks]
    taken: list[tuple[float, float]] = []
    texts: dict[int, tuple[str, float]] = {}
    # The most important mark first; among equals the newest.
    for i in sorted(range(len(marks)), key=lambda i: (_priority(marks[i]), -marks[i].time_s)):
        room_left, room_right = _room(xs[i], left, right, taken)
        width = width_of(marks[i].label)
        # Right of its line if it fits, else left of it, else shortened to the room on the right.
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
            # Four pixels around each label, so that two do not read as one.
            taken.append((start - 4, start + width + 4))
    return [PlacedMark(mark, x, *texts.get(i, ("", 0.0))) for i, (mark, x) in enumerate(zip(marks, xs, strict=True))]


def _priority(mark: Mark) -> int:
    if _ended_badly(mark):
        return -1
    if mark.category == "run" and mark.label in PLAIN_ENDINGS:
        return _PRIORITY["source"]  # the mark at its start already names the run
    if mark.category == "warning" and mark.label == "passed":
        return 9
    return _PRIORITY.get(mark.category, 9)


def _ended_badly(mark: Mark) -> bool:
    return mark.category == "run" and mark.label in BAD_ENDINGS


def _room(x: float, left: float, right: float, taken: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The free interval around ``x``; empty if ``x`` itself is taken."""
    for start, end in taken:
        # Another label covers the line itself: no room at all.
        if start <= x <= end:
            return x, x
        if end <= x:
            left = max(left, end)
        else:
            right = min(right, start)
    return left, right


PEN_STYLES = {
    "solid": Qt.PenStyle.SolidLine,
    "dash": Qt.PenStyle.DashLine,
    "dot": Qt.PenStyle.DotLine,
    "dashdot": Qt.PenStyle.DashDotLine,
    "dashdotdot": Qt.PenStyle.DashDotDotLine,
}

MARK_UP_PX = 8
"""How far a mark's line reaches up beside its label."""

FAINT_ALPHA, BETWEEN_ALPHA = 0.5, 0.22
"""Opacity of a faint line, and of the area between two curves."""

_MARK_COLOURS = {"user": "accent", "warning": "warn", "source": "critical"}


@dataclass(frozen=True, slots=True)
class PlotLevel:
    """A horizontal line at an axis value, in `colour`. The legend shows its `text`, or only its `name` if space is
    short.

    With the style `PATCH` or `HATCH` it is an area of this colour, and not a level: the legend alone shows it.
    """

    text: str
    name: str
    value: float
    colour: str
    style: str


PATCH, HATCH = "patch", "hatch"

LEAST_REFUSED_PX = 10
"""Width and height in logical pixels that a refused request has at least: it is what ended the run."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """A curve leaves the plot at session time `time_s`, through the top or the bottom."""

    time_s: float
    above: bool
    colour: str


@dataclass(slots=True)
class OverlayContent:
    """Everything the overlay draws; `dots` are axis values at the cursor, each with its colour, and `refused` the
    session times and axis values of a refused request: from, until, lowest and highest."""

    levels: Sequence[PlotLevel] = ()
    marks: Sequence[PlacedMark] = ()
    mark_labels: bool = False
    selection: tuple[float, float] | None = None
    cursor_s: float | None = None
    dots: Sequence[tuple[float, str]] = ()
    arrows: Sequence[Arrow] = ()
    forecast: Sequence[tuple[float, float]] = field(default=())
    refused: tuple[float, float, float, float] | None = None


class PlotOverlay(PaintedLayer):
    """Draws an `OverlayContent` in canvas pixels."""

    def __init__(self, font: QFont, palette: Palette) -> None:
        super().__init__(10, palette)
        self._font = font
        self._metrics = QFontMetricsF(font)
        self._geometry: Geometry | None = None
        self._content = OverlayContent()
        self.labels: list[Label] = []

    def set_font(self, font: QFont) -> None:
        """Use this font for labels from the next content on."""
        self._font, self._metrics = font, QFontMetricsF(font)

    def text_width(self, text: str) -> float:
        """The width of a label in pixels."""
        return self._metrics.horizontalAdvance(text) + 1

    def elided(self, text: str, width: float) -> str:
        """The label, shortened to a width."""
        return self._metrics.elidedText(text, Qt.TextElideMode.ElideRight, width)

    def show_content(self, geometry: Geometry, content: OverlayContent) -> None:
        """Show this content."""
        self._geometry, self._content = geometry, content
        self.labels = self._mark_labels()
        self.update()

    def _mark_labels(self) -> list[Label]:
        if not self._content.mark_labels:
            return []
        height = self._metrics.height()
        return [
            Label(
                mark.text,
                QRectF(mark.text_x, self._bounds.top(), self._metrics.horizontalAdvance(mark.text) + 1, height),
            )
            for mark in self._content.marks
            if mark.text
        ]

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        if self._geometry is None:
            return
        painter.setFont(self._font)
        self._paint_selection(painter, self._geometry)
        self._paint_refused(painter, self._geometry)
        self._paint_levels(painter, self._geometry)
        self._paint_marks(painter, self._geometry)
        self._paint_forecast(painter, self._geometry)
        self._paint_arrows(painter, self._geometry)
        self._paint_cursor(painter, self._geometry)

    def _paint_selection(self, painter: QPainter, geometry: Geometry) -> None:
        if self._content.selection is None:
            return
        area = geometry.area
        left, right = map(geometry.x_of, self._content.selection)
        inside = QRectF(max(left, area.left()), area.top(), 0, area.height())
        inside.setRight(min(right, area.right()))
        if inside.width() < 0:
            return
        colour = QColor(self._palette.accent)
        painter.setPen(QPen(colour, 1))
        for x in (left, right):
            if area.left() <= x <= area.right():
                painter.drawLine(QLineF(x, area.top(), x, area.bottom()))
        colour.setAlphaF(0.16)
        painter.fillRect(inside, colour)

    def _paint_refused(self, painter: QPainter, geometry: Geometry) -> None:
        if self._content.refused is None:
            return
        began_s, until_s, low, high = self._content.refused
        left, bottom = geometry.x_of(began_s), geometry.y_of(low)
        width = max(geometry.x_of(until_s) - left, LEAST_REFUSED_PX)
        height = max(bottom - geometry.y_of(high), LEAST_REFUSED_PX)
        place = QRectF(left, bottom - height, width, height) & geometry.area
        if place.isEmpty():
            return
        shape = QPainterPath()
        shape.addRect(place)
        colour = QColor(self._palette.critical)
        painter.setPen(QPen(colour, 1))
        painter.drawPath(shape)
        hatch(painter, shape, colour, place, place.bottom())

    def _paint_levels(self, painter: QPainter, geometry: Geometry) -> None:
        area = geometry.area
        for level in self._content.levels:
            y = round(geometry.y_of(level.value))
            if area.top() <= y <= area.bottom():
                painter.setPen(QPen(QColor(level.colour), 1, PEN_STYLES[level.style]))
                painter.drawLine(QLineF(area.left(), y, area.right(), y))

    def line_of(self, placed: PlacedMark, geometry: Geometry) -> QLineF:
        """The line of a mark: up to its label, unless it would cross another label."""
        x, area = round(placed.x), geometry.area
        crosses = any(label.rect.left() <= x <= label.rect.right() for label in self.labels)
        up = 0
        if self._content.mark_labels and not crosses:
            up = MARK_UP_PX
        return QLineF(x, area.top() - up, x, area.bottom())

    def _paint_marks(self, painter: QPainter, geometry: Geometry) -> None:
        # The most important last, so that it is on top where lines meet.
        for placed in sorted(self._content.marks, key=lambda placed: -_priority(placed.mark)):
            if _ended_badly(placed.mark):
                role = "critical"
            else:
                role = _MARK_COLOURS.get(placed.mark.category, "muted")
            colour = QColor(getattr(self._palette, role))
            painter.setPen(QPen(colour, 1, Qt.PenStyle.DotLine))
            painter.drawLine(self.line_of(placed, geometry))
        painter.setPen(QColor(self._palette.text))
        for label in self._mark_labels():
            painter.drawText(label.rect, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, label.text)

    def _paint_forecast(self, painter: QPainter, geometry: Geometry) -> None:
        points = [QPointF(geometry.x_of(t), geometry.y_of(v)) for t, v in self._content.forecast]
        if len(points) < 2:
            return
        painter.save()
        painter.setClipRect(geometry.area)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(self._palette.curves["forecast"]), 1.5, Qt.PenStyle.DashLine))
        painter.drawPolyline(points)
        painter.restore()

    def _paint_arrows(self, painter: QPainter, geometry: Geometry) -> None:
        area = geometry.area
        painter.setPen(Qt.PenStyle.NoPen)
        for arrow in self._content.arrows:
            x = min(max(geometry.x_of(arrow.time_s), area.left() + 5), area.right() - 5)
            if arrow.above:
                tip, base = (area.top() + 1, area.top() + 8)
            else:
                tip, base = (area.bottom() - 1, area.bottom() - 8)
            painter.setBrush(QColor(arrow.colour))
            painter.drawPolygon(QPolygonF([QPointF(x, tip), QPointF(x - 5, base), QPointF(x + 5, base)]))

    def _paint_cursor(self, painter: QPainter, geometry: Geometry) -> None:
        if self._content.cursor_s is None:
            return
        area = geometry.area
        x = round(geometry.x_of(self._content.cursor_s))
        if not area.left() <= x <= area.right():
            return
        painter.setPen(QPen(QColor(self._palette.text), 1))
        painter.drawLine(QLineF(x, area.top(), x, area.bottom()))
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(self._palette.panel), 1))
        for value, colour in self._content.dots:
            y = geometry.y_of(value)
            if area.top() <= y <= area.bottom():
                painter.setBrush(QColor(colour))
                painter.drawEllipse(QPointF(x, y), 3.0, 3.0)
        painter.restore()
