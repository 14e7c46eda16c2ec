"""The memory timeline: allocated and reserved over time or by event, where a click picks a moment, a drag two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import QEvent, QMarginsF, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFontMetricsF,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
    QPolygonF,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from gpudash.drawing.axes import MOST_TICKS, Ticks, value_ticks
from gpudash.drawing.ribbons import Allocations
from gpudash.memory.request_log import RequestLog
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Label
from gpudash.ui.plots.painting.ribbons import RibbonPicture
from gpudash.ui.plots.view import SharedAxis
from gpudash.ui.snapshot.drawing.levels import Axis, Ints, Levels, band_runs, extremes
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.units import format_bytes, format_count, format_duration

DRAG_PX = 5
"""Logical pixels that the pointer must move before a press becomes a comparison of two moments."""

ZOOM_STEP = 1.25

MOST_MARKS = 50
"""Number of out-of-memory errors that are marked, the newest ones."""

MARKS_APART = 14
"""Logical pixels. The peak's mark is left out if it is closer than this to an out-of-memory mark."""

MARK_PX = 8
"""Logical pixels around a mark's moment that it may cover."""

NARROWEST_EVENTS = 8
NARROWEST_S = 1e-6

LEFT, BOTTOM, READOUT = 46, 20, 20
"""Margins around the curves in logical pixels: left, bottom and top."""

BAND_HEIGHT = 15
"""Height in logical pixels of the strip with the phase names."""

PHASE_CURVES = {"forward": "activations", "backward": "gradients", "optimizer": "optimizer state"}
"""Each phase has the colour of what it allocates."""

LEAST_BAND = 8
"""Average width in logical pixels below which phases are not drawn individually."""

SHORT = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}

HEADROOM = 1.06
"""Top of the axis as a multiple of the highest level."""


