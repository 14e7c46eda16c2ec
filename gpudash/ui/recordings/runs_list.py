"""The list of the latest runs: each with name, memory outline, ending, peak and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from PySide6.QtCore import (
    QAbstractItemModel,
    QAbstractListModel,
    QEvent,
    QModelIndex,
    QObject,
    QPointF,
    QRect,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QFont, QFontMetrics, QMouseEvent, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QAbstractItemView, QListView, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from gpudash.session.recordings.library import LibraryEntry
from gpudash.session.recordings.run_names import peak_text
from gpudash.session.recordings.session_runs import NOWHERE
from gpudash.telemetry.runs import NO_LONGER_WATCHED
from gpudash.ui.colours import Palette
from gpudash.ui.recordings.library_table import (
    UNKNOWN,
    LibraryRow,
    RunKey,
    duration_of,
    ending_of,
    name_of,
    peak_sentence,
    runs_of,
)
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.widgets.tables import Index
from gpudash.ui.widgets.text_size import scaled, text_scale
from gpudash.units import format_date

ROW_PX = 66
TICK_PX = 34
MARGIN_PX = 10
BOX_PX = 15
"""Logical pixels: height of a row, width of the area to tick it, margin around text, and size of the check box."""

OUTLINE_PX = (72, 30)
"""Width and height of the outline of a run's memory."""

SMALL_PT = 8.0
"""Point size of secondary text."""

ROW_ROLE = Qt.ItemDataRole.UserRole
"""The item role of a `LibraryRow`."""

_SIGNS = {
    "finished": ("✓", "good"),
    "out of memory": ("✕", "critical"),
    "failed": ("✕", "critical"),
    "stopped": ("■", "muted"),
    NO_LONGER_WATCHED: ("■", "muted"),
    "running now": ("▶", "accent"),
    "broken off": ("!", "warn"),
}
"""How a run ended → its symbol, and the name of its colour in `Palette`."""


def unreadable(entry: LibraryEntry) -> str:
    """Why a recording cannot be read at all, in a sentence; "" if it can, or if that was not tried yet."""
    facts = entry.facts
    if facts is None or facts.runs or facts.duration_s is not None:
        return ""
    return facts.damage


def rows_of(entries: Sequence[LibraryEntry]) -> list[LibraryRow]:
    """The runs of these recordings and those that cannot be read, newest first, without the demo's runs."""
    rows = []
    for entry in entries:
        # An unreadable recording has no runs and gets a row itself.
        if unreadable(entry):
            rows.append(LibraryRow(entry))
            continue
        rows.extend(LibraryRow(entry, run) for run in runs_of(entry) if not run.of_demo)
    rows.sort(key=lambda row: row.began_s, reverse=True)
    return rows


