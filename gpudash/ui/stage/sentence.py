"""Paints what to notice: a sentence with its remark, or an error with what to write instead."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetricsF, QPainter

from gpudash.session.demo.pictures import StagePicture
from gpudash.ui.colours import mixed
from gpudash.ui.stage.painting import AXIS, FIGURE, StagePainting


class SentencePainting(StagePainting):
    """A widget that can paint a picture's sentence."""

    def _sentence(self, painter: QPainter, place: QRectF, picture: StagePicture) -> None:
        colours = self._colours
        grounds = {"warn": colours.banner_warn, "wrong": colours.banner_critical, "plain": colours.banner_note}
        # What to write instead is no error too.
        inks = {"warn": colours.warn, "wrong": colours.text, "good": colours.good, "plain": colours.accent}
        painter.setPen(Qt.PenStyle.NoPen)
        good = mixed(QColor(colours.good), QColor(colours.window), 0.84)
        painter.setBrush(QBrush(QColor(grounds.get(picture.tone, good.name()))))
        painter.drawRoundedRect(place, 6, 6)
        inner = place.adjusted(self._gap, 0, -self._gap, 0)
        if picture.tone == "wrong" and picture.remark:
            self._remedy(painter, inner, picture, inks[picture.tone])
            return
        first, second = self._weights(picture, FIGURE)
        if self._is_long(picture, inner.width()):
            self._two_rows(painter, inner, picture, inks[picture.tone])
            return
        # Both in one size: else the sentence would shrink beside a remark that is less important.
        while self._width_in_one_row(picture, first, second) > inner.width() and first.pixelSize() > self._smallest:
            for font in (first, second):
                font.setPixelSize(font.pixelSize() - 1)
        written = self._write(painter, inner, picture.sentence, first, colours.text)
        room = inner.adjusted(written.width() + self._gap, 0, 0, 0)
        self._write(painter, room, picture.remark, second, inks[picture.tone], Qt.AlignmentFlag.AlignRight)

    def _weights(self, picture: StagePicture, size: int) -> tuple[QFont, QFont]:
        """Fonts of a sentence and of its remark: bold is what the room should take home, of an error its remedy."""
        has_remedy = picture.tone == "wrong" and bool(picture.remark)
        return self._font(size, bold=not has_remedy), self._font(size, bold=has_remedy)

    def _remedy(self, painter: QPainter, place: QRectF, picture: StagePicture, ink: str) -> None:
        """An error, and below it in the same size what to write instead; an error too long for that in two rows."""
        first, second = self._weights(picture, FIGURE)
        least = min(self.px(AXIS), first.pixelSize())
        while self._widest(picture, first, second) > place.width() and first.pixelSize() > least:
            for font in (first, second):
                font.setPixelSize(font.pixelSize() - 1)
        if self._widest(picture, first, second) > place.width():
            self._two_rows(painter, place, picture, ink)
            return
        half = place.height() / 2
        row = QRectF(place.left(), place.top() + half * 0.1, place.width(), half * 0.9)
        self._write(painter, row, picture.sentence, first, self._colours.text)
        row.moveTop(place.top() + half)
        self._write(painter, row, picture.remark, second, ink)

    def _widest(self, picture: StagePicture, first: QFont, second: QFont) -> float:
        """Width of the longer of a sentence and its remark."""
        sentence = QFontMetricsF(first).horizontalAdvance(picture.sentence)
        return max(sentence, QFontMetricsF(second).horizontalAdvance(picture.remark))

    def _is_long(self, picture: StagePicture, width: float) -> bool:
        """Whether a sentence and its remark would have to shrink by more than a tenth in one row."""
        first, second = self._weights(picture, FIGURE)
        for font in (first, second):
            font.setPixelSize(max(self._smallest, round(font.pixelSize() * 0.9)))
        return self._width_in_one_row(picture, first, second) > width

    def _width_in_one_row(self, picture: StagePicture, first: QFont, second: QFont) -> float:
        """Width of a sentence with its remark in one row."""
        taken = QFontMetricsF(first).horizontalAdvance(picture.sentence)
        if picture.remark:
            taken += QFontMetricsF(second).horizontalAdvance(picture.remark) + self._gap
        return taken

    def _two_rows(self, painter: QPainter, place: QRectF, picture: StagePicture, ink: str) -> None:
        """A long sentence in two rows, its remark at the end of the second; in smaller type only if it must be."""
        first, second = self._weights(picture, FIGURE)
        upper, lower = self._split(picture.sentence, first, place.width())
        if self._row_width(lower, picture.remark, first, second) > place.width():
            first, second = self._weights(picture, AXIS)
            upper, lower = self._split(picture.sentence, first, place.width())
        half = place.height() / 2
        row = QRectF(place.left(), place.top() + half * 0.1, place.width(), half * 0.9)
        self._write(painter, row, upper, first, self._colours.text)
        row.moveTop(place.top() + half)
        written = self._write(painter, row, lower, first, self._colours.text)
        align = Qt.AlignmentFlag.AlignLeft
        if lower:
            row.setLeft(max(row.left(), written.right() + self._gap))
            align = Qt.AlignmentFlag.AlignRight
        self._write(painter, row, picture.remark, second, ink, align)

    def _split(self, sentence: str, font: QFont, width: float) -> tuple[str, str]:
        """As many words as fit one row, and the others."""
        upper, rest = "", sentence.split()
        while rest and QFontMetricsF(font).horizontalAdvance(f"{upper} {rest[0]}".strip()) <= width:
            upper = f"{upper} {rest.pop(0)}".strip()
        return upper, " ".join(rest)

    def _row_width(self, sentence: str, remark: str, first: QFont, second: QFont) -> float:
        """Width of the second row."""
        gap = self._gap if sentence and remark else 0.0
        return QFontMetricsF(first).horizontalAdvance(sentence) + gap + QFontMetricsF(second).horizontalAdvance(remark)
