"""The figures beside and below the plots: values at the cursor, and statistics of a range.

`Readout` is the one table of values at the cursor; `SelectionStrip` has the figures of the selected range, or of the
visible window, from raw samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QLineF, QPoint, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QFontMetricsF, QIcon, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QHeaderView,
    QLineEdit,
    QSizePolicy,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from gpudash.drawing.axes import NO_VALUE, format_value
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.series import Statistics
from gpudash.ui.colours import Palette
from gpudash.ui.plots.canvas import label_font
from gpudash.ui.plots.legend import SWATCH_PX, Button, patch_size, swatch
from gpudash.ui.plots.prediction.peak_rows import SAME
from gpudash.ui.plots.reading import Row
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedWidget
from gpudash.units import format_moment

WIDTH_PX, WIDE_PX = 236, 300
"""Logical pixels, and where there is room for longer names and for what a run came to."""

_PAD = 10

THEN_PX = 50
"""Logical pixels of the column of what a change would make of a prediction."""


class Readout(PaintedWidget):
    """Time and values at the cursor; without a cursor, now, or at the place that is shown of a recording."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(palette, parent)
        self._title = ""
        self._groups: list[tuple[str, list[tuple[Row, str]]]] = []
        self._width_px = WIDTH_PX
        self.setFixedWidth(scaled(WIDTH_PX))
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Ignored)
        self.setAccessibleName("Values at the cursor")

    def minimumSizeHint(self) -> QSize:
        return QSize(scaled(self._width_px), 60)

    def set_wide(self, wide: bool) -> None:
        """Take more room, or less."""
        if wide:
            self._width_px = WIDE_PX
        else:
            self._width_px = WIDTH_PX
        self.setFixedWidth(scaled(self._width_px))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self.setFixedWidth(scaled(self._width_px))

    def show_rows(
        self,
        cursor_s: float | None,
        now_s: float,
        groups: Sequence[tuple[PlotSpec, Sequence[Row]]],
        read_s: float | None = None,
        *,
        live: bool = True,
    ) -> None:
        """Show these values.

        Args:
            cursor_s: session time of the cursor; ``None`` without one.
            now_s: time of the newest reading.
            groups: per plot its rows.
            read_s: session time of the values without a cursor; ``None`` for the newest.
            live: whether the newest reading is of now.
        """
        if cursor_s is not None:
            title = f"at {format_moment(cursor_s)} ({cursor_s - now_s:+.1f} s)"
        elif read_s is None and live:
            title = "now"
        else:
            title = f"at {format_moment(now_s if read_s is None else read_s)}"
        shown = [(spec.title, [(row, row_text(row)) for row in rows]) for spec, rows in groups if rows]
        # Texts are compared and not values: what is written the same need not be painted again.
        if title != self._title or _written(shown) != _written(self._groups):
            self._title, self._groups = title, shown
            self.update()

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of every row, as shown."""
        return [(row.curve.name, text) for _, rows in self._groups for row, text in rows]

    def changes(self) -> dict[str, str]:
        """Name of every row that a change affects, and its value with the change."""
        return {row.curve.name: row.then for _, rows in self._groups for row, _ in rows if row.then}

    @property
    def title(self) -> str:
        """The time that the values belong to, as shown."""
        return self._title

    def describe(self) -> None:
        """Bring the words for a screen reader up to date."""
        then = {name: f", then {text}" for name, text in self.changes().items()}
        values = "; ".join(f"{name} {text}{then.get(name, '')}" for name, text in self.rows())
        self.setAccessibleDescription(f"{self._title}: {values}")

    @property
    def free_height(self) -> int:
        """Logical pixels below what is written."""
        return max(0, int(self.height() - 2 - self._lines * self._line_height(QFontMetricsF(label_font(self)))))

    @property
    def _lines(self) -> float:
        return 1.3 + sum(len(rows) + 1.3 for _, rows in self._groups)

    def _line_height(self, metrics: QFontMetricsF) -> float:
        # As high as the font wants, and lower only where all rows would not fit otherwise.
        return min(metrics.height() + 3, max(metrics.height() - 2, (self.height() - 4) / max(self._lines, 1)))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        font = label_font(self)
        metrics = QFontMetricsF(font)
        line = self._line_height(metrics)
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
            if any(row.text for row, _ in rows):
                self._paint_columns(painter, QRectF(_PAD, top, width, line), rows)
            top += line
            for row, value in rows:
                font.setBold(row.kind == "sum")
                painter.setFont(font)
                self._paint_row(painter, metrics, QRectF(_PAD, top, width, line), row, value)
                top += line
            top += 0.3 * line

    def _paint_columns(self, painter: QPainter, place: QRectF, rows: Sequence[tuple[Row, str]]) -> None:
        """What stands above figures that a change may have others beside."""
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        if any(row.then for row, _ in rows):
            painter.drawText(place.adjusted(0, 0, -scaled(THEN_PX), 0), right, "now")
            painter.setPen(QColor(self._palette.text))
            painter.drawText(place, right, "then")

    def _paint_row(self, painter: QPainter, metrics: QFontMetricsF, place: QRectF, row: Row, value: str) -> None:
        if row.text:
            self._paint_then(painter, place, row)
            # The column of the change keeps its room, so that values stand in one line.
            place = place.adjusted(0, 0, -scaled(THEN_PX), 0)  # also without a change: no column moves
        ratio = self.devicePixelRatioF()
        top = round(place.center().y() - patch_size().height() / 2)
        if not row.kind:
            painter.drawPixmap(round(place.left()), top, swatch(row.curve, self._palette, ratio))
        painter.setPen(QColor(self._palette.muted if row.kind == "rest" else self._palette.text))
        painter.drawText(place, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, value)
        indent = scaled(SWATCH_PX)
        room = place.width() - indent - metrics.horizontalAdvance(value) - 8
        painter.setPen(QColor(self._palette.text if row.kind == "sum" else self._palette.muted))
        name = metrics.elidedText(row.curve.name, Qt.TextElideMode.ElideRight, room)
        painter.drawText(place.adjusted(indent, 0, 0, 0), Qt.AlignmentFlag.AlignVCenter, name)

    def _paint_then(self, painter: QPainter, place: QRectF, row: Row) -> None:
        """What a row would be with a change, and the line over the sum."""
        if row.kind == "sum":
            painter.setPen(QColor(self._palette.border))
            painter.drawLine(QLineF(place.left(), place.top(), place.right(), place.top()))
        if row.then:
            colours = {"sum": self._palette.text, "rest": self._palette.good}
            colour = colours.get(row.kind, self._palette.text)
            if row.then == SAME:
                colour = self._palette.muted
            elif row.kind == "rest" and row.then.startswith("−"):
                colour = self._palette.critical
            painter.setPen(QColor(colour))
            painter.drawText(place, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, row.then)


def _written(
    groups: Sequence[tuple[str, Sequence[tuple[Row, str]]]],
) -> list[tuple[str, list[tuple[CurveSpec, str, str]]]]:
    """What is seen of the rows: titles, curves and texts."""
    return [(title, [(row.curve, text, row.then) for row, text in rows]) for title, rows in groups]


def row_text(row: Row) -> str:
    """A row's value in words, raw and smoothed: "0.412 (smoothed 0.398)"; "-" where nothing is drawn."""
    if row.text:
        return row.text
    if row.value is not None and math.isnan(row.value):
        return "NaN"
    text = format_value(row.curve.unit, row.value, row.curve.unit_name)
    if text == NO_VALUE or row.smoothed is None:
        return text
    return f"{text} (smoothed {format_value(row.curve.unit, row.smoothed, row.curve.unit_name)})"


