"""The user's script with the bytes each line holds in the margin, the path of a leak, and a change below its line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontDatabase,
    QFontMetricsF,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QPolygonF,
    QResizeEvent,
    QSyntaxHighlighter,
    QTextBlock,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
)
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QPushButton, QTextEdit, QWidget

from gpudash.memory.explaining.annotated_source import AnnotatedSource, SourceRow
from gpudash.memory.explaining.explanation_text import growth_text
from gpudash.telemetry.explanation import every_steps, short
from gpudash.ui.colours import Palette, mixed
from gpudash.ui.explanation.source_view.highlighting import Span, colours_of, spans_of
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.labels import title_label
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.text_size import scaled
from gpudash.units import format_bytes

MARGIN_PX, NARROW_MARGIN_PX = 216, 126
HEAT_PX, NARROW_HEAT_PX = 58, 26
INSET_PX = 11
"""Logical pixels: the margin, the bar of the line that holds most, both also where the code needs the room, and their
inset from the edges.
"""

CODE_PX = 13
"""Font size of the code, in logical pixels."""

NUMBERS_PX = 38
SIGN_PX = 16
"""Logical pixels: the line numbers, and the diff markers after them."""

SIGNS = {"removed": "−", "added": "+"}
"""The markers of a change's lines."""

LEAST_HEAT_PX = 3

REMOVED_SHARE = 0.17
ADDED_SHARE = 0.16
"""How much of the colour is mixed into the background of a removed or an added line."""

WAY_PX = 2
DOT_PX = 3.5
ARROW_PX = 8
BEND_PX = 8
"""Logical pixels of a leak's path: pen width, radius of its dot, length of its arrow, radius of its bends."""

ROWS_ABOVE = 3
"""Rows kept visible above the row that is scrolled to first, where the view is high enough."""

FOOT = "Bytes that each line held, without the workspace of libraries."


