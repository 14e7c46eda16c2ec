"""A short list of buttons in columns. Each row is something to start from; as many are shown as fit.

The rows are one tab stop; the arrow keys move between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from gpudash.ui.colours import Palette
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedButton

ROW_PX, TALL_ROW_PX = 28, 44
"""Height of a row in logical pixels, with one line and with two."""

USUAL_ROWS = 4
"""Rows that the size hint leaves room for."""

GAP_PX, EDGE_PX = 12, 8
"""Logical pixels between columns, and outside the first and the last."""

LEAST_FIRST_PX = 110
"""Minimum width of the first column in logical pixels; if it would be narrower, a spare column is dropped."""

PILL_PX = (12, 24)
"""Logical pixels of a cell drawn as a button: padding beside its text, and its height."""


@dataclass(frozen=True, slots=True)
class RowCell:
    """A cell of a row.

    Attributes:
        text: a single line.
        colour: name of a palette colour.
        bold: whether the text is bold.
        right: whether it is right-aligned.
        under: a smaller line below, in tall rows.
        button: whether it is drawn as a button.
        spare: whether its column is dropped if the first would be too narrow.
    """

    text: str
    colour: str = "text"
    bold: bool = False
    right: bool = False
    under: str = ""
    button: bool = False
    spare: bool = False


@dataclass(frozen=True, slots=True)
class RowContent:
    """A row.

    Attributes:
        key: identifies the row.
        cells: from the left; the first gets the remaining width.
        sentence: the whole row in words, for screen readers.
        tip: what a click does.
    """

    key: str
    cells: Sequence[RowCell]
    sentence: str
    tip: str = ""


class ListRow(PaintedButton):
    """One clickable row."""

    def __init__(self, content: RowContent, palette: Palette, parent: QWidget) -> None:
        super().__init__(palette, parent)
        self.content = content
        self._widths: Sequence[int] = ()

    def show_content(self, content: RowContent, palette: Palette, widths: Sequence[int]) -> None:
        """Show new content, in columns of these widths."""
        self.content = content
        self._palette = palette
        self._widths = widths
        if self.accessibleName() != content.sentence:
            self.setAccessibleName(content.sentence)
            self.setToolTip(plain_tip(f"{content.sentence}\n{content.tip}".strip()))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        palette = self._palette
        if self.underMouse() or self.hasFocus():
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(palette.banner_note))
            painter.drawRoundedRect(QRectF(self.rect()), 4, 4)
        if self.hasFocus():
            painter.setPen(QPen(QColor(palette.accent), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), 4, 4)
        left = float(EDGE_PX)
        for cell, width in zip(self.content.cells, self._widths, strict=True):
            if not width:
                continue
            self._paint_cell(painter, cell, QRectF(left, 0, width, self.height()))
            left += width + GAP_PX

    def _paint_cell(self, painter: QPainter, cell: RowCell, box: QRectF) -> None:
        palette = self._palette
        if cell.button:
            self._paint_pill(painter, cell, box)
            return
        font = cell_font(self, cell)
        side = Qt.AlignmentFlag.AlignLeft
        if cell.right:
            side = Qt.AlignmentFlag.AlignRight
        upper = QRectF(box)
        if cell.under:
            upper.setHeight(box.height() / 2)
            upper.translate(0, 2)
            lower = upper.translated(0, box.height() / 2 - 4)
            small = small_font(self)
            painter.setFont(small)
            painter.setPen(QColor(palette.muted))
            painter.drawText(lower, side | Qt.AlignmentFlag.AlignVCenter, _elided(cell.under, small, box.width()))
        painter.setFont(font)
        painter.setPen(QColor(getattr(palette, cell.colour)))
        painter.drawText(upper, side | Qt.AlignmentFlag.AlignVCenter, _elided(cell.text, font, box.width()))

    def _paint_pill(self, painter: QPainter, cell: RowCell, box: QRectF) -> None:
        palette = self._palette
        height = scaled(PILL_PX[1])
        pill = QRectF(box.left() + 0.5, (box.height() - height) / 2 + 0.5, box.width() - 1, height - 1)
        filled = self.underMouse() or self.hasFocus()
        painter.setPen(QPen(QColor(palette.accent if filled else palette.border), 1))
        painter.setBrush(QColor(palette.accent if filled else palette.button))
        painter.drawRoundedRect(pill, 5, 5)
        painter.setFont(self.font())
        painter.setPen(QColor(palette.on_accent if filled else palette.text))
        painter.drawText(pill, Qt.AlignmentFlag.AlignCenter, cell.text)


class RowList(QWidget):
    """The rows.

    Args:
        name: accessible name of the list.
        tall: whether rows have two lines.

    Signals:
        chosen: key of the row that was clicked.
    """

    chosen = Signal(str)

    def __init__(self, name: str, palette: Palette, *, tall: bool = False) -> None:
        super().__init__()
        self._palette = palette
        self._tall = tall
        self._contents: Sequence[RowContent] = ()
        self._rows: list[ListRow] = []
        self._focus = FocusGroup(self)
        self.setAccessibleName(name)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    @property
    def shown(self) -> list[ListRow]:
        """The visible rows, from the top."""
        return [row for row in self._rows if not row.isHidden()]

    @property
    def contents(self) -> Sequence[RowContent]:
        """All rows, including those that do not fit."""
        return self._contents

    @property
    def left_out(self) -> int:
        """Number of rows that do not fit."""
        return max(0, len(self._contents) - len(self.shown))

    def show_rows(self, contents: Sequence[RowContent]) -> None:
        """Show these rows, as many as fit."""
        if list(contents) != list(self._contents):
            self._contents = list(contents)
            self._arrange()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self._arrange()

    def minimumSizeHint(self) -> QSize:
        return QSize(scaled(120), self._row_height)

    def sizeHint(self) -> QSize:
        """The same for any content, so that nothing moves when rows appear."""
        return QSize(scaled(300), USUAL_ROWS * self._row_height)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    @property
    def _row_height(self) -> int:
        if self._tall:
            return scaled(TALL_ROW_PX)
        return scaled(ROW_PX)

    def _arrange(self) -> None:
        """Lay out the rows. Widgets are reused for new content, so that a row keeps the focus."""
        room = max(0, self.height() // self._row_height)
        widths = self._widths(self._contents[:room])
        while len(self._rows) < len(self._contents):
            row = ListRow(self._contents[len(self._rows)], self._palette, self)
            row.clicked.connect(lambda _checked=False, row=row: self.chosen.emit(row.content.key))
            self._rows.append(row)
        for place, row in enumerate(self._rows):
            seen = place < min(room, len(self._contents))
            row.setVisible(seen)
            if seen:
                row.setGeometry(0, place * self._row_height, self.width(), self._row_height)
                row.show_content(self._contents[place], self._palette, widths)
        self._focus.hold(self._rows)

    def _widths(self, contents: Sequence[RowContent]) -> list[int]:
        """Column widths: each fits its longest text, the first takes what is left; 0 for a column that is dropped."""
        columns = max((len(content.cells) for content in contents), default=0)
        widths = [0] * columns
        for content in contents:
            for column, cell in enumerate(content.cells[1:], 1):
                wide = QFontMetrics(cell_font(self, cell)).horizontalAdvance(cell.text)
                if cell.under:
                    wide = max(wide, QFontMetrics(small_font(self)).horizontalAdvance(cell.under))
                if cell.button:
                    wide += 2 * scaled(PILL_PX[0])
                widths[column] = max(widths[column], wide + 1)
        if not widths:
            return widths
        widths[0] = self._left_for_first(widths)
        for column in range(1, columns):
            if widths[0] < scaled(LEAST_FIRST_PX) and any(content.cells[column].spare for content in contents):
                widths[column] = 0
                widths[0] = self._left_for_first(widths)
        return widths

    def _left_for_first(self, widths: Sequence[int]) -> int:
        others = list(filter(None, widths[1:]))
        return max(1, self.width() - 2 * EDGE_PX - sum(others) - GAP_PX * len(others))


def cell_font(widget: QWidget, cell: RowCell) -> QFont:
    """Font of a cell's text."""
    font = QFont(widget.font())
    font.setBold(cell.bold)
    return font


def small_font(widget: QWidget) -> QFont:
    """Font of secondary text."""
    font = QFont(widget.font())
    font.setPointSizeF(widget.font().pointSizeF() * 8 / 9)
    return font


def _elided(text: str, font: QFont, room: float) -> str:
    return QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideMiddle, round(room))
