"""Maps values to pixels: a plot's area on its canvas, and the range it shows."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRectF


@dataclass(frozen=True, slots=True)
class Geometry:
    """The plot area on a canvas, and the range it shows.

    Attributes:
        area: the plot area in canvas pixels.
        origin_s: session time at drawn x = 0. Data are drawn relative to it, so that the range stays constant while
            scrolling.
        x_low, x_high: the drawn range, in seconds relative to `origin_s`.
        y_low, y_high: the drawn range of the left axis.
    """

    area: QRectF
    origin_s: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @property
    def seconds_per_pixel(self) -> float:
        return (self.x_high - self.x_low) / max(self.area.width(), 1.0)

    def x_of(self, time_s: float) -> float:
        """The canvas x of a session time."""
        share = (time_s - self.origin_s - self.x_low) / (self.x_high - self.x_low)
        return self.area.left() + share * self.area.width()

    def y_of(self, value: float) -> float:
        """The canvas y of an axis value."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return self.area.bottom() - share * self.area.height()

    def time_at(self, x: float) -> float:
        """The session time at canvas x."""
        return self.origin_s + self.x_low + (x - self.area.left()) * self.seconds_per_pixel

    def value_at(self, y: float) -> float:
        """The axis value at canvas y."""
        share = (self.area.bottom() - y) / max(self.area.height(), 1.0)
        return self.y_low + share * (self.y_high - self.y_low)
