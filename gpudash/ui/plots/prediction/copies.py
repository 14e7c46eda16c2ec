"""Paints the predicted copies of one step and of the whole run, as columns on a logarithmic axis below its ribbons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from PySide6.QtCore import QPointF, QRectF, QSizeF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import QStyleOptionGraphicsItem, QWidget

from gpudash.drawing.ghost import Ghost, GhostPanel
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Label, Layer
from gpudash.ui.plots.prediction.ghost import EDGE, FADED, FILL, placed
from gpudash.ui.plots.reading import Group, Row
from gpudash.units import format_bytes

COLUMN_PX, GAP_PX = 8, 2
"""Logical pixels from one column to the next, and the gap between two."""

LEAST_REACH = 10
"""The axis reaches at least to this power of two in bytes."""

REACH_STEP = 5
"""The axis grows in steps of this many powers of two, so that it stays put while a batch is dragged."""

MOST_TRIED = 8
"""Columns beside which to try to place the label."""

DIRECTIONS = (("H2D", "h2d"), ("D2H", "d2h"))
"""Name and colour of each direction."""


@dataclass(frozen=True, slots=True)
class CopiesView:
    """The predicted copies of a run.

    Attributes:
        ghost: the predicted run.
        faded: whether it was predicted for other values than those now requested.
    """

    ghost: Ghost
    faded: bool = False

    @property
    def totals(self) -> tuple[float, float]:
        """Bytes to the device and from it: for the shown step, or for the whole run if there is none."""
        into, out = self.ghost.one_step.copied(1)[:, 0].tolist()
        return into, out

    @property
    def a_step(self) -> str:
        """The suffix of a figure that is per step; "" for the whole run."""
        if self.ghost.one_step.step:
            return " a step"
        return ""

    @property
    def y_range(self) -> tuple[float, float]:
        """The range of the axis, in decimal logarithms of bytes."""
        most = max(float(panel.copied(1).max()) for panel in (self.ghost.one_step, self.ghost.whole))
        powers = max(LEAST_REACH, REACH_STEP * math.ceil(math.log2(max(most, 1.0)) / REACH_STEP))
        return 0.0, powers * math.log10(2) * 1.04

    @property
    def description(self) -> str:
        """The copies as text."""
        sizes = zip(DIRECTIONS, self.totals, strict=True)
        return "; ".join(["predicted copies", *(f"{name} {size:.0f} bytes{self.a_step}" for (name, _), size in sizes)])


def copies_plot(predicted: bool) -> PlotSpec:
    """The plot of predicted copies, which takes the place of the bandwidth plot."""
    curves = tuple(
        CurveSpec(("transfer", f"predicted {colour}", None), name, "bytes", colour) for name, colour in DIRECTIONS
    )
    title = "TRANSFERS"
    if predicted:
        title = "TRANSFERS, predicted"
    return PlotSpec(id="transfer", title=title, curves=curves, unit="bytes")


def copies_group(spec: PlotSpec, view: CopiesView) -> Group:
    """The readout's rows for the copies."""
    rows = [Row(curve, size, None, format_bytes(size)) for curve, size in zip(spec.curves, view.totals, strict=True)]
    return replace(spec, title=f"COPIED{view.a_step.upper()}"), rows


