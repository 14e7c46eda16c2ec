"""Draws every allocation as a ribbon in the memory plot, once the view is close enough to tell single events apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QFont, QPainter
from PySide6.QtWidgets import QStyleOptionGraphicsItem, QWidget

from gpudash.drawing.ribbons import Allocations, Floats, RibbonGround, stayed_by_line
from gpudash.memory.request_log import RequestLog
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Label, Layer
from gpudash.ui.plots.painting.ribbons import OTHER_LINES, RibbonPicture, columns_of
from gpudash.units import format_bytes, format_count, summed_bytes

BEGINS_AT, ENDS_AT = 32.0, 48.0
"""Events per pixel column below which ribbons replace the band, and above which the band replaces them again.

Between the two nothing changes, so that a view that follows a program does not switch to and fro.
"""

MOST_STAYED = 8
"""Source lines to name among those whose allocations stayed."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The bands below and above the ribbons, at the times of the readings.

    Attributes:
        times: session times of the readings, ascending.
        base: bytes below those of the tensors, held by others.
        allocated: bytes that tensors hold, from the readings.
        roof: bytes up to the upper edge of PyTorch's reserved memory.
        missing: session times without a reading, ascending.
        idle: colour of memory that is reserved but not allocated.
    """

    times: Floats
    base: Floats
    allocated: Floats
    roof: Floats
    missing: Floats
    idle: QColor

    def missing_at(self, times: Floats) -> NDArray[np.bool_]:
        """Whether readings are missing around each of these times.

        A program that ends frees its tensors while its card is read no more.
        """
        edges = np.concatenate(([-np.inf], self.times, [np.inf]))
        between = np.diff(np.searchsorted(self.missing, edges))
        missing: NDArray[np.bool_] = between[np.searchsorted(self.times, times, "right")] > 0
        return missing


class RibbonsLayer(Layer):
    """Ribbons that replace the band of allocated memory.

    Attributes:
        picture: the drawn ribbons; ``None`` if there are none.
    """

    def __init__(self, font: QFont, palette: Palette) -> None:
        super().__init__(-15)
        self.picture: RibbonPicture | None = None
        self._palette = palette
        self._clip = QRectF()
        self._font = font
        self.hide()

    @property
    def labels(self) -> list[Label]:
        """The labels on the ribbons."""
        if self.picture is None:
            return []
        return [Label(one.text, one.room) for one in self.picture.texts]

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette

    def set_font(self, font: QFont) -> None:
        """Use this font from the next `show_ribbons` on."""
        self._font = font

    def show_ribbons(self, log: RequestLog | None, geometry: Geometry, ground: Ground | None) -> None:
        """Draw the log's allocations in the shown range. Draw nothing if they are too dense or there are none."""
        before, self.picture = self.picture, None
        extent = None
        if log is not None:
            extent = log.extent
        if log is not None and ground is not None and extent is not None:
            low = max(geometry.origin_s + geometry.x_low, extent[0], float(ground.times[0]))
            high = min(geometry.origin_s + geometry.x_high, extent[1])
            if high - low >= geometry.seconds_per_pixel:
                self._lay_out(log, geometry, ground, low, high, before)
        self.setVisible(self.picture is not None)
        if self.picture is not None:
            self.update()

    def _lay_out(
        self,
        log: RequestLog,
        geometry: Geometry,
        ground: Ground,
        low: float,
        high: float,
        before: RibbonPicture | None,
    ) -> None:
        found = log.allocations()
        area = geometry.area
        scale = area.height() / (geometry.y_high - geometry.y_low)
        most = BEGINS_AT
        if before is not None:
            most = ENDS_AT
        begin, end = np.searchsorted(found.place, (low, high))
        if end - begin >= most * (high - low) / geometry.seconds_per_pixel:
            return
        unseen = _unseen(found, ground, low, high)
        if high >= found.place[-1]:
            unchanged_until = _unchanged_until(ground, high, float(found.level[-1]) + unseen, 1 / scale)
            high = min(geometry.origin_s + geometry.x_high, unchanged_until)
        left = geometry.x_of(low)
        place = QRectF(left, area.top(), geometry.x_of(high) - left, area.height())
        columns = columns_of(place)
        middles = low + (np.arange(columns) + 0.5) * (high - low) / columns
        floor, roof = (np.interp(middles, ground.times, edge) - geometry.y_low for edge in (ground.base, ground.roof))
        # Nothing is drawn where what the ribbons lie on is unknown: they would slide to the next reading.
        missing = ground.missing_at(middles)
        floor[missing] = roof[missing] = np.inf
        around = RibbonGround(floor + unseen, roof, ground.idle.rgba())
        spare = None
        if before is not None:
            spare = before.pixels
        self.picture = RibbonPicture(
            log, found, low, high, place, scale, self._palette, around=around, font=self._font, spare=spare
        )
        self._clip = area

    def text_at(self, point: QPointF) -> str:
        """Describe the ribbon under the pointer; "" if there is none."""
        if self.picture is None:
            return ""
        return self.picture.text_at(point)

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        if self.picture is None:
            return
        painter.setClipRect(self._clip)
        # Opaque: over the band each colour would become one that nothing names.
        self.picture.paint(painter)


def _unseen(found: Allocations, ground: Ground, low: float, high: float) -> float:
    """Bytes held by tensors without a known request: they were allocated before recording began.

    A reading and the requests around it are from slightly different moments, so the smallest difference counts.
    """
    inside = (ground.times >= low) & (ground.times <= high) & np.isfinite(ground.allocated)
    if not inside.any():
        return 0.0
    known = found.level[np.searchsorted(found.place, ground.times[inside], "right")]
    return max(0.0, float((ground.allocated[inside] - known).min()))


def _unchanged_until(ground: Ground, since: float, held: float, a_pixel: float) -> float:
    """The session time until which readings are as the last request left them: nothing was allocated or freed.

    Args:
        since: session time of the last request.
        held: bytes that tensors held after it.
        a_pixel: bytes, the difference between two readings that are drawn alike.
    """
    behind = int(np.searchsorted(ground.times, since, "right"))
    # negated, so that an unknown reading is one that differs
    differing = np.flatnonzero(~(np.abs(ground.allocated[behind:] - held) < a_pixel))
    last = len(ground.times) - 1
    if len(differing):
        last = behind + int(differing[0]) - 1
    return max(since, float(ground.times[last]))


def stayed_text(log: RequestLog, span: tuple[float, float]) -> str:
    """What was allocated in a range and still held at its end, by source line; "" if the log has nothing on it."""
    extent = log.extent
    if extent is None or span[1] < extent[0] or span[0] > extent[1]:
        return ""
    found = log.allocations()
    stayed = stayed_by_line(found, found.moment(span[0]), found.moment(span[1]))
    if not stayed:
        return "Nothing allocated in this range was still held at its end."
    whole = summed_bytes(stayed)
    rows = [f"Allocated and kept: {format_bytes(whole)}"]
    for one in stayed[:MOST_STAYED]:
        times = f" in {format_count(one.count)}" if one.count > 1 else ""
        rows.append(f"{format_bytes(one.bytes)}{times}   {log.lines[one.site].text}")
    if len(stayed) > MOST_STAYED:
        rest = summed_bytes(stayed[MOST_STAYED:])
        rows.append(f"{format_bytes(rest)}   {OTHER_LINES}")
    return "\n".join(rows)
