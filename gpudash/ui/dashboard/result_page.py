"""A run's result: the verdict of a comparison, or a few large figures, a chart and the rest.

A verdict or a chart covers part of the plots; everything else is placed beside them and hides none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QBoxLayout, QFrame, QPushButton, QScrollArea, QSizePolicy, QStackedWidget, QWidget

from gpudash.devices.names import SIMULATED
from gpudash.drawing.axes import MOST_TICKS, Ticks, format_value, value_ticks
from gpudash.telemetry.results.outcome import (
    SizeChart,
    SizeLine,
    outcome_rows,
    predicted_step,
    run_figures,
    size_chart,
    without_figures,
)
from gpudash.telemetry.runs import ENDINGS, RunView
from gpudash.ui.dashboard.banner import ACTION_TEXT, misses_cuda
from gpudash.ui.dashboard.tabs.verdict_page import Painted, VerdictPage
from gpudash.ui.explanation.header import RemediesView
from gpudash.ui.plots.canvas import label_font
from gpudash.ui.plots.overlay import PEN_STYLES
from gpudash.ui.plots.readout import SIDE_PX
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.labels import discard, set_role, title_label, worded_button, worded_label, wrapping_label
from gpudash.ui.widgets.layouts import ScrolledParts, in_column, in_row, scrolled
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Column, Table

LEAST_CHART_PX, LEAST_PLOT_PX = 150, 160
"""Minimum height of a readable chart, and of a plot beside a verdict, in logical pixels."""

EDGE_PX = SIDE_PX - 1
"""Room beside all of it within its border: its figures end where those of the readout end."""

BOTTOM_PX, BELOW_HEAD_PX, GAP_PX = 6, 10, 6
"""Logical pixels: bottom margin, gap below the title, gap between parts."""

CLOSE_TEXT, CLOSE_SHORT = "Back to the plots   Esc", "Esc"
"""Text of the button that closes the result, and its short form when the result covers no plot."""


class ResultPage(QFrame):
    """The result of a run.

    Signals:
        closed: return to the plots.
        applied: run again with this `Remedy`.
        action: action of a button of a failed run, a key of `ACTION_TEXT`.

    Attributes:
        verdict: verdict of a comparison.
        ending: why the run ended badly.
        chart: chart of a transfer or of matrix products.
        rows: results that are not among the figures.
    """

    closed = Signal()
    applied = Signal(object)
    action = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.setAccessibleName("Result of the run")
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self._title = wrapping_label("figure-small")
        self.verdict = VerdictPage()
        self.ending = BadEnding()
        self.ending.remedies.applied.connect(self.applied)
        self.ending.action.connect(self.action)
        self.chart = RateChart()
        self.rows = Table(
            "Result", (Column("what"), Column("outcome", wide=True, wraps=True)), "The run reported nothing else."
        )
        self._side_figures = FiguresAside()
        self._figures = in_row(1, margins=(EDGE_PX, 4, EDGE_PX, 4), spacing=34)
        self._shown: list[tuple[str, str]] = []
        self._tiles: list[QWidget] = []
        self._build()

    def _build(self) -> None:
        head = self._head = in_row((self._title, 1), margins=(EDGE_PX, 8, EDGE_PX, 0), spacing=12)
        self._close = worded_button(CLOSE_TEXT, "Close the result (Esc); R brings it back", self.closed.emit)
        self._focus = FocusGroup(self, [self._close, *self.ending.buttons])
        head.addWidget(self._close, alignment=Qt.AlignmentFlag.AlignTop)
        parts = ScrolledParts()
        self._general = scrolled(parts)
        self._general.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        side = in_row(self.rows, margins=(8, 0, 8, 0))
        self._column = in_column(
            self.ending,
            self._figures,
            (self.chart, 3),
            (side, 2),
            parent=parts,
            margins=(0, 0, 0, 0),
            spacing=GAP_PX,
        )
        self._bodies = QStackedWidget()
        self._bodies.addWidget(self._general)
        self._bodies.addWidget(self.verdict)
        self._bodies.addWidget(self._side_figures)
        self._bodies.setMinimumHeight(1)  # it scrolls: where the page is too low, the title stays whole
        in_column(head, (self._bodies, 1), parent=self, margins=(0, 0, 0, BOTTOM_PX), spacing=BELOW_HEAD_PX - BOTTOM_PX)

    def show_run(self, run: RunView, runs: Sequence[RunView], name: str, *, commanding: bool = False) -> None:
        """Show the result of ``run``. The caller holds the store's lock.

        Args:
            run: a run that has ended.
            runs: all runs of the session, including it.
            name: display name of the run.
            commanding: whether a remedy can be applied here.
        """
        title = f"{name}, {ENDINGS.get(run.status, run.status)}"
        if run.simulated:
            title = f"{SIMULATED} · {title}"
        self._title.setText(title)
        self.setAccessibleDescription(self._title.full_text)
        comparison = self.verdict.show_result(run.result)
        self._bodies.setCurrentWidget(self.verdict if comparison else self._general)
        if comparison:
            return
        self.ending.show_run(run, commanding=commanding)
        self._show_figures(run_figures(run))
        self.chart.show_chart(size_chart(run, runs))
        found = [*predicted_step(run), *outcome_rows(run.result)]
        # Beside the reason of a failure, nobody needs the results found until then.
        rows = found
        if run.error is not None:
            rows = []
        self.rows.show_rows(rows)
        self.rows.setMaximumHeight(self.rows.height_of_all)  # the chart takes the rest
        self.rows.setVisible(bool(rows) or not (self._shown or self.chart.isVisibleTo(self)))
        more = without_figures(rows, self._shown)
        self._side_figures.show_figures(self._shown, more, rest=bool(found) and not rows)

    def offer_tab(self, offered: bool) -> bool:
        """Mention the tab with the other results only where it is offered; whether that changed anything."""
        return self._side_figures.offer_tab(offered)

    def place_in(self, stage: QRect, side: QRect, free: int) -> QRect:
        """Where to place the page: beside the plots if there is room and it has no chart, else over their lower part.

        Args:
            stage: rectangle of the plots and what is beside them, without the time axis.
            side: rectangle beside the plots, down to the axis' lower edge; empty if there is none.
            free: height of ``side`` it may cover without cutting a value in two, in logical pixels; if it needs more,
                it covers all of it.
        """
        comparison = self._bodies.currentWidget() is self.verdict
        aside = not comparison and self.chart.isHidden() and not side.isEmpty()
        self._close.setText(CLOSE_SHORT if aside else CLOSE_TEXT)
        for part in self.findChildren(QWidget):
            part.ensurePolished()  # a widget that was never shown has no final font, so its size hint is wrong
        place = QRect(side if aside else stage)
        fits_in_row = self._fit_figures(place.width())
        if not comparison:
            in_rows = aside or (self.chart.isHidden() and not fits_in_row)
            self._bodies.setCurrentWidget(self._side_figures if in_rows else self._general)
            self._put_ending(in_rows=in_rows)
        self.resize(place.size())  # wrapped text needs more height
        height = self._height_within(place.height())
        if not aside or height <= free:
            place.setTop(place.bottom() - height + 1)
        return place

    def _fit_figures(self, width: int) -> bool:
        """Shrink the large figures to normal size if they do not fit side by side; whether they fit at last."""
        for role in ("figure", "figure-small"):
            for tile in self._tiles:
                for label in tile.findChildren(PlainLabel):
                    if label.property("role") != "title":
                        set_role(label, role)
            edges = self._figures.contentsMargins()
            needed = edges.left() + edges.right() + (len(self._tiles) - 1) * self._figures.spacing()
            needed += sum(tile.sizeHint().width() for tile in self._tiles)
            if needed <= width - self.width() + self.contentsRect().width():
                return True
        return False

    def _put_ending(self, *, in_rows: bool) -> None:
        """Move the reason for the bad ending into the page that is shown."""
        if in_rows:
            column = self._side_figures.column
        else:
            column = self._column
        if column.indexOf(self.ending) < 0:
            self.ending.set_narrow(in_rows)
            column.insertWidget(0, self.ending)

    def _height_within(self, room: int) -> int:
        """Height to use of ``room``, in logical pixels: all for a chart, else what the verdict or figures need."""
        border, width = self.height() - self.contentsRect().height(), self.contentsRect().width()
        head = border + self._head.totalHeightForWidth(width) + BELOW_HEAD_PX
        if self._bodies.currentWidget() is self._side_figures:
            # While remedies are looked for, it is as high as they may make it: else its buttons would move up.
            return min(room, head + self._side_figures.height_of_all + self.ending.remedies.room_to_come)
        if self._bodies.currentWidget() is self.verdict:
            needed = head + self.verdict.height_within(width)
            if room - needed >= LEAST_PLOT_PX:
                return needed
            return room
        if not self.chart.isHidden():
            return room
        edges = self._figures.contentsMargins()
        tiles = max((tile.sizeHint().height() for tile in self._tiles), default=0)
        parts = [head + edges.top() + tiles + edges.bottom()]
        if not self.ending.isHidden():
            parts.append(self.ending.heightForWidth(width) + GAP_PX)
        if not self.rows.isHidden():
            parts.append(self.rows.height_of_all + GAP_PX)
        return min(room, sum(parts))

    @property
    def figures(self) -> list[tuple[str, str]]:
        """The large figures: name and value, as shown."""
        return list(self._shown)

    def _show_figures(self, figures: Sequence[Sequence[str]]) -> None:
        self._shown = [(name, value) for name, value in figures]
        discard(self._tiles, self._figures)
        for name, value in figures:
            tile = QWidget()
            column = in_column(title_label(name), parent=tile, margins=(0, 0, 0, 0), spacing=0)
            text = worded_label("figure", wraps=False)
            text.setText(value)
            column.addWidget(text)
            self._figures.insertWidget(len(self._tiles), tile)
            self._tiles.append(tile)


SHORT = 22
IN_TAB = "The rest is in the Steps tab."
"""Length up to which a value fits beside its name, and the sentence about values that are longer."""


class FiguresAside(QScrollArea):
    """Names and values in rows, the most important first and larger; as narrow as the area it covers.

    Attributes:
        column: layout of the rows; other widgets may be inserted above them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Figures of the run")
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.verticalScrollBar().rangeChanged.connect(self._offer_keys)
        panel = QWidget()
        panel.setMinimumWidth(1)  # with wider text, QScrollArea resizes it back and forth until the stack overflows
        panel.setProperty("role", "scrolled")
        self._rows = in_column(margins=(EDGE_PX, 0, EDGE_PX, 0), spacing=3)
        self._lines: list[QWidget] = []
        self._rest: QWidget | None = None
        self.column = in_column(self._rows, 1, parent=panel, margins=(0, 0, 0, 0), spacing=2 * GAP_PX)
        self.setWidget(panel)

    def _offer_keys(self, _least: int, most: int) -> None:
        """Be a tab stop only while there is something to scroll to."""
        policy = Qt.FocusPolicy.ClickFocus
        if most > 0:
            policy = Qt.FocusPolicy.StrongFocus
        self.setFocusPolicy(policy)

    def show_figures(self, figures: Sequence[tuple[str, str]], more: Sequence[tuple[str, str]], *, rest: bool) -> None:
        """Show ``figures``, and below them the short values of ``more``; a sentence says where to find the others.

        Args:
            figures: name and value pairs.
            more: name and value pairs.
            rest: whether there are still others.
        """
        discard(self._lines, self._rows)
        short = [(name, value) for name, value in more if len(value) <= SHORT]
        for row, (name, value) in enumerate((*figures, *short)):
            is_long = len(value) > SHORT  # it wraps: wider than its row, it would cut the second line of each name
            name_label = worded_label("muted", wraps=not is_long)
            value_label = worded_label("figure-small" if row < len(figures) else "", wraps=is_long)
            name_label.setText(name)
            value_label.setText(value)
            name_label.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
            value_label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignTop)
            line = QWidget()  # a layout per row, so that a long value takes no width from the other names
            parts = ((name_label, int(not is_long)), (value_label, int(is_long)))
            in_row(*parts, parent=line, margins=(0, 0, 0, 0), spacing=6)
            self._add(line)
        self._rest = None
        if rest or len(short) < len(more):
            self._rest = worded_label("muted")
            self._rest.setText(IN_TAB)
            self._add(self._rest)

    def offer_tab(self, offered: bool) -> bool:
        """Mention the tab with the rest only where it is offered; whether that changed anything."""
        if self._rest is None or self._rest.isHidden() != offered:
            return False
        self._rest.setVisible(offered)
        return True

    def _add(self, line: QWidget) -> None:
        self._rows.addWidget(line)
        self._lines.append(line)

    @property
    def height_of_all(self) -> int:
        """Height that shows everything at the current width, in logical pixels."""
        for layout in (*(line.layout() for line in self._lines), self._rows):
            if layout is not None:
                layout.invalidate()
        self.column.invalidate()
        return self.column.totalHeightForWidth(self.viewport().width()) + 2