class SourcePanel(QFrame):
    """A file of the program, with a chooser if there are several.

    Attributes:
        column: layout of its parts; others may be added below them.

    Signals:
        file_chosen: the path of the file to show instead.
        stack_wanted: show the stack instead of the source.
    """

    file_chosen = Signal(str)
    stack_wanted = Signal()

    def __init__(self, palette: Palette, title: str = "SOURCE", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.files = ChoiceField()
        self.files.setAccessibleName("File of the program")
        self.files.activated.connect(lambda _row: self.file_chosen.emit(self.files.currentData()))
        self.stack_button = QPushButton("Stack")
        self.stack_button.setToolTip("Show the call stack of the current row instead of the source")
        self.stack_button.clicked.connect(self.stack_wanted)
        self.note = PlainLabel(role="warn", wraps=True)
        self.view = SourceView(palette)
        self.foot = PlainLabel(FOOT, role="legend")
        self._place = PlainLabel(role="muted")
        head = in_row(title_label(title), self._place, self.files, 1, self.stack_button, spacing=8)
        parts = (head, self.note, (self.view, 1), self.foot)
        self.column = in_column(*parts, parent=self, margins=(10, 6, 10, 6), spacing=4)

    def show_files(self, files: Sequence[str]) -> None:
        """Offer these files, the first one selected."""
        self.files.clear()
        for file in files:
            self.files.addItem(short(file), file)
        self.files.updateGeometry()  # Qt keeps the width of the entries that it was first shown with
        self.files.setVisible(len(files) > 1)

    def show_source(self, source: AnnotatedSource) -> None:
        """Show a file."""
        self.files.setCurrentIndex(self.files.findData(source.file))
        self._place.setText("" if self.files.count() > 1 else short(source.file))
        self._place.setToolTip(plain_tip(source.file))
        self.note.setText(source.note)
        self.note.setVisible(bool(source.note))
        self.view.show_source(source)


class SourceView(QPlainTextEdit):
    """The rows of an `AnnotatedSource`, read-only; text can be selected and copied.

    Attributes:
        source: the source that is shown; ``None`` before the first.
        palette_: current colours.
    """

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.source: AnnotatedSource | None = None
        self.palette_ = palette
        self._top = self._left = 0
        self._is_narrow = False
        self.setReadOnly(True)
        self.setTabChangesFocus(True)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setAccessibleName("Source of the program, with the memory of each line")
        self.setMinimumHeight(64)
        self.document().setDocumentMargin(0)  # else there is a gap between the margin and the background of a change
        self.horizontalScrollBar().rangeChanged.connect(self._keep_changed_part)
        self._margin = _Margin(self)
        self._highlighter = _Highlighter(self.document(), palette)
        self.updateRequest.connect(self._scroll_margin)
        self._take_font()

    def show_source(self, source: AnnotatedSource) -> None:
        """Show a source, scrolled to its row of interest."""
        if source == self.source:
            return
        before = self.source
        self.source = source
        if before is not None and _same_text(before, source):
            # Only the figures changed: keep the reader's scroll position.
            self.setAccessibleDescription(spoken(source))
            self._margin.update()
            return
        # A change's lines are highlighted separately: otherwise one could open a string that the file's lines close.
        own = [row.text if row.kind == "line" or row.kind == "removed" else "" for row in source.rows]
        spans = spans_of(own)
        for place, row in enumerate(source.rows):
            if row.kind == "added":
                spans[place] = spans_of([row.text])[0]
        # Before the text: setting the text highlights every block at once.
        self._highlighter.spans = spans
        self.setPlainText("\n".join(row.text for row in source.rows))
        self._mark_changes()
        self.setAccessibleDescription(spoken(source))
        self._choose_margin()
        self.look_at(source.front)
        self._show_changed_part()
        changed = next((place for place, row in enumerate(source.rows) if row.kind == "removed"), None)
        if changed is None:
            return
        if changed + 1 >= self._top + self._rows:
            self.look_at(changed)
            return
        # The editor opens the line to change, even if the view first scrolls to the line that allocates.
        # Moving the cursor scrolls to it; keep the view at the row of interest.
        top = self.verticalScrollBar().value()
        self.setTextCursor(QTextCursor(self.document().findBlockByNumber(changed)))
        self.verticalScrollBar().setValue(top)
        self._show_changed_part()

    @property
    def _rows(self) -> int:
        """Number of rows that fit into the view."""
        return self.viewport().height() // max(1, round(QFontMetricsF(self.font()).lineSpacing()))

    def look_at(self, place: int) -> None:
        """Scroll to a row, leaving some rows above it; to both ends of the way of a leak, if it is one and they fit."""
        left = self.horizontalScrollBar().value()
        self.setTextCursor(QTextCursor(self.document().findBlockByNumber(place)))
        self.horizontalScrollBar().setValue(left)  # which the cursor, at the beginning of its line, has moved
        above = min(ROWS_ABOVE, (self._rows - 1) // 2)
        if self.source is not None and self.source.way is not None and place in self.source.way:
            begin, end = self.source.way
            # What is added stands below the end.
            length = max(begin, end + 1) - min(begin, end)
            if length < self._rows:
                place = min(begin, end)
                above = min(above, self._rows - 1 - length)
        self._top = max(0, place - above)
        self.verticalScrollBar().setValue(self._top)

    def _choose_margin(self) -> None:
        """Make the margin narrow where a changed line needs the room."""
        rows = () if self.source is None else self.source.rows
        metrics = QFontMetricsF(self.font())
        changed = [metrics.horizontalAdvance(row.text.expandtabs(4)) for row in rows if row.kind in SIGNS]
        room = self.contentsRect().width() - self.verticalScrollBar().sizeHint().width()
        widest = max(changed, default=0.0)
        self._is_narrow = widest > room - scaled(MARGIN_PX + NUMBERS_PX + SIGN_PX)
        self.setViewportMargins(self.margin_px, 0, 0, 0)

    def _show_changed_part(self) -> None:
        """Scroll sideways as far as needed to see what a change writes; its beginning stays in view."""
        begin, end = 0.0, 0.0
        if self.source is not None:
            begin, end = _changed_part(self.source, QFontMetricsF(self.font()))
        gap = scaled(10)
        bar = self.horizontalScrollBar()
        bar.setValue(max(0, round(min(end + gap - self.viewport().width(), begin - gap))))
        self._left = bar.value()

    def _keep_changed_part(self) -> None:
        """Do so in another width, or for another text size, unless the reader has scrolled sideways."""
        if self.horizontalScrollBar().value() == self._left:
            self._show_changed_part()

    @property
    def _unscrolled(self) -> bool:
        """Whether the view is where `look_at` scrolled to, as far as there was something to scroll."""
        bar = self.verticalScrollBar()
        return self.source is not None and bar.value() == min(self._top, bar.maximum())

    def place_of(self, line: int) -> int | None:
        """The row of a line of the file; ``None`` if that line is not shown."""
        if self.source is None:
            return None
        return next((place for place, row in enumerate(self.source.rows) if row.number == line), None)

    def row_at(self, place: int) -> SourceRow | None:
        """The row at an index; ``None`` past the last."""
        if self.source is None or place >= len(self.source.rows):
            return None
        return self.source.rows[place]

    def line_in_front(self) -> int:
        """The line of the file at the text cursor; on a line that a change adds, the file's line before it."""
        if self.source is None:
            return 1
        rows = self.source.rows[: self.textCursor().blockNumber() + 1]
        return next((row.number for row in reversed(rows) if row.number), 1)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.palette_ = palette
        self._highlighter.set_palette(palette)
        self._mark_changes()
        self._margin.update()
        self.viewport().update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        unscrolled = self._unscrolled
        super().resizeEvent(event)
        self._choose_margin()
        if unscrolled:
            self.look_at(self.textCursor().blockNumber())
        self._keep_changed_part()
        inside = self.contentsRect()
        # The frame's own padding lies between `contentsRect` and the viewport. The margin covers it, so that the
        # background of a changed line has no gap.
        width = self.viewport().geometry().left() - inside.left()
        self._margin.setGeometry(QRect(inside.left(), inside.top(), width, inside.height()))

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self.source is None:
            return
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_way(painter)
        self._paint_remarks(painter)
        painter.end()

    @property
    def margin_px(self) -> int:
        """Total width of what is left of the code."""
        return self.figures_px + scaled(NUMBERS_PX + SIGN_PX)

    @property
    def figures_px(self) -> int:
        """Width of the part with what each line holds."""
        if self._is_narrow:
            return scaled(NARROW_MARGIN_PX)
        return scaled(MARGIN_PX)

    @property
    def heat_px(self) -> int:
        """Width of the bar of the line that holds most."""
        if self._is_narrow:
            return scaled(NARROW_HEAT_PX)
        return scaled(HEAT_PX)

    def block_rect(self, block: QTextBlock) -> QRectF:
        """Where a block's line is drawn, in viewport coordinates."""
        rect = self.blockBoundingGeometry(block).translated(self.contentOffset())
        rect.setHeight(QFontMetricsF(self.font()).lineSpacing())  # the last block also includes the document margin
        return rect

    def changeEvent(self, event: QEvent) -> None:
        """Follow a change of the font size."""
        unscrolled = self._unscrolled
        super().changeEvent(event)
        sizes = (QEvent.Type.ApplicationFontChange, QEvent.Type.StyleChange)
        if event.type() in sizes and self.font().pixelSize() != scaled(CODE_PX):
            self._take_font()
            if unscrolled:
                self.look_at(self.textCursor().blockNumber())

    def _take_font(self) -> None:
        font = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
        font.setPixelSize(scaled(CODE_PX))
        self.setFont(font)
        self.setTabStopDistance(4 * QFontMetricsF(font).horizontalAdvance(" "))
        self._choose_margin()

    def _scroll_margin(self, _part: QRect, pixels: int) -> None:
        # The path of a leak is painted over the code and spans many lines. Scrolling moves only the text's pixels and
        # would tear the path, so repaint everything.
        if pixels:
            self.viewport().update()
        self._margin.update()

    def _mark_changes(self) -> None:
        ground = QColor(self.palette_.field)
        shades = {
            "removed": mixed(ground, QColor(self.palette_.critical), REMOVED_SHARE),
            "added": mixed(ground, QColor(self.palette_.good), ADDED_SHARE),
        }
        marks = []
        for place, row in enumerate(() if self.source is None else self.source.rows):
            if row.kind not in shades:
                continue
            mark = QTextEdit.ExtraSelection()
            mark.cursor = QTextCursor(self.document().findBlockByNumber(place))
            mark.format.setBackground(shades[row.kind])
            mark.format.setProperty(QTextFormat.Property.FullWidthSelection, True)
            marks.append(mark)
        self.setExtraSelections(marks)

    def _right_of(self, place: int) -> float:
        """Right edge of a row's text."""
        row = self.row_at(place)
        width = 0.0
        if row is not None:
            width = QFontMetricsF(self.font()).horizontalAdvance(row.text.expandtabs(4))
        return self.contentOffset().x() + self.document().documentMargin() + width

    def _paint_way(self, painter: QPainter) -> None:
        """Paint the path of a leak: from the end of the allocating line, right of all text, back to the line that
        keeps."""
        if self.source is None or self.source.way is None:
            return
        begin, end = self.source.way
        tops = [self.block_rect(self.document().findBlockByNumber(place)) for place in (begin, end)]
        heights = [rect.top() + rect.height() / 2 for rect in tops]
        if max(heights) < 0 or min(heights) > self.viewport().height():
            return
        gap = scaled(10)
        # Right of the longest line between the two ends, so that it crosses no text.
        right = max(map(self._right_of, range(min(begin, end), max(begin, end) + 1))) + 3 * gap
        from_ = self._right_of(begin) + gap
        to = self._right_of(end) + gap
        # Between two close rows there is no room for full bends.
        bend = min(scaled(BEND_PX), abs(heights[1] - heights[0]) / 2)
        down = -1
        if heights[1] > heights[0]:
            down = 1
        path = QPainterPath(QPointF(from_, heights[0]))
        path.lineTo(right - bend, heights[0])
        path.quadTo(right, heights[0], right, heights[0] + down * bend)
        path.lineTo(right, heights[1] - down * bend)
        path.quadTo(right, heights[1], right - bend, heights[1])
        path.lineTo(to, heights[1])
        colour = QColor(self.palette_.critical)
        painter.setPen(QPen(colour, WAY_PX))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPath(path)
        arrow = scaled(ARROW_PX)
        tip = QPointF(to, heights[1])
        painter.drawPolyline(QPolygonF([tip + QPointF(arrow, -arrow / 2), tip, tip + QPointF(arrow, arrow / 2)]))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawEllipse(QPointF(from_, heights[0]), DOT_PX, DOT_PX)

    def _paint_remarks(self, painter: QPainter) -> None:
        painter.setFont(label_font(self.window()))
        painter.setPen(QColor(self.palette_.warn))
        block = self.firstVisibleBlock()
        while block.isValid() and (rect := self.block_rect(block)).top() < self.viewport().height():
            row = self.row_at(block.blockNumber())
            # Leave the remark out if the line's own text leaves no room for it.
            if row is not None and row.remark:
                room = QRectF(0, rect.top(), self.viewport().width() - scaled(10), rect.height())
                width = painter.fontMetrics().horizontalAdvance(row.remark)
                if self._right_of(block.blockNumber()) + scaled(20) < room.right() - width:
                    painter.drawText(room, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, row.remark)
            block = block.next()


def _changed_part(source: AnnotatedSource, metrics: QFontMetricsF) -> tuple[float, float]:
    """Where what the first change of a line writes begins and ends, in logical pixels from the line's left edge; zeros
    without one.
    """
    for before, after in pairwise(source.rows):
        if (before.kind, after.kind) == ("removed", "added"):
            one, other = (row.text.expandtabs(4) for row in (before, after))
            alike = _alike(one, other)
            end = len(other) - _alike(one[alike:][::-1], other[alike:][::-1])
            return metrics.horizontalAdvance(other[:alike]), metrics.horizontalAdvance(other[:end])
    return 0.0, 0.0


def _alike(one: str, other: str) -> int:
    """The number of characters at the beginning that are the same."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (first, second) in enumerate(pairs) if first != second), min(len(one), len(other)))


def _same_text(one: AnnotatedSource, other: AnnotatedSource) -> bool:
    """Whether both show the same lines, whatever memory those hold."""
    marks = [[(row.number, row.text, row.kind, row.remark) for row in source.rows] for source in (one, other)]
    return (one.file, one.way) == (other.file, other.way) and marks[0] == marks[1]


MOST_SPOKEN = 8
"""Number of lines named in the accessible description: those that hold the most."""


def spoken(source: AnnotatedSource) -> str:
    """The margin and the marks in words, for screen readers."""
    heaviest = sorted((row for row in source.rows if row.bytes), key=lambda row: -row.bytes)[:MOST_SPOKEN]
    found = []
    for row in heaviest:
        grows = ""
        if row.growth:
            grows = f", {format_bytes(row.growth * row.stride)} more {every_steps(row.stride)}"
        found.append(f"line {row.number} held {format_bytes(row.bytes)}{grows}")
    found += [f"line {row.number} goes: {row.text.strip()}" for row in source.rows if row.kind == "removed"]
    found += [f"comes instead: {row.text.strip()}" for row in source.rows if row.kind == "added"]
    return "; ".join(found)


def label_font(window: QWidget) -> QFont:
    """The small label font, not the code font."""
    font = QFont(window.font())
    font.setFamily(font.family())  # else a painter uses the font family of the widget it paints
    font.setPixelSize(scaled(11))
    return font


class _Margin(QWidget):
    """The memory each line held, line numbers, and diff markers."""

    def __init__(self, view: SourceView) -> None:
        super().__init__(view)
        self._view = view

    def sizeHint(self) -> QSize:
        return QSize(self._view.margin_px, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        view = self._view
        if view.source is None:
            return
        painter = QPainter(self)
        most = max(1, view.source.most_bytes)
        font = label_font(view.window())
        # The viewport starts below the frame's padding, this widget above it.
        offset = view.viewport().geometry().top() - self.geometry().top()
        block = view.firstVisibleBlock()
        while block.isValid() and (rect := view.block_rect(block)).top() < view.viewport().height():
            row = view.row_at(block.blockNumber())
            if row is not None:
                self._paint_row(painter, row, QRectF(0, rect.top() + offset, self.width(), rect.height()), most, font)
            block = block.next()
        painter.setPen(QPen(QColor(view.palette_.border), 1))
        edge = view.figures_px - 0.5
        painter.drawLine(QPointF(edge, 0), QPointF(edge, self.height()))
        painter.end()

    def _paint_row(self, painter: QPainter, row: SourceRow, at: QRectF, most: int, font: QFont) -> None:
        palette = self._view.palette_
        edge = scaled(INSET_PX)
        margin = self._view.figures_px
        grounds = {"removed": (palette.critical, REMOVED_SHARE), "added": (palette.good, ADDED_SHARE)}
        if row.kind in SIGNS:
            colour, share = grounds[row.kind]
            ground = QRectF(margin, at.top(), at.width() - margin, at.height())
            painter.fillRect(ground, mixed(QColor(palette.field), QColor(colour), share))
            painter.setPen(QColor(colour))
            painter.setFont(self._view.font())
            painter.drawText(
                ground.adjusted(scaled(NUMBERS_PX), 0, 0, 0), Qt.AlignmentFlag.AlignVCenter, SIGNS[row.kind]
            )
        painter.setFont(font)
        if row.number:
            numbers = QRectF(margin, at.top(), scaled(NUMBERS_PX) - scaled(8), at.height())
            painter.setPen(QColor(palette.muted))
            painter.drawText(numbers, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, str(row.number))
        if not row.bytes:
            return
        colour = palette.curves["allocated"]
        if row.growth:
            colour = palette.critical
        wide = max(LEAST_HEAT_PX, self._view.heat_px * row.bytes / most)
        thick = round(at.height() * 0.62)
        painter.fillRect(QRectF(edge, at.top() + (at.height() - thick) / 2, wide, thick), QColor(colour))
        painter.setPen(QColor(palette.critical if row.growth else palette.muted))
        text, shown = _figures(row, font, margin - 2 * edge - wide - scaled(6))
        painter.setFont(shown)
        figures = QRectF(edge, at.top(), margin - 2 * edge, at.height())
        painter.drawText(figures, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, text)


def _figures(row: SourceRow, font: QFont, room: float) -> tuple[str, QFont]:
    """The text for a line's memory, and its font: the longest and boldest that fits."""
    held = format_bytes(row.bytes)
    if not row.growth:
        return held, font
    bold = QFont(font)
    bold.setBold(True)
    grown = growth_text(row.growth, row.stride, "/step")
    for text in (f"{held}, {grown}", grown):
        for shown in (bold, font):
            if QFontMetricsF(shown).horizontalAdvance(text) <= room:
                return text, shown
    return held, bold


class _Highlighter(QSyntaxHighlighter):
    """Applies the spans of each block.

    Attributes:
        spans: spans of each block; set them before the text.
    """

    def __init__(self, document: QTextDocument, palette: Palette) -> None:
        super().__init__(document)
        self.spans: Sequence[Sequence[Span]] = ()
        self._formats = _formats(palette)

    def set_palette(self, palette: Palette) -> None:
        self._formats = _formats(palette)
        self.rehighlight()

    def highlightBlock(self, text: str) -> None:
        place = self.currentBlock().blockNumber()
        if place >= len(self.spans):
            return
        for span in self.spans[place]:
            self.setFormat(span.begin, span.length, self._formats[span.kind])


def _formats(palette: Palette) -> dict[str, QTextCharFormat]:
    found = {}
    for kind, colour in colours_of(palette).items():
        made = QTextCharFormat()
        made.setForeground(QColor(colour))
        found[kind] = made
    return found
