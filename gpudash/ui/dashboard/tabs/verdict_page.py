"""The verdict of a comparison: one sentence, one number, one interval, and the charts they are based on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QScrollArea, QSizePolicy, QWidget

from gpudash.telemetry.results.outcome import (
    comparison_rows,
    energy_words,
    is_comparison,
    is_predicted_comparison,
    memory_text,
    outcome_rows,
    ratio_text,
    shares_text,
    trust_text,
)
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.labels import set_role, worded_button, worded_label
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.theme import palette_of
from gpudash.units import format_duration, format_percent

HEIGHT = 16

SHARES = (("compute", "computing", "gpu"), ("transfer", "copying", "h2d"), ("waiting", "waiting", "reference"))
"""Share of a step, its label, and the curve whose colour it has."""

Side = Mapping[str, Any]


class Painted(QWidget):
    """A widget painted in the colours of the current theme, which it recognises by its palette."""

    def __init__(self, name: str, height: int = HEIGHT) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setFixedHeight(height)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    @property
    def colours(self) -> Palette:
        """The theme's colours."""
        return palette_of(self.palette())

    def describe(self, text: str) -> None:
        """Set the accessible description and tooltip to what is painted, in words."""
        self.setAccessibleDescription(text)
        self.setToolTip(plain_tip(text))
        self.update()


class SpreadBar(Painted):
    """A side's time per step: a line from minimum to maximum, thicker in the middle half, with the median marked.

    All bars on the page reach from 0 to the same time.
    """

    def __init__(self) -> None:
        super().__init__("Spread of the time of a step")
        self._quartiles: Sequence[float] = ()
        self._longest = 1.0

    def sizeHint(self) -> QSize:
        return QSize(120, HEIGHT)

    def show_side(self, side: Side, longest_s: float) -> None:
        """Draw a side's five figures on a scale that ends at ``longest_s``."""
        self._quartiles, self._longest = tuple(side["step_seconds_quartiles"]), max(longest_s, 1e-12)
        names = ("least", "quarter", "median", "three quarters", "most")
        quartiles = (f"{name} {format_duration(value)}" for name, value in zip(names, self._quartiles, strict=False))
        self.describe(f"Time of a step over the repetitions: {', '.join(quartiles)}")

    def places(self) -> list[float]:
        """The x coordinates of the five figures, in pixels."""
        room = self.width() - 4
        return [2 + room * min(1.0, value / self._longest) for value in self._quartiles]

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, colours = QPainter(self), self.colours
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        middle = self.height() / 2
        painter.setPen(QPen(QColor(colours.border), 1))
        painter.drawLine(QPointF(2, middle), QPointF(self.width() - 2, middle))
        places = self.places()
        if len(places) != 5:
            return
        accent = QColor(colours.accent)
        painter.setPen(QPen(accent, 1.5))
        painter.drawLine(QPointF(places[0], middle), QPointF(places[4], middle))
        for end in (places[0], places[4]):
            painter.drawLine(QPointF(end, middle - 3), QPointF(end, middle + 3))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(accent)
        painter.drawRect(QRectF(places[1], middle - 4, max(2.0, places[3] - places[1]), 8))
        painter.setBrush(QColor(colours.text))
        painter.drawRect(QRectF(places[2] - 1, middle - 7, 2, 14))


class ShareBar(Painted):
    """The breakdown of a step's time, as a bar as long as the step."""

    def __init__(self) -> None:
        super().__init__("Where a step's time goes")
        self._parts: list[tuple[float, str]] = []

    def sizeHint(self) -> QSize:
        return QSize(120, HEIGHT)

    def show_side(self, side: Side, longest_s: float) -> None:
        """Draw a side's shares; the bar of a side that takes ``longest_s`` is full."""
        scale = side["step_seconds"] / max(longest_s, 1e-12)
        self._parts = [(side["shares"][key] * scale, curve) for key, _word, curve in SHARES]
        shares = (f"{word} {format_percent(side['shares'][key])}" for key, word, _curve in SHARES)
        self.describe(f"Of a step: {', '.join(shares)}")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, colours = QPainter(self), self.colours
        left = 0.0
        for share, curve in self._parts:
            width = share * self.width()
            painter.fillRect(QRectF(left, 3, max(0.0, width - 1), self.height() - 6), QColor(colours.curves[curve]))
            left += width


