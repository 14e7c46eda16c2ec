"""The figures beside and below the plots: values at the cursor, and statistics of a range.

`Readout` is the table of values at the cursor. `SelectionStrip` shows statistics of the raw samples in the selected
range, or else in the visible window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QLineF, QPoint, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFontMetricsF,
    QIcon,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
)
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
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedWidget
from gpudash.units import format_duration, format_moment

WIDTH_PX, WIDE_PX = 236, 300
"""Width in logical pixels: normally, and if there is room for longer names and results of a run."""

_PAD = 10

HOW_TO_SELECT = "Drag in a plot to measure a range."

SIDE_PX = 14
"""Room at both sides of the values: as much as a result has, which may lie over some of them."""

THEN_PX = 50
"""Width in logical pixels of the column with the values after a change."""


class Readout(PaintedWidget):
    """The time and the values at the cursor; without a cursor, the newest, or those where a recording is."""

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
        """Be wide or narrow."""
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
            cursor_s: session time of the cursor; ``None`` if there is none.
            now_s: time of the newest reading.
            groups: the rows of each plot.
            read_s: session time of the values if there is no cursor; ``None`` for the newest.
            live: whether the newest reading is current.
        """
        if cursor_s is not None:
            title = f"at {format_moment(cursor_s)} ({cursor_s - now_s:+.1f} s)"
        elif read_s is None and live:
            title = "now"
        else:
            title = f"at {format_moment(now_s if read_s is None else read_s)}"
        shown = [(spec.title, [(row, row_text(row)) for row in rows]) for spec, rows in groups if rows]
        # Compare texts, not values: identical text need not be painted again.
        if title != self._title or _written(shown) != _written(self._groups):
            self._title, self._groups = title, shown
            self.update()

    def rows(self) -> list[tuple[str, str]]:
        """The name and the value of every row, as shown."""
        return [(row.curve.name, text) for _, rows in self._groups for row, text in rows]

    def changes(self) -> dict[str, str]:
        """The name of every row that a change affects, and its value with the change."""
        return {row.curve.name: row.then for _, rows in self._groups for row, _ in rows if row.then}

    @property
    def title(self) -> str:
        """The time of the values, as shown."""
        return self._title

    def describe(self) -> None:
        """Update the description for screen readers."""
        then = {name: f", then {text}" for name, text in self.changes().items()}
        values = "; ".join(f"{name} {text}{then.get(name, '')}" for name, text in self.rows())
        self.setAccessibleDescription(f"{self._title}: {values}")

    @property
    def free_height(self) -> int:
        """Logical pixels below the text."""
        return max(0, int(self.height() - 2 - self._lines * self._line_height(QFontMetricsF(label_font(self)))))

    @property
    def _lines(self) -> float:
        return 1.3 + sum(len(rows) + 1.3 for _, rows in self._groups)

    def _line_height(self, metrics: QFontMetricsF) -> float:
        # The font's natural height; slightly less if the rows would not all fit.
        return min(metrics.height() + 3, max(metrics.height() - 2, (self.height() - 4) / max(self._lines, 1)))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        font = label_font(self)
        metrics = QFontMetricsF(font)
        line = self._line_height(metrics)
        muted, text = QColor(self._palette.muted), QColor(self._palette.text)
        painter.setFont(font)
        painter.setPen(text)
        width = self.width() - 2 * SIDE_PX
        painter.drawText(QRectF(SIDE_PX, 2, width, line), Qt.AlignmentFlag.AlignVCenter, self._title)
        top = 2 + 1.3 * line
        for title, rows in self._groups:
            painter.setPen(muted)
            font.setBold(True)
            painter.setFont(font)
            elided = QFontMetricsF(font).elidedText(title, Qt.TextElideMode.ElideRight, width)
            painter.drawText(QRectF(SIDE_PX, top, width, line), Qt.AlignmentFlag.AlignVCenter, elided)
            font.setBold(False)
            painter.setFont(font)
            changing = _is_changing(rows)
            if changing:
                then = any(row.then for row, _ in rows)
                self._paint_columns(painter, QRectF(SIDE_PX, top, width, line), then=then)
            top += line
            for row, value in rows:
                font.setBold(row.kind == "sum")
                painter.setFont(font)
                self._paint_row(painter, metrics, QRectF(SIDE_PX, top, width, line), row, value, changing=changing)
                top += line
            top += 0.3 * line

    def _paint_columns(self, painter: QPainter, place: QRectF, *, then: bool) -> None:
        """Paint the headings of the two columns of values; of the second only if it has any."""
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(place.adjusted(0, 0, -scaled(THEN_PX), 0), right, "now")
        if then:
            painter.setPen(QColor(self._palette.text))
            painter.drawText(place, right, "then")

    def _paint_row(
        self, painter: QPainter, metrics: QFontMetricsF, place: QRectF, row: Row, value: str, *, changing: bool
    ) -> None:
        if row.kind == "sum":
            painter.setPen(QColor(self._palette.border))
            painter.drawLine(QLineF(place.left(), place.top(), place.right(), place.top()))
        if changing:
            self._paint_then(painter, place, row)
            place = place.adjusted(0, 0, -scaled(THEN_PX), 0)
        ratio = self.devicePixelRatioF()
        top = round(place.center().y() - patch_size().height() / 2)
        if not row.kind:
            painter.drawPixmap(round(place.left()), top, swatch(row.curve, self._palette, ratio))
        colour = self._palette.text
        if _is_short(row):
            colour = self._palette.critical
        elif row.kind == "rest":
            colour = self._palette.muted
        painter.setPen(QColor(colour))
        painter.drawText(place, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, value)
        indent = scaled(SWATCH_PX)
        room = place.width() - indent - metrics.horizontalAdvance(value) - 8
        painter.setPen(QColor(self._palette.text if row.kind == "sum" else self._palette.muted))
        name = metrics.elidedText(row.curve.name, Qt.TextElideMode.ElideRight, room)
        painter.drawText(place.adjusted(indent, 0, 0, 0), Qt.AlignmentFlag.AlignVCenter, name)

    def _paint_then(self, painter: QPainter, place: QRectF, row: Row) -> None:
        """Paint a row's value with the change applied."""
        if row.then:
            colours = {"sum": self._palette.text, "rest": self._palette.good}
            colour = colours.get(row.kind, self._palette.text)
            if row.then == SAME:
                colour = self._palette.muted
            elif row.kind == "rest" and row.then.startswith("−"):
                colour = self._palette.critical
            painter.setPen(QColor(colour))
            painter.drawText(place, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, row.then)


