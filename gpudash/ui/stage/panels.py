"""Paints runs side by side: the curve and the figures of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPainterPath, QPen, QPolygonF

from gpudash.drawing.scene import PlotScene, SceneCurve, SceneFrame
from gpudash.drawing.stages import curve_scene, loss_ticks
from gpudash.session.demo.pictures import StagePanel
from gpudash.ui.stage.painting import AXIS, CODE, FIGURE, PEAK, StagePainting


class PanelPainting(StagePainting):
    """A widget that can paint runs side by side, on axes that they share."""

    def _panels(self, painter: QPainter, place: QRectF, panels: Sequence[StagePanel]) -> None:
        gap = self._gap
        width = (place.width() - gap * (len(panels) - 1)) / len(panels)
        every = [value for panel in panels for value in panel.losses if math.isfinite(value)]
        ticks = loss_ticks(max(every, default=1.0))
        for number, panel in enumerate(panels):
            box = QRectF(place.left() + number * (width + gap), place.top(), width, place.height())
            self._panel(painter, box, panel, ticks)

    def _panel(self, painter: QPainter, box: QRectF, panel: StagePanel, ticks: Sequence[float]) -> None:
        colours = self._colours
        now = panel.state == "now"
        edge = QColor(colours.accent if now else colours.border)
        style = Qt.PenStyle.DashLine if panel.state == "coming" else Qt.PenStyle.SolidLine
        painter.setPen(QPen(edge, max(1.0, (4 if now else 2) * self._scale), style))
        painter.setBrush(QColor(colours.window if colours.dark else colours.panel))
        painter.drawRoundedRect(box, 6, 6)
        pad = self._gap * 0.7
        inner = box.adjusted(pad, pad * 0.5, -pad, -pad * 0.5)
        line = self._line(FIGURE)
        ink = colours.muted if panel.state == "coming" else colours.text
        title = QRectF(inner.left(), inner.top(), inner.width(), line * 1.2)
        self._write(painter, title, panel.title, self._font(FIGURE, bold=True), ink)
        if not panel.steps:
            self._figure_rows(painter, inner.adjusted(0, title.height(), 0, 0), panel)
            return
        row = self._line(PEAK) + self._line(AXIS)
        figures = QRectF(inner.left(), inner.bottom() - row, inner.width(), row)
        self._panel_figures(painter, figures, panel)
        plot = QRectF(inner.left(), title.bottom(), inner.width(), figures.top() - title.bottom() - pad * 0.4)
        axis = self._font(AXIS)
        metrics = QFontMetricsF(axis)
        left = max(metrics.horizontalAdvance(f"{value:g}") for value in ticks) + pad * 0.5
        frame = SceneFrame(plot.width(), plot.height(), left, pad * 0.3, metrics.height() * 0.6, metrics.height() * 1.3)
        self._curve(painter, plot, curve_scene(panel.losses, panel.steps, ticks, frame), bool(panel.losses))

    def _panel_figures(self, painter: QPainter, place: QRectF, panel: StagePanel) -> None:
        colours = self._colours
        width = place.width() / max(3, len(panel.figures))
        value_line = self._line(PEAK)
        for number, (name, value) in enumerate(panel.figures):
            left = place.left() + width * number
            upper = QRectF(left, place.top(), width - self._gap, value_line)
            lower = QRectF(left, upper.bottom(), width - self._gap, place.height() - value_line)
            self._write(painter, upper, value, self._font(PEAK, bold=True), colours.text)
            self._write(painter, lower, name, self._font(AXIS), colours.muted)

    def _figure_rows(self, painter: QPainter, place: QRectF, panel: StagePanel) -> None:
        """The figures of a panel without a curve, one below the other."""
        colours = self._colours
        count = max(1, len(panel.figures))
        step = min(place.height() / count, self._line(CODE) * 1.9)
        top = place.center().y() - count * step / 2
        for number, (name, value) in enumerate(panel.figures):
            row = QRectF(place.left(), top + number * step, place.width(), step)
            right = row.adjusted(row.width() * 0.6, 0, 0, 0)
            self._write(painter, row.adjusted(0, 0, -row.width() * 0.4, 0), name, self._font(FIGURE), colours.muted)
            font = self._font(CODE, bold=True)
            self._write(painter, right, value, font, colours.text, Qt.AlignmentFlag.AlignRight)

    def _curve(self, painter: QPainter, place: QRectF, scene: PlotScene, known: bool) -> None:
        """A scene of `gpudash.drawing`, with its axes and its curve."""
        colours, frame, font = self._colours, scene.frame, self._font(AXIS)
        metrics = QFontMetricsF(font)
        line = metrics.height()
        begin, end = place.left() + frame.left, place.right() - frame.right
        painter.setPen(QPen(QColor(colours.grid), max(1.0, 1.5 * self._scale)))
        for value, _text in scene.left.ticks:
            y = place.top() + float(scene.y(value))
            painter.drawLine(QPointF(begin, y), QPointF(end, y))
        for value, text in scene.left.ticks if known else ():
            y = place.top() + float(scene.y(value))
            room = QRectF(place.left(), y - line / 2, frame.left - self._gap * 0.3, line)
            self._write(painter, room, text, font, colours.muted, Qt.AlignmentFlag.AlignRight)
        bottom = QRectF(begin, place.bottom() - line * 1.1, end - begin, line)
        first, last = scene.across.ticks[0], scene.across.ticks[-1]
        self._write(painter, bottom, last[1], font, colours.muted, Qt.AlignmentFlag.AlignRight)
        self._write(painter, QRectF(begin, bottom.top(), line * 4, line), f"step {first[1]}", font, colours.muted)
        # A loss falls, so that the corner at the upper right is free.
        corner = QRectF(begin, place.top() + frame.top, end - begin, line)
        self._write(painter, corner, "loss", font, colours.muted, Qt.AlignmentFlag.AlignRight)
        for item in scene.items:
            if isinstance(item, SceneCurve) and len(item.x):
                points = [
                    QPointF(place.left() + x, place.top() + y)
                    for x, y in zip(scene.x(item.x).tolist(), scene.y(item.y).tolist(), strict=True)
                ]
                painter.setPen(QPen(self._colour(item.kind), max(2.0, 5 * self._scale)))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                path = QPainterPath()
                path.addPolygon(QPolygonF(points))
                painter.drawPath(path)
