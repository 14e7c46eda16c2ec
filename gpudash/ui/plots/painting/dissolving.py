"""Every allocation as a ribbon in the memory plot, from where single events can be told apart on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QFont, QPainter
from PySide6.QtWidgets import QStyleOptionGraphicsItem, QWidget

from gpudash.drawing.ribbons import Allocations, Floats, RibbonGround, stayed_by_line
from gpudash.memory.request_log import RequestLog
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Label, Layer
from gpudash.ui.plots.painting.ribbons import OTHER_LINES, RibbonPicture, columns_of
from gpudash.units import format_bytes, format_count

BEGINS_AT, WHOLE_AT = 32.0, 8.0
"""Events a column of pixels: where the plot begins to dissolve, and from where on it is ribbons alone."""

MOST_STAYED = 8
"""Lines that are named of those whose allocations stayed."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What the ribbons lie on and under, at the times of the readings.

    Attributes:
        times: of the readings, session time, ascending.
        base: bytes below what tensors hold, which others hold.
        allocated: bytes that tensors hold by the readings.
        roof: bytes up to the upper edge of what PyTorch has reserved.
        idle: colour of what is reserved and not allocated.
    """

    times: Floats
    base: Floats
    allocated: Floats
    roof: Floats
    idle: QColor


class RibbonsLayer(Layer):
    """Ribbons in place of the band of what is allocated.

    Attributes:
        picture: what is drawn of them, ``None`` for nothing.
        share: how far the band has dissolved into them, from 0 to 1.
    """

    def __init__(self, font: QFont, palette: Palette) -> None:
        super().__init__(-15)
        self.picture: RibbonPicture | None = None
        self.share = 0.0
        self._palette = palette
        self._clip = QRectF()
        self._font = font
        self.hide()

    @property
    def labels(self) -> list[Label]:
        """Words on the ribbons."""
        if self.picture is None:
            return []
        return [Label(one.text, one.room) for one in self.picture.texts]

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette

    def set_font(self, font: QFont) -> None:
        """Write in another font from the next `show_ribbons` on."""
        self._font = font

    def show_ribbons(self, log: RequestLog | None, geometry: Geometry, ground: Ground | None) -> None:
        """Draw what a log tells of the range that is shown; nothing where it tells too much or nothing."""
        self.picture = None
        extent = None
        if log is not None:
            extent = log.extent
        if log is not None and ground is not None and extent is not None:
            low = max(geometry.origin_s + geometry.x_low, extent[0])
            high = min(geometry.origin_s + geometry.x_high, extent[1])
            if high - low >= geometry.seconds_per_pixel:
                self._lay_out(log, geometry, ground, low, high)
        self.setVisible(self.picture is not None)
        if self.picture is not None:
            self.update()

    def _lay_out(self, log: RequestLog, geometry: Geometry, ground: Ground, low: float, high: float) -> None:
        found = log.allocations()
        area = geometry.area
        left = geometry.x_of(low)
        place = QRectF(left, area.top(), geometry.x_of(high) - left, area.height())
        columns = columns_of(place)
        begin, end = np.searchsorted(found.place, (low, high))
        self.share = dissolved((end - begin) / columns)
        if not self.share:
            return
        middles = low + (np.arange(columns) + 0.5) * (high - low) / columns
        floor, roof = (np.interp(middles, ground.times, edge) - geometry.y_low for edge in (ground.base, ground.roof))
        scale = area.height() / (geometry.y_high - geometry.y_low)
        font = None
        if self.share == 1.0:
            font = self._font
        base = floor + _unseen(found, ground, low, high)
        around = RibbonGround(base, roof, ground.idle.rgba())
        self.picture = RibbonPicture(log, found, low, high, place, scale, self._palette, around=around, font=font)
        self._clip = area

    def text_at(self, point: QPointF) -> str:
        """What the ribbon under the pointer is, in words; "" where there is none."""
        if self.picture is None:
            return ""
        return self.picture.text_at(point)

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        if self.picture is None:
            return
        painter.setClipRect(self._clip)
        painter.setOpacity(self.share)
        self.picture.paint(painter)
        painter.setOpacity(1.0)


def dissolved(events_a_column: float) -> float:
    """How far a plot with so many events in a column of pixels has dissolved into ribbons, from 0 to 1."""
    if events_a_column <= WHOLE_AT:
        return 1.0
    if events_a_column >= BEGINS_AT:
        return 0.0
    return math.log(BEGINS_AT / events_a_column) / math.log(BEGINS_AT / WHOLE_AT)


def _unseen(found: Allocations, ground: Ground, low: float, high: float) -> float:
    """Bytes that tensors hold and no request is known of: they were there before anybody listened.

    A reading and the requests around it are of slightly different moments: where they differ the least tells.
    """
    inside = (ground.times >= low) & (ground.times <= high) & np.isfinite(ground.allocated)
    if not inside.any():
        return 0.0
    known = found.level[np.searchsorted(found.place, ground.times[inside], "right")]
    return max(0.0, float((ground.allocated[inside] - known).min()))


def stayed_text(log: RequestLog, span: tuple[float, float]) -> str:
    """What was allocated within a range and was there at its end, by line; "" where a log tells nothing of it."""
    extent = log.extent
    if extent is None or span[1] < extent[0] or span[0] > extent[1]:
        return ""
    found = log.allocations()
    stayed = stayed_by_line(found, found.moment(span[0]), found.moment(span[1]))
    if not stayed:
        return "Nothing that was allocated in it was there at its end."
    whole = sum(one.bytes for one in stayed)
    rows = [f"Born and stayed: {format_bytes(whole)}"]
    for one in stayed[:MOST_STAYED]:
        times = f" in {format_count(one.count)}" if one.count > 1 else ""
        rows.append(f"{format_bytes(one.bytes)}{times}   {log.lines[one.site].text}")
    if len(stayed) > MOST_STAYED:
        rest = sum(one.bytes for one in stayed[MOST_STAYED:])
        rows.append(f"{format_bytes(rest)}   {OTHER_LINES}")
    return "\n".join(rows)