MARK_PX = 190
"""Width of the field in which a mark is named."""


class MarkField(QLineEdit):
    """Names a mark where it is: Enter sets it, Esc and leaving the field do not.

    Signals:
        named: the name, and the mark's time in the session.
        left: with Esc, no mark is wanted.
    """

    named = Signal(str, float)
    left = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.time_s = 0.0
        self.setPlaceholderText("name of the mark, Enter")
        self.setAccessibleName("Name of the mark")
        self.setFixedWidth(scaled(MARK_PX))
        self.returnPressed.connect(self._done)
        self.hide()

    def ask(self, time_s: float) -> None:
        """Ask for the name of a mark at this time."""
        self.time_s = time_s
        self.clear()
        self.show()
        self.raise_()
        self.setFocus()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.ShortcutOverride:
            event.accept()  # while a name is typed no key means anything else
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.hide()
            self.left.emit()
        else:
            super().keyPressEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        # The field's own context menu takes the focus and gives it back.
        if event.reason() is not Qt.FocusReason.PopupFocusReason:
            self.hide()

    def _done(self) -> None:
        self.hide()
        self.named.emit(self.text().strip() or "mark", self.time_s)


COLUMNS = ("curve", "start", "end", "delta", "min", "mean", "max")
ROW_PX, SCROLLER_PX = 20, 14
"""Logical pixels of a row, and of what it is scrolled with."""

