"""The memory map: a strip per segment, a stretch of it per block, all at the same scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QHelpEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QScrollArea, QSizePolicy, QToolTip, QWidget

from gpudash.memory.snapshot.history.layout import Layout
from gpudash.memory.snapshot.history.lives import Piece
from gpudash.ui.colours import Palette, mixed
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.units import format_bytes, format_like

Ints = NDArray[np.int64]

GAP_PX = 3
"""Pixels between segments."""

LEAST_PX = 3
"""Minimum width of a segment, in pixels."""

WIDE_PX = 4
"""Minimum width, in pixels, of a block whose start is marked."""

NOTHING, IDLE = -1, -2
"""Pixels that show no block: outside every segment, or free memory inside one."""


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """All segments of a device at one moment, placed end to end, the large ones first.

    Attributes:
        segments: in the order in which they are placed.
        offset: start of each segment when placed end to end; shape (segments + 1,), bytes.
        begin, end: start and end of each block in the same coordinates, ascending.
        life: index of each block's life.
        waits: whether a block is freed, but still in use by another stream.
    """

    segments: tuple[Piece, ...]
    offset: Ints
    begin: Ints
    end: Ints
    life: Ints
    waits: NDArray[np.bool_]

    @property
    def total(self) -> int:
        """Total bytes of all segments."""
        return int(self.offset[-1])

    def segment_at(self, place: float) -> int:
        """The segment at an offset."""
        return int(np.searchsorted(self.offset, place, "right")) - 1

    def address(self, place: int) -> int:
        """The device address at an offset."""
        number = self.segment_at(place)
        return self.segments[number].address + place - int(self.offset[number])

    def idle_at(self, place: float) -> tuple[int, int]:
        """Start and end of the free range around an offset."""
        number = self.segment_at(place)
        after = int(np.searchsorted(self.begin, place, "right"))
        low = max(int(self.offset[number]), int(self.end[after - 1]) if after else 0)
        high = int(self.offset[number + 1])
        return low, min(high, int(self.begin[after])) if after < len(self.begin) else high


def map_of(layout: Layout) -> Map:
    """The map of a layout: large segments before small ones, shared before private, then by address."""
    order = sorted(
        range(len(layout.held)),
        key=lambda n: (layout.held[n].is_small, str(layout.held[n].pool), layout.held[n].address),
    )
    segments = tuple(layout.held[number] for number in order)
    sizes = np.array([piece.size for piece in segments], dtype=np.int64)
    offset = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    shift = np.zeros(len(order) + 1, dtype=np.int64)
    addresses = np.array([piece.address for piece in segments], dtype=np.int64)
    shift[np.array(order, dtype=np.int64)] = offset[:-1] - addresses
    begin = layout.address + shift[layout.segment]
    sorted_by_place = np.argsort(begin, kind="stable")
    begin = begin[sorted_by_place]
    return Map(
        segments,
        offset,
        begin,
        begin + layout.size[sorted_by_place],
        layout.life[sorted_by_place],
        layout.waits[sorted_by_place],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """The map as rows of pixels, each array of shape (rows, width).

    Attributes:
        block: block that each pixel shows, or `NOTHING` or `IDLE`.
        place: offset in bytes at the middle of each pixel; meaningless where nothing is drawn.
        begins: pixels where a block starts that is wide enough to be marked.
    """

    block: Ints
    place: NDArray[np.float64]
    begins: NDArray[np.bool_]


def fitting_scale(found: Map, width: int, rows: int) -> float:
    """Bytes per pixel at which the map fills about ``rows`` rows of ``width`` pixels."""
    room = max(width, width * rows - len(found.segments) * (GAP_PX + 1))
    return max(1.0, found.total / (room * 0.94))


def lay_out(found: Map, width: int, scale: float) -> Lines:
    """Place segments one after the other; a segment that fits in a row is not split.

    Args:
        found: map to lay out.
        width: width of a row, in pixels.
        scale: bytes per pixel.
    """
    starts, lengths = _places(found.segments, width, scale)
    if not len(starts):
        rows = 1
    else:
        rows = int((starts[-1] + lengths[-1] - 1) // width) + 1
    block = np.full(rows * width, NOTHING, dtype=np.int64)
    place = np.zeros(rows * width)
    if len(starts):
        number = np.repeat(np.arange(len(starts)), lengths)
        within = np.arange(len(number)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        sizes = np.diff(found.offset)
        middles = found.offset[number] + (within + 0.5) / lengths[number] * sizes[number]
        pixels = starts[number] + within
        place[pixels] = middles
        block[pixels] = _blocks_at(found, middles)
    changes = np.flatnonzero(block[1:] != block[:-1]) + 1
    begins = np.zeros(len(block), dtype=bool)
    begins[changes[np.diff(np.append(changes, len(block))) >= WIDE_PX]] = True
    begins &= block >= 0
    return Lines(block.reshape(rows, width), place.reshape(rows, width), begins.reshape(rows, width))


def _blocks_at(found: Map, places: NDArray[np.float64]) -> Ints:
    if not len(found.begin):
        return np.full(len(places), IDLE, dtype=np.int64)
    number = np.searchsorted(found.begin, places, "right") - 1
    inside = (number >= 0) & (places < found.end[number])
    return np.where(inside, number, IDLE).astype(np.int64)


def _places(segments: tuple[Piece, ...], width: int, scale: float) -> tuple[Ints, Ints]:
    """First pixel of each segment, and its length in pixels."""
    starts, lengths, at = [], [], 0
    for segment in segments:
        length = max(LEAST_PX, round(segment.size / scale))
        left = width - at % width
        if left < min(length, width) and (length <= width or left < LEAST_PX):
            at += left
        starts.append(at)
        lengths.append(length)
        at += length + GAP_PX
    return np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64)


ROW, ROW_GAP = 18, 5
"""Height of a row, and gap between rows, in logical pixels."""

MOST_ROWS = 4000

TRIES, TIGHTER = 6, 1.08
"""How often the scale is increased, and by what factor, until the map fits without scrolling."""

GROUND, FREE, PENDING, FIRST_CATEGORY = range(4)
"""Indices into the colour table."""

FAINT = 0.72
"""How much of the background is mixed into the colour of blocks outside the selection."""

IDLE_GROUND = 0.7
"""How much of the background is mixed into the colour of idle memory: blocks stand out from it."""

Describe = Callable[[int, int], str]
"""(block or `IDLE`, offset) → text of the tooltip."""


class MemoryMap(QWidget):
    """Draws segments and blocks. Hover for a tooltip, click to select a block, Ctrl+wheel to zoom.

    Signals:
        chosen: index of the block that was clicked.
    """

    chosen = Signal(int)

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._map: Map | None = None
        self._codes: Ints = np.zeros(0, dtype=np.int64)
        self._bright: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._curves: Sequence[str] = ()
        self._describe: Describe = lambda _block, _place: ""
        self._lines: Lines | None = None
        self._picture: QImage | None = None
        self._zoom = 1.0
        self._room = QSize(400, 200)
        self.chosen_block: int | None = None
        self.setAccessibleName("Memory map of segments and blocks")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)

    def show_map(
        self, found: Map, category: Ints, bright: NDArray[np.bool_], curves: Sequence[str], describe: Describe
    ) -> None:
        """Draw a map.

        Args:
            found: map to draw.
            category: category code of each block.
            bright: whether each block is part of the selection.
            curves: curve names, by category code; a category has its curve's colour.
            describe: returns the text of a tooltip.
        """
        self._map, self._curves, self._describe = found, curves, describe
        self._codes = np.where(found.waits, PENDING, category + FIRST_CATEGORY)
        self._bright = bright
        self.chosen_block = None
        held = format_like(int((found.end - found.begin).sum()), found.total)
        self.setAccessibleDescription(
            f"{len(found.segments)} segments of {format_bytes(found.total)}, {held} of it in {len(found.begin)} blocks"
        )
        self._forget()

    def set_room(self, room: QSize) -> None:
        """Set the size to fill before scrolling is needed."""
        if room != self._room:
            self._room = room
            self._forget()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self._picture = None
        self.update()

    def _forget(self) -> None:
        self._lines = self._picture = None
        self.setMinimumHeight(self.lines().block.shape[0] * (ROW + ROW_GAP))
        self.update()

    def lines(self) -> Lines:
        """The map laid out in rows."""
        if self._lines is None:
            width = max(50, self.width())
            if self._map is None or not self._map.total:
                empty = np.full((1, width), NOTHING, dtype=np.int64)
                self._lines = Lines(empty, np.zeros(empty.shape), empty >= 0)
            else:
                rows = min(max(1, self._room.height() // (ROW + ROW_GAP)), MOST_ROWS)
                scale = fitting_scale(self._map, width, rows) / self._zoom
                self._lines = lay_out(self._map, width, max(scale, self._map.total / (MOST_ROWS * width)))
                for _try in range(TRIES if self._zoom == 1 else 0):
                    if self._lines.block.shape[0] <= rows:
                        break
                    scale *= TIGHTER
                    self._lines = lay_out(self._map, width, scale)
        return self._lines

    def resizeEvent(self, event: QResizeEvent) -> None:
        if event.size().width() != event.oldSize().width():
            self._forget()
        super().resizeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(event.rect(), QColor(self._palette.panel))
        if self._map is None or not self._map.total:
            painter.setPen(QColor(self._palette.muted))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, "PyTorch has reserved nothing at this moment.")
            return
        picture = self._drawn()
        step = ROW + ROW_GAP
        first, last = max(0, event.rect().top() // step), min(event.rect().bottom() // step + 1, picture.height())
        for row in range(first, last):
            painter.drawImage(QRect(0, row * step, picture.width(), ROW), picture, QRect(0, row, picture.width(), 1))
        if self.chosen_block is not None:
            self._draw_chosen(painter)
        if self.hasFocus():
            painter.setPen(QPen(QColor(self._palette.accent), 1))
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))
        painter.end()

    def _draw_chosen(self, painter: QPainter) -> None:
        painter.setPen(QPen(QColor(self._palette.text), 2))
        rows, columns = np.nonzero(self.lines().block == self.chosen_block)
        for row in np.unique(rows).tolist():
            inside = columns[rows == row]
            left, right = int(inside.min()), int(inside.max()) + 1
            painter.drawRect(QRectF(left, row * (ROW + ROW_GAP) - 1, max(3, right - left), ROW + 1))

    def _drawn(self) -> QImage:
        if self._picture is None:
            lines = self.lines()
            block = np.maximum(lines.block, 0)
            shown = lines.block >= 0
            code = np.full(lines.block.shape, GROUND, dtype=np.int64)
            code[lines.block == IDLE] = FREE
            faint = np.zeros(lines.block.shape, dtype=np.int64)
            if len(self._codes):
                code[shown] = self._codes[block[shown]]
                faint[shown] = ~self._bright[block[shown]]
            pixels = np.ascontiguousarray(self._colours()[code, faint, lines.begins.astype(np.int64)])
            height, width = pixels.shape
            self._picture = QImage(pixels.tobytes(), width, height, 4 * width, QImage.Format.Format_RGB32).copy()
        return self._picture

    def _colours(self) -> NDArray[np.uint32]:
        """Colours by (index into the colour table, outside the selection, first pixel of a block)."""
        ground = QColor(self._palette.panel)
        inside = [ground, idle_colour(self._palette), QColor(self._palette.curves["forecast"])]
        inside += [QColor(self._palette.curves[curve]) for curve in self._curves]
        rows = []
        for colour in inside:
            faint = mixed(colour, ground, FAINT)
            rows.append([[c.rgb(), mixed(c, ground, 0.45).rgb()] for c in (colour, faint)])
        return np.array(rows, dtype=np.uint32)

    def at(self, place: QPointF) -> tuple[int, int]:
        """The block (or `IDLE` or `NOTHING`) and the offset in bytes at a position in the widget."""
        lines = self.lines()
        row, within = divmod(int(place.y()), ROW + ROW_GAP)
        column = int(place.x())
        if within >= ROW or not (0 <= row < lines.block.shape[0] and 0 <= column < lines.block.shape[1]):
            return NOTHING, 0
        return int(lines.block[row, column]), int(lines.place[row, column])

    def text_at(self, place: QPointF) -> str:
        """The tooltip at a position; "" outside every segment."""
        block, byte = self.at(place)
        if block == NOTHING:
            return ""
        return self._describe(block, byte)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.choose(self.at(event.position())[0])

    def choose(self, block: int) -> None:
        """Highlight a block; a number that is no block clears the highlight."""
        if block >= 0:
            self.chosen_block = block
        else:
            self.chosen_block = None
        self.update()
        if block >= 0:
            self.chosen.emit(block)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Right: 1, Qt.Key.Key_Left: -1}.get(Qt.Key(event.key()))
        if step is None or not len(self._codes):
            super().keyPressEvent(event)
            return
        if self.chosen_block is None:
            at = -1
        else:
            at = self.chosen_block
        self.choose((at + step) % len(self._codes))

    def wheelEvent(self, event: QWheelEvent) -> None:
        if not event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            event.ignore()
            return
        self._zoom = min(max(1.0, self._zoom * 1.25 ** (event.angleDelta().y() / 120)), 200.0)
        self._forget()
        event.accept()

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            text = self.text_at(QPointF(event.pos()))
            if text:
                QToolTip.showText(event.globalPos(), plain_tip(text), self)
            else:
                QToolTip.hideText()
            return True
        return super().event(event)


class ScrolledMap(QScrollArea):
    """A memory map that fills the viewport and scrolls vertically when it does not fit."""

    def __init__(self, view: MemoryMap) -> None:
        super().__init__()
        self._view = view
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWidget(view)

    def resizeEvent(self, event: QResizeEvent) -> None:
        # Before the base class lays out: it asks the map for its size hint.
        self._view.set_room(self.viewport().size())
        super().resizeEvent(event)


def idle_colour(palette: Palette) -> QColor:
    """The colour of memory between blocks: that of idle memory elsewhere, fainter."""
    return mixed(QColor(palette.curves["idle"]), QColor(palette.panel), IDLE_GROUND)