class BadEnding(QWidget):
    """Why a run failed or ran out of memory, what would have fitted, and where to find out more.

    Signals:
        action: a key of `ACTION_TEXT`.

    Attributes:
        remedies: remedies for an out-of-memory.
    """

    action = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._cause = wrapping_label("figure-small")
        self._more = wrapping_label("muted")
        self.remedies = RemediesView()
        self._buttons = {
            name: worded_button(*ACTION_TEXT[name], partial(self.action.emit, name))
            for name in ("explain", "use_python", "simulate", "open_report")
        }
        actions = in_row(*self._buttons.values(), spacing=8)
        sentences = in_column(self._cause, self._more, spacing=3)
        self._upper = in_row((sentences, 1), actions, spacing=12)
        in_column(self._upper, self.remedies, parent=self, margins=(EDGE_PX, 2, EDGE_PX, 2), spacing=4)

    @property
    def buttons(self) -> list[QPushButton]:
        """Those that act on the ending, offered or not."""
        return list(self._buttons.values())

    def set_narrow(self, narrow: bool) -> None:
        """Use a column: buttons below the text, remedies below each other."""
        self._upper.setDirection(QBoxLayout.Direction.TopToBottom if narrow else QBoxLayout.Direction.LeftToRight)
        self._upper.setSpacing(6 if narrow else 12)
        self.remedies.set_stacked(narrow)
        set_role(self._cause, "" if narrow else "figure-small")  # it would compete with the title above

    @property
    def text(self) -> str:
        """The cause and what belongs to it."""
        return f"{self._cause.full_text} {self._more.full_text}".strip()

    def show_run(self, run: RunView, *, commanding: bool) -> None:
        """Show why ``run`` ended badly; hide if it did not."""
        error = run.error
        self.setVisible(error is not None)
        if error is None:
            return
        found = error.explanation
        self._cause.setText(error.message if found is None else found.headline)
        self._more.setText(error.remedy if found is None else found.request_words)
        self._more.setVisible(bool(self._more.full_text))
        offered = {
            "explain": found is not None,
            "use_python": commanding and isinstance(run.result.get("python_with_torch"), str),
            "simulate": commanding and misses_cuda(run.result),
            "open_report": isinstance(run.result.get("report"), str),
        }
        for name, button in self._buttons.items():
            button.setVisible(offered[name])
        remedies, note = ((), "") if found is None else (found.remedies, found.remedies_note)
        searching = commanding and found is not None and not remedies and not note
        self.remedies.show_remedies(remedies, note, commanding=commanding, searching=searching)


