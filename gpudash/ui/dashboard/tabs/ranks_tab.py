"""The ranks of a run as a table: where each runs, where its step time goes, and which one stands out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import QItemSelectionModel, QRectF, Qt, Signal
from PySide6.QtGui import QAction, QColor, QGuiApplication, QPainter
from PySide6.QtWidgets import QAbstractItemView, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from gpudash.devices.names import shown_name
from gpudash.system.foreign_text import tab_separated
from gpudash.telemetry.ranks.rows import RankPlace, RankRow, rank_rows, rest_text, sentence
from gpudash.telemetry.store import Store
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import ARROW_ROOM, ROW_PX, Column, Index, RowsModel, RowsView
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import palette_of
from gpudash.units import format_bytes, format_count, format_duration, format_percent

NOTHING = "-"


def _known(value: Any, label: Callable[[Any], str]) -> str:
    """A value as text."""
    if value is None:
        return NOTHING
    return label(value)


Cell = Callable[[RankRow], str]
COLUMNS: tuple[tuple[str, Column, Cell], ...] = (
    ("rank", Column("rank", right=True), lambda row: str(row.rank)),
    ("device", Column("device"), lambda row: shown_name(row.device)),
    ("host", Column("host"), lambda row: row.host or NOTHING),
    (
        "step",
        Column("step", right=True, tip="The newest step that all ranks have completed"),
        lambda row: _known(row.step, format_count),
    ),
    (
        "step_s",
        Column("step time", right=True, tip="Median: of the last minute, and of all steps once the run is over"),
        lambda row: _known(row.step_s, format_duration),
    ),
    (
        "computing",
        Column("computing", right=True, tip="Share of the step"),
        lambda row: _known(row.computing, format_percent),
    ),
    (
        "communicating",
        Column("communicating", right=True, tip="Share of the step: the least time that any rank was blocked in it"),
        lambda row: _known(row.communicating, format_percent),
    ),
    (
        "waiting",
        Column("waiting", right=True, tip="Share of the step that it was blocked beyond that: it waits for others"),
        lambda row: _known(row.waiting, format_percent),
    ),
    (
        "loading",
        Column("input", right=True, tip="Share of the step that it waited for its next batch"),
        lambda row: _known(row.loading, format_percent),
    ),
    (
        "peak_bytes",
        Column("peak memory", right=True, tip="Allocated on a GPU, else of the rank's process"),
        lambda row: _known(row.peak_bytes, format_bytes),
    ),
    ("capacity_bytes", Column("capacity", right=True), lambda row: _known(row.capacity_bytes, format_bytes)),
    ("state", Column("state"), lambda row: row.state),
    ("remark", Column("stands out", wide=True), lambda row: row.remark),
)
"""Field of a row, its column, and how it is formatted."""

SHOWN_IF_UNLIKE = ("host", "capacity_bytes")
"""Columns shown only if their values differ between ranks."""

SHOWN_IF_KNOWN = ("loading",)
"""Columns shown only if a rank reports them."""

BARS = {"computing": "gpu", "communicating": "loss", "waiting": "link", "loading": "h2d"}
"""Columns with a bar, and the curve whose colour the bar has."""

PADDING_PX = 20
"""Padding of a cell, left and right together."""

BAR_PX = 3.0
"""Height of a bar."""

EMPTY = "The ranks of a run on several devices appear here."


class RanksModel(RowsModel[RankRow]):
    """Rows sorted by a column; those of a live run are updated in place."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__([column for _field, column, _write in COLUMNS], parent)
        self._field, self._order = COLUMNS[0][0], Qt.SortOrder.AscendingOrder
        self.sorted_column = 0

    def show_rows(self, rows: Sequence[RankRow]) -> None:
        """Show these rows; unchanged cells are not redrawn."""
        fresh = self._sorted(rows)
        if [row.rank for row in fresh] == [row.rank for row in self.rows]:
            self.update_rows(fresh)
        else:
            self.replace_rows(fresh)

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        self.sorted_column, self._field, self._order = column, COLUMNS[column][0], order
        self.show_rows(list(self.rows))
        self.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(COLUMNS) - 1)

    def _sorted(self, rows: Sequence[RankRow]) -> list[RankRow]:
        """Sorted rows; unknown values come last, equal ones by rank."""
        field = self._field
        by_rank = sorted(rows, key=lambda row: row.rank)
        known = [row for row in by_rank if getattr(row, field) not in (None, "")]
        unknown = [row for row in by_rank if getattr(row, field) in (None, "")]
        known.sort(key=lambda row: getattr(row, field), reverse=self._order == Qt.SortOrder.DescendingOrder)
        return [*known, *unknown]

    def label(self, row: RankRow, column: int) -> str:
        return COLUMNS[column][2](row)

    def value(self, row: RankRow, column: int, role: int) -> Any:
        if role == Qt.ItemDataRole.UserRole:
            return getattr(row, COLUMNS[column][0])
        return None