class RunsListModel(QAbstractListModel):
    """The runs; their texts are created only when a row is drawn.

    Signals:
        ticked_changed: a run was ticked or unticked.

    Attributes:
        rows: from top to bottom.
        ticked: the ticked runs.
    """

    ticked_changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: Sequence[LibraryRow] = ()
        self.ticked: set[RunKey] = set()

    def rowCount(self, parent: Index | None = None) -> int:
        if parent is not None and parent.isValid():
            return 0
        return len(self.rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.rows[index.row()]
        if role == ROW_ROLE:
            return row
        if role == Qt.ItemDataRole.DisplayRole:
            return name_of(row)
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return sentence(row)
        if role == Qt.ItemDataRole.ToolTipRole:
            return plain_tip(_tip(row))
        if role == Qt.ItemDataRole.CheckStateRole and tickable(row):
            if row.key in self.ticked:
                return Qt.CheckState.Checked
            return Qt.CheckState.Unchecked
        return None

    def flags(self, index: Index) -> Qt.ItemFlag:
        flags = super().flags(index)
        if tickable(self.rows[index.row()]):
            return flags | Qt.ItemFlag.ItemIsUserCheckable
        return flags

    def setData(self, index: Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        if role != Qt.ItemDataRole.CheckStateRole or not tickable(self.rows[index.row()]):
            return False
        key = self.rows[index.row()].key
        if Qt.CheckState(value) is Qt.CheckState.Checked:
            self.ticked.add(key)
        else:
            self.ticked.discard(key)
        self.dataChanged.emit(index, index)
        self.ticked_changed.emit()
        return True

    def show_rows(self, rows: Sequence[LibraryRow]) -> None:
        """Show these rows; rows that are gone lose their ticks."""
        before = self.rows
        new = len(rows) - len(self.rows)
        # The very same rows, as in most calls.
        if rows == before:
            return
        keys = [row.key for row in rows]
        keys_before = [row.key for row in before]
        # The same runs with other facts: the view keeps its position and selection.
        if keys == keys_before:
            self.rows = rows
            self.dataChanged.emit(self.index(0), self.index(len(rows) - 1))
            return
        if new > 0 and keys[new:] == keys_before:  # new rows on top: the view keeps its position
            self.beginInsertRows(QModelIndex(), 0, new - 1)
            self.rows = rows
            self.endInsertRows()
            return
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()
        # A run whose recording is gone cannot be compared.
        if not self.ticked <= set(keys):
            self.ticked &= set(keys)
            self.ticked_changed.emit()


def tickable(row: LibraryRow) -> bool:
    """Whether a run can be compared: it must be recorded."""
    return row.run is not None and row.entry.path != NOWHERE


def sentence(row: LibraryRow) -> str:
    """A row as a sentence."""
    if row.run is None:
        return f"{name_of(row)}, cannot be read: {unreadable(row.entry)}"
    return f"{name_of(row)}, {ending_of(row)}, {peak_sentence(row)}, {_when(row)}"


def _tip(row: LibraryRow) -> str:
    if row.run is None:
        return unreadable(row.entry)
    if row.entry.path == NOWHERE:
        where = "not recorded"
    else:
        where = str(row.entry.path)
    return f"{name_of(row)}\n{ending_of(row)}, {peak_sentence(row)}\n{_when(row)}\n{where}"


def _when(row: LibraryRow) -> str:
    length = duration_of(row)
    if length == UNKNOWN:
        return format_date(row.began_s)
    return f"{format_date(row.began_s)} · {length}"


class RunDelegate(QStyledItemDelegate):
    """Draws a run in three lines with an outline of its memory beside them; clicking at the left ticks it.

    Attributes:
        palette: the colours in use.
    """

    def __init__(self, palette: Palette, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.palette = palette

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(0, scaled(ROW_PX))

    def editorEvent(self, event: QEvent, model: QAbstractItemModel, option: QStyleOptionViewItem, index: Index) -> bool:
        if isinstance(event, QMouseEvent):
            state = index.data(Qt.ItemDataRole.CheckStateRole)
            # Only the check box's area: a click elsewhere selects the row.
            inside = event.position().x() - option.rect.left() < scaled(TICK_PX)
            if state is None or not inside:
                return False
            # On release, as for a check box; the press is consumed too, so that it does not select.
            if event.type() is QEvent.Type.MouseButtonRelease:
                ticked = Qt.CheckState(state) is Qt.CheckState.Checked
                if ticked:
                    wanted = Qt.CheckState.Unchecked
                else:
                    wanted = Qt.CheckState.Checked
                model.setData(index, wanted, Qt.ItemDataRole.CheckStateRole)
            return True
        return super().editorEvent(event, model, option, index)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row: LibraryRow = index.data(ROW_ROLE)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = option.rect
        if option.state & QStyle.StateFlag.State_Selected:
            painter.fillRect(rect, QColor(self.palette.button_hover))
            painter.fillRect(QRect(rect.left(), rect.top(), 3, rect.height()), QColor(self.palette.accent))
        elif option.state & QStyle.StateFlag.State_MouseOver:
            painter.fillRect(rect, QColor(self.palette.button))
        painter.fillRect(QRect(rect.left(), rect.bottom(), rect.width(), 1), QColor(self.palette.grid))
        if tickable(row):
            ticked = Qt.CheckState(index.data(Qt.ItemDataRole.CheckStateRole)) is Qt.CheckState.Checked
            self._draw_box(painter, rect, ticked)
        inner = rect.adjusted(scaled(TICK_PX), scaled(7), -scaled(MARGIN_PX), -scaled(7))
        if row.run is None:
            self._draw_unreadable(painter, inner, option.font, row)
        else:
            self._draw_run(painter, inner, option.font, row)
        painter.restore()

    def _draw_box(self, painter: QPainter, rect: QRect, ticked: bool) -> None:
        side = scaled(BOX_PX)
        box = QRect(rect.left() + scaled(MARGIN_PX), rect.top() + scaled(8), side, side)
        if ticked:
            ground = self.palette.accent
        else:
            ground = self.palette.field
        painter.setPen(QPen(QColor(self.palette.accent if ticked else self.palette.muted), 1))
        painter.setBrush(QColor(ground))
        painter.drawRoundedRect(box, 3, 3)
        if ticked:
            painter.setPen(QPen(QColor(self.palette.on_accent), 2))
            x = float(box.left())
            y = float(box.top())
            corners = ((0.22, 0.52), (0.42, 0.72), (0.80, 0.30))
            painter.drawPolyline(QPolygonF([QPointF(x + a * side, y + b * side) for a, b in corners]))

    def _draw_run(self, painter: QPainter, inner: QRect, font: QFont, row: LibraryRow) -> None:
        bold = QFont(font)
        small = QFont(font)
        bold.setBold(True)
        small.setPointSizeF(SMALL_PT * text_scale())
        left = inner.left()
        width = inner.width()
        line = inner.height() // 3
        self._write(painter, bold, self.palette.text, QRect(left, inner.top(), width, line), name_of(row))
        # Leave room for the outline, which begins below the name.
        width -= scaled(OUTLINE_PX[0]) + scaled(8)
        second = QRect(left, inner.top() + line, width, line)
        ending = ending_of(row)
        sign, colour = _SIGNS.get(ending, ("–", "muted"))
        written = f"{sign} {ending}"
        self._write(painter, font, getattr(self.palette, colour), second, written)
        taken = QFontMetrics(font).horizontalAdvance(written)
        assert row.run is not None
        peak = peak_text(row.run)
        if peak:
            self._write(painter, font, self.palette.text, second.adjusted(taken, 0, 0, 0), f" · {peak}")
        third = QRect(left, inner.top() + 2 * line, width, line)
        self._write(painter, small, self.palette.muted, third, _when(row))
        room = QRect(0, 0, scaled(OUTLINE_PX[0]), scaled(OUTLINE_PX[1]))
        room.moveBottomRight(inner.bottomRight())
        self._draw_outline(painter, room, row.run.outline)

    def _draw_unreadable(self, painter: QPainter, inner: QRect, font: QFont, row: LibraryRow) -> None:
        line = inner.height() // 3
        top = QRect(inner.left(), inner.top(), inner.width(), line)
        self._write(painter, font, self.palette.muted, top, name_of(row))
        small = QFont(font)
        small.setPointSizeF(SMALL_PT * text_scale())
        painter.setFont(small)
        painter.setPen(QColor(self.palette.muted))
        # At most two lines, less what word wrapping loses.
        text = QFontMetrics(small).elidedText(_reason(row.entry), Qt.TextElideMode.ElideRight, 2 * inner.width() - 40)
        below = QRect(inner.left(), inner.top() + line, inner.width(), inner.height() - line)
        painter.drawText(below, int(Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextWordWrap), text)

    def _write(self, painter: QPainter, font: QFont, colour: str, room: QRect, text: str) -> None:
        painter.setFont(font)
        painter.setPen(QColor(colour))
        shown = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), shown)

    def _draw_outline(self, painter: QPainter, room: QRect, outline: Sequence[int | None]) -> None:
        """Draw the memory over the run's time; parts without a reading stay empty."""
        painter.fillRect(QRect(room.left(), room.bottom(), room.width(), 1), QColor(self.palette.border))
        if not outline:
            return
        step = room.width() / len(outline)
        fill = QColor(self.palette.curves["allocated"])
        fill.setAlphaF(0.3)
        pen = QPen(QColor(self.palette.curves["allocated"]), 1.2)
        for place, heights in _stretches(outline):
            line = QPolygonF()
            for number, value in enumerate(heights, place):
                # Percent of the run's own peak.
                y = room.bottom() - room.height() * value / 100
                line.append(QPointF(room.left() + number * step, y))
                line.append(QPointF(room.left() + (number + 1) * step, y))
            area = QPolygonF(line)
            area.append(QPointF(line.last().x(), room.bottom()))
            area.append(QPointF(line.first().x(), room.bottom()))
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(fill)
            painter.drawPolygon(area)
            painter.setPen(pen)
            painter.drawPolyline(line)


def _stretches(outline: Sequence[int | None]) -> Iterator[tuple[int, list[int]]]:
    """The parts without gaps: each one's start and heights."""
    begin = 0
    heights = list[int]()
    # The final None ends the last part.
    for place, value in enumerate((*outline, None)):
        if value is not None:
            heights.append(value)
            continue
        if heights:
            yield begin, heights
        begin = place + 1
        heights = []


def _reason(entry: LibraryEntry) -> str:
    """Why it cannot be read, without the path, as the name is shown already."""
    reason = unreadable(entry).replace(f"{entry.path} ", "").strip()
    return f"{reason[:1].upper()}{reason[1:]}"


class RunsList(QListView):
    """The view: arrow keys move, Space ticks, Enter or a double click opens."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.runs = RunsListModel(self)
        self.delegate = RunDelegate(palette, self)
        self.setModel(self.runs)
        self.setItemDelegate(self.delegate)
        self.setAccessibleName("Last runs")
        self.setUniformItemSizes(True)
        self.setMouseTracking(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)

    def show_rows(self, rows: Sequence[LibraryRow]) -> None:
        """Show these rows; the current row stays current and keeps its place in the view."""
        current = self.current()
        place = self.verticalScrollBar().value()
        self.runs.show_rows(rows)
        # Qt keeps the current row if rows were only changed or inserted.
        if current is None or self.currentIndex().isValid():
            return
        found = next((number for number, row in enumerate(rows) if row.key == current.key), None)
        if found is not None:
            self.setCurrentIndex(self.runs.index(found))
            # Making a row current scrolls to it.
            self.verticalScrollBar().setValue(place)

    def current(self) -> LibraryRow | None:
        """The row that keys act on."""
        place = self.currentIndex().row()
        if 0 <= place < len(self.runs.rows):
            return self.runs.rows[place]
        return None

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.delegate.palette = palette
        self.viewport().update()
