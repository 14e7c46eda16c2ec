"""Filled areas between two edges, painted at a cost that does not depend on how rough the edges are.

Qt's fill of a polygon with a thousand jagged corners takes 25 ms, of strokes one beside the other 1 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyqtgraph import functions
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPaintEngine, QPainter, QPen

Floats = NDArray[np.float64]

DENSE = 0.5
"""Points of an edge a pixel from which on an area is painted stroke by stroke."""

LEAST_POINTS = 32
"""Points up to which a polygon is the cheaper way."""


@dataclass(frozen=True, slots=True)
class Area:
    """What lies between two edges without gaps, in canvas pixels.

    Attributes:
        upper, lower: x ascending and y, which grows downwards; each has points at places of its own.
        colour: of the fill.
    """

    upper: tuple[Floats, Floats]
    lower: tuple[Floats, Floats]
    colour: QColor


def paint_area(painter: QPainter, area: Area) -> None:
    """Fill it: as one shape where that is cheap or can be kept as one, else as a stroke in every column of pixels."""
    (x, _), (lower_x, _) = area.upper, area.lower
    width = x[-1] - x[0]
    points = max(len(x), len(lower_x))
    if points <= LEAST_POINTS or points < DENSE * width or _keeps_shapes(painter):
        _paint_shape(painter, area)
    else:
        _paint_strokes(painter, area)


def _keeps_shapes(painter: QPainter) -> bool:
    return painter.paintEngine().type() is QPaintEngine.Type.SVG


def _paint_shape(painter: QPainter, area: Area) -> None:
    (x, y), (lower_x, lower_y) = area.upper, area.lower
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(area.colour)
    painter.drawPolygon(
        functions.arrayToQPolygonF(np.concatenate((x, lower_x[::-1])), np.concatenate((y, lower_y[::-1])))
    )


def _paint_strokes(painter: QPainter, area: Area) -> None:
    pixel = 1 / painter.device().devicePixelRatio()
    x = area.upper[0]
    columns = np.arange(np.floor(x[0] / pixel) + 0.5, np.ceil(x[-1] / pixel)) * pixel
    if not len(columns):
        return
    top = _extremes(columns, *area.upper, np.minimum)
    # bands share their places, and one begins where the one below is drawn to end
    bottom = _extremes(columns, *area.lower, np.minimum if area.lower[0] is x else np.maximum)
    ends = np.stack((top, np.maximum(bottom, top)), axis=1).ravel()
    pen = QPen(area.colour, 1)
    pen.setCosmetic(True)
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    painter.setPen(pen)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawPath(functions.arrayToQPath(np.repeat(columns, 2), ends, connect="pairs"))


def _extremes(columns: Floats, x: Floats, y: Floats, furthest: np.ufunc) -> Floats:
    """The edge in each column: its furthest point there, or where a line between its points passes."""
    edge: Floats = np.interp(columns, x, y)
    spacing = columns[1] - columns[0] if len(columns) > 1 else 1.0
    places = np.clip(np.rint((x - columns[0]) / spacing).astype(np.intp), 0, len(columns) - 1)
    furthest.at(edge, places, y)
    return edge
