"""Where a value is drawn: a plot's area on its canvas, and the range that it shows."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRectF


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where a plot's area lies on its canvas and what range it shows.

    Attributes:
        area: the plot area in canvas pixels.
        origin_s: session time at which drawn x is 0; data are drawn relative to it, so that the range stands still.
        x_low, x_high: drawn range, seconds relative to `origin_s`.
        y_low, y_high: drawn range of the left axis.
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
        """Canvas x of a session time."""
        share = (time_s - self.origin_s - self.x_low) / (self.x_high - self.x_low)
        return self.area.left() + share * self.area.width()

    def y_of(self, value: float) -> float:
        """Canvas y of a drawn value."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return self.area.bottom() - share * self.area.height()

    def time_at(self, x: float) -> float:
        """Session time at canvas x."""
        return self.origin_s + self.x_low + (x - self.area.left()) * self.seconds_per_pixel

    def value_at(self, y: float) -> float:
        """Drawn value at canvas y."""
        share = (self.area.bottom() - y) / max(self.area.height(), 1.0)
        return self.y_low + share * (self.y_high - self.y_low)
