"""What the verdict screen paints: the spread of the times, where a step's time goes, and times over sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPalette, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from gpudash.ui.colours import DARK, LIGHT, Palette, luminance
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.units import format_duration, format_percent

HEIGHT = 16

SHARES = (("compute", "computing", "gpu"), ("transfer", "copying", "h2d"), ("waiting", "waiting", "reference"))
"""Share of a step, its word, and the curve whose colour it has."""

Side = Mapping[str, Any]


class _Painted(QWidget):
    """Painted in the colours of the theme in force, which it sees by its palette."""

    def __init__(self, name: str, height: int = HEIGHT) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setFixedHeight(height)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    @property
    def colours(self) -> Palette:
        """The theme's."""
        return DARK if luminance(self.palette().color(QPalette.ColorRole.Window).name()) < 0.5 else LIGHT

    def describe(self, words: str) -> None:
        """Say in words what is painted."""
        self.setAccessibleDescription(words)
        self.setToolTip(plain_tip(words))
        self.update()


class SpreadBar(_Painted):
    """A side's time per step: from the least to the most, the middle half thicker, the median marked.

    All bars of a screen reach from 0 to the same time.
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
        words = ("least", "quarter", "median", "three quarters", "most")
        told = (f"{name} {format_duration(value)}" for name, value in zip(words, self._quartiles, strict=False))
        self.describe(f"Time of a step over the repetitions: {', '.join(told)}")

    def places(self) -> list[float]:
        """Where the five figures are, in pixels from the left."""
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


class ShareBar(_Painted):
    """Where a step's time goes, as a bar as long as the step."""

    def __init__(self) -> None:
        super().__init__("Where a step's time goes")
        self._parts: list[tuple[float, str]] = []

    def sizeHint(self) -> QSize:
        return QSize(120, HEIGHT)

    def show_side(self, side: Side, longest_s: float) -> None:
        """Draw a side's shares; the bar of the side that takes ``longest_s`` is full."""
        scale = side["step_seconds"] / max(longest_s, 1e-12)
        self._parts = [(side["shares"][key] * scale, curve) for key, _word, curve in SHARES]
        told = (f"{word} {format_percent(side['shares'][key])}" for key, word, _curve in SHARES)
        self.describe(f"Of a step: {', '.join(told)}")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, colours = QPainter(self), self.colours
        left = 0.0
        for share, curve in self._parts:
            width = share * self.width()
            painter.fillRect(QRectF(left, 3, max(0.0, width - 1), self.height() - 6), QColor(colours.curves[curve]))
            left += width


class SizesGraph(_Painted):
    """Seconds per step over sizes, both axes logarithmic, and the size from which the second side is faster."""

    MARGIN = 22

    def __init__(self) -> None:
        super().__init__("Time of a step by size", 132)
        self._sweep: Mapping[str, Any] | None = None
        self._labels = ("", "")

    def show_sweep(self, sweep: Mapping[str, Any] | None, labels: tuple[str, str]) -> None:
        """Draw a sweep; ``None`` hides the graph.

        Args:
            labels: of the other side and of the one that is to prove itself.
        """
        self._sweep, self._labels = sweep, labels
        self.setVisible(sweep is not None and len(sweep["points"]) > 1)
        if sweep is not None:
            told = "; ".join(
                f"{sweep['field']} {point['size']}: {' against '.join(map(format_duration, point['seconds']))}"
                for point in sweep["points"]
            )
            self.describe(f"{labels[0]} against {labels[1]}, {told}")

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
            words = self._labels[number]
            painter.drawText(end - QPointF(painter.fontMetrics().horizontalAdvance(words), 0), words)
        painter.setPen(QColor(colours.muted))
        base = QRectF(0, self.height() - self.MARGIN + 2, self.width(), self.MARGIN - 2)
        painter.drawText(base, Qt.AlignmentFlag.AlignLeft, f"{sweep['field']} {points[0]['size']}")
        painter.drawText(base, Qt.AlignmentFlag.AlignRight, str(points[-1]["size"]))
        if sweep["crossing"] is not None:
            x = place(math.log(sweep["crossing"]), math.exp(min(times))).x()
            painter.setPen(QPen(QColor(colours.good), 1, Qt.PenStyle.DashLine))
            painter.drawLine(QPointF(x, area.top()), QPointF(x, area.bottom()))
