"""The layers behind the curves: memory bands, and the frame with grid, ticks and labels.

The cost of painting an area does not depend on how jagged its edges are: Qt takes 25 ms to fill a polygon with a
thousand jagged corners, and 1 ms to draw strokes side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyqtgraph import functions
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPaintEngine, QPainter, QPainterPath, QPen
from PySide6.QtWidgets import QGraphicsItem, QStyleOptionGraphicsItem, QWidget

from gpudash.drawing.axes import Ticks
from gpudash.drawing.shaping import Points
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry

GAP_PX = 6.0
"""Gap between an axis and its labels."""

HATCH_PX, HATCH_WIDTH_PX = 7, 1.4
"""Distance and width of the lines that mean "does not fit"."""


@dataclass(frozen=True, slots=True)
class Label:
    """A text on the canvas and its rectangle; `turned` ones read upwards."""

    text: str
    rect: QRectF
    turned: bool = False


class Layer(QGraphicsItem):
    """An item that covers the whole canvas and paints in canvas pixels."""

    def __init__(self, z: float) -> None:
        super().__init__()
        self.setZValue(z)
        self.setAcceptedMouseButtons(Qt.MouseButton.NoButton)
        self._bounds = QRectF()

    def set_bounds(self, bounds: QRectF) -> None:
        if bounds != self._bounds:
            self.prepareGeometryChange()
            self._bounds = bounds

    def boundingRect(self) -> QRectF:
        return self._bounds


class PaintedLayer(Layer):
    """A layer with the colours of the theme."""

    def __init__(self, z: float, palette: Palette) -> None:
        super().__init__(z)
        self._palette = palette

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self.update()


@dataclass(frozen=True, slots=True)
class Cover:
    """Hides bands for a time, where ribbons replace them.

    Attributes:
        places: indices of the hidden bands; 0 is the lowest.
        begin_s, end_s: session times between which they are hidden.
    """

    places: Collection[int]
    begin_s: float
    end_s: float


class Bands(Layer):
    """Areas between cumulative edges, or between two curves, filled without an outline."""

    def __init__(self) -> None:
        super().__init__(-20)
        self._stacked: list[Area] = []
        self._between: list[Area] = []
        self._clip = QRectF()

    def show_bands(
        self,
        geometry: Geometry,
        times: Floats,
        edges: Sequence[Floats | None],
        brushes: list[QColor],
        cover: Cover | None = None,
    ) -> None:
        """Draw bands with the upper edges ``edges``, stacked from 0 up; ``None`` skips one. ``cover`` hides parts."""
        self._clip = geometry.area
        self._stacked = []
        # Cumulative: each band starts at the top of the one below, even where its own source was silent.
        lower = np.zeros(len(times))
        for place, (edge, colour) in enumerate(zip(edges, brushes, strict=True)):
            if edge is None:
                continue
            runs = _finite_runs(edge)
            if cover is not None and place in cover.places:
                runs = [part for run in runs for part in _uncovered(cover, run, times[run])]
            for run in runs:
                if np.any(edge[run] > lower[run]):
                    x, top = _pixels(geometry, times[run], edge[run])
                    self._stacked.append(Area((x, top), (x, _pixels(geometry, times[run], lower[run])[1]), colour))
            lower = np.where(np.isfinite(edge), edge, lower)
        self.update()

    def show_between(self, geometry: Geometry, areas: Sequence[tuple[Points, Points, QColor]]) -> None:
        """Fill the area between an upper and a lower curve of axis values, where both have values."""
        if not (areas or self._between):
            return
        self._clip = geometry.area
        self._between = []
        for upper, lower, colour in areas:
            self._between += _areas_between(geometry, upper, lower, colour)
        self.update()

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        painter.setClipRect(self._clip)
        for area in (*self._stacked, *self._between):
            paint_area(painter, area)


def _areas_between(geometry: Geometry, upper: Points, lower: Points, colour: QColor) -> Iterator[Area]:
    """The areas between two curves, each thinned to its own times."""
    (upper_t, upper_v), (lower_t, lower_v) = upper, lower
    for run in _finite_runs(upper_v):
        # Only where both have values; the lower curve has its own times.
        first, last = upper_t[run][0], upper_t[run][-1]
        inside = np.isfinite(lower_v) & (lower_t >= first) & (lower_t <= last)
        if np.count_nonzero(inside) > 1:
            edges = _pixels(geometry, upper_t[run], upper_v[run]), _pixels(geometry, lower_t[inside], lower_v[inside])
            yield Area(*edges, colour)


def _pixels(geometry: Geometry, times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Canvas pixels of axis values; values beyond the plot area are clipped just outside its edge."""
    area = geometry.area
    x = area.left() + (times - geometry.origin_s - geometry.x_low) * area.width() / (geometry.x_high - geometry.x_low)
    y = area.bottom() - (values - geometry.y_low) * area.height() / (geometry.y_high - geometry.y_low)
    return x, np.clip(y, area.top() - 4, area.bottom() + 4)