HEADROOM = 1.06
"""Upper end of the rate axis, as a multiple of the highest rate."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps sizes, on a logarithmic axis, and rates from 0 to ``highest`` to an area in pixels."""

    area: QRectF
    sizes: tuple[float, ...]
    highest: float

    def x_of(self, size: float) -> float:
        first, last = math.log(self.sizes[0]), math.log(self.sizes[-1])
        share = 0.5
        if last > first:
            share = (math.log(size) - first) / (last - first)
        return self.area.left() + 24 + share * (self.area.width() - 48)

    def y_of(self, value: float) -> float:
        return self.area.bottom() - value / self.highest * self.area.height()


class RateChart(Painted):
    """Rates over sizes. Above the chart each line is named, with its highest rate and a sample of the line."""

    def __init__(self) -> None:
        super().__init__("Rate by size")
        self._chart: SizeChart | None = None
        self.setMinimumHeight(LEAST_CHART_PX)
        self.setMaximumHeight(2**24 - 1)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.hide()

    def sizeHint(self) -> QSize:
        return QSize(400, 260)

    def show_chart(self, chart: SizeChart | None) -> None:
        """Draw a chart; ``None`` hides the widget."""
        self._chart = chart
        self.setVisible(chart is not None)
        if chart is not None:
            if chart.limit is None:
                limit = ""
            else:
                limit = f"; {chart.limit[0]} {self._format(chart.limit[1])}"
            self.describe(f"{chart.title.capitalize()}. {'; '.join(map(self._line_text, chart.lines))}{limit}")

    def _format(self, value: float) -> str:
        assert self._chart is not None
        return format_value(self._chart.unit, value, self._chart.unit_name)

    def _line_text(self, line: SizeLine) -> str:
        return f"{line.name}: {self._format(max(value for _size, value in line.points))}"

    def paintEvent(self, event: QPaintEvent) -> None:
        chart = self._chart
        if chart is None:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setFont(label_font(self))
        metrics = QFontMetricsF(painter.font())
        top = self._paint_names(painter, metrics, chart)
        room = QRectF(self.rect()).adjusted(0, top, -16, -1.5 * metrics.height() - 4)
        values = [value for line in chart.lines for _, value in line.points]
        highest = HEADROOM * max([*values, *([chart.limit[1]] if chart.limit else [])])
        count = min(MOST_TICKS, max(2, int(room.height() / 34)))
        ticks = value_ticks(chart.unit, 0.0, highest, count, unit_name=chart.unit_name)
        widest = max((metrics.horizontalAdvance(text) for _, text in ticks.marks), default=0.0)
        left = 14 + metrics.horizontalAdvance(ticks.name) + 12 + widest
        sizes = tuple(sorted({size for line in chart.lines for size, _ in line.points}))
        scale = _Scale(room.adjusted(left, 0, 0, 0), sizes, highest)
        self._paint_axes(painter, metrics, scale, ticks)
        self._paint_lines(painter, chart, scale)

    def _paint_axes(self, painter: QPainter, metrics: QFontMetricsF, scale: _Scale, ticks: Ticks) -> None:
        assert self._chart is not None
        area, colours, height = scale.area, self.colours, metrics.height()
        for value, text in ticks.marks:
            y = scale.y_of(value)
            painter.setPen(QPen(QColor(colours.grid), 1))
            painter.drawLine(QPointF(area.left(), y), QPointF(area.right(), y))
            painter.setPen(QColor(colours.muted))
            width = metrics.horizontalAdvance(text) + 1
            rect = QRectF(area.left() - 8 - width, y - height / 2, width, height)
            painter.drawText(rect, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, text)
        painter.drawText(QPointF(14, area.top() + metrics.ascent()), ticks.name.replace(" ", ""))
        free = 0.0
        for size in scale.sizes:
            text, x = self._chart.size_text(size), scale.x_of(size)
            width = metrics.horizontalAdvance(text)
            if x - width / 2 >= free:
                painter.drawText(QPointF(x - width / 2, area.bottom() + height + 2), text)
                free = x + width / 2 + 10

    def _paint_lines(self, painter: QPainter, chart: SizeChart, scale: _Scale) -> None:
        if chart.limit is not None:
            y = scale.y_of(chart.limit[1])
            painter.setPen(QPen(QColor(self.colours.curves["capacity"]), 1, Qt.PenStyle.DashLine))
            painter.drawLine(QPointF(scale.area.left(), y), QPointF(scale.area.right(), y))
        for line in chart.lines:
            colour = QColor(self.colours.curves[line.colour])
            points = [QPointF(scale.x_of(size), scale.y_of(value)) for size, value in line.points]
            painter.setPen(QPen(colour, 2, PEN_STYLES[line.style]))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawPolyline(QPolygonF(points))
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(colour)
            for point in points:
                painter.drawEllipse(point, 3.5, 3.5)

    def _paint_names(self, painter: QPainter, metrics: QFontMetricsF, chart: SizeChart) -> float:
        """Paint title, lines and limit above the chart; return the y coordinate at which it can begin."""
        colours, height = self.colours, metrics.height() + 4
        painter.setPen(QColor(colours.muted))
        painter.drawText(QPointF(14, metrics.ascent()), chart.title)
        x, y = 14.0, height
        named = [(self._line_text(line), colours.curves[line.colour], PEN_STYLES[line.style]) for line in chart.lines]
        if chart.limit is not None:
            text = f"{chart.limit[0]}: {self._format(chart.limit[1])}"
            named.append((text, colours.curves["capacity"], Qt.PenStyle.DashLine))
        for text, colour, style in named:
            width = 24 + metrics.horizontalAdvance(text) + 22
            if x > 14 and x + width > self.width():
                x, y = 14.0, y + height
            painter.setPen(QPen(QColor(colour), 2, style))
            painter.drawLine(QPointF(x, y + metrics.height() / 2), QPointF(x + 18, y + metrics.height() / 2))
            painter.setPen(QColor(colours.text))
            painter.drawText(QPointF(x + 24, y + metrics.ascent()), text)
            x += width
        return y + height + 6
