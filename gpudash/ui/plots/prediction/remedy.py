"""Paints the effect of one change on a predicted run as an outline over its ghost, while the remedy is previewed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyqtgraph import functions
from PySide6.QtCore import QLineF, QObject, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import QStyleOptionGraphicsItem, QWidget

from gpudash.drawing.ghost import Floats, Ghost, GhostPanel
from gpudash.drawing.shaping import turning_points
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Area, Label, PaintedLayer, paint_area
from gpudash.ui.plots.prediction.ghost import GhostLayer, corners, outline
from gpudash.ui.plots.prediction.motion import Motion

FILL = 0.10
DASH = (3.0, 1.5)
WIDTH_PX = 2
TICK_PX = 8
"""The opacity inside the outline, its dashes in pen widths, its pen width, and the length of a peak tick in the narrow
plot."""

IN_MS = 80
"""Duration of the fade-in; it disappears at once."""

PAD_PX = 8.0
AWAY_PX = 22.0
"""Padding around the text, and its distance from the peak."""


@dataclass(frozen=True, slots=True)
class RemedyView:
    """A change to a predicted run, as the plot and the readout show it.

    Attributes:
        ghost: the run with the change applied.
        headline, detail: the result and the cost; "" for none.
    """

    ghost: Ghost
    headline: str
    detail: str = ""


class RemedyLayer(PaintedLayer):
    """The outline over a ghost, in canvas pixels.

    Args:
        parent: owns the fade-in.

    Attributes:
        labels: every text with its rectangle.
        peak: where the peak is drawn; ``None`` if nothing is.
        run_peaks: the peak of each step in the plot of the whole run.
    """

    def __init__(self, font: QFont, palette: Palette, parent: QObject) -> None:
        super().__init__(-4, palette)
        self._shown: tuple[RemedyView | None, Geometry | None, object] = (None, None, None)
        self._outline: tuple[Floats, Floats] | None = None
        self._under: GhostLayer | None = None
        self._place = QRectF()
        self._box = QRectF()
        self.labels: list[Label] = []
        self.peak: QPointF | None = None
        self.run_peaks: list[QPointF] = []
        self.motion = Motion(IN_MS, self.setOpacity, parent)
        self.set_font(font)
        self.hide()

    def set_font(self, font: QFont) -> None:
        """Use this font from the next `show_remedy` on."""
        self._font = QFont(font)
        self._bold = QFont(font)
        self._bold.setPointSizeF(font.pointSizeF() + 1.0)
        self._bold.setBold(True)
        self._shown = (None, None, None)

    def show_remedy(self, view: RemedyView | None, geometry: Geometry | None, under: GhostLayer) -> None:
        """Show this remedy over the ghost that ``under`` draws; ``None`` shows nothing."""
        if view is None and self._shown[0] is None:
            return
        if geometry is not None:
            geometry = replace(geometry, origin_s=0.0, x_low=0.0, x_high=1.0)  # as `GhostLayer.show_view`
        key = view, geometry, under.drawn
        if key[:2] == self._shown[:2] and under.drawn is self._shown[2]:
            return
        begins = self._shown[0] is None and view is not None
        self._shown = key
        self._outline = None
        self.labels = []
        self.peak = None
        self.run_peaks = []
        if view is None or geometry is None or not under.drawn:
            self.motion.stop()
            self.hide()
            return
        self._arrange(view, geometry, under)
        self.show()
        self.update()
        if begins:
            self.motion.begin()

    def _arrange(self, view: RemedyView, geometry: Geometry, under: GhostLayer) -> None:
        panel, place, _ = under.drawn[0]
        own = view.ghost.one_step
        if not panel.step:
            own = view.ghost.whole
        columns = own.columns(max(1, round(place.width())))
        self._place = place
        self._outline = corners(place, columns), outline(columns.edges[-1], columns.firsts, geometry)
        share = own.share_of(view.ghost.peak_at)
        self.peak = QPointF(place.left() + share * place.width(), geometry.y_of(view.ghost.highest))
        self._under = under
        for run_panel, run_place, _ in under.drawn[1:]:
            self.run_peaks += _step_peaks(view.ghost, run_panel, run_place, geometry)
        self._write(view, [label.rect for label in under.labels])

    def _write(self, view: RemedyView, taken: Sequence[QRectF]) -> None:
        """Place the text beside the peak, whole and covering no other text, or as close to that as possible."""
        lines = [(view.headline, QFontMetricsF(self._bold)), (view.detail, QFontMetricsF(self._font))]
        lines = [(text, metrics) for text, metrics in lines if text]
        width = max(metrics.horizontalAdvance(text) for text, metrics in lines) + 2 * PAD_PX + 2
        height = sum(metrics.height() for _, metrics in lines) + PAD_PX
        assert self.peak is not None
        x = self.peak.x()
        y = self.peak.y()
        # Candidates from best to worst: beside the peak first, then further away.
        offers = [
            QRectF(left, top, width, height)
            for top in (y - height - AWAY_PX / 2, y - height / 2, y + AWAY_PX / 2, y + 3 * AWAY_PX, y - 5 * AWAY_PX)
            for left in (x + AWAY_PX, x - AWAY_PX - width)
        ]
        offers = list(map(self._inside, offers))
        around = QRectF(x - 6, y - 6, 12, 12)
        # Cover as little text as possible; `min` returns the first of equal candidates.
        self._box = min(
            offers, key=lambda offer: sum(offer.intersects(rect.adjusted(-4, -2, 4, 2)) for rect in (*taken, around))
        )
        top = self._box.top() + PAD_PX / 2
        for text, metrics in lines:
            self.labels.append(
                Label(text, QRectF(self._box.left() + PAD_PX, top, width - 2 * PAD_PX, metrics.height()))
            )
            top += metrics.height()

    def _inside(self, rect: QRectF) -> QRectF:
        """The rectangle, moved to lie within the plot."""
        left = min(max(rect.left(), self._place.left() + 4), self._place.right() - rect.width() - 4)
        top = min(max(rect.top(), self._place.top() + 4), self._place.bottom() - rect.height() - 4)
        return QRectF(left, top, rect.width(), rect.height())

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        if self._outline is None or self.peak is None:
            return
        x, y = self._outline
        text = QColor(self._palette.text)
        fill = QColor(self._palette.text)
        fill.setAlphaF(FILL)
        painter.save()
        painter.setClipRect(self._place.adjusted(0, -WIDTH_PX, 0, 0))
        paint_area(painter, Area((x, y), (x, np.full(len(x), self._place.bottom())), fill))
        pen = QPen(text, WIDTH_PX)
        pen.setDashPattern(DASH)
        pen.setCapStyle(Qt.PenCapStyle.FlatCap)
        painter.setPen(pen)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        turns = turning_points(y)
        painter.drawPath(functions.arrayToQPath(x[turns], y[turns], connect="all"))
        painter.restore()
        painter.setPen(QPen(text, WIDTH_PX))
        for point in self.run_peaks:
            painter.drawLine(QLineF(point.x() - TICK_PX / 2, point.y(), point.x() + TICK_PX / 2, point.y()))
        if self._under is not None:
            self._under.paint_peak(painter)  # its text must stay readable over the outline
        self._paint_text(painter)

    def _paint_text(self, painter: QPainter) -> None:
        assert self.peak is not None
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if self._box.left() > self.peak.x():
            near = self._box.left()
        else:
            near = self._box.right()
        level = min(max(self.peak.y(), self._box.top() + 6), self._box.bottom() - 6)
        painter.setPen(QPen(QColor(self._palette.text), 1))
        painter.drawLine(QLineF(self.peak, QPointF(near, level)))
        painter.setBrush(QColor(self._palette.text))
        painter.setPen(QPen(QColor(self._palette.panel), 1))
        painter.drawEllipse(self.peak, 4.5, 4.5)
        painter.setPen(QPen(QColor(self._palette.border), 1))
        painter.setBrush(QColor(self._palette.button))
        painter.drawRoundedRect(self._box, 4, 4)
        painter.restore()
        for label in self.labels:
            first = label is self.labels[0]
            painter.setFont(self._bold if first else self._font)
            painter.setPen(QColor(self._palette.text if first else self._palette.muted))
            painter.drawText(label.rect, Qt.AlignmentFlag.AlignVCenter, label.text)


def _step_peaks(ghost: Ghost, panel: GhostPanel, place: QRectF, geometry: Geometry) -> list[QPointF]:
    """The highest point of each step, within the step's part of the plot of the whole run."""
    stretches = [stage for stage in panel.stages if stage.name]
    found = []
    for step, stretch in enumerate(stretches[: ghost.steps], 1):
        at, held = ghost.step_peak(step)
        share = stretch.start + at * (stretch.end - stretch.start)
        found.append(QPointF(place.left() + share * place.width(), geometry.y_of(held)))
    return found