def _is_changing(rows: Sequence[tuple[Row, str]]) -> bool:
    """Whether there is a column for the values with a change applied: one is pointed at, or what does not fit asks for
    one, and then no column moves when it comes. All other values end at the edge."""
    return any(row.then or _is_short(row) for row, _ in rows)


def _is_short(row: Row) -> bool:
    """Whether it is the row of spare memory, and that is missing."""
    return row.kind == "rest" and row.value is not None and row.value < 0


def _written(
    groups: Sequence[tuple[str, Sequence[tuple[Row, str]]]],
) -> list[tuple[str, list[tuple[CurveSpec, str, str]]]]:
    """What is visible of the rows: titles, curves and texts."""
    return [(title, [(row.curve, text, row.then) for row, text in rows]) for title, rows in groups]


def row_text(row: Row) -> str:
    """A row's value as text, raw and smoothed: "0.412 (smoothed 0.398)"; "-" if nothing is drawn."""
    if row.text:
        return row.text
    if row.value is not None and math.isnan(row.value):
        return "NaN"
    text = format_value(row.curve.unit, row.value, row.curve.unit_name)
    if text == NO_VALUE or row.smoothed is None:
        return text
    return f"{text} (smoothed {format_value(row.curve.unit, row.smoothed, row.curve.unit_name)})"


MARK_PX = 190
"""Width of the field for a mark's name."""


class MarkField(QLineEdit):
    """Names a mark in place. Enter sets the mark; Esc or losing the focus cancels.

    Signals:
        named: the name and the session time of the mark.
        left: Esc was pressed: no mark.
    """

    named = Signal(str, float)
    left = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.time_s = 0.0
        self.setPlaceholderText("name the mark, press Enter")
        self.setAccessibleName("Name of the mark")
        self.setFixedWidth(scaled(MARK_PX))
        self.returnPressed.connect(self._done)
        self.hide()

    def ask(self, time_s: float) -> None:
        """Open the field for a mark at this time."""
        self.time_s = time_s
        self.clear()
        self.show()
        self.raise_()
        self.setFocus()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.ShortcutOverride:
            event.accept()  # while a name is typed, keys trigger no shortcuts
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
        # The field's own context menu takes the focus only temporarily.
        if event.reason() is not Qt.FocusReason.PopupFocusReason:
            self.hide()

    def _done(self) -> None:
        self.hide()
        self.named.emit(self.text().strip() or "mark", self.time_s)


COLUMNS = ("curve", "start", "end", "delta", "min", "mean", "max")
ROW_PX, SCROLLER_PX = 20, 14
"""Logical pixels: the height of a row, and the size of the scroll bar."""

PER_SECOND = "a second"
"""End of a curve name that already contains the unit of its figures."""