def _uncovered(cover: Cover, run: slice, times: Floats) -> list[slice]:
    """The visible parts of a run of readings. Each reaches to the first hidden reading."""
    before = int(np.searchsorted(times, cover.begin_s, "right")) + 1
    after = int(np.searchsorted(times, cover.end_s)) - 1
    if before > after:
        return [run]
    parts = [slice(run.start, run.start + before), slice(run.start + after, run.stop)]
    return [part for part in parts if part.stop - part.start > 1]


def _finite_runs(values: Floats) -> list[slice]:
    there = np.isfinite(values)
    if there.all():
        if len(values) > 1:
            return [slice(0, len(values))]
        return []
    # +1 where a run of values begins, −1 where it ends: each pair delimits a run.
    edges = np.flatnonzero(np.diff(there.astype(np.int8), prepend=0, append=0))
    return [slice(int(a), int(b)) for a, b in edges.reshape(-1, 2) if b - a > 1]


class PlotFrame(Layer):
    """Border, grid, tick labels and axis names; cached as a pixmap until something changes."""

    def __init__(self, font: QFont, palette: Palette) -> None:
        super().__init__(-10)
        self.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)
        self._font = font
        self._metrics = QFontMetricsF(font)
        self._palette = palette
        self._key: object = None
        self._geometry: Geometry | None = None
        self._grid: list[QLineF] = []
        self.labels: list[Label] = []

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self._forget_picture()

    def set_font(self, font: QFont) -> None:
        """Use this font for ticks and names from the next `arrange` on."""
        self._font, self._metrics = font, QFontMetricsF(font)
        self._key = None

    def width_of(self, ticks: Ticks) -> float:
        """The room that an axis with these ticks needs beside the plot area."""
        if not ticks.marks:
            return 0.0
        # With or without the name, as the height decides: the width must not follow a height that follows the width.
        widest = max(self._metrics.horizontalAdvance(text) for _, text in ticks.marks_without_name)
        return float(np.ceil(widest + GAP_PX + self._metrics.height() + 2))

    def _name_fits(self, ticks: Ticks) -> bool:
        return self._metrics.horizontalAdvance(ticks.name) + 2 <= self._bounds.height()

    def _shown_marks(self, ticks: Ticks) -> tuple[tuple[float, str], ...]:
        if self._name_fits(ticks):
            return ticks.marks
        return ticks.marks_without_name

    @property
    def line_height(self) -> float:
        return self._metrics.height()

    def arrange(self, geometry: Geometry, left: Ticks, right: Ticks | None, grid_x: Ticks) -> None:
        """Lay everything out again if something changed.

        Args:
            geometry: the plot's geometry.
            left: ticks of the left axis, within its drawn range.
            right: ticks of the right axis, as fractions of the height from 0 to 1.
            grid_x: positions of the vertical grid lines.
        """
        key = (
            geometry.area,
            geometry.x_low,
            geometry.x_high,
            geometry.y_low,
            geometry.y_high,
            left,
            right,
            grid_x,
        )
        if key == self._key:
            return
        self._key, self._geometry = key, geometry
        area = geometry.area
        self._grid = [
            QLineF(area.left(), y, area.right(), y)
            for v, _ in left.marks
            if area.top() < (y := geometry.y_of(v)) < area.bottom() - 1
        ]
        self._grid += [
            QLineF(x, area.top(), x, area.bottom())
            for t, _ in grid_x.marks
            if area.left() < (x := geometry.x_of(t + geometry.origin_s)) < area.right()
        ]
        self.labels = self._side(area, left, [geometry.y_of(v) for v, _ in left.marks], left_side=True)
        if right is not None:
            ys = [area.bottom() - share * area.height() for share, _ in right.marks]
            self.labels += self._side(area, right, ys, left_side=False)
        self._forget_picture()

    def _forget_picture(self) -> None:
        """Drop the cached pixmap. After a change of size, Qt keeps showing it if only `update` is called."""
        # Switching the cache mode off and on again drops the pixmap.
        self.setCacheMode(QGraphicsItem.CacheMode.NoCache)
        self.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)
        self.update()

    def _side(self, area: QRectF, ticks: Ticks, ys: list[float], *, left_side: bool) -> list[Label]:
        height = self._metrics.height()
        labels: list[Label] = []
        # From the bottom up: a label that would overlap the one below it is left out.
        free_below = self._bounds.bottom()
        for (_, text), y in zip(self._shown_marks(ticks), ys, strict=True):
            width = self._metrics.horizontalAdvance(text) + 1
            top = min(max(y - height / 2, self._bounds.top()), self._bounds.bottom() - height)
            if top + height > free_below + 0.5:
                continue
            if left_side:
                left = area.left() - GAP_PX - width
            else:
                left = area.right() + GAP_PX
            labels.append(Label(text, QRectF(left, top, width, height)))
            free_below = top
        length = self._metrics.horizontalAdvance(ticks.name) + 2
        if ticks.name and self._name_fits(ticks):
            if left_side:
                left = self._bounds.left()
            else:
                left = self._bounds.right() - height
            # As close to the middle as it fits.
            middle = min(max(area.center().y(), length / 2), self._bounds.height() - length / 2)
            labels.append(Label(ticks.name, QRectF(left, middle - length / 2, height, length), turned=True))
        return labels

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        if self._geometry is None:
            return
        area = self._geometry.area
        grid = QColor(self._palette.muted)
        grid.setAlphaF(0.16)
        painter.setPen(QPen(grid, 0))
        # Qt draws the same thin lines many times as fast inside a clip. A device that keeps shapes would keep it too.
        if not _keeps_shapes(painter):
            painter.setClipRect(self._bounds)
        painter.drawLines(self._grid)
        painter.setPen(QPen(QColor(self._palette.border), 0))
        painter.drawLine(QPointF(area.left(), area.top()), QPointF(area.left(), area.bottom()))
        painter.drawLine(QPointF(area.left(), area.bottom()), QPointF(area.right(), area.bottom()))
        painter.setPen(QColor(self._palette.muted))
        painter.setFont(self._font)
        for label in self.labels:
            if label.turned:
                painter.save()
                painter.translate(label.rect.left(), label.rect.bottom())
                painter.rotate(-90)
                room = QRectF(0, 0, label.rect.height(), label.rect.width())
                painter.drawText(room, Qt.AlignmentFlag.AlignCenter, label.text)
                painter.restore()
            else:
                painter.drawText(label.rect, Qt.AlignmentFlag.AlignCenter, label.text)