class SizesGraph(Painted):
    """Seconds per step over sizes on logarithmic axes, and the size from which the second side is faster."""

    MARGIN = 22

    def __init__(self) -> None:
        super().__init__("Time of a step by size", 132)
        self._sweep: Mapping[str, Any] | None = None
        self._labels = ("", "")

    def show_sweep(self, sweep: Mapping[str, Any] | None, labels: tuple[str, str]) -> None:
        """Draw a sweep; ``None`` hides the graph.

        Args:
            labels: labels of the reference side and of the side under test.
        """
        self._sweep, self._labels = sweep, labels
        self.setVisible(sweep is not None and len(sweep["points"]) > 1)
        if sweep is not None:
            points = "; ".join(
                f"{sweep['field']} {point['size']}: {' against '.join(map(format_duration, point['seconds']))}"
                for point in sweep["points"]
            )
            self.describe(f"{labels[0]} against {labels[1]}, {points}")

    def paintEvent(self, event: QPaintEvent) -> None:
        sweep = self._sweep
        if sweep is None or len(sweep["points"]) < 2:
            return
        painter, colours = QPainter(self), self.colours
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        points = sweep["points"]
        sizes = [math.log(point["size"]) for point in points]
        times = [math.log(seconds) for point in points for seconds in point["seconds"]]
        area = QRectF(self.rect()).adjusted(8, 8, -8, -self.MARGIN)

        def place(size: float, seconds: float) -> QPointF:
            across = (size - sizes[0]) / max(1e-9, sizes[-1] - sizes[0])
            up = (math.log(seconds) - min(times)) / max(1e-9, max(times) - min(times))
            return QPointF(area.left() + across * area.width(), area.bottom() - up * area.height())

        painter.setPen(QPen(QColor(colours.border), 1))
        painter.drawLine(area.bottomLeft(), area.bottomRight())
        for number, curve in enumerate(("cpu", "gpu")):
            line = [place(size, point["seconds"][number]) for size, point in zip(sizes, points, strict=True)]
            colour = QColor(colours.curves[curve])
            painter.setPen(QPen(colour, 2))
            painter.drawPolyline(QPolygonF(line))
            end = line[-1] + QPointF(-4, -4 if number == 0 else 12)
            text = self._labels[number]
            painter.drawText(end - QPointF(painter.fontMetrics().horizontalAdvance(text), 0), text)
        painter.setPen(QColor(colours.muted))
        base = QRectF(0, self.height() - self.MARGIN + 2, self.width(), self.MARGIN - 2)
        painter.drawText(base, Qt.AlignmentFlag.AlignLeft, f"{sweep['field']} {points[0]['size']}")
        painter.drawText(base, Qt.AlignmentFlag.AlignRight, str(points[-1]["size"]))
        if sweep["crossing"] is not None:
            x = place(math.log(sweep["crossing"]), math.exp(min(times))).x()
            painter.setPen(QPen(QColor(colours.good), 1, Qt.PenStyle.DashLine))
            painter.drawLine(QPointF(x, area.top()), QPointF(x, area.bottom()))


COLUMNS = (
    ("", ""),
    ("compute only", "A step without its copies"),
    ("with transfers", "A whole step, the headline's figure"),
    ("spread", "From minimum to maximum over the repetitions; the middle half is thicker, the median marked"),
    ("where the time goes", "Computing, copying between memories, and waiting"),
    ("", ""),
    ("peak memory", "Of the process on the CPU, of PyTorch's allocator on a GPU"),
    ("energy", "From the GPU's own counter and the CPU package's"),
)

ABOUT = 0.952
"""Ratios between this and its reciprocal count as no difference: 5 %."""

