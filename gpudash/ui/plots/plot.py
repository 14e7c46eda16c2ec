"""One plot: its legend, canvas and axes. It receives its points; the stack reads them from the store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from PySide6.QtCore import QPoint, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QSizePolicy, QWidget

from gpudash.drawing.axes import MOST_TICKS, Autoscale, Ticks, clock_ticks, format_value, time_ticks, value_ticks
from gpudash.drawing.ghost import RunningGhost
from gpudash.drawing.shaping import BRIDGED_PX, Floats, Points, pulses, stacked
from gpudash.memory.request_log import RequestLog
from gpudash.session.predicting.deviations import Deviation
from gpudash.telemetry.plots import LAID_OVER, CurveSpec, LineSpec, PlotSpec
from gpudash.ui.colours import Palette, category_curve
from gpudash.ui.plots.canvas import MIN_HEIGHT_PX, TIGHT_HEIGHT_PX, Canvas, Gestures, drawn
from gpudash.ui.plots.legend import Legend
from gpudash.ui.plots.overlay import BETWEEN_ALPHA, HATCH, PATCH, Arrow, Mark, OverlayContent, PlotLevel, place
from gpudash.ui.plots.painting.dissolving import Ground
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Cover, Label
from gpudash.ui.plots.prediction.copies import CopiesView, copies_group
from gpudash.ui.plots.prediction.ghost import GhostView, verdict_colour
from gpudash.ui.plots.prediction.peak_handle import PeakHandle
from gpudash.ui.plots.prediction.peak_rows import peak_group
from gpudash.ui.plots.prediction.remedy import RemedyView
from gpudash.ui.plots.reading import Group, PlotPoints, PlotRequest, Row
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.text_size import scaled

RIGHT_HIGH = 1.04
"""Top of the right axis, whose labels run from 0 to 100 %."""

UNDER_RUNS_ALPHA = 0.35
"""Opacity of the bands while other runs are overlaid: thin curves need the plain background behind them."""

_LINE_PX = 28.0
"""Height per tick of a y axis."""


class TimePlot(QWidget):
    """A plot over the shared time axis.

    Attributes:
        time_ticks: the time axis as last drawn, at positions relative to its origin.

    Signals:
        hidden_changed: a curve was hidden or shown.
        menu_requested: the menu was requested at this global position.
        size_wanted: the peak of the predicted run was dragged to this batch size, in this drag (`PeakHandle`).
    """

    hidden_changed = Signal()
    size_wanted = Signal(int, int)
    menu_requested = Signal(QPoint)

    def __init__(self, spec: PlotSpec, view: TimeView, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.spec = spec
        self._view = view
        self._palette = palette
        self._geometry: Geometry | None = None
        self._scale = self._new_scale()
        self._ghost: GhostView | None = None
        self._ghost_scale = Autoscale("bytes")
        self._remedy: RemedyView | None = None
        self._copies: CopiesView | None = None
        self._running_ghost: RunningGhost | None = None
        self._deviations: Sequence[Deviation] = ()
        self._requests: RequestLog | None = None
        self._points = PlotPoints()
        self._stack: tuple[Floats, list[Floats | None]] = (np.empty(0), [])
        self._forecast: Sequence[tuple[float, float]] = ()
        self._margins = (40.0, 4.0, 8.0, 4.0)
        self.time_ticks = Ticks((), "")
        self._shows_mark_labels = False
        self._tightened = 0
        self._empty = False
        self.legend = Legend(spec.title, spec.curves, palette, self)
        self.legend.hidden_changed.connect(self._hidden_changed)
        self.gestures = self._new_gestures(view)
        self.gestures.menu_requested.connect(self.menu_requested)
        self.canvas = Canvas(spec.curves, palette, self.gestures, self)
        self.handle = PeakHandle(palette, self.canvas)
        self.handle.wanted.connect(self.size_wanted)
        self._name()
        in_column(self.legend, (self.canvas, 1), parent=self, margins=(0, 0, 0, 0), spacing=0)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)

    def _new_scale(self, *, log: bool = False) -> Autoscale:
        return Autoscale(self.spec.unit, log=log)

    def _new_gestures(self, view: TimeView) -> Gestures:
        return Gestures(view, self, self)

    def set_spec(self, spec: PlotSpec) -> None:
        """Show another spec in the same place. Hidden curves, the log setting, zoom, focus and a drag are kept.

        A zoomed axis and a forecast are dropped only if nothing stays: no curve of the same name and none of the same
        device.
        """
        before, self.spec = self.spec, spec
        if spec == before:
            return
        if spec.title != before.title:
            self.legend.set_title(spec.title)
            self._name()
        if spec.curves != before.curves:
            self.legend.set_curves(spec.curves)
            self.canvas.set_curves(spec.curves)
        # Another unit, or nothing in common with the previous curves: the old range means nothing here.
        if spec.unit != before.unit or spec.may_log < before.may_log or not _related(spec, before):
            self._scale = self._new_scale(log=self._scale.log and spec.may_log)
            self._forecast = ()
        # Some curves were removed: give back the range that they needed, but keep a manual zoom.
        elif {curve.key for curve in before.curves} - {curve.key for curve in spec.curves}:
            self._scale.refit()

    def _name(self) -> None:
        self.canvas.setAccessibleName(self.spec.title)
        self.setAccessibleName(self.spec.title)

    @property
    def geometry_now(self) -> Geometry | None:
        """The range and the plot area as last drawn."""
        return self._geometry

    @property
    def columns(self) -> int:
        """The number of pixel columns to thin the data to."""
        return max(50, round(self.canvas.area.width() or self.width()))

    @property
    def request(self) -> PlotRequest:
        """What the next frame has to read."""
        return PlotRequest(self.spec, self.hidden, self.columns)

    @property
    def hidden(self) -> frozenset[str]:
        """The names of the hidden curves."""
        return self.legend.hidden

    @property
    def visible_curves(self) -> list[CurveSpec]:
        """The curves that are not hidden."""
        return [curve for curve in self.spec.curves if curve.name not in self.hidden]

    @property
    def _bands(self) -> list[CurveSpec]:
        return [curve for curve in self.spec.curves if curve.stack]

    @property
    def log(self) -> bool:
        """Whether the left axis is logarithmic."""
        return self._scale.log

    @property
    def y_range(self) -> tuple[float, float]:
        """The range of the left axis, in decimal logarithms if `log`."""
        if self._ghost is not None:
            return self._ghost_scale.range()
        if self._copies is not None:
            return self._copies.y_range
        return self._scale.range()

    def labels(self) -> list[Label]:
        """Every text on the canvas with its rectangle, in canvas pixels."""
        canvas = self.canvas
        over = (*canvas.ghost.labels, *canvas.remedy.labels, *canvas.copies.labels, *canvas.deviations.labels)
        return [*canvas.frame.labels, *canvas.ribbons.labels, *canvas.overlay.labels, *over]

    def toggle_log(self) -> None:
        """Switch the left axis between logarithmic and linear, if the plot allows it."""
        if self.spec.may_log:
            self._scale = self._new_scale(log=not self._scale.log)

    def zoom_y(self, factor: float, anchor_px: float) -> None:
        """Zoom the left axis around a canvas y; `reset_y` undoes it."""
        if self._geometry is not None:
            scale = self._ghost_scale
            if self._ghost is None:
                scale = self._scale
            scale.zoom(factor, self._geometry.value_at(anchor_px))

    def reset_y(self) -> None:
        """Fit the left axis to the data again."""
        self._scale.reset()
        self._ghost_scale.reset()

    def set_forecast(self, points: Sequence[tuple[float, float]] | None) -> None:
        """Extend the curve by a dashed line through (session time, value) points; ``None`` removes it."""
        self._forecast = points or ()

    def set_ghost(self, ghost: GhostView | None) -> bool:
        """Show a prediction in place of readings; ``None`` shows readings.

        Returns:
            Whether anything changed.
        """
        if ghost == self._ghost:
            return False
        # Switching between readings and a prediction resets the range; from one prediction to the next it glides.
        if ghost is None or self._ghost is None:
            self._ghost_scale.reset()
        self._ghost = ghost
        return True

    def set_remedy(self, remedy: RemedyView | None) -> bool:
        """Draw the prediction with a change applied over the current one; ``None`` removes it.

        Returns:
            Whether anything changed.
        """
        changed = remedy is not self._remedy
        self._remedy = remedy
        return changed

    def set_copies(self, copies: CopiesView | None) -> bool:
        """Show predicted copies in place of readings; ``None`` shows readings.

        Returns:
            Whether anything changed.
        """
        changed = copies != self._copies
        self._copies = copies
        return changed

    def set_running_ghost(self, running: RunningGhost | None, deviations: Sequence[Deviation] = ()) -> None:
        """Draw the ghost of a run behind its readings and mark where they deviate from it; ``None`` removes it."""
        self._running_ghost = running
        self._deviations = deviations

    def set_requests(self, requests: RequestLog | None) -> None:
        """Let allocated memory dissolve into single allocations when zoomed in; ``None`` if no log is available."""
        self._requests = requests

    @property
    def requests(self) -> RequestLog | None:
        """The log of single allocations, if there is one."""
        return self._requests

    @property
    def to_come(self) -> bool:
        """Whether the drawing extends beyond now."""
        return self._running_ghost is not None and not self._running_ghost.over

    @property
    def ghost(self) -> GhostView | None:
        """The prediction on display, if any."""
        return self._ghost

    def group(self, spec: PlotSpec, rows: list[Row]) -> Group:
        """The readout's rows for this plot. For a ghost: the size of each ribbon at the peak, the topmost first."""
        if self._copies is not None:
            return copies_group(spec, self._copies)
        if self._ghost is None:
            return spec, rows
        if self._ghost.ghost is None:
            return replace(spec, title="NOT PREDICTED"), []
        then = None
        if self._remedy is not None:
            then = self._remedy.ghost
        return peak_group(spec, self._ghost.ghost, then, [*reversed(self.visible_curves)])

    @property
    def prediction_text(self) -> str:
        """The prediction as text; "" while readings are shown."""
        if self._ghost is not None:
            return self._ghost.description
        if self._copies is not None:
            return self._copies.description
        return ""

    @property
    def has_forecast(self) -> bool:
        """Whether a dashed forecast is drawn."""
        return len(self._forecast) > 1

    @property
    def points(self) -> PlotPoints:
        """The points as last drawn."""
        return self._points

    def set_description(self, text: str) -> None:
        """Set the accessible description of what the plot shows."""
        self.setAccessibleDescription(text)
        self.canvas.setAccessibleDescription(text)

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self.legend.set_palette(palette)
        self.canvas.set_palette(palette)
        self.handle.set_palette(palette)

    def set_frame(self, left: float, right: float, *, shows_mark_labels: bool) -> None:
        """Set the margins shared by all plots, and whether this one carries the labels of marks."""
        self._shows_mark_labels = shows_mark_labels
        self._margins = (left, self.canvas.frame.line_height + 2 if shows_mark_labels else 5.0, right, 5.0)
        if self._ghost is not None:
            above, below = self.canvas.ghost.margins
            self._margins = (left, above, right, below)
        self._keep_least()
        self.canvas.set_margins(*self._margins)
        self.legend.set_insets(left, right)

    @property
    def least_height(self) -> int:
        """Logical pixels that the plot needs; only `tighten` makes it lower."""
        return self.minimumSizeHint().height() + self._tightened

    def tighten(self, by: int) -> int:
        """Make the plot up to ``by`` pixels lower than its least height, as far as it stays readable.

        Returns:
            The pixels gained.
        """
        self._tightened = max(0, min(by, MIN_HEIGHT_PX - TIGHT_HEIGHT_PX))
        self._keep_least()
        return self._tightened

    def _keep_least(self) -> None:
        extra = round(self._margins[1] + self._margins[3] - 10)
        self.canvas.setMinimumHeight(MIN_HEIGHT_PX + extra - self._tightened)

    def axis_widths(self) -> tuple[float, float]:
        """The widths that the left and the right axis need now."""
        left = self._left_ticks()
        right = self._right_ticks()
        frame = self.canvas.frame
        return frame.width_of(left), frame.width_of(right) if right is not None else 0.0

    def take(self, points: PlotPoints, now_s: float) -> None:
        """Accept new points and fit the y axis; `draw` paints them."""
        self._points = points
        if self._ghost is not None:
            # While the handle is dragged the axis must stay, or the peak would move away from the pointer.
            if not self.handle.dragging:
                self._ghost_scale.update(0.0, self._ghost.reach, now_s)
            return
        if self._copies is not None:
            return
        bands = self._bands
        known = None
        if points.known:
            known = [points.known.get(curve.name) for curve in bands]
        # `known`: each band's value at the others' times, as thinning kept different times for each.
        self._stack = stacked([points.raw.get(curve.name) for curve in bands], known)
        self._scale.update(*self._reach(), now_s, self._most())

    def draw(self, marks: Sequence[Mark], rows: Sequence[Row]) -> None:
        """Draw everything for the current view.

        Args:
            marks: in time order.
            rows: the values at the cursor; empty without a cursor.
        """
        self.canvas.set_margins(*self._margins)
        start, end = self._view.range()
        origin = self._view.still_s
        low, high = self.y_range
        # Rounded: while following, the range differs from frame to frame in its last bits only, and a new range costs
        # a layout.
        geometry = Geometry(self.canvas.area, origin, round(start - origin, 9), round(end - origin, 9), low, high)
        self._geometry = geometry
        self.canvas.set_range(geometry)
        self.time_ticks = self._time_ticks(geometry)
        self.canvas.ghost.show_view(self._ghost, geometry if self._ghost is not None else None, self.hidden)
        self._place_handle(geometry)
        over = None
        if self._ghost is not None:
            # A change is drawn over a prediction, never over readings.
            over = self._remedy
        self.canvas.remedy.show_remedy(over, geometry, self.canvas.ghost)
        self.canvas.copies.show_copies(self._copies, geometry if self._copies is not None else None, self.hidden)
        self.canvas.running_ghost.show_running_ghost(self._running_ghost if self._ghost is None else None, geometry)
        self.canvas.deviations.show_deviations(self._deviations if self._ghost is None else (), geometry)
        if self._ghost is not None or self._copies is not None:
            self._draw_alone(geometry)
            return
        self.canvas.frame.arrange(geometry, self._left_ticks(), self._right_ticks(), self.time_ticks)
        self.canvas.ribbons.show_ribbons(self._requests, geometry, self._ground())
        self._draw_bands(geometry)
        self._draw_between(geometry)
        for curve in self.spec.curves:
            if not curve.stack:
                self._draw_curve(curve, geometry)
        self._draw_overlay(geometry, marks, rows)

    def _place_handle(self, geometry: Geometry) -> None:
        view = self._ghost
        if view is None or view.ghost is None:
            self.handle.show_at(None, 0.0, None, None, "", old=False)
            return
        colour = verdict_colour(view, self._palette)
        peak = self.canvas.ghost.peak_point
        self.handle.show_at(peak, view.ghost.highest, geometry, view.sized, colour, old=view.faded)

    def _draw_alone(self, geometry: Geometry) -> None:
        """Clear everything that depends on time, and draw only the ghost's own axis."""
        canvas = self.canvas
        ticks = self._left_ticks()
        if self._ghost is not None and self._ghost.ghost is None:
            ticks = Ticks((), "")
        canvas.frame.arrange(geometry, ticks, None, Ticks((), ""))
        canvas.bands.show_bands(geometry, np.empty(0), [], [])
        canvas.ribbons.show_ribbons(None, geometry, None)
        canvas.bands.show_between(geometry, [])
        for curve in self.spec.curves:
            if not curve.stack:
                canvas.show_curve(curve.name, None, None, geometry)
        self.legend.set_levels([])
        canvas.overlay.show_content(geometry, OverlayContent())

    def _draw_bands(self, geometry: Geometry) -> None:
        colours = []
        opaque = 1.0
        if any(curve.key[0] == LAID_OVER for curve in self.visible_curves):
            opaque = UNDER_RUNS_ALPHA
        for curve in self.spec.curves:
            if curve.stack:
                colour = QColor(self._palette.curves[curve.colour])
                colour.setAlphaF(0.14 if curve.faint else opaque)
                colours.append(colour)
        if colours:
            self.canvas.bands.show_bands(geometry, *self._stack, colours, self._cover(geometry))

    @property
    def _allocated_band(self) -> int | None:
        """The index of the allocated band among the bands; ``None`` if there is none."""
        bands = self._bands
        return next((place for place, curve in enumerate(bands) if curve.key[1] == "allocated_bytes"), None)

    def _cover(self, geometry: Geometry) -> Cover | None:
        """The bands that the ribbons cover: allocated, and idle above it; ``None`` without ribbons."""
        at = self._allocated_band
        ribbons = self.canvas.ribbons
        if at is None or ribbons.picture is None:
            return None
        place = ribbons.picture.place
        return Cover((at, at + 1), geometry.time_at(place.left()), geometry.time_at(place.right()))

    def _ground(self) -> Ground | None:
        """The bands around the ribbons of single allocations; ``None`` if the plot has no band of allocated memory."""
        times, edges = self._stack
        at = self._allocated_band
        if self._requests is None or at is None or not len(times) or edges[at] is None:
            return None
        base = next((edge for edge in reversed(edges[:at]) if edge is not None), np.zeros(len(times)))
        roof = edges[at]
        if at + 1 < len(edges) and edges[at + 1] is not None:
            roof = edges[at + 1]
        top = edges[at]
        assert top is not None and roof is not None
        known = np.isfinite(roof) & np.isfinite(base)
        if not known.any():
            return None
        idle = QColor(self._palette.curves["idle"])
        return Ground(times[known], base[known], top[known] - base[known], roof[known], times[~known], idle)

    def _draw_between(self, geometry: Geometry) -> None:
        areas = []
        # In axis values, so that both edges are logarithms or neither is.
        for curve in self.spec.curves:
            upper = self._in_drawn_values(curve, self._points.raw.get(curve.name), geometry)
            lower = self._in_drawn_values(curve, self._points.raw.get(curve.down_to), geometry)
            if curve.down_to and upper is not None and lower is not None:
                colour = QColor(self._palette.curves[curve.colour])
                colour.setAlphaF(BETWEEN_ALPHA)
                areas.append((upper, lower, colour))
        self.canvas.bands.show_between(geometry, areas)

    def _draw_curve(self, curve: CurveSpec, geometry: Geometry) -> None:
        points = self._points.raw.get(curve.name)
        # Before axis values are computed: bridging a pulse depends on time alone.
        if points is not None and curve.pulses:
            points = pulses(*points, BRIDGED_PX * geometry.seconds_per_pixel)
        smoothed = self._points.smoothed.get(curve.name)
        self.canvas.show_curve(
            curve.name,
            self._in_drawn_values(curve, points, geometry),
            self._in_drawn_values(curve, smoothed, geometry),
            geometry,
        )

    def _in_drawn_values(self, curve: CurveSpec, points: Points | None, geometry: Geometry) -> Points | None:
        if points is None:
            return None
        return (points[0], self._drawn(curve, points[1], geometry))

    def _drawn(self, curve: CurveSpec, values: Floats, geometry: Geometry) -> Floats:
        # The right axis is drawn in the range of the left one: one transform for all curves.
        if curve.axis == "right":
            return geometry.y_low + values / RIGHT_HIGH * (geometry.y_high - geometry.y_low)
        return drawn(values, log=self._scale.log)

    def _draw_overlay(self, geometry: Geometry, marks: Sequence[Mark], rows: Sequence[Row]) -> None:
        area, overlay = geometry.area, self.canvas.overlay
        levels = self._levels()
        above = ["↑ " * (level.value > geometry.y_high) for level in levels]
        named = [
            replace(level, text=f"{arrow}{level.text}", name=f"{arrow}{level.name}")
            for arrow, level in zip(above, levels, strict=True)
        ]
        # The first line is named at any width; then comes what nothing else names.
        self.legend.set_levels([*named[:1], *self._areas(), *named[1:]])
        content = OverlayContent(
            levels=levels,
            marks=place(marks, geometry.x_of, area.left(), area.right(), overlay.text_width, overlay.elided),
            mark_labels=self._shows_mark_labels,
            selection=self._view.selection,
            cursor_s=self._view.cursor_s,
            dots=self._dots(geometry, rows),
            arrows=self._arrows(geometry),
            forecast=[(t, self._level(v)) for t, v in self._forecast],
        )
        refused = self.spec.refused
        if refused is not None:
            low, high = (self._level(float(size)) for size in (refused.used_bytes, refused.used_bytes + refused.bytes))
            content.refused = refused.began_s, refused.until_s, low, high
        overlay.show_content(geometry, content)

    def _areas(self) -> Iterator[PlotLevel]:
        """What the legend says of areas that are no curves: a refused request, and what the ribbons are of."""
        refused = self.spec.refused
        if refused is not None:
            text = f"refused {format_value(self.spec.unit, refused.bytes, self.spec.unit_name)}"
            yield PlotLevel(text, "refused", math.nan, self._palette.critical, HATCH)
        picture = self.canvas.ribbons.picture
        if picture is not None:
            for category in picture.categories:
                colour = self._palette.curves[category_curve(category, self._palette)]
                yield PlotLevel(category, category, math.nan, colour, PATCH)

    def _levels(self) -> list[PlotLevel]:
        """The lines across the plot."""
        return [
            PlotLevel(
                self._level_text(line, value),
                line.name,
                self._level(value),
                self._palette.curves[line.colour],
                line.style,
            )
            for line, value in zip(self.spec.lines, self._points.levels, strict=False)
            if value is not None and not (self._scale.log and value <= 0)
        ]

    def _level_text(self, line: LineSpec, value: float) -> str:
        if not line.shows_value:
            return line.name
        # a name that ends with a number, as in "warning at 85 %", needs a separator before the value
        joint = ": "
        if line.name[-1:].isalpha():
            joint = " "
        return f"{line.name}{joint}{format_value(self.spec.unit, value, self.spec.unit_name)}"

    def _level(self, value: float) -> float:
        if self._scale.log and value > 0:
            return math.log10(value)
        return value

    def _dots(self, geometry: Geometry, rows: Sequence[Row]) -> list[tuple[float, str]]:
        dots: list[tuple[float, str]] = []
        height = 0.0
        for row in rows:
            if row.value is None or not math.isfinite(row.value):
                continue
            # Bands are stacked: the dot belongs where the band's upper edge is drawn.
            if row.curve.stack:
                height += max(row.value, 0.0)
                value = height
            else:
                if row.smoothed is None:
                    shown = row.value
                else:
                    shown = row.smoothed
                value = float(self._drawn(row.curve, np.array([shown]), geometry)[0])
            if not row.curve.faint:
                dots.append((value, self._palette.curves[row.curve.colour]))
        return dots

    def _arrows(self, geometry: Geometry) -> list[Arrow]:
        """One arrow for each curve and edge where its values leave the plot."""
        arrows: list[Arrow] = []
        for curve, times, values in self._drawn_curves(geometry):
            # An automatic axis has everything in view.
            if self._scale.manual is None and curve.axis == "left":
                continue
            start, end = self._view.range()
            inside = np.isfinite(values) & (times >= start) & (times <= end)
            if not inside.any():
                continue
            times, values = times[inside], values[inside]
            colour = self._palette.curves[curve.colour]
            for above, index in ((True, int(values.argmax())), (False, int(values.argmin()))):
                if above:
                    beyond = values[index] > geometry.y_high
                else:
                    beyond = values[index] < geometry.y_low
                if beyond:
                    arrows.append(Arrow(float(times[index]), above, colour))
        return arrows

    def _drawn_curves(self, geometry: Geometry) -> list[tuple[CurveSpec, Floats, Floats]]:
        times, edges = self._stack
        bands = self._bands
        result = [(c, times, e) for c, e in zip(bands, edges, strict=True) if e is not None and not c.faint]
        result.extend(
            (curve, points[0], self._drawn(curve, points[1], geometry))
            for curve in self.spec.curves
            if not curve.stack and (points := self._points.raw.get(curve.name)) is not None
        )
        return result

    def _reach(self) -> tuple[float, float]:
        """The lowest and highest drawn value on the left axis, including levels that scale it; NaN without data.

        For an unused memory without such a level, every level counts; otherwise the axis would span a few MiB. The
        first use then refits the axis at once.
        """
        lows, highs = self._extremes()
        # An unused memory.
        empty = self.spec.unit == "bytes" and not any(highs) and not any(line.scales for line in self.spec.lines)
        if self._empty and not empty:
            self._scale.refit()
        self._empty = empty
        if lows or self.spec.unit == "bytes":
            for line, value in zip(self.spec.lines, self._points.levels, strict=False):
                if value is not None and (line.scales or empty) and not (self._scale.log and value <= 0):
                    lows.append(self._level(value))
                    highs.append(self._level(value))
        if lows:
            return (min(lows), max(highs))
        return (math.nan, math.nan)

    def _most(self) -> float:
        """The capacity that is drawn now; earlier values may exceed it. Infinite if there is none."""
        levels = zip(self.spec.lines, self._points.levels, strict=False)
        return next((value for line, value in levels if line.colour == "capacity" and value is not None), math.inf)

    def _seen(self, times: Floats, values: Floats) -> Floats:
        """The values without those beyond the view's edges from which a gap divides what is in it.

        A sample beyond each edge comes with a view, for the line to it; behind a gap, as of the run before, no line
        leads there.
        """
        left, right = self._view.range()
        first = int(np.searchsorted(times, left, "left"))
        end = int(np.searchsorted(times, right, "right"))
        low = 0
        if 0 < first < len(values) and not np.isfinite(values[first]):
            low = first
        high = len(values)
        if 0 < end < len(values) and not np.isfinite(values[end - 1]):
            high = end
        return values[low:high]

    def _extremes(self) -> tuple[list[float], list[float]]:
        """The lowest and highest drawn values of each curve on the left axis, and of each band."""
        lows: list[float] = []
        highs: list[float] = []
        times = self._stack[0]
        columns = [self._seen(times, edge) for edge in self._stack[1] if edge is not None]
        for curve in self.spec.curves:
            points = self._points.raw.get(curve.name)
            if not curve.stack and curve.axis == "left" and points is not None:
                columns.append(drawn(self._seen(*points), log=self._scale.log))
        for values in columns:
            finite = values[np.isfinite(values)]
            if len(finite):
                lows.append(float(finite.min()))
                highs.append(float(finite.max()))
        return lows, highs

    @property
    def _tick_count(self) -> int:
        height = self.canvas.area.height() or MIN_HEIGHT_PX
        return min(MOST_TICKS, max(2, int(height / scaled(_LINE_PX))))

    def _left_ticks(self, count: int | None = None) -> Ticks:
        low, high = self.y_range
        count = count or self._tick_count
        log = self._scale.log or self._copies is not None
        return value_ticks(self.spec.unit, low, high, count, log=log, unit_name=self.spec.unit_name)

    def _right_ticks(self) -> Ticks | None:
        if not any(curve.axis == "right" for curve in self.visible_curves):
            return None
        count = self._tick_count
        # Ticks up to 1, on an axis that ends at 1.04: 100 % is not its very top.
        ticks = value_ticks("ratio", 0.0, RIGHT_HIGH, count)
        return Ticks(tuple((v / RIGHT_HIGH, text) for v, text in ticks.marks), ticks.name)

    def _time_ticks(self, geometry: Geometry) -> Ticks:
        width = geometry.area.width()
        if self._view.counted_from_s is not None:
            start = self._view.counted_from_s - geometry.origin_s
            ticks = time_ticks(geometry.x_low - start, geometry.x_high - start, width, relative_to="the start")
            return Ticks(tuple((t + start, text) for t, text in ticks.marks), ticks.name)
        if self._view.following and self._view.live:
            return time_ticks(geometry.x_low, geometry.x_high, width, relative_to="now")
        # Clock ticks are placed at round clock times and then converted back to session time.
        origin = geometry.origin_s
        if self._view.wall_origin_s is not None:
            origin += self._view.wall_origin_s()
            ticks = clock_ticks(geometry.x_low + origin, geometry.x_high + origin, width)
        else:
            ticks = time_ticks(geometry.x_low + origin, geometry.x_high + origin, width)
        return Ticks(tuple((t - origin, text) for t, text in ticks.marks), ticks.name)

    def _hidden_changed(self) -> None:
        self._scale.reset()
        self.hidden_changed.emit()


def _related(one: PlotSpec, other: PlotSpec) -> bool:
    """Whether two plots share a curve name, or a curve's table and device."""
    names = [{curve.name for curve in spec.curves} for spec in (one, other)]
    origins = [{(curve.key[0], curve.key[2]) for curve in spec.curves} for spec in (one, other)]
    return bool(names[0] & names[1] or origins[0] & origins[1])