PER_SECOND = "a second"
"""End of the name of a curve that says itself what its figures are."""


class SelectionStrip(QWidget):
    """One line with the range. Its figures, start, end, delta, min, mean and max per visible curve, are on `card`.

    Attributes:
        card: the figures; the strip's owner lays the card over the plots, so that nothing moves as it opens.

    Signals:
        cleared: the chip's × was pressed, or the card's.
        folded: the card was opened or closed.
    """

    cleared = Signal()
    folded = Signal()

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._chip = Button()
        self._chip.setProperty("role", "chip")
        self._chip.setToolTip("Clear the selection (Esc)")
        self._chip.clicked.connect(self.cleared)
        self._text = PlainLabel(role="muted")
        self._text.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._fold = Button()
        self._fold.setText("Statistics")
        self._fold.setToolTip("Show or hide the figures of the range (Esc hides them)")
        self._fold.setCheckable(True)
        self._fold.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._fold.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._fold.setArrowType(Qt.ArrowType.UpArrow)
        self._fold.toggled.connect(self._set_open)
        self.card = StatisticsCard(palette, parent)
        self.card.closed.connect(self.cleared)
        in_row(self._chip, (self._text, 1), self._fold, parent=self, margins=(0, 0, 0, 0))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.show_range(None, (0.0, 0.0))

    @property
    def open(self) -> bool:
        """Whether the figures are shown."""
        return self._fold.isChecked()

    def set_open(self, wanted: bool) -> None:
        """Show or hide the figures."""
        self._fold.setChecked(wanted)

    @property
    def text(self) -> str:
        """What the strip says of the range."""
        return self._text.text()

    @property
    def chip(self) -> str:
        """Text of the chip; "" without a selection."""
        if not self._chip.isHidden():
            return self._chip.text()
        return ""

    def show_range(self, selection: tuple[float, float] | None, window: tuple[float, float]) -> None:
        """Say which range the figures are of."""
        self._chip.setVisible(selection is not None)
        if selection is not None:
            begin, end = map(format_moment, selection)
            length = f"{selection[1] - selection[0]:.2f} s selected"
            self._chip.setText(f"{begin} to {end} ×")
            self._text.setText(length)
            self.card.set_title(f"{begin} to {end}, {length}")
        else:
            self._text.setText(f"Visible window, {window[1] - window[0]:.4g} s. Drag in a plot to measure a range.")
            self.card.set_title(f"Visible window, {window[1] - window[0]:.4g} s")

    def _set_open(self, wanted: bool) -> None:
        self._fold.setArrowType(Qt.ArrowType.DownArrow if wanted else Qt.ArrowType.UpArrow)
        self.card.setVisible(wanted)
        self.folded.emit()


