"""The bar of what filled a device's memory: named parts that add up to the capacity, and the request beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QHelpEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from gpudash.memory.explaining.explanation_text import part_name
from gpudash.telemetry.explanation import Explanation, Part
from gpudash.ui.colours import Palette, category_curve, text_on
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.widgets.theme import PaintedWidget
from gpudash.units import format_bytes, format_count

BAR_HEIGHT = 26
LEGEND_GAP = 6
SWATCH = 9
MARGIN = 2

COLOURS = {
    "context": "context",
    "process": "other",
    "idle": "idle",
    "pending": "forecast",
    "private": "link",
    "unattributed": "reference",
}
"""Kinds of parts that have a curve with the same meaning; categories have their own curves."""


@dataclass(frozen=True)
class _Piece:
    part: Part | None
    label: str
    left: float
    right: float


class PartsBar(PaintedWidget):
    """Draws an explanation's parts. A click, or an arrow key, selects one.

    Signals:
        chosen: name of the selected category; "" for none.
    """

    chosen = Signal(str)

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(palette, parent)
        self._parts: Sequence[Part] = ()
        self._capacity = 1
        self._segment = 0
        self._request_text = ""
        self._category = ""
        self._legend: list[tuple[QRectF, Part | None, str]] = []
        self.setAccessibleName("What filled the memory")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_parts(self, explanation: Explanation) -> None:
        """Draw the parts of ``explanation``; memory that a cap withholds from PyTorch is left out."""
        parts = [part for part in explanation.parts if part.kind != "barred"]
        whole = explanation.capacity_bytes + explanation.beyond_bytes - explanation.part_bytes("barred")
        self.show_shares(parts, whole, explanation)

    def show_shares(self, parts: Sequence[Part], whole: int, refused: Explanation | None = None) -> None:
        """Draw ``parts``.

        Args:
            parts: in order of the bar.
            whole: sum of their bytes.
            refused: whose refused request is drawn, if there is one, as large as the segment that it needs.
        """
        self._parts = parts
        self._capacity = whole
        self._segment = 0
        self._request_text = ""
        if refused is not None and refused.requested_bytes:
            self._segment = refused.segment_bytes or refused.requested_bytes
            self._request_text = f"asked for {refused.request_size}"
        self._category = ""
        texts = [*(f"{part_name(part)} {format_bytes(part.bytes)}" for part in parts), self._request_text]
        self.setAccessibleDescription("; ".join(filter(None, texts)))
        self.updateGeometry()
        self.update()

    def set_category(self, category: str) -> None:
        """Highlight one category; "" for all."""
        if category != self._category:
            self._category = category
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(600, self.heightForWidth(max(400, self.width())))

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        rows = self._rows(width, self.fontMetrics())
        line = self.fontMetrics().height() + 3
        return BAR_HEIGHT + LEGEND_GAP + line * len(rows) + 2 * MARGIN

    def resizeEvent(self, event: QEvent) -> None:
        self.setFixedHeight(self.heightForWidth(self.width()))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for piece in self._pieces():
            self._draw_piece(painter, piece)
        self._draw_capacity(painter)
        self._draw_legend(painter)
        if self.hasFocus():
            painter.setPen(QPen(QColor(self._palette.accent), 1))
            painter.drawRect(QRectF(0.5, 0.5, self.width() - 1, BAR_HEIGHT + 2 * MARGIN - 1))
        painter.end()

    def _scale(self) -> float:
        """Logical pixels per byte; the bar makes room for the refused request beyond the capacity."""
        return (self.width() - 2 * MARGIN) / max(1, self._capacity + self._overhang())

    def _overhang(self) -> int:
        """Bytes by which the segment extends beyond the end: enough to be seen, but an eighth at most, so that the
        parts stay readable."""
        free = sum(part.bytes for part in self._parts if part.kind == "free")
        if self._segment <= free:
            return 0
        # A request may be many times as large as the card, or lack less than a pixel.
        return min(max(self._segment - free, self._capacity // 64), self._capacity // 8)

    def _pieces(self) -> list[_Piece]:
        pieces, at, scale = [], float(MARGIN), self._scale()
        for part in self._parts:
            width = part.bytes * scale
            pieces.append(_Piece(part, part_name(part), at, at + width))
            at += width
        if self._segment:
            # The request starts where free memory does, which it would have used too.
            free = next((piece for piece in pieces if piece.part is not None and piece.part.kind == "free"), None)
            if free is None:
                left = at
            else:
                left = free.left
            pieces.append(_Piece(None, self._request_text, left, at + self._overhang() * scale))
        return pieces

    def _draw_piece(self, painter: QPainter, piece: _Piece) -> None:
        box = QRectF(piece.left, MARGIN, max(1.0, piece.right - piece.left - 1), BAR_HEIGHT)
        if piece.part is None:
            pen = QPen(QColor(self._palette.critical), 2, Qt.PenStyle.DashLine)
            painter.setPen(pen)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(box.adjusted(1, 1, -1, -1))
            self._draw_text(painter, box, piece.label, QColor(self._palette.critical))
            return
        colour = self._colour(piece.part)
        painter.setPen(Qt.PenStyle.NoPen)
        if self._category and piece.part.name != self._category:
            colour.setAlphaF(0.25)
        painter.setBrush(colour)
        painter.drawRect(box)
        if piece.part.kind == "free":
            painter.setPen(QPen(QColor(self._palette.border), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(box.adjusted(0.5, 0.5, -0.5, -0.5))
            if self._segment:
                return  # the request is drawn here
        self._draw_text(painter, box, f"{piece.label} {format_bytes(piece.part.bytes)}", self._on(colour))

    def _draw_text(self, painter: QPainter, box: QRectF, text: str, colour: QColor) -> None:
        inside = box.adjusted(6, 0, -6, 0)
        if painter.fontMetrics().horizontalAdvance(text) <= inside.width():
            painter.setPen(colour)
            painter.drawText(inside, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, text)

    def _draw_capacity(self, painter: QPainter) -> None:
        at = MARGIN + self._capacity * self._scale()
        painter.setPen(QPen(QColor(self._palette.text), 2))
        painter.drawLine(QPointF(at - 1, 0), QPointF(at - 1, BAR_HEIGHT + 2 * MARGIN))

    def _draw_legend(self, painter: QPainter) -> None:
        metrics = painter.fontMetrics()
        line = metrics.height() + 3
        self._legend = []
        top = BAR_HEIGHT + LEGEND_GAP + 2 * MARGIN
        for row in self._rows(self.width(), metrics):
            left = float(MARGIN)
            for part, text, width in row:
                swatch = QRectF(left, top + (line - SWATCH) / 2 - 1, SWATCH, SWATCH)
                if part is None:
                    painter.setPen(QPen(QColor(self._palette.critical), 1.5, Qt.PenStyle.DashLine))
                    painter.setBrush(Qt.BrushStyle.NoBrush)
                else:
                    painter.setPen(QPen(QColor(self._palette.muted), 1))
                    painter.setBrush(self._colour(part))
                painter.drawRect(swatch)
                faint = self._category and (part is None or part.name != self._category)
                painter.setPen(QColor(self._palette.muted if faint else self._palette.text))
                painter.drawText(QPointF(left + SWATCH + 5, top + metrics.ascent()), text)
                self._legend.append((QRectF(left, top, width, line), part, text))
                left += width
            top += line

    def _rows(self, width: int, metrics: QFontMetrics) -> list[list[tuple[Part | None, str, float]]]:
        """The legend's entries, as many per row as fit."""
        entries: list[tuple[Part | None, str]] = [
            (part, f"{part_name(part)} {format_bytes(part.bytes)}") for part in self._parts
        ]
        if self._segment:
            entries.append((None, self._request_text))
        rows: list[list[tuple[Part | None, str, float]]] = [[]]
        left = 0.0
        for part, text in entries:
            wide = metrics.horizontalAdvance(text) + SWATCH + 22
            if rows[-1] and left + wide > width:
                rows.append([])
                left = 0.0
            rows[-1].append((part, text, wide))
            left += wide
        return rows

    def _colour(self, part: Part) -> QColor:
        if part.kind == "free":
            return QColor(self._palette.field)
        if part.kind == "category":
            name = category_curve(part.name, self._palette)
        else:
            name = COLOURS[part.kind]
        return QColor(self._palette.curves[name])

    def _on(self, ground: QColor) -> QColor:
        """Colour of the text on a part: dark or light, whichever is easier to read."""
        if ground.alphaF() < 1 or ground == QColor(self._palette.field):
            return QColor(self._palette.text)
        return text_on(ground)

    def _at(self, place: QPointF) -> tuple[Part | None, str] | None:
        """The part or legend entry at a position."""
        for box, part, text in self._legend:
            if box.contains(place):
                return part, text
        if place.y() <= BAR_HEIGHT + 2 * MARGIN:
            # From the right: the request is drawn over the free part.
            for piece in reversed(self._pieces()):
                if piece.left <= place.x() < piece.right:
                    return piece.part, piece.label
        return None

    def mousePressEvent(self, event: QMouseEvent) -> None:
        found = self._at(event.position())
        part = None
        if found is not None:
            part = found[0]
        self._choose(part.name if part is not None and part.kind == "category" else "")

    # Arrow keys cycle through all categories and "none".
    def keyPressEvent(self, event: QKeyEvent) -> None:
        names = ["", *(part.name for part in self._parts if part.kind == "category")]
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is None:
            super().keyPressEvent(event)
            return
        at = 0
        if self._category in names:
            at = names.index(self._category)
        self._choose(names[(at + step) % len(names)])

    def _choose(self, category: str) -> None:
        self.set_category("" if category == self._category else category)
        self.chosen.emit(self._category)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            found = self._at(QPointF(event.pos()))
            if found is None:
                QToolTip.hideText()
            else:
                part, text = found
                if part is None:
                    size = self._segment
                else:
                    size = part.bytes
                share = size / max(1, self._capacity) * 100
                if part is None:
                    whole = ""
                else:
                    whole = f"\n{format_count(size)} bytes, {share:.1f} % of the memory"
                QToolTip.showText(event.globalPos(), plain_tip(f"{text}{whole}"), self)
            return True
        return super().event(event)
