"""Paints a predicted run in the memory plot before it starts: one step by stages, and the whole run beside it.

The ribbons are cached as a pixmap while they do not change, so that a frame costs the same for any number of requests.
While a newer prediction is being computed, the previous one is shown at half strength.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pyqtgraph import functions
from PySide6.QtCore import QLineF, QObject, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QImage, QPaintEngine, QPainter, QPen
from PySide6.QtWidgets import QGraphicsItem, QStyleOptionGraphicsItem, QWidget

from gpudash.drawing.ghost import Floats, Ghost, GhostPanel, Indices, RibbonColumns, RunningGhost, Stretch
from gpudash.drawing.shaping import turning_points
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import (
    HATCH_PX,
    HATCH_WIDTH_PX,
    Area,
    Label,
    Layer,
    PaintedLayer,
    hatch,
    paint_area,
)
from gpudash.ui.plots.prediction.motion import Motion
from gpudash.ui.plots.prediction.peak_handle import ROUND_PX, SizedPeak
from gpudash.ui.widgets.text_size import scaled
from gpudash.units import format_duration

GhostVerdict = Literal["fits", "short", "uncertain", "unknown"]

STAGES_PX, AROUND_PX = 22, 6
"""Logical pixels: the height of the strip with the stage names, and the margin above and below it."""

RUN_SHARE, RUN_FROM_PX, BETWEEN_PX = 0.2, 420, 12
"""Share of the width given to the whole run beside one step, the width above which it is shown, and the gap."""

FILL = {"dark": 0.34, "light": 0.24}
"""Opacity of a ribbon in each theme."""

EDGE, KEPT, FADED = 0.75, 0.10, 0.5
"""Opacity of an edge, of memory that is only cached, and of the whole ghost while a newer prediction is pending."""

MARGIN = 0.22
"""Opacity of the band within which the total may lie."""

CHANGE_MS = 120
"""Duration of the transition between two shapes; the line of the total takes half of it."""

ROUGH = 1.6
"""Ends of level stretches per pixel above which ribbons get no edge lines: almost every column differs in height."""

NEAR = 0.45
"""The axis includes the limit if the peak reaches this share of it; otherwise the ribbons would be too flat."""


@dataclass(frozen=True, slots=True)
class GhostView:
    """What the plot shows in place of readings.

    Attributes:
        ghost: the ribbons; ``None`` if nothing could be predicted.
        headline: the result, or the reason why there is no ghost.
        detail: the second line: what is pending or what would help; "" for none.
        limit_text: the label of the limit's line; "" if the limit is unknown.
        verdict: decides the headline's colour.
        faded: whether it was predicted for other values than those now requested.
        steps: the steps of the run; 0 if unknown.
        sized: what dragging the peak changes; ``None`` for nothing.
        margin: possible error of the prediction in bytes, either way, if it decides the verdict; else 0.
        title: the plot's title while this is shown; "" for its own title and "predicted".
        step_text: the predicted duration of a step: "0.31 s (0.26 to 0.38)"; "" if unknown.
        caption: what the width of a step represents; "" for the step's number and its times.
    """

    ghost: Ghost | None
    headline: str
    detail: str = ""
    limit_text: str = ""
    verdict: GhostVerdict = "unknown"
    faded: bool = False
    steps: int = 0
    sized: SizedPeak | None = None
    margin: float = 0.0
    title: str = ""
    step_text: str = ""
    caption: str = ""

    @property
    def reach(self) -> float:
        """The height that the axis must reach, in bytes."""
        if self.ghost is None:
            return 0.0
        highest = self.ghost.highest + max(self.margin, self.ghost.unknown)
        limit = self.ghost.limit
        # A limit far above would flatten the ribbons: it is then named in the corner and not drawn (`NEAR`).
        if limit is not None and highest >= NEAR * limit:
            return max(highest, limit)
        return highest

    @property
    def description(self) -> str:
        """The prediction as text."""
        if self.ghost is None:
            parts = []
        else:
            parts = [f"{name} {size:.0f} bytes" for name, size in self.ghost.parts.items()]
        state = "predicted"
        if self.title:
            state = self.title
        step = ""
        if self.step_text:
            step = f"a step is predicted to take {self.step_text}"
        return "; ".join(filter(None, (state, self.headline, self.detail, self.limit_text, step, *parts)))


def verdict_colour(view: GhostView, palette: Palette) -> str:
    """The colour of the text at the peak."""
    if view.faded:
        return palette.muted
    roles = {"fits": palette.good, "short": palette.critical, "uncertain": palette.warn, "unknown": palette.text}
    return roles[view.verdict]


class GhostLayer(Layer):
    """The ribbons and their labels, in canvas pixels.

    Args:
        parent: owns the transition between shapes.

    Attributes:
        labels: every text with its rectangle.
        drawn: the panels, their rectangles, and the thinned columns that are painted.
        motion: the transition from the previous shape to the current one.
    """

    def __init__(self, font: QFont, palette: Palette, parent: QObject) -> None:
        super().__init__(-5)
        self._palette = palette
        self._before: list[tuple[tuple[str, ...], RibbonColumns]] = []
        self._share = 1.0
        self.motion = Motion(CHANGE_MS, self._move, parent)
        self._shown: tuple[GhostView | None, Geometry | None, frozenset[str]] = (None, None, frozenset())
        self._captions: _Captions | None = None
        self.labels: list[Label] = []
        self.drawn: list[tuple[GhostPanel, QRectF, RibbonColumns]] = []
        self.set_font(font)

    @property
    def margins(self) -> tuple[float, float]:
        """Pixels needed above and below the plot area."""
        return scaled(STAGES_PX) + 2.0 * AROUND_PX, self._small.height() + AROUND_PX

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self._forget_picture()

    def set_font(self, font: QFont) -> None:
        """Use this font from the next `show_view` on."""
        self._font, self._small = QFont(font), QFontMetricsF(font)
        self._bold = QFont(font)
        self._bold.setPointSizeF(font.pointSizeF() + 1.5)
        self._bold.setBold(True)
        self._shown = (None, None, frozenset())

    def show_view(self, view: GhostView | None, geometry: Geometry | None, hidden: frozenset[str]) -> None:
        """Show this view; ``None`` shows nothing. Ribbons named in ``hidden`` are left out."""
        if geometry is not None:
            geometry = replace(geometry, origin_s=0.0, x_low=0.0, x_high=1.0)  # a ghost does not scroll
        if (view, geometry, hidden) == self._shown:
            return
        before = self._shown[0]
        # Before `drawn` is replaced: it holds the shape to start from.
        changes = self._remember_shape(before, view)
        self._shown = view, geometry, hidden
        self.drawn, self.labels, self._captions = [], [], None
        if view is not None and geometry is not None:
            if view.ghost is not None and view.ghost.requests:
                self.drawn = [
                    (panel, place, panel.columns(max(1, round(place.width()))))
                    for panel, place in placed(view.ghost, geometry.area)
                ]
            self._captions = _Captions(view, geometry, self.drawn, self._font, self._bold)
            self.labels = self._captions.labels
        if changes:
            self.motion.begin()
        # Resizing the window must not end the transition; a view without ribbons does.
        elif not (self.motion.moving and self.drawn):
            self.motion.stop()
            self._share = 1.0
        self._forget_picture()

    def _remember_shape(self, before: GhostView | None, view: GhostView | None) -> bool:
        """Keep the current shape as the start of a transition; false if there is no transition."""
        if before is None or view is None or before.ghost is None or view.ghost is None or before.ghost is view.ghost:
            return False
        # The thinned columns, not the ghost: since then it may have been thinned to another width.
        self._before = [(before.ghost.names, columns) for _, _, columns in self.drawn]
        return bool(self._before)

    def _move(self, share: float) -> None:
        """Move to this share of the transition to the new shape."""
        self._share = share
        self._forget_picture()

    @property
    def peak_point(self) -> QPointF | None:
        """Where the peak is drawn; ``None`` if there is none."""
        if self._captions is None:
            return None
        return self._captions.peak_point

    def paint_peak(self, painter: QPainter) -> None:
        """Paint the peak and its label again, over what was painted since."""
        if self._captions is not None:
            self._captions.paint_peak(painter, self._palette)

    def _forget_picture(self) -> None:
        """Drop the cached pixmap, so that the next paint draws everything again. Hide the layer if it is empty."""
        self.setVisible(self._captions is not None)
        self.setCacheMode(QGraphicsItem.CacheMode.NoCache)
        self.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)
        self.update()

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        view, geometry, hidden = self._shown
        if view is None or geometry is None or self._captions is None:
            return
        if view.ghost is not None:
            painter.save()
            painter.setOpacity(FADED if view.faded else FADED + (1 - FADED) * self._share)
            ribbons = _Ribbons(view.ghost, geometry, hidden, self._palette, view.margin)
            for number, (panel, place, columns) in enumerate(self.drawn):
                lead = None
                # A panel that was not there before (the run beside a step) has no shape to start from.
                if self._share < 1 and number < len(self._before):
                    columns, lead = _between(*self._before[number], view.ghost.names, columns, self._share)
                ribbons.paint(painter, panel, place, columns, lead)
            painter.restore()
        self._captions.paint(painter, self._palette)


class RunningGhostLayer(PaintedLayer):
    """The ghost of an actual run, on the time axis behind its readings, which fill it in step by step."""

    def __init__(self, palette: Palette) -> None:
        super().__init__(-25, palette)
        self._running_ghost: RunningGhost | None = None
        self._geometry: Geometry | None = None
        self._thinned: dict[tuple[GhostPanel, int], RibbonColumns] = {}
        self.hide()

    def show_running_ghost(self, running: RunningGhost | None, geometry: Geometry) -> None:
        """Draw this ghost; ``None`` draws nothing."""
        if running is None and self._running_ghost is None:
            return
        # For another ghost, the cached columns belong to other panels.
        if running is None or self._running_ghost is None or running.ghost is not self._running_ghost.ghost:
            self._thinned = {}
        self._running_ghost = running
        self._geometry = geometry
        self.setVisible(running is not None)
        self.update()

    def stretches(self) -> tuple[Floats, Floats]:
        """The level stretches in view: their starts and the end of the last one in canvas pixels, shape (n + 1,), and
        the upper edge of each ribbon in each stretch in bytes, shape (ribbons, n).
        """
        running = self._running_ghost
        geometry = self._geometry
        assert running is not None and geometry is not None
        area = geometry.area
        left_s, right_s = geometry.time_at(area.left()), geometry.time_at(area.right())
        corners: list[Floats] = []
        edges: list[Floats] = []
        shown = None
        # In order: a step narrower than a few pixels stands for those after it (`LEAST_STEP_PX`).
        for panel, start, end in running.pieces(right_s):
            if end <= left_s or start >= right_s:
                continue
            left, right = geometry.x_of(start), geometry.x_of(end)
            narrow = right - left < LEAST_STEP_PX
            if narrow and shown is not None and shown.step and right - corners[-1][0] < LEAST_STEP_PX:
                continue  # the previous stretch stands for this one too
            if narrow:
                count = 1
            else:
                count = round(min(right - left, area.width()))
            key = panel, count
            if key not in self._thinned:
                self._thinned[key] = panel.columns(count)
            corners.append(np.linspace(left, right, count, endpoint=False))
            edges.append(self._thinned[key].edges)
            shown, last = panel, right
        if shown is None:
            return np.empty(0), np.empty((len(running.ghost.names), 0))
        return np.append(np.concatenate(corners), last), np.concatenate(edges, axis=1)

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        if self._running_ghost is None or self._geometry is None:
            return
        corners, edges = self.stretches()
        if not edges.shape[1]:
            return
        painter.setClipRect(self._geometry.area)
        ribbons = _Ribbons(self._running_ghost.ghost, self._geometry, frozenset(), self._palette)
        # Both ends of each level stretch; the outermost two must not be doubled.
        x = np.repeat(corners, 2)[1:-1]
        ribbons.paint_levels(painter, self._geometry.area, x, edges, np.arange(edges.shape[1]))


LEAST_STEP_PX = 4.0
"""A step narrower than this is drawn as its highest point."""


class _Ribbons:
    """Paints ribbons, and hatches what exceeds the limit."""

    def __init__(
        self, ghost: Ghost, geometry: Geometry, hidden: frozenset[str], palette: Palette, margin: float = 0.0
    ) -> None:
        self._ghost, self._geometry, self._hidden, self._palette = ghost, geometry, hidden, palette
        self._margin = margin
        # hatching means "does not fit", which is unknown within the margin of error
        self._short = ghost.limit is not None and ghost.highest > ghost.limit and not margin
        self._level = geometry.y_of(ghost.limit or 0.0)

    def paint(
        self,
        painter: QPainter,
        panel: GhostPanel,
        place: QRectF,
        columns: RibbonColumns,
        lead: Floats | None = None,
    ) -> None:
        """Paint a panel; ``lead`` is how far the line of the total is ahead of the ribbons, in bytes."""
        painter.save()
        painter.setClipRect(place.adjusted(0, -1, 0, 0))
        self._paint_stages(painter, place, panel.stages)
        if self._short:
            ground = QColor(self._palette.banner_critical)
            ground.setAlphaF(0.55)
            painter.fillRect(QRectF(place.left(), place.top(), place.width(), self._level - place.top()), ground)
        self.paint_levels(
            painter, place, corners(place, columns), columns.edges, columns.firsts, lead, evenly_spaced=True
        )
        painter.restore()

    def _paint_stages(self, painter: QPainter, place: QRectF, stages: Sequence[Stretch]) -> None:
        if len(stages) * 4 > place.width():
            return
        colour = QColor(self._palette.muted)
        colour.setAlphaF(0.22)
        painter.setPen(QPen(colour, 0))
        for stage in stages[1:]:
            x = round(place.left() + stage.start * place.width())
            painter.drawLine(QLineF(x, place.top(), x, place.bottom()))

    def paint_levels(
        self,
        painter: QPainter,
        place: QRectF,
        x: Floats,
        edges: Floats,
        firsts: Indices,
        lead: Floats | None = None,
        *,
        evenly_spaced: bool = False,
    ) -> None:
        """Paint level stretches with ends at ``x``; if ``evenly_spaced``, as an image where that is cheaper."""
        ghost, geometry = self._ghost, self._geometry
        # edge lines would overlap, and Qt walks every corner of a dashed line
        rough = len(x) > ROUGH * place.width()
        # Only on raster devices: SVG and other paint engines keep shapes as shapes.
        pictured = rough and evenly_spaced and painter.paintEngine().type() is QPaintEngine.Type.Raster
        layers: list[tuple[Floats, QColor]] = []
        hatched: Floats | None = None
        below: Floats = np.zeros(edges.shape[1])
        for row, name in enumerate(ghost.names):
            if name in self._hidden:
                continue
            # hidden ribbons leave no gap: the ribbons above move down
            upper = below + edges[row] - (edges[row - 1] if row else 0.0)
            if pictured:
                layers.append((upper, self._colour(row, name)))
            # A ribbon of zero height has no shape to fill.
            elif np.any(upper[firsts] > below[firsts]):
                top = outline(upper, firsts, geometry)
                bottom = outline(below, firsts, geometry)
                self._paint_ribbon(painter, Area((x, top), (x, bottom), self._colour(row, name)), rough=rough)
            if self._short and row == self._hatched:
                hatched = upper
            below = upper
        if layers:
            _paint_picture(painter, place, layers, geometry)
        if hatched is not None and pictured:
            _paint_hatched_columns(painter, place, hatched, self._level, geometry, QColor(self._palette.critical))
        elif hatched is not None:
            self._paint_hatching(painter, x, outline(hatched, firsts, geometry), place)
        if lead is not None:
            below = below + lead
        if self._margin:
            warn = QColor(self._palette.warn)
            warn.setAlphaF(MARGIN)
            high = outline(below + self._margin, firsts, geometry)
            # Memory held cannot be negative.
            low = outline(np.maximum(below - self._margin, 0.0), firsts, geometry)
            paint_area(painter, Area((x, high), (x, low), warn))
        held = outline(below, firsts, geometry)
        # An actual run has readings there, which include the convolutions' workspace.
        if ghost.unknown and evenly_spaced:
            self._paint_unknown(painter, x, held, outline(below + ghost.unknown, firsts, geometry), place)
        self._paint_total(painter, x, held, place, rough=rough)

    def _colour(self, row: int, name: str) -> QColor:
        colour = QColor(self._palette.curves[COLOURS.get(name, name)])
        colour.setAlphaF(KEPT if row > self._ghost.top else FILL[self._palette.name])
        return colour

    @property
    def _hatched(self) -> int:
        """The ribbon up to which to hatch. Cached memory is released before a request is refused, so the excess is
        memory in use, unless only the cached memory exceeds the limit."""
        top, limit = self._ghost.top, self._ghost.limit
        if limit is not None and self._ghost.edges[top].max() > limit:
            return top
        return len(self._ghost.names) - 1

    def _paint_ribbon(self, painter: QPainter, area: Area, *, rough: bool) -> None:
        paint_area(painter, area)
        edge = QColor(area.colour)
        if rough or edge.alphaF() <= KEPT:
            return
        edge.setAlphaF(EDGE)
        painter.setPen(QPen(edge, 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPath(functions.arrayToQPath(*area.upper, connect="all"))

    def _paint_total(self, painter: QPainter, x: Floats, y: Floats, place: QRectF, *, rough: bool) -> None:
        """The dashed line of the total; dashes mean "predicted". Red above the limit."""
        turns = turning_points(y)
        x, y = x[turns], y[turns]  # the total is often level where memory in use is not
        pen = QPen(QColor(self._palette.text), 1)
        if not rough or len(x) < place.width():
            pen.setDashPattern([3, 3])
        painter.setPen(pen)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        path = functions.arrayToQPath(x, y, connect="all")
        painter.drawPath(path)
        if not self._short:
            return
        painter.save()
        above = QRectF(place.left(), place.top() - 1, place.width(), self._level - place.top() + 1)
        painter.setClipRect(above, Qt.ClipOperation.IntersectClip)
        painter.setPen(QPen(QColor(self._palette.critical), 1 if rough else 2))
        painter.drawPath(path)
        painter.restore()

    def _paint_hatching(self, painter: QPainter, x: Floats, y: Floats, place: QRectF) -> None:
        """Hatch the part of a shape above the limit."""
        level = self._level
        # Both ends lie on the limit, even where the shape begins or ends above it.
        x = np.concatenate((x[:1], x, x[-1:]))
        y = np.concatenate(([level], np.minimum(y, level), [level]))
        beyond = functions.arrayToQPath(x, y, connect="all")
        hatch(painter, beyond, QColor(self._palette.critical), place, level)

    def _paint_unknown(self, painter: QPainter, x: Floats, held: Floats, most: Floats, place: QRectF) -> None:
        """Hatch the workspace that convolutions may take, one at a time, on top of the total: an upper bound."""
        band = functions.arrayToQPath(np.concatenate((x, x[::-1])), np.concatenate((most, held[::-1])), connect="all")
        hatch(painter, band, QColor(self._palette.muted), place, place.bottom())


COLOURS = {"in use already": "other", "idle in the allocator": "idle"}
"""Ribbons whose colour has another name in `Palette.curves`."""


def placed(ghost: Ghost, area: QRectF) -> list[tuple[GhostPanel, QRectF]]:
    """Where one step and the whole run are drawn, in the memory plot and the plots below it."""
    one = ghost.one_step
    # A run of a single step needs no second panel.
    alone = one is ghost.whole or (one.first, one.behind) == (0, ghost.requests)
    if alone or area.width() < scaled(RUN_FROM_PX):
        return [(one, area)]
    width = round(area.width() * RUN_SHARE)
    step = QRectF(area.left(), area.top(), area.width() - width - BETWEEN_PX, area.height())
    return [(ghost.one_step, step), (ghost.whole, QRectF(area.right() - width, area.top(), width, area.height()))]


def _paint_picture(
    painter: QPainter, place: QRectF, layers: Sequence[tuple[Floats, QColor]], geometry: Geometry
) -> None:
    """Fill stacked layers, the lowest first, whose upper edges are level within each of equally wide columns.

    Qt takes a millisecond a layer to draw a polygon, or a stroke per column. Here the number of edges at or above a
    pixel identifies its layer, so one cumulative sum down the columns makes the image.
    """
    ratio = painter.device().devicePixelRatio()
    height = max(1, round(place.height() * ratio))
    width = len(layers[0][0])
    # QImage needs rows of whole 32-bit words; the last row lies outside.
    counted = np.zeros((height + 1, -(-width // 4) * 4), np.uint8)
    columns = np.arange(width)
    scale = height / (geometry.y_high - geometry.y_low)
    # Each edge adds one to its row; the sum down a column then counts the edges at and above each pixel.
    for upper, _ in layers:
        rows = np.clip(np.rint(height - (upper - geometry.y_low) * scale), 0, height).astype(np.intp)
        counted[rows, columns] += 1
    np.cumsum(counted, axis=0, dtype=np.uint8, out=counted)
    image = QImage(counted.data, width, height, counted.shape[1], QImage.Format.Format_Indexed8)
    image.setColorTable([0, *(colour.rgba() for _, colour in reversed(layers))])
    # `counted` must stay alive until here: QImage paints directly from its buffer.
    painter.drawImage(QRectF(place.left(), place.top(), place.width(), height / ratio), image)


def _paint_hatched_columns(
    painter: QPainter, place: QRectF, upper: Floats, level: float, geometry: Geometry, colour: QColor
) -> None:
    """Hatch the part of equally wide columns above a level, at a cost that does not depend on how jagged they are."""
    ratio = painter.device().devicePixelRatio()
    height = round((level - place.top()) * ratio)
    period = round(HATCH_PX * ratio)
    if height <= 0:
        return
    tops = (place.bottom() - (upper - geometry.y_low) * place.height() / (geometry.y_high - geometry.y_low)) * ratio
    begins = np.clip(np.rint(tops - place.top() * ratio), 0, height).astype(np.int32)
    rows = np.arange(height, dtype=np.int32)
    # In device pixels, not in columns: lines would be steeper where columns are wide.
    across = np.arange(len(upper)) * round(place.width() * ratio) // len(upper)  # device pixels
    lines = ((across + np.arange(period)[:, np.newaxis]) % period + 1).astype(np.uint8)
    padded = np.zeros((height, -(-len(upper) // 4) * 4), np.uint8)
    np.multiply(lines[rows % period], rows[:, np.newaxis] >= begins, out=padded[:, : len(upper)])
    image = QImage(padded.data, len(upper), height, padded.shape[1], QImage.Format.Format_Indexed8)
    table = [0]
    for at in range(period):  # coverage of a pixel at this distance from a line at 45°
        away = min(at, period - at) / 2**0.5
        colour.setAlphaF(min(1.0, max(0.0, HATCH_WIDTH_PX * ratio / 2 + 0.5 - away)))
        table.append(colour.rgba())
    image.setColorTable(table)
    painter.drawImage(QRectF(place.left(), place.top(), place.width(), height / ratio), image)


def _between(
    names_before: tuple[str, ...], before: RibbonColumns, names: tuple[str, ...], after: RibbonColumns, share: float
) -> tuple[RibbonColumns, Floats | None]:
    """The shape at this share of a transition, and how far the line of the total is ahead: it takes half as long."""
    # The width changed: the shapes cannot be blended column by column.
    if before.edges.shape[1] != after.edges.shape[1]:
        return after, None
    # By name: a new ribbon grows from nothing, and one that is gone is no longer drawn.
    were = dict(zip(names_before, np.diff(before.edges, axis=0, prepend=0.0), strict=True))
    heights = np.diff(after.edges, axis=0, prepend=0.0)
    for row, name in enumerate(names):
        heights[row] = share * heights[row] + (1 - share) * were.get(name, 0.0)
    edges = np.cumsum(heights, axis=0)
    ahead = min(1.0, 2 * share)
    total = ahead * after.edges[-1] + (1 - ahead) * before.edges[-1]
    # Where either shape changes: between two of these places both are level.
    return RibbonColumns(edges, np.union1d(before.firsts, after.firsts)), total - edges[-1]


def corners(place: QRectF, columns: RibbonColumns) -> Floats:
    """The x pixels of a line that is level within each column: both ends of each stretch with the same values."""
    count = columns.edges.shape[1]
    ends = np.append(columns.firsts[1:], count)
    steps = np.stack((columns.firsts, ends), axis=1).ravel()
    corners: Floats = place.left() + steps * (place.width() / count)
    return corners


def outline(values: Floats, firsts: Indices, geometry: Geometry) -> Floats:
    """The y pixels at `corners`; values beyond the plot area are clipped just outside its edge."""
    area = geometry.area
    # Just outside the plot: the clip hides it, so clipped edges draw no line along the border.
    y = area.bottom() - (values[firsts] - geometry.y_low) * area.height() / (geometry.y_high - geometry.y_low)
    clipped: Floats = np.repeat(np.clip(y, area.top() - 4, area.bottom() + 4), 2)
    return clipped


def _stage_texts(panel: GhostPanel, stage: Stretch) -> list[str]:
    """The name of a stage with its predicted time, then the name alone."""
    seconds = panel.ghost.stage_seconds.get(stage.name)
    # A stage that occurs several times takes only part of that time in each.
    if panel.seconds is None or not seconds or [other.name for other in panel.stages].count(stage.name) > 1:
        return [stage.name]
    return [f"{stage.name}, {format_duration(seconds)}", stage.name]


class _Captions:
    """The texts about a ghost: stages, the limit and the peak, or why there is none."""

    def __init__(
        self,
        view: GhostView,
        geometry: Geometry,
        panels: Sequence[tuple[GhostPanel, QRectF, RibbonColumns]],
        font: QFont,
        bold: QFont,
    ) -> None:
        self._view, self._geometry, self._panels = view, geometry, panels
        self._font, self._bold = font, bold
        self._small, self._large = QFontMetricsF(font), QFontMetricsF(bold)
        self._strips = self._stage_strips()
        self._captions = self._step_captions()
        self._limit = self._limit_label()
        self._peak = self._peak_labels()

    @property
    def labels(self) -> list[Label]:
        """All labels."""
        stages = [Label(text, rect) for rect, text, _ in self._strips if text]
        found = [*stages, *self._captions, *self._peak]
        if self._limit:
            found.append(self._limit)
        return found

    def _strip_over(self, place: QRectF) -> QRectF:
        height = scaled(STAGES_PX)
        return QRectF(place.left(), place.top() - height - AROUND_PX, place.width(), height)

    def _stage_strips(self) -> list[tuple[QRectF, str, bool]]:
        """Rectangle and name of each stage ("" if it does not fit), and whether it is the first of its strip."""
        found = []
        for panel, place, _ in self._panels:
            strip = self._strip_over(place)
            # The whole run has one strip; a step has its stages.
            stages = panel.stages
            if not panel.step:
                stages = (Stretch(self._run_text(panel), 0.0, 1.0),)
            for stage in stages:
                left, right = (place.left() + share * place.width() for share in (stage.start, stage.end))
                rect = QRectF(left, strip.top(), right - left, strip.height())
                texts = _stage_texts(panel, stage)
                text = next((text for text in texts if self._small.horizontalAdvance(text) + 12 <= rect.width()), "")
                found.append((rect, text, stage is stages[0]))
        return found

    def _run_text(self, panel: GhostPanel) -> str:
        steps = panel.ghost.steps
        if not steps:
            return "the run"
        if self._view.steps > steps:
            return f"steps 1 to {steps} of {self._view.steps}"
        if steps > 1:
            return f"steps 1 to {steps}"
        return "step 1"

    def _step_captions(self) -> list[Label]:
        """A caption under each panel, or the numbers of its steps."""
        found = []
        for panel, place, _ in self._panels:
            top = place.bottom() + 3
            if panel.step:
                # If the run has more steps, the last predicted one stands for all that follow.
                steady = panel.step == panel.ghost.steps and self._view.steps > panel.step
                if steady:
                    caption = f"one step, the same from step {panel.step} on"
                else:
                    caption = f"step {panel.step}"
                found += self._fitting(self._axis_texts(panel, caption), place, top)
                continue
            widest = self._small.horizontalAdvance(str(panel.ghost.steps)) + 6
            for stage in panel.stages:
                middle, width = place.left() + (stage.start + stage.end) / 2 * place.width(), len(panel.stages) * widest
                # What follows the last step may be too narrow for its own label.
                own = (stage.end - stage.start) * place.width()
                if stage.name and width < place.width() and own >= widest - 6:
                    half = self._small.horizontalAdvance(stage.name) / 2 + 1
                    found.append(Label(stage.name, QRectF(middle - half, top, 2 * half, self._small.height())))
        return found

    def _axis_texts(self, panel: GhostPanel, caption: str) -> list[str]:
        """What the width of a step represents, the longest text first."""
        if self._view.caption:
            return [self._view.caption]
        if panel.seconds is None:
            return [f"{caption}; stages by requests, not by time", caption]
        step = self._view.step_text or format_duration(panel.seconds)
        return [f"{caption}, in predicted time: {step}", f"predicted time: {step}", caption]

    def _fitting(self, texts: Sequence[str], place: QRectF, top: float) -> list[Label]:
        for text in texts:
            width = self._small.horizontalAdvance(text) + 1
            if width <= place.width():
                return [Label(text, QRectF(place.left(), top, width, self._small.height()))]
        return []

    def _limit_label(self) -> Label | None:
        """On the line of the limit, or in the corner if that is beyond the axis."""
        ghost, text, area = self._view.ghost, self._view.limit_text, self._geometry.area
        if ghost is None or ghost.limit is None or not text or not self._panels:
            return None
        place = self._panels[0][1]
        if not self._limit_in_view(ghost):
            text = f"↑ {text}"
            width = self._small.horizontalAdvance(text) + 1
            return Label(text, QRectF(place.right() - width - 6, area.top() + 3, width, self._small.height()))
        height = self._small.height()
        level = self._geometry.y_of(ghost.limit)
        if level - height - 2 >= area.top():
            top = level - height - 2
        else:
            top = level + 3
        width = self._small.horizontalAdvance(text) + 1
        rect = QRectF(place.left() + 6, top, width, height)
        peak = self.peak_point
        half = scaled(ROUND_PX) / 2 + 4
        # The peak's handle would cover the text: move it to the other side.
        if peak is not None and rect.adjusted(0, -half, half, half).contains(peak):
            rect.moveLeft(place.right() - width - 6)
        return Label(text, rect)

    def _limit_in_view(self, ghost: Ghost) -> bool:
        return ghost.limit is not None and ghost.limit <= self._geometry.y_high

    def _peak_labels(self) -> list[Label]:
        """Beside the peak, where they cover no other text. Without a peak, the reason, in the middle."""
        view, area = self._view, self._geometry.area
        lines = [(view.headline, self._large), (view.detail, self._small)]
        if not self._panels:
            room = area.width()
            return self._in_rows(
                [(metrics.elidedText(text, Qt.TextElideMode.ElideRight, room), metrics) for text, metrics in lines],
                area.center().y() - self._large.height(),
                middle=area.center().x(),
            )
        peak = self.peak_point
        assert peak is not None
        place = self._panels[0][1]
        widest = max(metrics.horizontalAdvance(text) for text, metrics in lines) + 2
        if view.sized is None:
            away = 12.0
        else:
            away = scaled(ROUND_PX) / 2 + 8
        left = peak.x() + away
        if left + widest > place.right() - 4:
            left = peak.x() - away - widest
        left = max(left, place.left() + 4)
        height = sum(metrics.height() for text, metrics in lines if text)
        # below the height of the peak, as the limit and its label are above
        top = min(max(peak.y() + 4, area.top() + 3), area.bottom() - height - 2)
        limit = self._limit
        if limit is not None and limit.rect.intersects(QRectF(left, top, widest, height)):
            top = limit.rect.bottom() + 4
        return self._in_rows(lines, top, left=left)

    def _in_rows(
        self,
        lines: Sequence[tuple[str, QFontMetricsF]],
        top: float,
        *,
        left: float = 0.0,
        middle: float | None = None,
    ) -> list[Label]:
        """One below the other, from ``left`` on or centred on ``middle``."""
        found = []
        for text, metrics in lines:
            if text:
                width = metrics.horizontalAdvance(text) + 2
                if middle is None:
                    begin = left
                else:
                    begin = middle - width / 2
                found.append(Label(text, QRectF(begin, top, width, metrics.height())))
                top += metrics.height()
        return found

    @property
    def peak_point(self) -> QPointF | None:
        """Where the peak is in the first panel, which shows its step."""
        ghost = self._view.ghost
        if not self._panels or ghost is None:
            return None
        panel, place, _ = self._panels[0]
        return QPointF(place.left() + panel.share_of(ghost.peak_at) * place.width(), self._geometry.y_of(ghost.highest))

    def paint(self, painter: QPainter, palette: Palette) -> None:
        """Paint all texts."""
        self._paint_strips(painter, palette)
        painter.setFont(self._font)
        painter.setPen(QColor(palette.muted))
        for label in self._captions:
            painter.drawText(label.rect, Qt.AlignmentFlag.AlignCenter, label.text)
        self._paint_limit(painter, palette)
        self.paint_peak(painter, palette)

    def _paint_strips(self, painter: QPainter, palette: Palette) -> None:
        painter.setFont(self._font)
        for _, place, _ in self._panels:
            painter.fillRect(self._strip_over(place), QColor(palette.button))
        for rect, text, begins in self._strips:
            if not begins:
                painter.fillRect(QRectF(round(rect.left()), rect.top(), 1, rect.height()), QColor(palette.border))
            painter.setPen(QColor(palette.text))
            painter.drawText(rect.adjusted(6, 0, 0, 0), Qt.AlignmentFlag.AlignVCenter, text)

    def _paint_limit(self, painter: QPainter, palette: Palette) -> None:
        ghost, limit = self._view.ghost, self._limit
        if ghost is None or limit is None:
            return
        critical = QColor(palette.critical)
        if self._limit_in_view(ghost):
            pen = QPen(critical, 2)
            pen.setDashPattern([4, 2])
            painter.setPen(pen)
            level = round(self._geometry.y_of(float(ghost.limit or 0)))
            for _, place, _ in self._panels:
                painter.drawLine(QLineF(place.left(), level, place.right(), level))
        self._ground(painter, palette, limit.rect)
        painter.setFont(self._font)
        painter.setPen(critical)
        painter.drawText(limit.rect, Qt.AlignmentFlag.AlignVCenter, limit.text)

    # Also called by the remedy's layer, which lies above this one.
    def paint_peak(self, painter: QPainter, palette: Palette) -> None:
        """Paint the peak and the text beside it."""
        colour = QColor(verdict_colour(self._view, palette))
        peak = self.peak_point
        if peak is not None:  # even below the handle, which exported pictures leave out
            painter.save()
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(QColor(palette.panel), 1))
            painter.setBrush(colour)
            painter.drawEllipse(peak, 4.0, 4.0)
            painter.restore()
        for label in self._peak:
            first = label is self._peak[0]
            painter.setFont(self._bold if first else self._font)
            self._ground(painter, palette, label.rect)
            painter.setPen(colour if first else QColor(palette.muted))
            painter.drawText(label.rect, Qt.AlignmentFlag.AlignVCenter, label.text)

    @staticmethod
    def _ground(painter: QPainter, palette: Palette, rect: QRectF) -> None:
        """Paint a background that keeps text readable over ribbons."""
        ground = QColor(palette.panel)
        ground.setAlphaF(0.8)
        painter.fillRect(rect.adjusted(-3, 0, 3, 0), ground)
