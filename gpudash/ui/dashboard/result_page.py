"""A run's result in front of the plots: the verdict of a comparison, else a few large figures, a chart and the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QSizePolicy, QStackedWidget, QVBoxLayout, QWidget

from gpudash.specs import workloads
from gpudash.telemetry.outcome import SizeChart, SizeLine, is_comparison, outcome_rows, run_figures, size_chart
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.ui.dashboard.banner import ACTION_WORDS
from gpudash.ui.dashboard.tabs.verdict_page import Painted, VerdictPage
from gpudash.ui.explanation.header import RemediesView
from gpudash.ui.plots.axes import Ticks, format_value, value_ticks
from gpudash.ui.plots.canvas import label_font
from gpudash.ui.plots.overlay import PEN_STYLES
from gpudash.ui.widgets.labels import discard, title_label, worded_button, worded_label
from gpudash.ui.widgets.tables import Column, Table

ENDINGS = {"cancelled": "stopped"}
"""Status of a run whose result is shown → the word for it, where it is another."""

LEAST_CHART_PX = 150

BOTTOM_PX, BELOW_HEAD_PX = 6, 10
"""Logical pixels below everything, and both there and between the title and what the run came to."""


class ResultPage(QFrame):
    """What a run came to.

    Signals:
        closed: back to the plots.
        applied: the `Remedy` to run again with.
        action: what a button of a failed run asks for, a key of `ACTION_WORDS`.

    Attributes:
        verdict: of a comparison.
        ending: why the run ended badly.
        chart: of a transfer or of products.
        rows: what the figures leave out.
    """

    closed = Signal()
    applied = Signal(object)
    action = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.setAccessibleName("Result of the run")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self._title = worded_label("figure-small", wraps=False)
        self._asked = worded_label("muted", wraps=True)
        self.verdict = VerdictPage()
        self.ending = BadEnding()
        self.ending.remedies.applied.connect(self.applied)
        self.ending.action.connect(self.action)
        self.chart = RateChart()
        self.rows = Table("Result", (Column("what"), Column("outcome", wide=True)), "The run told nothing more.")
        self._figures = QHBoxLayout()
        self._shown: list[tuple[str, str]] = []
        self._tiles: list[QWidget] = []
        self._build()

    def _build(self) -> None:
        head = self._head = QHBoxLayout()
        head.setContentsMargins(14, 8, 8, 0)
        head.setSpacing(12)
        head.addWidget(self._title)
        head.addWidget(self._asked, 1)
        close = worded_button("Back to the plots   Esc", "Show the plots again (Esc)", self.closed.emit)
        close.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        head.addWidget(close)
        self._figures.setContentsMargins(14, 4, 14, 4)
        self._figures.setSpacing(34)
        self._figures.addStretch(1)
        self._general = general = QWidget()
        column = QVBoxLayout(general)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)
        column.addWidget(self.ending)
        column.addLayout(self._figures)
        column.addWidget(self.chart, 3)
        beside = QHBoxLayout()
        beside.setContentsMargins(8, 0, 8, 0)
        beside.addWidget(self.rows)
        column.addLayout(beside, 2)
        self._bodies = QStackedWidget()
        self._bodies.addWidget(general)
        self._bodies.addWidget(self.verdict)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, BOTTOM_PX)
        whole.setSpacing(BELOW_HEAD_PX - BOTTOM_PX)
        whole.addLayout(head)
        whole.addWidget(self._bodies, 1)

    def show_run(self, run: RunView, runs: Sequence[RunView], asked: str, *, commanding: bool = False) -> None:
        """Show what ``run`` came to; called under the store's lock.

        Args:
            run: that has ended.
            runs: of the session, with it.
            asked: what was asked for, in words.
            commanding: whether a remedy can be applied here.
        """
        kind = workloads().get(run.workload)
        what = kind.title if kind is not None else "My script" if run.workload == WATCH else run.workload
        self._title.setText(f"{what}, {ENDINGS.get(run.status, run.status.replace('_', ' '))}")
        self._asked.setText(asked)
        self.setAccessibleDescription(f"{self._title.text()}: {asked}")
        comparison = is_comparison(run.result) and self.verdict.show_result(run.result)
        self._bodies.setCurrentWidget(self.verdict if comparison else self._general)
        if comparison:
            return
        self.ending.show_run(run, commanding=commanding)
        self._show_figures(run_figures(run))
        self.chart.show_chart(size_chart(run, runs))
        rows = outcome_rows(run.result)
        self.rows.show_rows(rows)
        self.rows.setVisible(bool(rows) or not (self._shown or self.chart.isVisibleTo(self)))

    def height_within(self, room: int) -> int:
        """Logical pixels it takes of ``room``: all of it for a verdict or a chart, else what the figures need."""
        if self._bodies.currentWidget() is self.verdict or not self.chart.isHidden():
            return room
        inside = self._general.layout()
        assert inside is not None
        for part in (self.ending.layout(), inside):
            if part is not None:
                part.invalidate()  # else it still has the height of a chart that was just hidden
        border = self.height() - self.contentsRect().height()
        needed = border + self._head.sizeHint().height() + BELOW_HEAD_PX
        needed += inside.totalMinimumHeightForWidth(self.contentsRect().width())
        if not self.rows.isHidden():
            needed += self.rows.height_of_all - self.rows.minimumSizeHint().height()
        return min(room, needed)

    @property
    def figures(self) -> list[tuple[str, str]]:
        """The large figures: name and value, as shown."""
        return list(self._shown)

    def _show_figures(self, figures: Sequence[Sequence[str]]) -> None:
        self._shown = [(name, value) for name, value in figures]
        discard(self._tiles, self._figures)
        for name, value in figures:
            tile = QWidget()
            column = QVBoxLayout(tile)
            column.setContentsMargins(0, 0, 0, 0)
            column.setSpacing(0)
            column.addWidget(title_label(name))
            words = worded_label("figure", wraps=False)
            words.setText(value)
            column.addWidget(words)
            self._figures.insertWidget(len(self._tiles), tile)
            self._tiles.append(tile)


class BadEnding(QWidget):
    """Why a run failed or ran out of memory, what would have fitted, and where more is told.

    Signals:
        action: a key of `ACTION_WORDS`.

    Attributes:
        remedies: of an out-of-memory.
    """

    action = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._cause = worded_label("figure-small")
        self._more = worded_label("muted")
        self.remedies = RemediesView()
        self._buttons = {name: self._button(name) for name in ("explain", "use_python", "open_report")}
        actions = QHBoxLayout()
        actions.setSpacing(8)
        for button in self._buttons.values():
            actions.addWidget(button)
        words = QVBoxLayout()
        words.setSpacing(3)
        words.addWidget(self._cause)
        words.addWidget(self._more)
        beside = QHBoxLayout()
        beside.setSpacing(12)
        beside.addLayout(words, 1)
        beside.addLayout(actions)
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 2, 8, 2)
        column.setSpacing(4)
        column.addLayout(beside)
        column.addWidget(self.remedies)

    def _button(self, name: str) -> QPushButton:
        button = worded_button(*ACTION_WORDS[name], lambda: self.action.emit(name))
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        return button

    @property
    def words(self) -> str:
        """The cause, and what belongs to it."""
        return f"{self._cause.text()} {self._more.text()}".strip()

    def show_run(self, run: RunView, *, commanding: bool) -> None:
        """Say why ``run`` ended badly; nothing of one that did not."""
        error = run.error
        self.setVisible(error is not None)
        if error is None:
            return
        found = error.explanation
        self._cause.setText(error.message if found is None else found.headline)
        self._more.setText(error.remedy if found is None else found.request_words)
        self._more.setVisible(bool(self._more.text()))
        offered = {
            "explain": found is not None,
            "use_python": commanding and isinstance(run.result.get("python_with_torch"), str),
            "open_report": isinstance(run.result.get("report"), str),
        }
        for name, button in self._buttons.items():
            button.setVisible(offered[name])
        remedies, note = ((), "") if found is None else (found.remedies, found.remedies_note)
        looking = commanding and found is not None and not remedies and not note
        self.remedies.show_remedies(remedies, note, commanding=commanding, looking=looking)


HEADROOM = 1.06
"""How far the axis of rates goes beyond the highest."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where sizes, on a logarithmic axis, and rates from 0 to ``highest`` are in an area of pixels."""

    area: QRectF
    sizes: tuple[float, ...]
    highest: float

    def x_of(self, size: float) -> float:
        first, last = math.log(self.sizes[0]), math.log(self.sizes[-1])
        share = (math.log(size) - first) / (last - first) if last > first else 0.5
        return self.area.left() + 24 + share * (self.area.width() - 48)

    def y_of(self, value: float) -> float:
        return self.area.bottom() - value / self.highest * self.area.height()


