"""A short list of buttons in columns: each row is one thing to begin with; as many as there is room for are shown.

The rows are one stop of Tab, and the arrow keys go from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetrics, QKeyEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QAbstractButton, QSizePolicy, QWidget

from gpudash.ui.colours import Palette
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.widgets.text_size import scaled

ROW_PX, TALL_ROW_PX = 28, 44
"""Logical pixels of a row's height: of one line, and of two."""

USUAL_ROWS = 4
"""Rows that a list would have room for."""

GAP_PX, EDGE_PX = 12, 8
"""Logical pixels between columns, and beside the first and the last."""

LEAST_FIRST_PX = 110
"""Logical pixels of the first column, below which a spare one goes."""

PILL_PX = (12, 24)
"""Of what looks like a button in a row: room beside its words, and its height."""


@dataclass(frozen=True, slots=True)
class RowCell:
    """What stands in a column of a row.

    Attributes:
        text: in one line.
        colour: name of a colour of the palette.
        bold: whether it is heavy.
        right: whether it stands at the right of its column.
        under: a smaller line below, in rows that are tall.
        button: whether it looks like a button.
        spare: whether its column goes where the first would be too narrow.
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
        key: by which it is chosen.
        cells: from the left; the first has the room that the others leave.
        sentence: all of it, for who cannot see it.
        tip: what a click does.
    """

    key: str
    cells: Sequence[RowCell]
    sentence: str
    tip: str = ""


class ListRow(QAbstractButton):
    """One row, which is clicked."""

    def __init__(self, content: RowContent, palette: Palette, parent: QWidget) -> None:
        super().__init__(parent)
        self.content = content
        self._palette = palette
        self._widths: Sequence[int] = ()
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)

    def show_content(self, content: RowContent, palette: Palette, widths: Sequence[int]) -> None:
        """Show another content in columns of these widths."""
        self.content = content
        self._palette = palette
        self._widths = widths
        if self.accessibleName() != content.sentence:
            self.setAccessibleName(content.sentence)
            self.setToolTip(plain_tip(f"{content.sentence}\n{content.tip}".strip()))
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.click()
        else:
            super().keyPressEvent(event)

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
        name: what the list is called, for who cannot see it.
        tall: whether a row has two lines.

    Signals:
        chosen: the key of the row that was clicked.
    """

    chosen = Signal(str)

    def __init__(self, name: str, palette: Palette, *, tall: bool = False, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._tall = tall
        self._contents: Sequence[RowContent] = ()
        self._rows: list[ListRow] = []
        self._focus = FocusGroup(self)
        self.setAccessibleName(name)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    @property
    def shown(self) -> list[ListRow]:
        """The rows that are seen, from the top."""
        return [row for row in self._rows if not row.isHidden()]

    @property
    def contents(self) -> Sequence[RowContent]:
        """All rows, also those that there is no room for."""
        return self._contents

    @property
    def left_out(self) -> int:
        """How many rows there is no room for."""
        return max(0, len(self._contents) - len(self.shown))

    def show_rows(self, contents: Sequence[RowContent]) -> None:
        """Show these rows, as many as there is room for."""
        if list(contents) != list(self._contents):
            self._contents = list(contents)
            self._arrange()

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        self._arrange()

    def minimumSizeHint(self) -> QSize:
        return QSize(scaled(120), self._row_height)

    def sizeHint(self) -> QSize:
        """The same whatever is listed: nothing moves when rows come."""
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
        """A row stays a row while it shows another content, so that it keeps the focus."""
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
        """Widths of the columns: as their longest words, and the first as is left; 0 of one that is left out."""
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
        others = [width for width in widths[1:] if width]
        return max(1, self.width() - 2 * EDGE_PX - sum(others) - GAP_PX * len(others))


def cell_font(widget: QWidget, cell: RowCell) -> QFont:
    """How the words of a cell are drawn."""
    font = QFont(widget.font())
    font.setBold(cell.bold)
    return font


def small_font(widget: QWidget) -> QFont:
    """How what is only looked up is drawn."""
    font = QFont(widget.font())
    font.setPointSizeF(widget.font().pointSizeF() * 8 / 9)
    return font


def _elided(text: str, font: QFont, room: float) -> str:
    return QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideMiddle, round(room))