class Timeline(QWidget):
    """The curve. A click picks a moment and a drag two; the wheel zooms, and Shift with a drag pans.

    Signals:
        picked: the picked moments, as (later, earlier or ``None``).
    """

    picked = Signal(object)

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self.levels: Levels | None = None
        self._requests: RequestLog | None = None
        self._allocations: Allocations | None = None
        self.ribbons: RibbonPicture | None = None
        self._axis: Axis | None = None
        self._by_time = True
        self._shown = SharedAxis(bounded=True, parent=self)
        self._shown.changed.connect(self._redraw)
        self._moment = -1
        self._compared: int | None = None
        self._hovered: int | None = None
        self._pressed: QPointF | None = None
        self._panning: tuple[float, float] | None = None
        self._dragged: int | None = None
        self._curves: QPixmap | None = None
        self._labels: list[Label] = []
        self.setAccessibleName("When: allocated and reserved memory")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMouseTracking(True)
        self.setMinimumSize(280, 120)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def sizeHint(self) -> QSize:
        return QSize(520, 260)

    def show_levels(self, levels: Levels, requests: RequestLog | None = None) -> None:
        """Draw ``levels`` from the first event to the last; with ``requests``, every allocation as a ribbon."""
        self.levels = levels
        self._requests = requests
        self._moment = levels.peak
        self._compared = None
        self._take_axis()
        peak = levels.at(levels.peak)[0]
        self.setAccessibleDescription(
            f"{len(levels)} events; allocated reaches {format_bytes(peak)} at {self._place_text(levels.peak)}"
        )

    def set_by_time(self, by_time: bool) -> None:
        """Space the x axis by time instead of by event."""
        self._by_time = by_time
        self._take_axis()

    def show_moments(self, moment: int, compared: int | None) -> None:
        """Mark the selected moment, and the one it is compared with."""
        if (moment, compared) != (self._moment, self._compared):
            self._moment, self._compared = moment, compared
            self.update()

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self._palette = palette
        self._redraw()

    @property
    def view(self) -> tuple[float, float]:
        """The first and the last visible position."""
        return self._shown.range()

    def show_all(self) -> None:
        """Zoom out to the whole history."""
        if self._axis is not None:
            self._shown.show_whole()

    def _take_axis(self) -> None:
        if self.levels is not None:
            self._axis = Axis(self.levels, self._by_time)
            if self._requests is not None:
                self._allocations = self._requests.allocations().at_places(self._axis.events)
            first, last = self._axis.ends
            narrowest = NARROWEST_S if self._axis.by_time else NARROWEST_EVENTS
            self._shown.set_whole(first, last, min(last - first, narrowest))
            self.show_all()

    def _redraw(self) -> None:
        self._curves = None
        self.update()

    def frame(self) -> Geometry | None:
        """The drawing's geometry; ``None`` if there is nothing to draw."""
        if self.levels is None:
            return None
        top = READOUT + BAND_HEIGHT
        plot = QRectF(LEFT, top, max(10, self.width() - LEFT - 8), max(10, self.height() - top - BOTTOM))
        return Geometry(plot, 0.0, *self._shown.range(), 0.0, highest(self.levels))

    def x_of(self, moment: int) -> float:
        """The x pixel of a moment."""
        frame = self.frame()
        if frame is None or self._axis is None:
            return 0.0
        return frame.x_of(self._axis.place(moment))

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._curves = None
        super().resizeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        frame = self.frame()
        if frame is None or self.levels is None or self._axis is None:
            return
        if self._curves is None:
            self._curves = self._drawn(frame)
        painter.drawPixmap(0, 0, self._curves)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._draw_marks(painter, frame)
        self._draw_moments(painter, frame)
        self._draw_readout(painter, frame)
        if self.hasFocus():
            painter.setPen(QPen(QColor(self._palette.accent), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(QRectF(0.5, 0.5, self.width() - 1, self.height() - 1))
        painter.end()

    def _drawn(self, frame: Geometry) -> QPixmap:
        assert self.levels is not None and self._axis is not None
        ratio = self.devicePixelRatioF()
        self.ribbons = self._ribbons(frame)
        picture = QPixmap((self.size().toSizeF() * ratio).toSize())
        picture.setDevicePixelRatio(ratio)
        picture.fill(QColor(self._palette.panel))
        painter = QPainter(picture)
        painter.setFont(self.font())
        Picture(self.levels, self._axis, frame, self._palette, self.ribbons).draw(painter)
        painter.end()
        return picture

    def _ribbons(self, frame: Geometry) -> RibbonPicture | None:
        if self._requests is None or self._allocations is None or not len(self._allocations) or self._axis is None:
            return None
        scale = frame.area.height() / frame.y_high
        return RibbonPicture(
            self._requests,
            self._allocations,
            frame.x_low,
            frame.x_high,
            frame.area,
            scale,
            self._palette,
            font=self.font(),
            by_time=self._axis.by_time,
        )

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            text = "" if self.ribbons is None else self.ribbons.text_at(QPointF(event.pos()))
            QToolTip.showText(event.globalPos(), plain_tip(text), self)
            return True
        return super().event(event)

    @property
    def labels(self) -> list[Label]:
        """The labels of the capacity and of the marks, as last painted."""
        return list(self._labels)

    def _draw_marks(self, painter: QPainter, frame: Geometry) -> None:
        assert self.levels is not None
        critical = QColor(self._palette.critical)
        marks = [(self._point(frame, moment), "OOM", critical) for moment in self.levels.ooms[-MOST_MARKS:]]
        at = self.x_of(self.levels.peak)
        if all(abs(self.x_of(moment) - at) > MARKS_APART for moment in self.levels.ooms):
            marks.append((self._point(frame, self.levels.peak), "peak", QColor(self._palette.text)))
        low, high = frame.area.left() - 1, frame.area.right() + 1
        marks = [mark for mark in marks if low <= mark[0].x() <= high]
        for point, text, colour in marks:
            _draw_mark(painter, point, colour, cross=text == "OOM")
        self._labels = []
        self._draw_capacity_label(painter, frame, [point for point, _text, _colour in marks])
        for point, text, colour in marks:
            self._draw_mark_label(painter, frame, point, text, colour)

    def _point(self, frame: Geometry, moment: int) -> QPointF:
        assert self.levels is not None and self._axis is not None
        return QPointF(frame.x_of(self._axis.place(moment)), frame.y_of(float(self.levels.at(moment)[0])))

    def _draw_capacity_label(self, painter: QPainter, frame: Geometry, marks: Sequence[QPointF]) -> None:
        """Name the capacity below or above its line, at an end or else beside a mark, where no mark is."""
        if self.levels is None or self.levels.capacity is None:
            return
        y = frame.y_of(self.levels.capacity)
        text = f"room for PyTorch {format_bytes(self.levels.capacity)}"
        metrics = QFontMetricsF(painter.font())
        wide, high = metrics.horizontalAdvance(text) + 6, metrics.height()
        first, last = frame.area.left() + 4, frame.area.right() - wide - 4
        between = sorted(x for mark in marks for x in (mark.x() + MARK_PX + 1, mark.x() - MARK_PX - 1 - wide))
        lefts = [first, last, *(x for x in between if first < x < last)]
        # Requests are mostly refused near the capacity: where their marks fill the line, there is room further below.
        tops = (y + 2, y - 2 - high, y + 2 + high, y + 2 + 2 * high)
        places = [QRectF(left, top, wide, high) for top in tops for left in lefts if top >= frame.area.top()]
        around = QMarginsF(MARK_PX, MARK_PX, MARK_PX, MARK_PX)
        covered = [sum((place + around).contains(mark) for mark in marks) for place in places]
        self._draw_label(painter, Label(text, places[covered.index(min(covered))]), QColor(self._palette.critical))

    def _draw_mark_label(self, painter: QPainter, frame: Geometry, point: QPointF, text: str, colour: QColor) -> None:
        """Name a mark above or below it where nothing else is written; if there is no such place, nowhere."""
        metrics = QFontMetricsF(painter.font())
        wide, high = metrics.horizontalAdvance(text), metrics.height()
        tops = (max(frame.area.top(), point.y() - high - 2), point.y() + 4)
        lefts = (point.x() + 8, point.x() - 8 - wide)
        places = [QRectF(left - 3, top, wide + 6, high) for top in tops for left in lefts]
        free = (place for place in places if frame.area.contains(place) and not self._covers(place))
        place = next(free, None)
        if place is not None:
            self._draw_label(painter, Label(text, place), colour)

    def _draw_label(self, painter: QPainter, label: Label, colour: QColor) -> None:
        self._labels.append(label)
        ground = QColor(self._palette.panel)
        ground.setAlphaF(0.8)
        painter.fillRect(label.rect, ground)
        painter.setPen(colour)
        painter.drawText(label.rect, Qt.AlignmentFlag.AlignCenter, label.text)

    def _covers(self, place: QRectF) -> bool:
        """Whether a label already covers the rectangle."""
        return any(label.rect.intersects(place) for label in self._labels)

    def _draw_moments(self, painter: QPainter, frame: Geometry) -> None:
        assert self._axis is not None
        plot = frame.area
        now = frame.x_of(self._axis.place(self._moment))
        painter.save()
        painter.setClipRect(plot.adjusted(-1, -BAND_HEIGHT, 1, 1))
        if self._compared is not None:
            before = frame.x_of(self._axis.place(self._compared))
            ground = QColor(self._palette.accent)
            ground.setAlphaF(0.18)
            painter.fillRect(QRectF(min(before, now), plot.top(), abs(now - before), plot.height()), ground)
            painter.setPen(QPen(QColor(self._palette.accent), 1.5, Qt.PenStyle.DashLine))
            painter.drawLine(QPointF(before, plot.top() - BAND_HEIGHT), QPointF(before, plot.bottom()))
        painter.setPen(QPen(QColor(self._palette.accent), 1.5))
        painter.drawLine(QPointF(now, plot.top() - BAND_HEIGHT), QPointF(now, plot.bottom()))
        if self._hovered is not None:
            x = frame.x_of(self._axis.place(self._hovered))
            painter.setPen(QPen(QColor(self._palette.muted), 1, Qt.PenStyle.DotLine))
            painter.drawLine(QPointF(x, plot.top()), QPointF(x, plot.bottom()))
        painter.restore()

    def _draw_readout(self, painter: QPainter, frame: Geometry) -> None:
        assert self.levels is not None
        if self._hovered is None:
            moment = self._moment
        else:
            moment = self._hovered
        metrics = QFontMetricsF(painter.font())
        x, middle = frame.area.left(), READOUT / 2 - 2
        curves = self._palette.curves
        before = None
        if not (self._compared is None or self._hovered is not None):
            before = self.levels.at(self._compared)
        pieces = []
        if before is None:
            pieces = [(self._place_text(moment), "")]
        for place, name in enumerate(("allocated", "reserved")):
            size = self.levels.at(moment)[place]
            if before is None:
                from_ = ""
            else:
                from_ = f"{format_bytes(before[place])} to "
            colour = curves[name]
            # Ribbons have the colours of what they hold, and none of allocated memory as a whole.
            if name == "allocated" and self.ribbons is not None:
                colour = self._palette.text
            pieces.append((f"{name} {from_}{format_bytes(size)}", colour))
        for text, colour in pieces:
            if colour and colour != self._palette.text:
                painter.fillRect(QRectF(x, middle - 4, 9, 9), QColor(colour))
                x += 14
            painter.setPen(QColor(self._palette.text if colour else self._palette.muted))
            painter.drawText(QPointF(x, middle + metrics.ascent() / 2), text)
            x += metrics.horizontalAdvance(text) + 14

    def _place_text(self, moment: int) -> str:
        if self.levels is None:
            return ""
        return place_text(self.levels, moment)

    def _moment_at(self, x: float) -> int | None:
        frame = self.frame()
        if frame is None or self._axis is None:
            return None
        # an event is drawn in the pixel that contains its time
        middle = x
        if self._axis.by_time:
            middle = x + 0.5
        place = frame.time_at(min(max(middle, frame.area.left()), frame.area.right()))
        found = self._axis.moment(place)
        return self._snapped(found, frame, x)

    def _snapped(self, moment: int, frame: Geometry, x: float) -> int:
        """The peak or an out-of-memory if the pointer is on its mark, else ``moment``."""
        assert self.levels is not None and self._axis is not None
        for mark in (*self.levels.ooms, self.levels.peak):
            if abs(frame.x_of(self._axis.place(mark)) - x) <= 2:
                return mark
        return moment

    def mousePressEvent(self, event: QMouseEvent) -> None:
        pans = event.button() is Qt.MouseButton.MiddleButton
        pans |= bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        if pans:
            self._panning = (event.position().x(), self._shown.range()[0])
        elif event.button() is Qt.MouseButton.LeftButton:
            self._pressed = event.position()
            self._dragged = self._moment_at(event.position().x())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        x = event.position().x()
        frame = self.frame()
        if self._panning is not None and frame is not None:
            began, left = self._panning
            self._shown.pan(left - (x - began) * frame.seconds_per_pixel - frame.x_low)
            return
        self._hovered = self._moment_at(x)
        start, end = self._dragged, self._hovered
        drags = self._pressed is not None and abs(x - self._pressed.x()) >= DRAG_PX
        if drags and start is not None and end is not None:
            self.show_moments(max(start, end), min(start, end))
        self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._panning = None
        pressed, start = self._pressed, self._dragged
        self._pressed = self._dragged = None
        end = self._moment_at(event.position().x())
        if pressed is None or start is None or end is None:
            return
        if abs(event.position().x() - pressed.x()) < DRAG_PX or start == end:
            self.picked.emit((end, None))
        else:
            self.picked.emit((max(start, end), min(start, end)))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.show_all()

    def leaveEvent(self, event: QEvent) -> None:
        self._hovered = None
        self.update()

    def wheelEvent(self, event: QWheelEvent) -> None:
        frame = self.frame()
        turned = event.angleDelta().y()
        if frame is None or not turned:
            return
        self.zoom(ZOOM_STEP ** (-turned / 120), frame.time_at(event.position().x()))
        event.accept()

    def zoom(self, factor: float, about: float | None = None) -> None:
        """Make the visible range ``factor`` times as long around ``about``, or else the selected moment."""
        if self._axis is None:
            return
        self._shown.zoom(factor, self._axis.place(self._moment) if about is None else about)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self.levels is None:
            return
        stride = 1
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            stride = 10
        key = Qt.Key(event.key())
        steps = {Qt.Key.Key_Left: -stride, Qt.Key.Key_Right: stride}
        if key in steps:
            moment = min(max(-1, self._moment + steps[key]), len(self.levels) - 1)
            self.picked.emit((moment, None))
        elif key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal, Qt.Key.Key_Up):
            self.zoom(1 / ZOOM_STEP)
        elif key in (Qt.Key.Key_Minus, Qt.Key.Key_Down):
            self.zoom(ZOOM_STEP)
        elif key == Qt.Key.Key_0:
            self.show_all()
        else:
            super().keyPressEvent(event)


def _draw_mark(painter: QPainter, at: QPointF, colour: QColor, *, cross: bool) -> None:
    painter.setPen(QPen(colour, 2 if cross else 1))
    painter.setBrush(colour)
    if cross:
        painter.drawLine(at + QPointF(-4, -4), at + QPointF(4, 4))
        painter.drawLine(at + QPointF(-4, 4), at + QPointF(4, -4))
    else:
        painter.drawPolygon(QPolygonF([at, at + QPointF(-5, -8), at + QPointF(5, -8)]))


def highest(levels: Levels) -> float:
    """The top of the axis in bytes: above the curves, and above the capacity if it is known."""
    most = int(max(levels.reserved.max(initial=0), levels.allocated.max(initial=0), levels.capacity or 0))
    return max(1.0, most * HEADROOM)


def place_text(levels: Levels, moment: int) -> str:
    """A moment as text: "event 18 053 · 112 ms"."""
    if moment < 0:
        return "before the first event"
    number = f"event {format_count(moment)}"
    if levels.time_s is None:
        return number
    return f"{number} · {format_duration(float(levels.time_s[moment]))}"


def x_ticks(frame: Geometry, by_time: bool) -> Ticks:
    """Ticks of the x axis: seconds since the first event, or event numbers."""
    count = max(2, int(frame.area.width() / 90))
    if not by_time:
        found = value_ticks("number", frame.x_low, frame.x_high, count, unit_name="events")
        marks = tuple((v, format_count(round(v))) for v, _text in found.marks if v == round(v))
        return Ticks(marks, "events")
    span = frame.x_high - frame.x_low
    scale, name = next(((s, n) for s, n in ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s")) if span < 2000 * s), (60.0, "min"))
    found = value_ticks("number", frame.x_low / scale, frame.x_high / scale, count)
    step = 1.0
    if len(found.marks) > 1:
        step = found.marks[1][0] - found.marks[0][0]
    digits = max(0, int(np.ceil(-np.log10(step) - 1e-9)))
    return Ticks(tuple((v * scale, f"{v:,.{digits}f}".replace(",", "\u202f")) for v, _text in found.marks), name)


class Picture:
    """Draws one state of the timeline."""

    def __init__(
        self, levels: Levels, axis: Axis, frame: Geometry, palette: Palette, ribbons: RibbonPicture | None
    ) -> None:
        self._ribbons = ribbons
        self._levels = levels
        self._axis = axis
        self._frame = frame
        self._palette = palette
        self._columns = max(1, int(frame.area.width()))
        self._starts = axis.starts(frame.x_low, frame.x_high, self._columns)

    def draw(self, painter: QPainter) -> None:
        """Draw the grid, the phases, the curves and the line of the capacity."""
        painter.save()
        self._draw_grid(painter)
        painter.setClipRect(self._frame.area.adjusted(0, -BAND_HEIGHT - 2, 1, 1))
        self._draw_bands(painter)
        curves = self._palette.curves
        self._draw_curve(painter, self._levels.reserved, QColor(curves["reserved"]), 0.18)
        if self._ribbons is None:
            self._draw_curve(painter, self._levels.allocated, QColor(curves["allocated"]), 0.35)
        else:
            self._ribbons.paint(painter)
        painter.restore()
        self._draw_capacity(painter)

    def _draw_grid(self, painter: QPainter) -> None:
        plot, metrics = self._frame.area, QFontMetricsF(painter.font())
        sizes = value_ticks("bytes", 0.0, self._frame.y_high, min(MOST_TICKS, max(2, int(plot.height() / 42))))
        for size, text in sizes.marks:
            y = round(self._frame.y_of(size)) + 0.5
            painter.setPen(QColor(self._palette.grid))
            painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
            painter.setPen(QColor(self._palette.muted))
            place = QRectF(0, y - metrics.height() / 2, plot.left() - 6, metrics.height())
            painter.drawText(place, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, text)
        painter.drawText(
            QRectF(2, plot.top() - BAND_HEIGHT - 3, plot.left() - 8, BAND_HEIGHT),
            Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter,
            sizes.name,
        )
        self._draw_x_ticks(painter, metrics)

    def _draw_x_ticks(self, painter: QPainter, metrics: QFontMetricsF) -> None:
        plot = self._frame.area
        ticks = x_ticks(self._frame, self._axis.by_time)
        name_left = plot.right() - metrics.horizontalAdvance(ticks.name)
        top = plot.bottom() + 3
        painter.setPen(QColor(self._palette.muted))
        for place, text in ticks.marks:
            x = self._frame.x_of(place)
            wide = metrics.horizontalAdvance(text)
            painter.drawLine(QPointF(x, plot.bottom()), QPointF(x, plot.bottom() + 3))
            if x + wide / 2 < name_left - 6:
                painter.drawText(QPointF(max(plot.left() - wide / 3, x - wide / 2), top + metrics.ascent()), text)
        painter.drawText(QPointF(name_left, top + metrics.ascent()), ticks.name)

    def _draw_bands(self, painter: QPainter) -> None:
        plot, metrics = self._frame.area, QFontMetricsF(painter.font())
        runs = band_runs(self._levels.bands, self._starts)
        if len(runs) * LEAST_BAND > plot.width():
            strip = QRectF(plot.left(), plot.top() - BAND_HEIGHT - 1, plot.width(), BAND_HEIGHT)
            painter.fillRect(strip, QColor(self._palette.grid))
            painter.setPen(QColor(self._palette.muted))
            painter.drawText(strip, Qt.AlignmentFlag.AlignCenter, "many phases: zoom in to see each")
            return
        for name, first, end in runs:
            colour = QColor(self._palette.curves.get(PHASE_CURVES.get(name, ""), self._palette.muted))
            strip = QRectF(plot.left() + first, plot.top() - BAND_HEIGHT - 1, end - first, BAND_HEIGHT)
            colour.setAlphaF(0.30)
            painter.fillRect(strip, colour)
            colour.setAlphaF(0.07)
            painter.fillRect(QRectF(strip.left(), plot.top(), strip.width(), plot.height()), colour)
            painter.setPen(QColor(self._palette.text))
            text = next(
                (w for w in (name, SHORT.get(name, "")) if w and metrics.horizontalAdvance(w) + 6 <= strip.width()), ""
            )
            painter.drawText(strip, Qt.AlignmentFlag.AlignCenter, text)
            painter.setPen(QColor(self._palette.panel))
            painter.drawLine(strip.topRight(), strip.bottomRight())

    def _draw_curve(self, painter: QPainter, sizes: Ints, colour: QColor, filling: float) -> None:
        """Columns from the lowest to the highest level, joined where neighbours do not touch, over a faint fill."""
        low, high = extremes(sizes, self._starts)
        plot = self._frame.area
        scale = plot.height() / self._frame.y_high
        tops, feet = plot.bottom() - high * scale, plot.bottom() - low * scale
        feet[1:] = np.maximum(feet[1:], np.minimum(tops[:-1], plot.bottom()))
        feet[:-1] = np.maximum(feet[:-1], np.minimum(tops[1:], plot.bottom()))
        left = plot.left() + 0.5
        edge = QPolygonF([QPointF(left + k, y) for k, y in enumerate(tops.tolist())])
        ground = QColor(colour)
        ground.setAlphaF(filling)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(ground)
        painter.drawPolygon(
            QPolygonF([QPointF(left, plot.bottom()), *edge.toList(), QPointF(left + len(tops) - 1, plot.bottom())])
        )
        painter.setBrush(colour)
        for column, (top, foot) in enumerate(zip(tops.tolist(), feet.tolist(), strict=True)):
            painter.fillRect(QRectF(plot.left() + column, top - 0.75, 1.0, max(1.5, foot - top + 0.75)), colour)

    def _draw_capacity(self, painter: QPainter) -> None:
        capacity = self._levels.capacity
        if capacity is None:
            return
        y = self._frame.y_of(capacity)
        painter.setPen(QPen(QColor(self._palette.curves["capacity"]), 1.5, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(self._frame.area.left(), y), QPointF(self._frame.area.right(), y))