ROLES = {"faster": "good", "slower": "warn", "close": "figure-small"}
"""Outcome → label role of its word; the sentence says it too."""

VERDICTS = {"faster": "FASTER", "slower": "NOT WORTH IT", "close": "TOO CLOSE TO CALL"}

PREDICTED_VERDICTS = {"faster": "PREDICTED FASTER", "slower": "PREDICTED NOT WORTH IT", "close": "TOO CLOSE TO PREDICT"}
"""The words for a card that is predicted, beside a CPU."""

WHICH_IS_PREDICTED = "the CPU is measured, the card is predicted"


class VerdictPage(QScrollArea):
    """Shows a comparison's result, live or recorded.

    Signals:
        again: run the same comparison again.
    """

    again = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setAccessibleName("Verdict of the comparison")
        self.result: Mapping[str, Any] = {}
        self._word = worded_label("good", wraps=False)
        self.headline = worded_label("verdict")
        self.trust = worded_label("muted", wraps=False)
        self.because = worded_label("figure-small")
        self.what = worded_label("muted")
        self.notes = worded_label("muted")
        self.graph = SizesGraph()
        self._figures = QWidget()
        self._cells: list[dict[str, QLabel]] = [{}, {}]
        self._bars = [(SpreadBar(), ShareBar()), (SpreadBar(), ShareBar())]
        self._ratios = {name: worded_label("figure-small", wraps=False) for name in ("", "compute", "whole", "of")}
        self.copy_button = worded_button("Copy", "Copy the verdict and its figures as text", self.copy, tab_only=True)
        self.again_button = worded_button("Run again", "Run the same comparison again", self.again.emit, tab_only=True)
        self._build()

    def _build(self) -> None:
        panel = QWidget()
        panel.setProperty("role", "scrolled")
        top = in_row(self._word, (self.trust, 1), self.copy_button, self.again_button, spacing=12)
        self._figures.setLayout(self._table())
        in_column(
            top,
            self.headline,
            self.because,
            self.what,
            self._figures,
            self.graph,
            self.notes,
            1,
            parent=panel,
            margins=(14, 10, 14, 10),
            spacing=6,
        )
        self.setWidget(panel)

    def height_within(self, width: int) -> int:
        """Height that shows everything at this page width, in logical pixels."""
        panel = self.widget()
        rows = None
        if panel is not None:
            rows = panel.layout()
        assert rows is not None
        return rows.totalHeightForWidth(width)

    def _table(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(10)
        grid.setVerticalSpacing(4)
        for column, (title, tip) in enumerate(COLUMNS):
            label = PlainLabel(title, role="title")
            label.setToolTip(plain_tip(tip))
            grid.addWidget(label, 0, column)
        for row, (cells, bars) in enumerate(zip(self._cells, self._bars, strict=True), 1):
            for column, name in (
                (0, "label"),
                (1, "compute"),
                (2, "whole"),
                (5, "shares"),
                (6, "memory"),
                (7, "energy"),
            ):
                cells[name] = worded_label("figure-small" if column in (0, 2) else "", wraps=False)
                grid.addWidget(cells[name], row, column)
            for column, bar in zip((3, 4), bars, strict=True):
                grid.addWidget(bar, row, column)
        grid.addWidget(self._ratios["of"], 3, 0)
        grid.addWidget(self._ratios["compute"], 3, 1)
        grid.addWidget(self._ratios["whole"], 3, 2)
        for column in (3, 4):
            grid.setColumnStretch(column, 1)
            grid.setColumnMinimumWidth(column, 60)
        return grid

    def show_result(self, result: Mapping[str, Any]) -> bool:
        """Show the result of a comparison; return whether it is one."""
        predicted = is_predicted_comparison(result)
        if not (predicted or is_comparison(result)):
            return False
        if result == self.result:
            return True
        self.result = result
        # Rows measured on two devices do not apply if one side is predicted.
        self._figures.setVisible(not predicted)
        if predicted:
            self._show_sentences(result, PREDICTED_VERDICTS)
            self.trust.setText(WHICH_IS_PREDICTED)
            self.what.setText(str(result["what"]))
            self.notes.setText("\n".join(f"{name}: {value}" for name, value in outcome_rows(result)[1:-1]))
            self.graph.show_sweep(None, ("", ""))
            return True
        self._show_sentences(result, VERDICTS)
        self.trust.setText(f"{result['number']['interval']}  ·  {trust_text(result)}")
        products = dict.fromkeys(side["product"] for side in result["sides"] if side["product"])
        self.what.setText(" · ".join([str(result["what"]), " and ".join(products)]))
        self._show_sides(result)
        notes = [str(result["agreement"]["words"]), *map(str, result.get("notes", ()))]
        if result.get("resident"):
            notes.insert(0, f"With the data kept on the device: {ratio_text(result['resident'])} times as fast.")
        self.notes.setText("\n".join(notes))
        first, second = result["sides"]
        labels = (first["label"], second["label"])
        swapped = second["device"] == "cpu" and first["device"] != "cpu"
        self.graph.show_sweep(result.get("sweep"), labels[::-1] if swapped else labels)
        return True

    def _show_sentences(self, result: Mapping[str, Any], verdicts: Mapping[str, str]) -> None:
        """Show the outcome in a word, the headline and the reason."""
        outcome = str(result["outcome"])
        word, headline = verdicts.get(outcome, ""), str(result["headline"])
        self._word.setText(word)
        self._word.setVisible(not headline.lower().startswith(word.lower()))  # else the word appears twice
        set_role(self._word, ROLES.get(outcome, ""))
        self.headline.setText(headline)
        self.because.setText(str(result["because"]))
        self.because.setVisible(bool(result["because"]))

    def _show_sides(self, result: Mapping[str, Any]) -> None:
        sides = result["sides"]
        longest = max(side["step_seconds"] for side in sides)
        # A single disturbed repetition must not squeeze all the other bars.
        widest = max(min(max(side["step_seconds_quartiles"] or [0]), 2 * side["step_seconds"]) for side in sides)
        for side, cells, (spread, share) in zip(sides, self._cells, self._bars, strict=True):
            cells["label"].setText(side["label"])
            cells["compute"].setText(format_duration(side["compute_only_seconds"]))
            cells["whole"].setText(format_duration(side["step_seconds"]))
            cells["shares"].setText(shares_text(side).replace(" + ", "\n"))
            cells["memory"].setText(memory_text(side).replace(", ", "\n").replace(" of the", "\nof the"))
            short = energy_words(side).partition(":" if side["energy_j"] is None else ",")[0]
            cells["energy"].setText(short.replace(" here", "\nhere"))
            cells["energy"].setToolTip(plain_tip(energy_words(side)))
            spread.show_side(side, max(widest, longest))
            share.show_side(side, longest)
        self._ratios["of"].setText(f"{sides[1]['label']} is")
        self._ratios["compute"].setText(_times(result["compute_only"]))
        self._ratios["whole"].setText(_times(result))

    def text(self) -> str:
        """The verdict and its figures as text."""
        if is_predicted_comparison(self.result):
            return "\n".join(map(": ".join, outcome_rows(self.result)))
        return "\n".join(map(": ".join, comparison_rows(self.result)))

    def copy(self) -> None:
        """Copy `text` to the clipboard."""
        QGuiApplication.clipboard().setText(self.text())


def _times(found: Mapping[str, Any]) -> str:
    ratio, (low, high) = found["ratio"], found["interval"]
    if low is None or high is None or (low <= 1 <= high and not ABOUT <= low <= high <= 1 / ABOUT):
        return "undecided"
    if ABOUT <= ratio <= 1 / ABOUT:
        return "about as fast"
    if ratio >= 1:
        if ratio >= 9.95:
            return f"{ratio:.0f}× as fast"
        return f"{ratio:.1f}× as fast"
    if ratio <= 1 / 9.95:
        return f"{1 / ratio:.0f}× slower"
    return f"{1 / ratio:.1f}× slower"