class RateChart(Painted):
    """A rate over sizes; over the chart each line has its name and its highest rate, beside a piece of the line."""

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
        """Draw it; ``None`` hides the widget."""
        self._chart = chart
        self.setVisible(chart is not None)
        if chart is not None:
            limit = "" if chart.limit is None else f"; {chart.limit[0]} {self._words(chart.limit[1])}"
            self.describe(f"{chart.title.capitalize()}. {'; '.join(map(self._line_words, chart.lines))}{limit}")

    def _words(self, value: float) -> str:
        assert self._chart is not None
        return format_value(self._chart.unit, value, self._chart.unit_name)

    def _line_words(self, line: SizeLine) -> str:
        return f"{line.name}: {self._words(max(value for _size, value in line.points))}"

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
        count = max(2, int(room.height() / 34))
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
            text, x = self._chart.size_words(size), scale.x_of(size)
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
        """Write title, lines and limit over the chart; returns where it may begin."""
        colours, height = self.colours, metrics.height() + 4
        painter.setPen(QColor(colours.muted))
        painter.drawText(QPointF(14, metrics.ascent()), chart.title)
        x, y = 14.0, height
        named = [(self._line_words(line), colours.curves[line.colour], PEN_STYLES[line.style]) for line in chart.lines]
        if chart.limit is not None:
            words = f"{chart.limit[0]}: {self._words(chart.limit[1])}"
            named.append((words, colours.curves["capacity"], Qt.PenStyle.DashLine))
        for words, colour, style in named:
            width = 24 + metrics.horizontalAdvance(words) + 22
            if x > 14 and x + width > self.width():
                x, y = 14.0, y + height
            painter.setPen(QPen(QColor(colour), 2, style))
            painter.drawLine(QPointF(x, y + metrics.height() / 2), QPointF(x + 18, y + metrics.height() / 2))
            painter.setPen(QColor(colours.text))
            painter.drawText(QPointF(x + 24, y + metrics.ascent()), words)
            x += width
        return y + height + 6