class SelectionStrip(QWidget):
    """One line that names the range. `card` holds its start, end, delta, min, mean and max for each visible curve.

    Attributes:
        card: the statistics. The strip's owner places the card over the plots, so that nothing moves when it opens.

    Signals:
        cleared: the × of the chip or the card was pressed.
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
        self._fold.setToolTip("Show or hide the statistics of the range (Esc hides them)")
        self._fold.setCheckable(True)
        self._fold.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._fold.setArrowType(Qt.ArrowType.UpArrow)
        self._fold.toggled.connect(self._set_open)
        self.focus_group = FocusGroup(self, [self._chip, self._fold])
        self.card = StatisticsCard(palette, parent)
        self.card.closed.connect(self.cleared)
        self._row = in_row(self._chip, (self._text, 1), self._fold, parent=self, margins=(0, 0, 0, 0))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.show_range(None, (0.0, 0.0))

    @property
    def open(self) -> bool:
        """Whether the statistics are shown."""
        return self._fold.isChecked()

    def set_open(self, wanted: bool) -> None:
        """Show or hide the statistics."""
        self._fold.setChecked(wanted)

    @property
    def text(self) -> str:
        """The strip's text about the range."""
        return self._text.text()

    @property
    def chip(self) -> str:
        """The chip's text; "" without a selection."""
        if not self._chip.isHidden():
            return self._chip.text()
        return ""

    def show_range(self, selection: tuple[float, float] | None, window: tuple[float, float]) -> None:
        """Name the range that the statistics cover."""
        self._chip.setVisible(selection is not None)
        if selection is not None:
            begin, end = map(format_moment, selection)
            length = f"{format_duration(selection[1] - selection[0])} selected"
            self._chip.setText(f"{begin} to {end} ×")
            self._text.setText(length)
            self.card.set_title(f"{begin} to {end}, {length}")
        else:
            visible = f"Visible window, {format_duration(window[1] - window[0])}"
            self._text.setText(f"{visible}. {HOW_TO_SELECT}")
            self.card.set_title(visible)
        self._shorten()

    def _shorten(self) -> None:
        """Leave out how a range is selected where there is no room for it."""
        text = self._text.text().removesuffix(f". {HOW_TO_SELECT}")
        whole = f"{text}. {HOW_TO_SELECT}"
        if self._chip.isHidden() and self._text.fontMetrics().horizontalAdvance(whole) <= self._text.width():
            text = whole
        if text != self._text.text():
            self._text.setText(text)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._row.activate()  # else the text has its width from before
        self._shorten()

    def _set_open(self, wanted: bool) -> None:
        self._fold.setArrowType(Qt.ArrowType.DownArrow if wanted else Qt.ArrowType.UpArrow)
        self.card.setVisible(wanted)
        self.folded.emit()


class StatisticsCard(QFrame):
    """The statistics of a range, as a table that floats over the plots. It is no wider than needed and dragged by its
    title.

    Signals:
        closed: × was pressed.
        dragged: the requested upper left corner, in parent coordinates.
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
        self._title.setToolTip("Drag to uncover what is below")
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
        """Name the range that the statistics cover."""
        if text != self._title.text():
            self._title.setText(text)

    def show_stayed(self, text: str) -> None:
        """List below the table what was allocated in the range and kept; "" for nothing."""
        if text != self._stayed.text():
            self._stayed.setText(text)
            self._stayed.setVisible(bool(text))

    @property
    def stayed(self) -> str:
        """The text below the table."""
        return self._stayed.text()

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self._curves = []

    def height_within(self, room: int) -> int:
        """The height that shows every row, or as many whole rows as fit in ``room``."""
        row = self._table.verticalHeader().defaultSectionSize()
        head = self.sizeHint().height() - self._table.sizeHint().height() + self._table.horizontalHeader().height() + 4
        return head + row * min(self._table.rowCount(), max(1, (room - head) // row))

    @property
    def whole_width(self) -> int:
        """The width that shows every figure and every curve name."""
        edges = self.sizeHint().width() - self._table.sizeHint().width() + SCROLLER_PX
        return self._table.sizeHintForColumn(0) + _PAD + self._figures_width + edges

    @property
    def _figures_width(self) -> int:
        """The width that shows every figure."""
        header = self._table.horizontalHeader()
        hints = map(self._table.sizeHintForColumn, range(1, len(COLUMNS)))
        figures = [max(header.minimumSectionSize(), hint + _PAD) for hint in hints]
        # All columns as wide as the widest: figures are compared down the columns.
        return max(figures) * len(figures)

    def fit_names(self) -> None:
        """Give names the width that the figures leave: an elided name is still recognisable, a cut figure is not."""
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
        """The table as shown, one list per curve."""
        found = []
        for row in range(len(self._curves)):
            items = (self._table.item(row, column) for column in range(len(COLUMNS)))
            found.append([item.text() if item is not None else "" for item in items])
        return found

    def show_statistics(self, curves: Sequence[CurveSpec], figures: Sequence[Statistics | None]) -> None:
        """Fill the table: one row per curve, "-" if there are no samples."""
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
                if curve.name.endswith(PER_SECOND):  # already in the name; six columns have no room for it
                    text = text.removesuffix(f" {curve.unit_name}")
                # Items whose text stays are left alone: the table lays itself out again after each change.
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
        table.setAccessibleName("Statistics of the range")
        table.verticalHeader().hide()
        table.verticalHeader().setMinimumSectionSize(1)  # otherwise rows keep the height of an earlier, larger font
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
