"""Draws a range of a request log with every allocation as a labelled ribbon, in the window's colours.

The plots of live and recorded runs and the snapshot page share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QImage, QPainter

from gpudash.drawing.ribbons import OTHERS, Allocations, Floats, Ints, RibbonGround, Ribbons, painted, ribbons
from gpudash.memory.frames import is_library
from gpudash.memory.request_log import RequestLog
from gpudash.telemetry.explanation import short
from gpudash.ui.colours import Palette, category_curve, mixed, text_on
from gpudash.units import format_bytes, format_duration

SHADES = (0.0, 0.16, 0.3)
"""How much of the background is mixed into neighbouring ribbons of a category, to tell them apart."""

MOST_TEXTS = 8
"""Ribbons that get a label: the largest."""

RANKED_BY = 8
"""To find the largest ribbons, only one of this many columns is read."""

INSET_PX = 6.0
"""Padding at both sides of a label."""

MOST_LINES = 6
"""Stack frames shown for the ribbon under the pointer."""

OTHER_LINES = "other lines"


class RibbonPicture:
    """A range of a log, laid out and painted once, to be drawn any number of times.

    Args:
        log: the log that the allocations belong to.
        found: the allocations; their events are positioned along the x axis.
        low, high: the values at the left and the right edge, in the units of that axis.
        place: the target rectangle in logical pixels.
        scale: pixels per byte.
        palette: the colours in use.
        around: the memory below and above the ribbons.
        font: the font of the labels; ``None`` for no labels.
        by_time: whether events are positioned by seconds.
        spare: pixels of a picture that is not drawn any more, to paint in.

    Attributes:
        shown: the ribbons.
        pixels: what is drawn, 0xAARRGGBB, shape (rows, columns).
        texts: the labels of the ribbons that have room for one.
    """

    def __init__(
        self,
        log: RequestLog,
        found: Allocations,
        low: float,
        high: float,
        place: QRectF,
        scale: float,
        palette: Palette,
        *,
        around: RibbonGround | None = None,
        font: QFont | None = None,
        by_time: bool = True,
        spare: NDArray[np.uint32] | None = None,
    ) -> None:
        self.place = place
        self.shown = ribbons(found, low, high, columns_of(place))
        self.texts: list[RibbonText] = []
        self._log = log
        self._found = found
        self._by_time = by_time
        self._scale = scale
        self._around = around
        self._font = font
        height = max(1, round(place.height()))
        colours = ribbon_colours(self.shown, [line.category for line in log.lines], palette)
        # QImage does not own the pixels that it is built from
        self.pixels = painted(self.shown, colours, height, scale, around, spare)
        rows, columns = self.pixels.shape
        image_format = QImage.Format.Format_ARGB32_Premultiplied
        self._image = QImage(self.pixels.data, columns, rows, 4 * columns, image_format)
        if font is not None and len(self.shown.site):
            metrics = QFontMetricsF(font)
            found_texts = ribbon_texts(
                self.shown, self._labels_of, metrics.horizontalAdvance, metrics.height(), height, scale, around
            )
            self.texts = [RibbonText(one.text, one.room.translated(place.topLeft())) for one in found_texts]

    def paint(self, painter: QPainter) -> None:
        """Draw the picture."""
        # at whole pixels: shifting every column by a fraction takes ten times as long
        painter.drawImage(QPointF(round(self.place.left()), round(self.place.top())), self._image)
        if self._font is None:
            return
        painter.setFont(self._font)
        for written in self.texts:
            # at the start of the label's rectangle: the text may end long before it does
            at = QPointF(written.room.left(), written.room.center().y()) - self.place.topLeft()
            column = min(self._image.width() - 1, int(at.x() * self._image.width() / self.place.width()))
            row = min(self._image.height() - 1, int(at.y()))
            painter.setPen(text_on(self._image.pixelColor(column, row)))
            painter.drawText(written.room, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, written.text)

    def ribbon_at(self, point: QPointF) -> tuple[int, int] | None:
        """The ribbon and the column under the pointer; ``None`` if there is none."""
        if not self.place.contains(point):
            return None
        columns = len(self.shown.moments)
        column = min(columns - 1, int((point.x() - self.place.left()) * columns / self.place.width()))
        base = 0.0
        if self._around is not None:
            base = float(self._around.base[column])
        ribbon = self.shown.at(column, (self.place.bottom() - point.y()) / self._scale - base)
        if ribbon is None:
            return None
        return ribbon, column

    def text_at(self, point: QPointF) -> str:
        """Describe the ribbon under the pointer, with its stack; "" if there is none."""
        there = self.ribbon_at(point)
        if there is None:
            return ""
        ribbon, column = there
        allocation = int(self.shown.allocation[ribbon])
        if allocation < 0:
            return f"{format_bytes(self.shown.bytes_at(ribbon, column))} by {self._name(ribbon)}"
        site = self._log.lines[int(self._found.site[allocation])]
        lines = [f"{format_bytes(int(self._found.size[allocation]))} {site.category}, {self._lifetime(allocation)}"]
        stack = [frame for frame in self._log.stack_of(allocation) if frame.file.endswith(".py")]
        own = [frame for frame in stack if not is_library(frame)]
        lines += [f"{short(frame.file)}:{frame.line} {frame.name}" for frame in (own or stack)[:MOST_LINES]]
        return "\n".join(lines)

    @property
    def categories(self) -> list[str]:
        """What the ribbons hold, each category once, the largest first.

        Those of which one is less than twice as large as the other are in the order in which the program first asked
        for them, so that it stays while the view moves.
        """
        # a sample of the columns is enough to tell large from small
        held = np.diff(self.shown.tops[:, ::RANKED_BY].sum(axis=1), prepend=0.0)
        of_line = {site: 0.0 for site in sorted(self.shown.site.tolist()) if site != OTHERS}
        for site, size in zip(self.shown.site.tolist(), held.tolist(), strict=True):
            if site != OTHERS:
                of_line[site] += size
        total: dict[str, float] = {}
        for site, size in of_line.items():
            category = self._log.lines[site].category
            total[category] = total.get(category, 0.0) + size
        return sorted(total, key=lambda category: -math.frexp(total[category])[1])

    def _labels_of(self, ribbon: int) -> Sequence[str]:
        """Labels for a ribbon, the longest first; if negative, for adjacent ribbons of the same line."""
        name = self._name(ribbon if ribbon >= 0 else -1 - ribbon)
        place = name.partition(" ")[0]
        allocation = -1
        if ribbon >= 0:
            allocation = int(self.shown.allocation[ribbon])
        if allocation < 0:
            return name, place
        size = format_bytes(int(self._found.size[allocation]))
        return f"{name}  {size}", f"{place}  {size}", size

    def _name(self, ribbon: int) -> str:
        site = int(self.shown.site[ribbon])
        if site == OTHERS:
            return OTHER_LINES
        return self._log.lines[site].text

    def _lifetime(self, allocation: int) -> str:
        """How long an allocation lived, as text."""
        born, freed = int(self._found.born[allocation]), int(self._found.freed[allocation])
        if freed >= len(self._found.place):
            return "still there at the end" if not self._by_time else "still there"
        if not self._by_time:
            return f"for {freed - born:,} events".replace(",", "\u202f")
        return f"for {format_duration(float(self._found.place[freed] - self._found.place[max(0, born)]))}"


def columns_of(place: QRectF) -> int:
    """The number of columns of a picture drawn in this rectangle."""
    return max(1, round(place.width()))


def ribbon_colours(shown: Ribbons, categories: Sequence[str], palette: Palette) -> NDArray[np.uint32]:
    """0xAARRGGBB for each ribbon: the category colour of its line, in alternating shades.

    Args:
        categories: the category of each line.
    """
    ground = QColor(palette.panel)
    table: dict[str, list[int]] = {}
    for category in (*dict.fromkeys(categories), ""):
        colour = QColor(palette.curves[category_curve(category, palette)])
        table[category] = [mixed(colour, ground, shade).rgba() for shade in SHADES]
    found = np.zeros(len(shown.site), np.uint32)
    for ribbon, (site, allocation) in enumerate(zip(shown.site.tolist(), shown.allocation.tolist(), strict=True)):
        shades = table["" if site == OTHERS else categories[site]]
        # an allocation's shade follows from its own number, so that it keeps its colour while the view moves
        found[ribbon] = shades[(site if allocation < 0 else allocation) % len(SHADES)]
    return found


@dataclass(frozen=True, slots=True)
class RibbonText:
    """A label on a ribbon, and its rectangle in pixels of the picture."""

    text: str
    room: QRectF


def ribbon_texts(
    shown: Ribbons,
    texts: Callable[[int], Sequence[str]],
    width_of: Callable[[str], float],
    line_px: float,
    height: float,
    scale: float,
    around: RibbonGround | None = None,
) -> list[RibbonText]:
    """Labels for the largest ribbons that have room for a line of text.

    Args:
        texts: the labels of a ribbon, the longest first. Adjacent ribbons of one line are passed as −1 − the first of
            them.
        width_of: width of a text in pixels.
        line_px: height of a line of text.
        height, scale, around: as for `gpudash.drawing.ribbons.painted`.
    """
    # adjacent ribbons of the same line share one label, since each may be too thin for its own
    alone = np.concatenate((np.flatnonzero(np.diff(shown.site)), [len(shown.site) - 1]))
    # a sample of the columns is enough to find the largest
    thick = np.diff(shown.tops[alone][:, shown.column_of[::RANKED_BY]], axis=0, prepend=0.0)
    begins = np.concatenate(([0], alone[:-1] + 1))
    largest = np.argsort(-thick.sum(axis=1))[:MOST_TEXTS]
    lows = _edges(shown, begins[largest] - 1, height, scale, around)
    highs = _edges(shown, alone[largest], height, scale, around)
    found = []
    for group, low, high in zip(largest.tolist(), lows, highs, strict=True):
        ribbon = int(begins[group]) if begins[group] == alone[group] else -1 - int(begins[group])
        run = _level_run(low, high, line_px)
        if run is None:
            continue
        begin, end, floor, roof = run
        room = end - begin - 2 * INSET_PX
        text = next((text for text in texts(ribbon) if width_of(text) <= room), "")
        if text:
            middle = height - (floor + roof) / 2
            found.append(RibbonText(text, QRectF(begin + INSET_PX, middle - line_px / 2, room, line_px)))
    return found


def _edges(shown: Ribbons, rows: Ints, height: float, scale: float, around: RibbonGround | None) -> Floats:
    """The upper edges of some ribbons in pixels from the bottom, a row each; of ribbon -1, what the lowest is on."""
    edges = shown.tops[rows][:, shown.column_of]
    edges[rows < 0] = 0.0
    if around is not None:
        edges += around.base
    edges *= scale
    return np.clip(edges, 0.0, height, out=edges)


def _level_run(low: Floats, high: Floats, line_px: float) -> tuple[int, int, float, float] | None:
    """The longest run of columns around the thickest one in which a line of text fits on the ribbon: the range of
    columns, and the lower and upper edge common to all of them."""
    at = int(np.argmax(high - low))
    if high[at] - low[at] < line_px:
        return None
    left = _fits(low[at::-1], high[at::-1], line_px)
    floor = float(low[at - left + 1 : at + 1].max())
    roof = float(high[at - left + 1 : at + 1].min())
    right = _fits(np.maximum(low[at:], floor), np.minimum(high[at:], roof), line_px)
    begin, end = at - left + 1, at + right
    return begin, end, float(low[begin:end].max()), float(high[begin:end].min())


def _fits(low: Floats, high: Floats, line_px: float) -> int:
    """How many of the first columns have room for one line of text at the same height."""
    common = np.minimum.accumulate(high) - np.maximum.accumulate(low)
    return int(np.searchsorted(-common, -line_px, "right"))