class CopiesLayer(Layer):
    """The columns of predicted copies, in canvas pixels.

    Attributes:
        labels: every text with its rectangle.
        columns: each with its colour name and its bytes.
    """

    def __init__(self, font: QFont, palette: Palette) -> None:
        super().__init__(-5)
        self._palette = palette
        self._shown: tuple[CopiesView | None, Geometry | None, frozenset[str]] = (None, None, frozenset())
        self.labels: list[Label] = []
        self.columns: list[tuple[QRectF, str, float]] = []
        self.set_font(font)
        self.hide()

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self.update()

    def set_font(self, font: QFont) -> None:
        """Use this font from the next `show_copies` on."""
        self._font = QFont(font)
        self._shown = (None, None, frozenset())

    def show_copies(self, view: CopiesView | None, geometry: Geometry | None, hidden: frozenset[str]) -> None:
        """Show these copies; ``None`` shows nothing. Directions named in ``hidden`` are left out."""
        if geometry is not None:
            geometry = replace(geometry, origin_s=0.0, x_low=0.0, x_high=1.0)  # as `GhostLayer.show_view`
        if (view, geometry, hidden) == self._shown:
            return
        self._shown = view, geometry, hidden
        self.labels = []
        self.columns = []
        self.setVisible(view is not None)
        self.update()
        if view is None or geometry is None:
            return
        for panel, place in placed(view.ghost, geometry.area):
            own = self._columns_of(panel, place, geometry, hidden)
            self.columns += own
            if panel is view.ghost.one_step:
                self._write(view, place, own)

    def _columns_of(
        self, panel: GhostPanel, place: QRectF, geometry: Geometry, hidden: frozenset[str]
    ) -> list[tuple[QRectF, str, float]]:
        count = max(1, int(place.width() / COLUMN_PX))
        wide = place.width() / count
        found = []
        sizes = panel.copied(count)
        for row, (name, colour) in enumerate(DIRECTIONS):
            if name in hidden:
                continue
            for column in sizes[row].nonzero()[0].tolist():
                size = float(sizes[row, column])
                left = place.left() + column * wide
                narrow = wide - GAP_PX
                # Side by side if the column has copies in both directions.
                if sizes[1 - row, column] and DIRECTIONS[1 - row][0] not in hidden:
                    narrow /= 2
                    left += row * narrow
                top = min(geometry.y_of(math.log10(size)), place.bottom() - 1)
                found.append((QRectF(left, top, narrow, place.bottom() - top), colour, size))
        return found

    def _write(self, view: CopiesView, place: QRectF, own: list[tuple[QRectF, str, float]]) -> None:
        """Label each direction beside its highest column."""
        metrics = QFontMetricsF(self._font)
        taken = [rect for rect, _, _ in own]
        for (name, colour), total in zip(DIRECTIONS, view.totals, strict=True):
            columns = sorted((entry for entry in own if entry[1] == colour), key=lambda entry: -entry[2])
            text = f"{name} {format_bytes(total)}{view.a_step}"
            size = QSizeF(metrics.horizontalAdvance(text) + 2, metrics.height())
            rect = _free_place(size, [entry[0] for entry in columns[:MOST_TRIED]], place, taken)
            if rect is not None:
                self.labels.append(Label(text, rect))
                taken.append(rect)

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        view = self._shown[0]
        if view is None:
            return
        painter.save()
        if view.faded:
            painter.setOpacity(FADED)
        for rect, name, _ in self.columns:
            colour = QColor(self._palette.curves[name])
            colour.setAlphaF(FILL[self._palette.name])
            painter.fillRect(rect, colour)
            colour.setAlphaF(EDGE)
            painter.setPen(QPen(colour, 1))
            # Open at the bottom: the columns stand on the edge of the plot.
            painter.drawPolyline([rect.bottomLeft(), rect.topLeft(), rect.topRight(), rect.bottomRight()])
        painter.setFont(self._font)
        painter.setPen(QColor(self._palette.muted))
        for label in self.labels:
            painter.drawText(label.rect, Qt.AlignmentFlag.AlignVCenter, label.text)
        painter.restore()


def _free_place(size: QSizeF, columns: Sequence[QRectF], place: QRectF, taken: Sequence[QRectF]) -> QRectF | None:
    """A rectangle of this size beside one of the columns that covers nothing; ``None`` if there is none."""
    for column in columns:
        top = max(place.top(), min(column.top(), place.bottom() - size.height()))
        for left in (column.right() + 4, column.left() - 4 - size.width()):
            rect = QRectF(QPointF(left, top), size)
            inside = place.left() <= rect.left() and rect.right() <= place.right()
            if inside and not any(map(rect.intersects, taken)):
                return rect
    return None