class StatisticsCard(QFrame):
    """The figures of a range as a table that lies over the plots, no wider than it needs; it is dragged by its title.

    Signals:
        closed: the × was pressed.
        dragged: where its upper left corner is wanted, in its parent.
    """

    closed = Signal()
    dragged = Signal(QPoint)

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._curves: list[CurveSpec] = []
        self.setProperty("role", "card")
        self._title = PlainLabel(role="title")
        self._title.setCursor(Qt.CursorShape.SizeAllCursor)
        self._title.setToolTip("Drag to see what is under it")
        self._held: QPoint | None = None
        close = Button()
        close.setText("×")
        close.setAccessibleName("Close the statistics")
        close.setToolTip("Close (Esc)")
        close.clicked.connect(self.closed)
        self._table = QTableWidget(0, len(COLUMNS))
        self._prepare_table()
        self._stayed = PlainLabel(selectable=True)
        self._stayed.setContentsMargins(6, 4, 6, 2)
        self._stayed.hide()
        head = in_row((self._title, 1), close, margins=(6, 0, 0, 0))
        in_column(head, self._table, self._stayed, parent=self, margins=(6, 3, 4, 4), spacing=0)
        self.hide()

    def set_title(self, text: str) -> None:
        """Say which range the figures are of."""
        if text != self._title.text():
            self._title.setText(text)

    def show_stayed(self, text: str) -> None:
        """Say below the table what was allocated in the range and stayed; "" for nothing."""
        if text != self._stayed.text():
            self._stayed.setText(text)
            self._stayed.setVisible(bool(text))

    @property
    def stayed(self) -> str:
        """What is said below the table."""
        return self._stayed.text()

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self._curves = []

    def height_within(self, room: int) -> int:
        """Height at which every row is seen, or as many whole ones as ``room`` has place for."""
        row = self._table.verticalHeader().defaultSectionSize()
        head = self.sizeHint().height() - self._table.sizeHint().height() + self._table.horizontalHeader().height() + 4
        return head + row * min(self._table.rowCount(), max(1, (room - head) // row))

    @property
    def whole_width(self) -> int:
        """Width at which every figure is seen beside the curve that it is of."""
        edges = self.sizeHint().width() - self._table.sizeHint().width() + SCROLLER_PX
        return self._table.sizeHintForColumn(0) + _PAD + self._figures_width + edges

    @property
    def _figures_width(self) -> int:
        """Width at which every figure is seen."""
        header = self._table.horizontalHeader()
        hints = (self._table.sizeHintForColumn(column) for column in range(1, len(COLUMNS)))
        figures = [max(header.minimumSectionSize(), hint + _PAD) for hint in hints]
        # All as wide as the widest: columns of figures are compared downwards.
        return max(figures) * len(figures)

    def fit_names(self) -> None:
        """Let the names have what the figures leave: a name that is cut can still be told, a figure cannot."""
        header, modes = self._table.horizontalHeader(), QHeaderView.ResizeMode
        room = self._table.viewport().width() - self._figures_width
        cut = room < self._table.sizeHintForColumn(0)
        if cut:
            mode = modes.Fixed
        else:
            mode = modes.ResizeToContents
        if header.sectionResizeMode(0) is not mode:
            header.setSectionResizeMode(0, mode)
        if cut:
            header.resizeSection(0, max(room, header.minimumSectionSize()))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton:
            self._held = event.position().toPoint()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._held is not None:
            self.dragged.emit(self.pos() + event.position().toPoint() - self._held)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._held = None

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange and hasattr(self, "_table"):
            self._table.verticalHeader().setDefaultSectionSize(scaled(ROW_PX))
            self._curves = []

    def cells(self) -> list[list[str]]:
        """The table as shown, a list per curve."""
        found = []
        for row in range(len(self._curves)):
            items = (self._table.item(row, column) for column in range(len(COLUMNS)))
            found.append([item.text() if item is not None else "" for item in items])
        return found

    def show_statistics(self, curves: Sequence[CurveSpec], figures: Sequence[Statistics | None]) -> None:
        """Fill the table: one row per curve, "-" where there are no samples."""
        if list(curves) != self._curves:
            self._set_curves(list(curves))
        for row, (curve, statistics) in enumerate(zip(curves, figures, strict=True)):
            for column, name in enumerate(COLUMNS[1:], start=1):
                value = None
                if statistics is not None:
                    value = float(getattr(statistics, name))
                if value is None:
                    text = NO_VALUE
                else:
                    text = format_value(curve.unit, value, curve.unit_name)
                if curve.name.endswith(PER_SECOND):  # said once, or six columns have no room for the figures
                    text = text.removesuffix(f" {curve.unit_name}")
                # An item whose text stays is left alone: a table lays out anew with each change.
                item = self._table.item(row, column)
                if item is not None and item.text() != text:
                    item.setText(text)

    def _set_curves(self, curves: list[CurveSpec]) -> None:
        self._curves = curves
        self._table.setIconSize(patch_size())
        self._table.setRowCount(len(curves))
        for row, curve in enumerate(curves):
            icon = QIcon(swatch(curve, self._palette, self.devicePixelRatioF()))
            name = QTableWidgetItem(icon, curve.name)
            name.setToolTip(plain_tip(curve.name))
            self._table.setItem(row, 0, name)
            for column in range(1, len(COLUMNS)):
                item = QTableWidgetItem(NO_VALUE)
                item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
                self._table.setItem(row, column, item)

    def _prepare_table(self) -> None:
        table = self._table
        table.setHorizontalHeaderLabels(list(COLUMNS))
        table.setAccessibleName("Figures of the range")
        table.verticalHeader().hide()
        table.verticalHeader().setMinimumSectionSize(1)  # else rows stay as high as larger words once made them
        header = table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        header.setMinimumSectionSize(66)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        first = table.horizontalHeaderItem(0)
        if first is not None:
            first.setTextAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setShowGrid(False)
        table.verticalHeader().setDefaultSectionSize(scaled(ROW_PX))
