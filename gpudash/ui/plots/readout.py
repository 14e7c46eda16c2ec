"""The one table of values at the cursor: time, then a row for every visible curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from gpudash.ui.plots.canvas import label_font
from gpudash.ui.plots.curve import NO_VALUE, CurveSpec, PlotSpec, format_value
from gpudash.ui.plots.legend import swatch
from gpudash.ui.plots.reading import Row
from gpudash.ui.text_size import scaled
from gpudash.ui.theme import Palette
from gpudash.units import format_clock

WIDTH_PX = 236
_PAD = 10
_SWATCH = 18


class Readout(QWidget):
    """Time and values at the cursor; without a cursor, now, or at the place that is shown of a recording."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._title = ""
        self._groups: list[tuple[str, list[tuple[Row, str]]]] = []
        self.setFixedWidth(scaled(WIDTH_PX))
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Ignored)
        self.setAccessibleName("Values at the cursor")

    def minimumSizeHint(self) -> QSize:
        return QSize(scaled(WIDTH_PX), 60)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self.setFixedWidth(scaled(WIDTH_PX))

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self.update()

    def show_rows(
        self,
        cursor_s: float | None,
        now_s: float,
        groups: Sequence[tuple[PlotSpec, Sequence[Row]]],
        *,
        live: bool = True,
    ) -> None:
        """Show these values.

        Args:
            cursor_s: session time of the cursor; ``None`` shows the newest values.
            now_s: time of the newest reading.
            groups: per plot its rows.
            live: whether the newest reading is of now.
        """
        newest = "now" if live else f"at {_time_text(now_s)}"
        title = newest if cursor_s is None else f"at {_time_text(cursor_s)} ({cursor_s - now_s:+.1f} s)"
        shown = [(spec.title, [(row, row_text(row)) for row in rows]) for spec, rows in groups if rows]
        if title != self._title or _written(shown) != _written(self._groups):
            self._title, self._groups = title, shown
            self.update()

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of every row, as shown."""
        return [(row.curve.name, text) for _, rows in self._groups for row, text in rows]

    @property
    def title(self) -> str:
        """The time that the values belong to, as shown."""
        return self._title

    def describe(self) -> None:
        """Bring the words for a screen reader up to date."""
        words = "; ".join(f"{name} {text}" for name, text in self.rows())
        self.setAccessibleDescription(f"{self._title}: {words}")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        font = label_font(self)
        metrics = QFontMetricsF(font)
        lines = 1.3 + sum(len(rows) + 1.3 for _, rows in self._groups)
        line = min(metrics.height() + 3, max(metrics.height() - 2, (self.height() - 4) / max(lines, 1)))
        muted, text = QColor(self._palette.muted), QColor(self._palette.text)
        painter.setFont(font)
        painter.setPen(text)
        width = self.width() - 2 * _PAD
        painter.drawText(QRectF(_PAD, 2, width, line), Qt.AlignmentFlag.AlignVCenter, self._title)
        top = 2 + 1.3 * line
        for title, rows in self._groups:
            painter.setPen(muted)
            font.setBold(True)
            painter.setFont(font)
            elided = QFontMetricsF(font).elidedText(title, Qt.TextElideMode.ElideRight, width)
            painter.drawText(QRectF(_PAD, top, width, line), Qt.AlignmentFlag.AlignVCenter, elided)
            font.setBold(False)
            painter.setFont(font)
            top += line
            for row, value in rows:
                self._paint_row(painter, metrics, QRectF(_PAD, top, width, line), row, value)
                top += line
            top += 0.3 * line

    def _paint_row(self, painter: QPainter, metrics: QFontMetricsF, place: QRectF, row: Row, value: str) -> None:
        ratio = self.devicePixelRatioF()
        painter.drawPixmap(round(place.left()), round(place.center().y() - 6), swatch(row.curve, self._palette, ratio))
        painter.setPen(QColor(self._palette.text))
        painter.drawText(place, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, value)
        room = place.width() - _SWATCH - metrics.horizontalAdvance(value) - 8
        painter.setPen(QColor(self._palette.muted))
        name = metrics.elidedText(row.curve.name, Qt.TextElideMode.ElideRight, room)
        painter.drawText(place.adjusted(_SWATCH, 0, 0, 0), Qt.AlignmentFlag.AlignVCenter, name)


def _written(groups: Sequence[tuple[str, Sequence[tuple[Row, str]]]]) -> list[tuple[str, list[tuple[CurveSpec, str]]]]:
    """What is seen of the rows: titles, curves and texts."""
    return [(title, [(row.curve, text) for row, text in rows]) for title, rows in groups]


def row_text(row: Row) -> str:
    """A row's value in words, raw and smoothed: "0.412 (smoothed 0.398)"; "-" where nothing is drawn."""
    if row.value is not None and math.isnan(row.value):
        return "NaN"
    text = format_value(row.curve.unit, row.value, row.curve.unit_name)
    if text == NO_VALUE or row.smoothed is None:
        return text
    return f"{text} (smoothed {format_value(row.curve.unit, row.smoothed, row.curve.unit_name)})"


def _time_text(time_s: float) -> str:
    if time_s < 60:
        return f"{time_s:.2f} s"
    return f"{format_clock(int(time_s))}.{int(time_s * 10) % 10}"
