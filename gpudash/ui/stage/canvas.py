"""Paints a picture of the stage at screen size: code, blocks, columns, curves, guesses, a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from gpudash.drawing.stages import PlacedChart, StageBlock, StageBox, StageChart, StageColumn, size_text
from gpudash.session.demo.pictures import REFUSED, CodeLine, GuessRow, StagePicture
from gpudash.ui.colours import Palette, mixed
from gpudash.ui.explanation.source_view.highlighting import Span, colours_of, spans_of
from gpudash.ui.stage.painting import AXIS, CODE, FIGURE, FILL, HIGH, PEAK, WIDE
from gpudash.ui.stage.panels import PanelPainting
from gpudash.ui.stage.sentence import SentencePainting

CODE_SHARE = 0.28
"""Share of the height taken by the code and the blocks."""


class StageCanvas(PanelPainting, SentencePainting):
    """Paints one picture.

    Args:
        palette: colours.

    Attributes:
        code_place: rectangle of the code, which the editor covers.
        code_pixels: size of its type.
    """

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(palette, parent)
        self._picture = StagePicture("")
        self.code_place = QRectF()
        self.code_pixels = self.px(CODE)

    def show_picture(self, picture: StagePicture) -> None:
        """Show the picture of another step."""
        if picture != self._picture:
            self._picture = picture
            self.setAccessibleName(picture.title)
            self.setAccessibleDescription(picture.description)
            self.update()

    def set_screen(self, width: int, height: int) -> None:
        """Scale the type for a screen of this size, in pixels."""
        self._scale = min(width / WIDE, height / HIGH)
        self._lay_out()
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        self._lay_out()
        self.drawn = []
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.fillRect(self.rect(), QColor(self._colours.field if self._colours.dark else self._colours.window))
        picture = self._picture
        self._head(painter, picture)
        if picture.rows:
            self._rows(painter, picture.rows)
        elif picture.panels:
            self._code(painter, picture.code)
            self._panels(painter, self._plot_place, picture.panels)
        else:
            self._code(painter, picture.code)
            self._blocks(painter, picture)
            if picture.chart is not None:
                self._chart(painter, picture.chart)
        self._sentence(painter, self._sentence_place, picture)
        painter.end()

    def _lay_out(self) -> None:
        """Place the parts: head, code beside blocks, plot, sentence."""
        width, height = float(self.width()), float(self.height())
        edge = self.edge
        self._gap = max(8.0 / self.devicePixelRatioF(), 24 * self._scale)
        line = self._line(FIGURE)
        self._head_place = QRectF(edge, self._gap * 1.2, width - 2 * edge, line * 1.5)
        top = self._head_place.bottom() + self._gap * 0.7
        code_height = CODE_SHARE * height
        whole = width - 2 * edge
        code_width = whole if self._picture.panels else whole * 0.62
        self.code_place = QRectF(edge, top, code_width, code_height)
        left = self.code_place.right() + 2 * self._gap
        self._blocks_place = QRectF(left, top, width - edge - left, code_height)
        bar = line * 2.3
        self._sentence_place = QRectF(edge, height - bar - self._gap / 2, whole, bar)
        begin = self.code_place.bottom() + self._gap * 1.1
        self._plot_place = QRectF(edge, begin, whole, self._sentence_place.top() - self._gap - begin)

    def _head(self, painter: QPainter, picture: StagePicture) -> None:
        colours, place = self._colours, self._head_place
        text, ink = picture.question, colours.muted
        if picture.verdict:
            text, ink = picture.verdict, colours.accent
        corner_font, small = self._font(AXIS), self._font(AXIS)
        small.setPixelSize(self._smallest)
        taken = QFontMetricsF(self._font(FIGURE, bold=True)).horizontalAdvance(picture.title) + 2
        others = QFontMetricsF(corner_font).horizontalAdvance(text) + taken + 3 * self._gap
        if others + QFontMetricsF(corner_font).horizontalAdvance(picture.corner) > place.width():
            corner_font = small
        width = min(QFontMetricsF(corner_font).horizontalAdvance(picture.corner) + 2, place.width() * 0.4)
        corner = QRectF(place.right() - width, place.top(), width, place.height())
        self._write(painter, corner, picture.corner, corner_font, colours.muted, Qt.AlignmentFlag.AlignRight)
        title_font = self._font(FIGURE, bold=True)
        title = QRectF(place.left(), place.top(), min(taken, place.width() * 0.4), place.height())
        self._write(painter, title, picture.title, title_font, colours.text)
        left = title.right() + 2 * self._gap
        room = QRectF(left, place.top(), corner.left() - self._gap - left, place.height())
        self._write(painter, room, text, self._font(FIGURE), ink)

    def _rows(self, painter: QPainter, rows: Sequence[GuessRow]) -> None:
        """Guesses beside the actual values, one row each below their titles."""
        colours = self._colours
        place = QRectF(self.code_place.topLeft(), self._plot_place.bottomRight())
        step = min(place.height() / (len(rows) + 1), self._line(FIGURE) * 3)
        shares = (0.3, 0.31, 0.31, 0.08)
        titles = ("", "your guess", "what came", "")
        small, plain = self._font(AXIS), self._font(FIGURE)
        bold = self._font(FIGURE, bold=True)
        pen = QPen(QColor(colours.grid), max(1.0, 1.5 * self._scale))
        for number, row in enumerate((None, *rows)):
            top = place.top() + number * step
            texts = titles
            if row is not None:
                texts = (row.question, row.guess or "–", row.came or "–", "right" if row.right else "")
                painter.setPen(pen)
                painter.drawLine(QPointF(place.left(), top), QPointF(place.right(), top))
            left = place.left()
            for column, text in enumerate(texts):
                room = QRectF(left, top, place.width() * shares[column] - self._gap, step)
                font, ink = plain, colours.text
                if row is None:
                    font, ink = small, colours.muted
                elif column == 0:
                    font = bold
                elif row.right and column >= 2:
                    ink = colours.good
                self._write(painter, room, text, font, ink)
                left += place.width() * shares[column]

    def _code(self, painter: QPainter, lines: Sequence[CodeLine]) -> None:
        colours, place = self._colours, self.code_place
        painter.setPen(QPen(QColor(colours.border), max(1.0, 2 * self._scale)))
        painter.setBrush(QColor(colours.window if colours.dark else colours.panel))
        painter.drawRoundedRect(place, 6, 6)
        if not lines:
            return
        padding = self._gap * 0.4
        step = min((place.height() - 2 * padding) / len(lines), self.px(CODE) * 1.95)
        top = place.top() + (place.height() - step * len(lines)) / 2
        font = self._font(CODE, mono=True)
        font.setPixelSize(max(self.smallest_shown, min(font.pixelSize(), int(step / 1.35))))
        figure_font = self._font(FIGURE)
        figure_font.setPixelSize(max(self.smallest_shown, min(figure_font.pixelSize(), int(step / 1.3))))
        number_width = QFontMetricsF(font).horizontalAdvance("00")
        left = place.left() + self._gap + number_width + self._gap
        right = place.right() - self._gap
        most = place.width() * 0.32
        figures = [
            max(self._figure_width(figure_font, text, most) for text in (line.figure, line.room)) for line in lines
        ]
        # A long line without a figure may reach below those of others. One size for all lines, so that columns align
        # as in an editor.
        share = 1.0
        for line, figure in zip(lines, figures, strict=True):
            width = QFontMetricsF(font).horizontalAdvance(line.text)
            if width > 0:
                share = min(share, (right - figure - left) / width)
        if share < 1:
            font.setPixelSize(max(self.smallest_shown, int(font.pixelSize() * share)))
        self.code_pixels = font.pixelSize()
        coloured = spans_of([line.text for line in lines])
        kinds = colours_of(colours)
        for row, line in enumerate(lines):
            band = QRectF(place.left() + 1, top + row * step, place.width() - 2, step)
            self._code_band(painter, band, line)
            ink = colours.muted if line.state == "coming" else colours.text
            number = QRectF(place.left() + self._gap, band.top(), number_width, step)
            small = QFont(font)
            small.setPixelSize(max(self.smallest_shown, int(font.pixelSize() * 0.64)))
            shown = {"now": colours.accent, "wrong": colours.critical}.get(line.state, colours.muted)
            self._write(painter, number, line.number, small, shown, Qt.AlignmentFlag.AlignRight)
            text_room = QRectF(left, band.top(), right - figures[row] - left, step)
            text_place = self._write(painter, text_room, line.text, font, ink)
            if not self.drawn[-1].cut and line.state != "coming":
                self._coloured(painter, text_place, line.text, font, coloured[row], kinds)
            if line.figure:
                figure_room = QRectF(text_room.right(), band.top(), figures[row], step)
                strong = QFont(figure_font)
                strong.setBold(line.warns or line.state == "wrong")
                tint = colours.text
                if line.warns:
                    tint = colours.warn
                if line.state == "wrong":
                    tint = colours.critical
                self._write(painter, figure_room, line.figure, strong, tint, Qt.AlignmentFlag.AlignRight)

    def _figure_width(self, font: QFont, figure: str, most: float) -> float:
        """The width that a line's figure takes from its code."""
        if not figure:
            return 0.0
        return min(QFontMetricsF(font).horizontalAdvance(figure) * 1.15 + self._gap, most)

    def _code_band(self, painter: QPainter, band: QRectF, line: CodeLine) -> None:
        colours = self._colours
        if line.state not in ("now", "wrong"):
            return
        ground = colours.banner_critical if line.state == "wrong" else colours.banner_note
        painter.fillRect(band, QColor(ground))
        edge = QRectF(band.left(), band.top(), max(3.0, 10 * self._scale), band.height())
        painter.fillRect(edge, QColor(colours.critical if line.state == "wrong" else colours.accent))

    def _coloured(
        self, painter: QPainter, place: QRectF, text: str, font: QFont, spans: Sequence[Span], kinds: Mapping[str, str]
    ) -> None:
        """Paint numbers, keywords and strings in their colours over the text."""
        metrics = QFontMetricsF(painter.font())
        for span in spans:
            begin, length = span.begin, span.length
            left = place.left() + metrics.horizontalAdvance(text[:begin])
            ground = painter.pen()
            painter.setPen(QColor(kinds[span.kind]))
            painter.drawText(QPointF(left, place.top() + metrics.ascent()), text[begin : begin + length])
            painter.setPen(ground)

    def _blocks(self, painter: QPainter, picture: StagePicture) -> None:
        colours, place = self._colours, self._blocks_place
        head = QRectF(place.left(), place.top(), place.width(), self._line(AXIS))
        title_font = self._font(AXIS, bold=True)
        self._write(painter, head, picture.blocks_title, title_font, colours.muted)
        blocks = picture.blocks
        if not blocks:
            room = QRectF(place.left(), head.bottom() + 4, place.width(), head.height())
            self._write(painter, room, "nothing yet", self._font(AXIS), colours.muted)
            return
        across = 2
        rows = max(2, -(-len(blocks) // across))
        gap = self._gap * 0.6
        top = head.bottom() + gap * 0.6
        width = (place.width() - gap * (across - 1)) / across
        height = (place.bottom() - top - gap * (rows - 1)) / rows
        for number, block in enumerate(blocks):
            row, column = divmod(number, across)
            box = QRectF(place.left() + column * (width + gap), top + row * (height + gap), width, height)
            self._block_card(painter, box, block)

    def _block_card(self, painter: QPainter, box: QRectF, block: StageBlock) -> None:
        self._fill(painter, box, block, coming=False, radius=6)
        inner = box.adjusted(self._gap * 0.6, self._gap * 0.2, -self._gap * 0.6, -self._gap * 0.2)
        half = inner.height() / 2
        upper = QRectF(inner.left(), inner.top(), inner.width(), half)
        lower = QRectF(inner.left(), inner.top() + half, inner.width(), half)
        text = self._colours.text
        name_font = self._font(FIGURE, bold=True, mono=True)
        narrowest = QFont(name_font)
        narrowest.setPixelSize(max(self._smallest, round(name_font.pixelSize() * 0.75)))
        if QFontMetricsF(narrowest).horizontalAdvance(block.name) > upper.width():
            name_font = self._font(FIGURE)  # narrower than code, so that a long expression is whole
        self._write(painter, upper, block.name, name_font, text)
        size = size_text(block.bytes)
        self._write(painter, lower, f"{size}, {block.remark}" if block.remark else size, self._font(AXIS), text)

    def _chart(self, painter: QPainter, chart: StageChart) -> None:
        colours, place = self._colours, self._plot_place
        axis_font = self._font(AXIS)
        line = self._line(AXIS)
        head = QRectF(place.left(), place.top(), place.width(), line * 1.15)
        name = f"{chart.title}, {chart.unit[1]}"
        bold = self._font(AXIS, bold=True)
        name_width = QFontMetricsF(bold).horizontalAdvance(name) + 2
        self._write(painter, QRectF(head.left(), head.top(), name_width, head.height()), name, bold, colours.muted)
        rest = QRectF(
            head.left() + name_width + self._gap, head.top(), head.width() - name_width - self._gap, head.height()
        )
        remark, ink = chart.remark, colours.muted
        if chart.guess is not None:
            remark, ink = f"the line is your guess, {chart.figure(chart.guess)} {chart.unit[1]}", colours.accent
        self._write(painter, rest, remark, axis_font, ink, Qt.AlignmentFlag.AlignRight)
        widest = QFontMetricsF(axis_font).horizontalAdvance(
            chart.figure(max(chart.highest, chart.limit or 0.0)) + "0,0"
        )
        below = head.bottom() + self._gap * 0.4
        frame = StageBox(place.left(), below, place.width(), place.bottom() - below)
        placed = chart.placed(frame, line=self._line(PEAK) * 1.05, axis=widest, header=line * 1.6)
        self._axis(painter, placed, axis_font)
        taken = self._piles(painter, chart, placed)
        self._limit_line(painter, placed)
        self._guess_line(painter, placed)
        for column, header, boxes, top in zip(chart.columns, placed.headers, placed.columns, placed.tops, strict=True):
            self._header(painter, column, _rect(header))
            for block, box in zip(column.blocks, boxes, strict=True):
                room = self._clear_of_line(self._clear_of_line(_rect(box), placed.guess), placed.limit)
                over = block.kind == REFUSED or (placed.limit is not None and room.top() < placed.limit - 1)
                self._block_label(painter, room, block, chart, hatched=over)
            taken.append(self._figure(painter, column, _rect(header), top, placed.limit))
        if placed.guess is not None:
            taken.append(QRectF(placed.plot.x, placed.guess - 2, placed.plot.width, 4))
        self._limit(painter, chart, placed, taken)

    def _piles(self, painter: QPainter, chart: StageChart, placed: PlacedChart) -> list[QRectF]:
        """Paint the columns without their text; return the rectangle of each."""
        taken = []
        for column, boxes, top in zip(chart.columns, placed.columns, placed.tops, strict=True):
            for block, box in zip(column.blocks, boxes, strict=True):
                self._fill(painter, _rect(box).adjusted(0, 1, 0, 0), block, coming=column.state == "coming")
            if not boxes:
                continue
            if placed.limit is not None and top < placed.limit - 1:
                self._hatch(painter, QRectF(boxes[0].x, top, boxes[0].width, placed.limit - top))
            taken.append(QRectF(boxes[0].x, top, boxes[0].width, placed.plot.bottom - top))
        return taken

    def _axis(self, painter: QPainter, placed: PlacedChart, font: QFont) -> None:
        colours, plot = self._colours, placed.plot
        line = QFontMetricsF(font).height()
        painter.setPen(QPen(QColor(colours.grid), max(1.0, 1.5 * self._scale)))
        for y, _text in placed.ticks:
            painter.drawLine(QPointF(plot.x, y), QPointF(plot.right, y))
        for header in placed.headers[1:]:
            left = header.x - 2
            painter.drawLine(QPointF(left, plot.y), QPointF(left, plot.bottom))
        for y, text in placed.ticks:
            # The lowest label is on the plot's edge: keep it inside.
            middle = min(y, plot.bottom - line / 2 + 1)
            room = QRectF(self.edge, middle - line / 2, plot.x - self.edge - self._gap * 0.5, line)
            self._write(painter, room, text, font, colours.muted, Qt.AlignmentFlag.AlignRight)

    def _header(self, painter: QPainter, column: StageColumn, box: QRectF) -> None:
        colours = self._colours
        now = column.state == "now"
        painter.setPen(Qt.PenStyle.NoPen)
        ground = colours.banner_note if now else colours.button
        ink = colours.accent if now else colours.text
        if now and column.failed:
            ground = colours.banner_critical
            ink = colours.critical
        painter.setBrush(QColor(ground))
        painter.drawRoundedRect(box, 3, 3)
        if column.state == "coming":
            ink = colours.muted
        inner = box.adjusted(4, 0, -4, 0)
        title = self._short(column.title, (" fails",), self._font(AXIS, bold=now), inner.width())
        self._write(
            painter,
            inner,
            title,
            self._font(AXIS, bold=now),
            ink,
            Qt.AlignmentFlag.AlignHCenter,
        )

    def _block_label(
        self, painter: QPainter, box: QRectF, block: StageBlock, chart: StageChart, *, hatched: bool
    ) -> None:
        """A block's name and size, if the block is large enough for them."""
        line = self._line(AXIS)
        if box.height() < line * 1.05:
            return
        if hatched:
            # Text on a hatch is unreadable: clear a strip for it.
            middle = QRectF(box.left() + 3, box.center().y() - line / 2, box.width() - 6, line)
            share = 0.8 if block.kind == REFUSED else FILL
            painter.fillRect(middle, mixed(self._colour(block.kind), QColor(self._colours.window), share))
        pad = self._gap * 0.5
        inner = box.adjusted(pad, 0, -pad, 0)
        name_font = self._font(AXIS, bold=True, mono=True)
        figure_font = self._font(AXIS)
        figure = chart.figure(block.bytes)
        figure_width = QFontMetricsF(figure_font).horizontalAdvance(figure) + 1
        name_width = QFontMetricsF(name_font).horizontalAdvance(block.name)
        ink = self._colours.text
        shrunk = QFont(name_font)
        shrunk.setPixelSize(max(self._smallest, round(name_font.pixelSize() * 0.8)))
        is_whole = QFontMetricsF(shrunk).horizontalAdvance(block.name) <= inner.width()
        if name_width + figure_width + pad <= inner.width():
            room = QRectF(inner.right() - figure_width, inner.top(), figure_width, inner.height())
            self._write(painter, room, figure, figure_font, ink, Qt.AlignmentFlag.AlignRight)
            inner.setRight(room.left() - pad)
            self._write(painter, inner, block.name, name_font, ink)
            return
        has_two_rows = box.height() >= line * 2.1 and not hatched
        if is_whole and figure_width <= inner.width() and has_two_rows:
            centre = inner.center().y()
            self._write(painter, QRectF(inner.left(), centre - line, inner.width(), line), block.name, name_font, ink)
            self._write(painter, QRectF(inner.left(), centre, inner.width(), line), figure, figure_font, ink)
            return
        # If only one fits, the figure says more than a cut name: the block's colour is explained beside the code.
        if is_whole:
            self._write(painter, inner, block.name, name_font, ink)
        elif figure_width <= inner.width():
            self._write(painter, inner, figure, figure_font, ink, Qt.AlignmentFlag.AlignHCenter)

    def _figure(
        self, painter: QPainter, column: StageColumn, header: QRectF, top: float, limit: float | None
    ) -> QRectF:
        """The total of a column, above it, and above the line of the limit where it would lie on that."""
        colours = self._colours
        size = PEAK if column.is_peak else FIGURE
        ink = colours.text
        if column.is_peak:
            ink = colours.warn
        if column.failed:
            ink = colours.critical
        if column.state == "coming":
            ink = colours.muted
        if not column.figure.strip():
            return QRectF()
        line = self._line(size)
        font = self._font(size, bold=True)
        room = QRectF(header.left(), top - line * 1.05, header.width(), line)
        if limit is not None and room.top() < limit <= top and limit - line >= header.bottom():
            room.moveBottom(limit - 2)
        figure = self._short(column.figure, ("peak ", " stay"), font, room.width())
        width = min(QFontMetricsF(font).horizontalAdvance(figure) + 8, room.width())
        # Clear the background, or the line of a limit would strike the figure through.
        ground = QColor(colours.field if colours.dark else colours.window)
        painter.fillRect(QRectF(room.center().x() - width / 2, room.top() + 2, width, line - 3), ground)
        return self._write(painter, room, figure, font, ink, Qt.AlignmentFlag.AlignHCenter)

    def _short(self, text: str, without: Sequence[str], font: QFont, width: float) -> str:
        """A text without words that colour and place tell too, if the whole would be cut."""
        small = QFont(font)
        small.setPixelSize(max(self._smallest, round(font.pixelSize() * 0.75)))
        if QFontMetricsF(small).horizontalAdvance(text) <= width:
            return text
        for word in without:
            text = text.replace(word, "")
        return text

    def _limit_line(self, painter: QPainter, placed: PlacedChart) -> None:
        if placed.limit is None:
            return
        pen = QPen(QColor(self._colours.critical), max(2.0, 4 * self._scale))
        pen.setDashPattern([4, 2])
        painter.setPen(pen)
        painter.drawLine(QPointF(placed.plot.x, placed.limit), QPointF(placed.plot.right, placed.limit))

    def _guess_line(self, painter: QPainter, placed: PlacedChart) -> None:
        if placed.guess is None:
            return
        painter.setPen(QPen(QColor(self._colours.accent), max(2.0, 4 * self._scale)))
        painter.drawLine(QPointF(placed.plot.x, placed.guess), QPointF(placed.plot.right, placed.guess))

    def _clear_of_line(self, box: QRectF, y: float | None) -> QRectF:
        """The part of a block that its label can use without a line at ``y`` striking it through."""
        line = self._line(AXIS)
        if y is None or abs(box.center().y() - y) > line * 0.7:
            return box
        below = QRectF(box.left(), y, box.width(), box.bottom() - y)
        above = QRectF(box.left(), box.top(), box.width(), y - box.top())
        larger = max(below, above, key=QRectF.height)
        return larger if larger.height() > line * 1.2 else QRectF()

    def _limit(self, painter: QPainter, chart: StageChart, placed: PlacedChart, taken: Sequence[QRectF]) -> None:
        if chart.limit is None:
            return
        colours, plot = self._colours, placed.plot
        unit = chart.unit[1]
        text = f"limit {chart.figure(chart.limit)} {unit}"
        left = chart.limit - chart.highest
        measured = any(column.is_peak for column in chart.columns)
        spare = f"{chart.figure(left)} left at the peak" if left >= 0 and measured else ""
        font, plain = self._font(FIGURE, bold=True), self._font(FIGURE)
        width = QFontMetricsF(font).horizontalAdvance(text)
        spare_width = QFontMetricsF(plain).horizontalAdvance(spare) + self._gap if spare else 0.0
        line = self._line(FIGURE)
        if placed.limit is None:
            text = f"↑ {text}"
            width = QFontMetricsF(font).horizontalAdvance(text)
            room = QRectF(plot.x + self._gap * 0.5, plot.y + 2, width + 1, line)
            self._write(painter, room, text, font, colours.critical)
            return
        whole = width + spare_width
        # where piles are expected to rise above the limit, its name is from the start where they end lower
        above = chart.reaches > chart.limit
        place = self._free_place(placed, taken, whole, line, above=above)
        if place is None and spare:
            spare, spare_width = "", 0.0
            place = self._free_place(placed, taken, width, line, above=above)
        if place is None:
            place = QRectF(plot.x + self._gap * 0.5, placed.limit + 3, width, line)
            ground = QColor(colours.window if colours.dark else colours.panel)
            painter.fillRect(place.adjusted(-4, 0, 4, 0), ground)
        self._write(painter, QRectF(place.left(), place.top(), width + 1, line), text, font, colours.critical)
        if spare:
            room = QRectF(place.left() + width + self._gap, place.top(), spare_width, line)
            self._write(painter, room, spare, plain, colours.muted)

    def _free_place(
        self, placed: PlacedChart, taken: Sequence[QRectF], width: float, line: float, *, above: bool
    ) -> QRectF | None:
        """A place for the limit's name that covers no column and no figure: below or above the line, left or right;
        with ``above``, first above and right."""
        plot, pad = placed.plot, self._gap * 0.5
        assert placed.limit is not None
        tops = [placed.limit + pad * 0.3, placed.limit - line - pad * 0.3]
        lefts = [plot.x + pad, plot.right - pad - width]
        if above:
            tops.reverse()
            lefts.reverse()
        for top in tops:
            for left in lefts:
                place = QRectF(left, top, width, line)
                inside = top >= plot.y - 1
                if inside and not any(place.intersects(one.adjusted(-4, -2, 4, 0)) for one in taken if one.isValid()):
                    return place
        return None


def _rect(box: StageBox) -> QRectF:
    return QRectF(box.x, box.y, box.width, box.height)