class RankShareDelegate(QStyledItemDelegate):
    """Draws a share as a bar along the bottom of its cell."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        super().paint(painter, option, index)
        share = index.data(Qt.ItemDataRole.UserRole)
        if not isinstance(share, float):
            return
        colours = palette_of(option.palette)
        cell = QRectF(option.rect).adjusted(8, 0, -8, -2)
        track = QRectF(cell.left(), cell.bottom() - BAR_PX, cell.width(), BAR_PX)
        painter.fillRect(track, QColor(colours.grid))
        track.setWidth(track.width() * min(1.0, max(0.0, share)))
        painter.fillRect(track, QColor(colours.curves[BARS[COLUMNS[index.column()][0]]]))


class RanksTab(QWidget):
    """A sentence about all ranks, and a row for each.

    Signals:
        chosen: rank of the row selected now, or ``None``.
    """

    chosen = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.label = PlainLabel(EMPTY, wraps=True)
        self.label.setContentsMargins(8, 3, 8, 3)
        self.model = RanksModel(self)
        self.view = RowsView("Ranks")
        self._widths: list[int] = []
        self._prepare_view()
        copy = QAction("Copy values", self.view)
        copy.setToolTip("Copy the selected row, or all of them, as tab-separated text")
        copy.triggered.connect(self.copy)
        mean = QAction("Show the mean of all ranks", self.view)
        mean.setToolTip("Divide the step of all ranks together into its parts, instead of that of the selected rank")
        mean.triggered.connect(self.view.clearSelection)
        self.view.addActions([copy, mean])
        self.view.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        in_column(self.label, (self.view, 1), parent=self, margins=(0, 0, 0, 0), spacing=0)

    def _prepare_view(self) -> None:
        view = self.view
        view.setModel(self.model)
        view.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        view.verticalHeader().setDefaultSectionSize(scaled(ROW_PX))
        header = view.horizontalHeader()
        header.setStretchLastSection(True)
        header.setSortIndicator(0, Qt.SortOrder.AscendingOrder)
        view.setSortingEnabled(True)
        bars = RankShareDelegate(view)
        for place, (field, _column, _write) in enumerate(COLUMNS):
            if field in BARS:
                view.setItemDelegateForColumn(place, bars)
        view.selectionModel().selectionChanged.connect(lambda *_: self.chosen.emit(self.selected_rank))

    @property
    def selected_rank(self) -> int | None:
        """The rank whose row is selected."""
        rows = self.view.selectionModel().selectedRows()
        if rows and rows[0].row() < len(self.model.rows):
            return self.model.rows[rows[0].row()].rank
        return None

    def show_run(self, store: Store, places: Sequence[RankPlace]) -> None:
        """Show the ranks of the store's run. The caller holds its lock."""
        rows = rank_rows(store, places)
        rest = rest_text(row.shares for row in rows)
        self.show_ranks(rows, " ".join(filter(None, (sentence(store.run, places), rest))))

    def show_ranks(self, rows: Sequence[RankRow], text: str) -> None:
        """Show these rows; a rank stays selected wherever its row moves."""
        self.label.setText(text or EMPTY)
        kept = self.selected_rank
        self.model.show_rows(rows)
        for place, (field, _column, _write) in enumerate(COLUMNS):
            if field in SHOWN_IF_UNLIKE:
                self.view.setColumnHidden(place, len({getattr(row, field) for row in rows}) < 2)
            elif field in SHOWN_IF_KNOWN:
                self.view.setColumnHidden(place, all(getattr(row, field) is None for row in rows))
        if kept is not None and kept != self.selected_rank:
            self._select(kept)
        self._fit_columns()

    def _select(self, rank: int) -> None:
        place = next((place for place, row in enumerate(self.model.rows) if row.rank == rank), None)
        if place is not None:
            flags = QItemSelectionModel.SelectionFlag
            index = self.model.index(place, 0)
            self.view.selectionModel().select(index, flags.ClearAndSelect | flags.Rows)

    def _fit_columns(self) -> None:
        """Fit the columns to their content. They only ever grow, so that a live table does not jump."""
        metrics = self.view.fontMetrics()
        titles = [f"{column.title}{ARROW_ROOM}" for _field, column, _write in COLUMNS]
        lines = [titles, *map(self.model.cells, self.model.rows)]
        widths = [max(map(metrics.horizontalAdvance, cells)) + PADDING_PX for cells in zip(*lines, strict=True)]
        if not self._widths:
            self._widths = [0] * len(widths)
        for place, width in enumerate(widths[:-1]):
            if width > self._widths[place]:
                self._widths[place] = width
                self.view.setColumnWidth(place, width)

    def text(self) -> str:
        """The selected row, or all rows, as tab-separated text with a header."""
        rank = self.selected_rank
        rows = [row for row in self.model.rows if rank is None or row.rank == rank]
        lines = [[column.title for _field, column, _write in COLUMNS], *map(self.model.cells, rows)]
        return tab_separated(lines)

    def copy(self) -> None:
        """Copy `text` to the clipboard."""
        QGuiApplication.clipboard().setText(self.text())