Floats = NDArray[np.float64]

DENSE = 0.5
"""Points of an edge per pixel above which an area is painted stroke by stroke."""

LEAST_POINTS = 32
"""Up to this many points a polygon is cheaper."""


@dataclass(frozen=True, slots=True)
class Area:
    """The area between two edges without gaps, in canvas pixels.

    Attributes:
        upper, lower: ascending x, and y, which grows downwards; each edge has its own points.
        colour: the fill colour.
    """

    upper: tuple[Floats, Floats]
    lower: tuple[Floats, Floats]
    colour: QColor


def paint_area(painter: QPainter, area: Area) -> None:
    """Fill the area: as a polygon if that is cheap or the device keeps shapes, else one stroke per pixel column."""
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
    # Centres of device pixels, so that each stroke fills exactly one column.
    columns = np.arange(np.floor(x[0] / pixel) + 0.5, np.ceil(x[-1] / pixel)) * pixel
    if not len(columns):
        return
    top = _extremes(columns, *area.upper, np.minimum)
    # stacked bands share their points, and a band begins where the one below ends
    bottom = _extremes(columns, *area.lower, np.minimum if area.lower[0] is x else np.maximum)
    ends = np.stack((top, np.maximum(bottom, top)), axis=1).ravel()
    pen = QPen(area.colour, 1)
    pen.setCosmetic(True)
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    painter.setPen(pen)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawPath(functions.arrayToQPath(np.repeat(columns, 2), ends, connect="pairs"))


def _extremes(columns: Floats, x: Floats, y: Floats, furthest: np.ufunc) -> Floats:
    """The edge in each column: its furthest point there, or the line that crosses the column between two points."""
    edge: Floats = np.interp(columns, x, y)
    spacing = 1.0
    if len(columns) > 1:
        spacing = columns[1] - columns[0]
    places = np.clip(np.rint((x - columns[0]) / spacing).astype(np.intp), 0, len(columns) - 1)
    # `at`, not plain indexing: several points fall into one column, and all of them count.
    furthest.at(edge, places, y)
    return edge


def hatch(painter: QPainter, shape: QPainterPath, colour: QColor, place: QRectF, bottom: float) -> None:
    """Hatch a shape between the top of ``place`` and ``bottom``."""
    painter.save()
    painter.setClipPath(shape, Qt.ClipOperation.IntersectClip)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(colour, HATCH_WIDTH_PX))
    height = bottom - place.top()
    # Lines at 45°, so the first begins as far to the left of the shape as the shape is high.
    for left in np.arange(place.left() - height, place.right(), HATCH_PX).tolist():
        painter.drawLine(QLineF(left, bottom, left + height, bottom - height))
    painter.restore()
