"""All plots, stacked above one pinned time axis, and the actions behind their keys.

The window's timer calls `PlotStack.refresh`; everything else follows the shared view. The window binds the keys.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QCursor, QImage, QResizeEvent
from PySide6.QtWidgets import QApplication, QFrame, QGridLayout, QScrollArea, QSizePolicy, QSplitter, QWidget

from gpudash.drawing.ghost import RunningGhost
from gpudash.memory.request_log import RequestLog
from gpudash.session.predicting.deviations import Deviation
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.store import Store
from gpudash.ui.colours import Palette
from gpudash.ui.plots.choice import PlotChoice
from gpudash.ui.plots.export import (
    Caption,
    as_png,
    picture,
    picture_size,
    selection_text,
    vector_picture,
    write_csv,
    write_picture,
)
from gpudash.ui.plots.overlay import Mark
from gpudash.ui.plots.painting.dissolving import stayed_text
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.prediction.copies import CopiesView
from gpudash.ui.plots.prediction.ghost import GhostView
from gpudash.ui.plots.prediction.remedy import RemedyView
from gpudash.ui.plots.reading import FrameData, FrameReader, SessionShape, session_shape
from gpudash.ui.plots.readout import MarkField, Readout, SelectionStrip
from gpudash.ui.plots.time_axis import SessionOverview, TimeAxis
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.remembered import recall_of, remember_of
from gpudash.ui.widgets.stylesheet import style_sheet
from gpudash.ui.widgets.text_size import scaled

SETTLED_S = 5.0
"""A paused view this far behind the newest reading is complete: new samples no longer change it."""

READOUT_FROM_PX, WIDE_READOUT_FROM_PX = 760, 1400
"""Widths above which the readout fits beside the plots, and above which it is wide."""

OVERVIEW_S = 1.0
"""Shortest time between two updates of the overview."""

CARD_SHARE, CARD_GAP_PX = 0.5, 6
"""Share of the plots' height that the statistics card may cover, and its distance from the edge in pixels."""

HANDLE_PX = 5
"""Height of the handle between two plots, which resizes them."""

PRESENTED_PX = 150
"""Least height of a plot that is presented, in logical pixels; plots below the first ones are scrolled to."""

LEAD_RATIO, GHOST_LEAD_RATIO = 0.06, 0.2
"""Share of the window kept free right of now while a forecast is shown, and while the ghost of a run is shown."""


class PlotStack(QFrame):
    """The plots, the readout beside them and the strip below them.

    Args:
        store: holds the series; read under its lock.
        view: the shared time axis.
        palette: the colours in use.
        clock: monotonic seconds; for tests.

    Signals:
        mark_named: the name of a new mark, and its session time.
        hidden_changed: a curve was hidden or shown.
        reported: one sentence about something that was copied or saved.
        failed: one sentence about something that could not be copied or saved.
        menu_requested: the plot whose menu was requested, and the global position.
        size_wanted: see `TimePlot`.

    Attributes:
        caption: gives the caption of a picture, a title and the device; called when one is taken.
    """

    mark_named = Signal(str, float)
    hidden_changed = Signal()
    reported = Signal(str)
    failed = Signal(str)
    menu_requested = Signal(object, object)
    size_wanted = Signal(int, int)

    def __init__(
        self,
        store: Store,
        view: TimeView,
        palette: Palette,
        parent: QWidget | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(parent)
        self.store = store
        self.view = view
        self.readout = Readout(palette)
        self.strip = SelectionStrip(palette, self)
        self.mark_field = MarkField(self)
        self.mark_field.named.connect(self._mark_named)
        self.mark_field.left.connect(self._focus_plots)
        self.axis = TimeAxis(palette)
        self.overview = SessionOverview(view, palette)
        self._palette = palette
        self._reader = FrameReader(store, view, clock)
        self.caption: Callable[[], tuple[str, str]] = lambda: ("gpudash", "")
        self._topic: str | None = None
        self.choice = PlotChoice(lambda specs: self.set_plots(specs, self._topic))
        self._plots: dict[str, TimePlot] = {}
        self._order: list[str] = []
        self._drawn_key: object = None
        self._changes = 0
        self._axes = (0.0, 0.0)
        self._clock = clock
        self._outlined_at = float("-inf")
        self._shape: SessionShape | None = None
        self.setProperty("role", "panel")
        self._readout_wanted = True
        self._alone = False
        self._legends = FocusGroup(self)
        self.strip.focus_group.join(self._legends)
        self._canvases = FocusGroup(self, upright=True)
        self._card_above = False
        self._card_at: QPoint | None = None
        self._cover: QWidget | None = None
        self._cover_place: Callable[[QRect, QRect, int], QRect] = lambda stage, _readout_rect, _free: stage
        self._build()
        for signal in (view.changed, view.cursor_changed, view.selection_changed):
            signal.connect(self._touch)
        view.selection_changed.connect(self._selection_changed)
        self.strip.cleared.connect(self.clear_selection)
        self.strip.folded.connect(self._folded)
        self.strip.card.dragged.connect(self._card_dragged)

    def _build(self) -> None:
        self._column = PlotColumn()
        self._scroll = QScrollArea()
        self._scroll.setWidgetResizable(True)
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._scroll.setWidget(self._column)
        self._scroll.viewport().installEventFilter(self._column)
        grid = QGridLayout(self)
        grid.setContentsMargins(8, 2, 4, 1)
        grid.setSpacing(2)
        grid.addWidget(self._scroll, 0, 0)
        grid.addWidget(self.axis, 1, 0)
        grid.addWidget(self.overview, 2, 0)
        grid.addWidget(self.readout, 0, 1, 3, 1)
        grid.addWidget(self.strip, 3, 0, 1, 2)
        grid.setColumnStretch(0, 1)
        grid.setRowStretch(0, 1)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def set_plots(self, specs: Sequence[PlotSpec], topic: str | None = None) -> None:
        """Show those of these plots that the user chose, in this order.

        Args:
            specs: all available plots.
            topic: the workload for which the choice of plots and dragged heights are remembered; ``None`` for none.

        Each plot keeps its widget, and with it hidden curves, zoom, the log setting, focus and a drag, even while it
        is hidden and whatever changes in its spec (see `TimePlot.set_spec`).
        """
        self._topic = topic
        self.choice.turn_to(topic)
        self._column.turn_to(topic)
        specs = self.choice.of(specs)
        shown = [plot.spec for plot in self.plots]
        if shown == specs:
            return
        names = [spec.id for spec in specs]
        for plot in self.plots:
            if plot.spec.id not in names:
                plot.hide()
        for spec in specs:
            plot = self._plots.get(spec.id) or self._create(spec)
            plot.set_spec(spec)
        self._order = names
        self._column.place(self.plots)
        self._canvases.hold([plot.canvas for plot in self.plots])
        # Axes keep their greatest width, so that plots do not jump; other curves or units start over.
        if [(spec.id, spec.curves, spec.unit) for spec in shown] != [(s.id, s.curves, s.unit) for s in specs]:
            self._axes = (0.0, 0.0)
        self._touch()

    @property
    def plots(self) -> list[TimePlot]:
        """The shown plots, from top to bottom."""
        return [self._plots[name] for name in self._order]

    def plot(self, name: str) -> TimePlot | None:
        """The plot with this id, if it is shown."""
        if name in self._order:
            return self._plots[name]
        return None

    @property
    def smooths(self) -> bool:
        """Whether a shown plot has a curve to smooth."""
        return any(curve.smoothed for name in self._order for curve in self._plots[name].spec.curves)

    @property
    def missing_height(self) -> int:
        """How much higher this must be to show every plot without scrolling, each as low as it can be."""
        return max(0, self._column.minimumSizeHint().height() - self._scroll.height())

    @property
    def focused(self) -> TimePlot | None:
        """The plot with the keyboard focus."""
        return next((plot for plot in self.plots if plot.canvas.hasFocus()), None)

    @property
    def smoothing(self) -> float:
        """The weight of the past in the smoothed curves; 0 is raw."""
        return self._reader.smoothing.weight

    def set_smoothing(self, weight: float) -> None:
        """Smooth loss and accuracy.

        Raises:
            ValueError: ``weight`` is not in [0, 1).
        """
        self._reader.smoothing.set_weight(weight)
        self._touch()

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self._palette = palette
        for plot in self._plots.values():
            plot.set_palette(palette)
        for part in (self.readout, self.strip.card, self.axis, self.overview):
            part.set_palette(palette)
        self._remeasure()

    def set_forecast(self, name: str, points: Sequence[tuple[float, float]] | None) -> None:
        """Extend the plot ``name`` by a dashed line; while it is drawn, the view keeps room for it."""
        plot = self._plots.get(name)
        if plot is not None:
            plot.set_forecast(points)
        self._keep_lead()
        self._touch()

    def _keep_lead(self) -> None:
        """Keep room right of now for what is drawn there."""
        share = 0.0
        if any(plot.to_come for plot in self.plots):
            share = GHOST_LEAD_RATIO
        elif any(plot.has_forecast for plot in self.plots):
            share = LEAD_RATIO
        self.view.set_lead(self.view.window_s * share)

    def set_running_ghost(self, name: str, running: RunningGhost | None, deviations: Sequence[Deviation] = ()) -> None:
        """In the plot ``name``, draw the ghost of a run behind its readings and mark where they deviate from it;
        ``None`` removes it."""
        plot = self._plots.get(name)
        if plot is not None:
            plot.set_running_ghost(running, deviations)
            self._keep_lead()

    def set_requests(self, name: str, requests: RequestLog | None) -> None:
        """Let the plot ``name`` dissolve into single allocations when zoomed in, and list those that a range kept."""
        plot = self._plots.get(name)
        if plot is not None:
            plot.set_requests(requests)

    def set_ghost(self, name: str, ghost: GhostView | None) -> None:
        """Show a prediction in the plot ``name`` in place of readings; ``None`` shows readings."""
        plot = self._plots.get(name)
        if plot is not None and plot.set_ghost(ghost):
            self._touch()

    def set_copies(self, name: str, copies: CopiesView | None) -> None:
        """Show predicted copies in the plot ``name`` in place of readings; ``None`` shows readings."""
        plot = self._plots.get(name)
        if plot is not None and plot.set_copies(copies):
            self._touch()

    def set_remedy(self, name: str, remedy: RemedyView | None) -> None:
        """In the plot ``name``, draw its ghost with a change applied; ``None`` removes it."""
        plot = self._plots.get(name)
        if plot is not None and plot.set_remedy(remedy):
            self._touch()

    def set_hidden_marks(self, categories: Iterable[str]) -> None:
        """Hide exactly these categories of marks (see `overlay.CATEGORIES`)."""
        self._reader.marks_kept.hide(categories)
        self._touch()

    @property
    def hidden_marks(self) -> frozenset[str]:
        """The hidden categories of marks."""
        return self._reader.marks_kept.hidden

    @property
    def marks(self) -> list[Mark]:
        """The shown marks, in time order."""
        return self._reader.marks_kept.shown

    def reset_layout(self) -> None:
        """Reset the choice of plots, their heights and their hidden curves."""
        self.choice.begin_again()
        self._card_at = None
        self._column.begin_again()
        self.show_all_curves()

    def show_all_curves(self) -> None:
        """Show every curve in every plot."""
        for plot in self._plots.values():
            plot.legend.show_all()

    def load(self) -> Iterator[None]:
        """Read the series of the visible curves, which those of a recording are only when first used, one per step."""
        for curve in self.visible_curves:
            with self.store.lock:
                self.store.series(*curve.key)
            yield

    @property
    def visible_curves(self) -> list[CurveSpec]:
        """Every visible curve, from the top plot down."""
        return [curve for plot in self.plots for curve in plot.visible_curves]

    def refresh(self, *, force: bool = False) -> bool:
        """Update everything; called by the window's one timer.

        Args:
            force: draw even if nothing changed or nothing is visible.

        Returns:
            Whether anything was drawn.
        """
        if not (force or self.isVisible()):
            return False
        # Plots scrolled out of view are not read. The key lists the ones in view, so scrolling draws the others.
        plots = [plot for plot in self.plots if force or not plot.visibleRegion().isEmpty()]
        with self.store.lock:
            newest = self.store.newest_s
            self.view.set_now(newest)
            version = -1
            # Paused and far enough back: new readings cannot change what is shown and cost nothing.
            if self.view.behind_s < SETTLED_S:
                version = self.store.version
            key = (version, self.store.sharpened, self._changes, tuple(plot.spec.id for plot in plots))
            # Still under the lock and before anything is copied: an idle window stops here.
            if key == self._drawn_key and not force:
                return False
            requests = [plot.request for plot in self.plots], [plot.request for plot in plots]
            frame = self._reader.read(requests[1], requests[0], measure=self.strip.open, force=force)
            # Also reads the store, so the lock is held until here; drawing does not need it.
            self._outline(force=force)
        self._drawn_key = key
        self._draw(plots, frame, newest)
        return True

    def pause(self) -> None:
        """Space: pause the view or resume following."""
        self.view.toggle()

    def show_all(self) -> None:
        """Home: show all data of the plots."""
        with self.store.lock:
            extents = [s.extent() for c in self.visible_curves if (s := self.store.series(*c.key)) is not None]
        known = list(filter(None, extents))
        if known:
            begins, ends = zip(*known, strict=True)
            self.view.show_all((min(begins), max(ends)))
        for plot in self.plots:
            plot.reset_y()
        self._touch()

    def clear_selection(self) -> None:
        """Clear the selection and close its statistics."""
        self.view.clear_selection()
        self.strip.set_open(False)

    def lay_over(self, page: QWidget, place_in: Callable[[QRect, QRect, int], QRect]) -> None:
        """Let ``page`` cover the plots or the readout; the time axis stays visible below it.

        Args:
            page: hidden until `cover` shows it, and again after `dismiss`.
            place_in: computes its geometry from three values: the area of plots and readout, the area of the readout
                alone (empty while it is hidden), and the readout's free height in logical pixels.
        """
        self._cover, self._cover_place = page, place_in
        page.setParent(self)
        page.hide()

    def cover(self, *, covered: bool) -> None:
        """Show or hide the page that covers the plots."""
        if self._cover is not None:
            self._cover.setVisible(covered)
            self.place_over()
            # only a visible page of the final width has the fonts and line breaks that decide its height
            QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)
            self.place_over()
            self._cover.raise_()

    def place_over(self) -> None:
        """Place what covers the plots, which may need another height than before."""
        self._place_card()
        if self._cover is not None:
            stage = self._scroll.geometry()
            stage.setRight(self.width() - CARD_GAP_PX)
            readout_rect = QRect()
            if not self.readout.isHidden():
                readout_rect = self.readout.geometry()
            if not readout_rect.isEmpty():
                readout_rect.setRight(stage.right())
            self._cover.setGeometry(self._cover_place(stage, readout_rect, self.readout.free_height))

    def dismiss(self) -> None:
        """Esc: uncover the plots; if they are uncovered, clear the selection and close its statistics."""
        cover = self._cover
        if cover is None or not cover.isVisible():
            self.clear_selection()
            return
        focused = QApplication.focusWidget()
        held_focus = focused is not None and (focused is cover or cover.isAncestorOf(focused))
        self.cover(covered=False)
        if held_focus:  # else Qt gives it to whatever comes next, where the keys of the plots do nothing
            self._focus_plots()

    def jump_to_now(self) -> None:
        """End: follow the newest reading again."""
        self.view.set_cursor(None)
        self.view.follow()

    def move_cursor(self, steps: int) -> None:
        """Left and Right: move the cursor by samples of a visible curve, the focused plot's if possible."""
        plots = [plot for plot in (self.focused, *self.plots) if plot is not None]
        cursor = self.view.cursor_s
        with self.store.lock:
            if cursor is None:
                at = self.store.newest_s
            else:
                at = cursor
            # The first series with a sample in that direction decides, those of the focused plot first.
            for curve in (curve for plot in plots for curve in plot.visible_curves):
                series = self.store.series(*curve.key)
                target = None
                if series is not None:
                    target = series.neighbour(at, steps)
                if target is not None:
                    self._bring_into_view(target)
                    return

    def jump_mark(self, direction: int) -> None:
        """[ and ]: move the cursor to the previous (−1) or the next (1) mark."""
        if self.view.cursor_s is not None:
            at = self.view.cursor_s
        else:
            at = self.view.right_s
        times = [mark.time_s for mark in self.marks]
        if direction > 0:
            # Skip a mark at the cursor itself: a jump must leave it.
            ahead = [t for t in times if t > at + 1e-9]
        else:
            ahead = [t for t in times if t < at - 1e-9]
        if ahead:
            self._bring_into_view(ahead[0] if direction > 0 else ahead[-1])

    def name_mark(self, time_s: float) -> None:
        """Open a field for the name of a mark at its place; `mark_named` reports the name."""
        start, end = self.view.range()
        if not start <= time_s <= end:
            self._bring_into_view(time_s)
        self.mark_field.ask(time_s)
        self._place_mark_field()

    def _focus_plots(self) -> None:
        if self.plots:
            self.plots[0].canvas.setFocus()

    def _mark_named(self, name: str, time_s: float) -> None:
        self._focus_plots()
        self.mark_named.emit(name, time_s)

    def _place_mark_field(self) -> None:
        """Keep the field at its time, over the first plot."""
        geometry = None
        if self.plots:
            geometry = self.plots[0].geometry_now
        if geometry is None or not self.mark_field.isVisible():
            return
        canvas, field = self.plots[0].canvas, self.mark_field
        left = canvas.mapTo(self, QPoint(round(geometry.x_of(field.time_s)), 0))
        room = self._scroll.geometry().right() - field.width()
        field.move(min(max(left.x() + 2, self._scroll.x()), room), max(left.y(), self._scroll.y()))

    def toggle_log(self) -> None:
        """L: toggle the logarithmic axis of the focused plot, or else of every plot that supports it."""
        plots, focused = self.plots, self.focused
        if focused is not None and focused.spec.may_log:
            plots = [focused]
        for plot in plots:
            plot.toggle_log()
        self._touch()

    def toggle_log_of(self, plot: TimePlot) -> None:
        """Toggle the logarithmic axis of one plot."""
        plot.toggle_log()
        self._touch()

    def fit(self, plot: TimePlot) -> None:
        """Fit the left axis of one plot to its data again."""
        plot.reset_y()
        self._touch()

    def zoom(self, factor: float) -> None:
        """Ctrl+plus and Ctrl+minus: zoom around the cursor, or else around the centre."""
        self.view.zoom(factor, self.view.cursor_s)

    def selection_text(self, plot: TimePlot | None = None) -> str:
        """The raw samples of the selection, or else of the visible window, as tab-separated text.

        Args:
            plot: use the visible curves of this plot; ``None`` for those of all plots.
        """
        if plot is None:
            curves = self.visible_curves
        else:
            curves = plot.visible_curves
        return selection_text(self.store, curves, self.view.selection or self.view.range())

    def save_csv(self, path: str | Path) -> int:
        """Write the raw samples of all visible curves in the selection, or else in the visible window.

        Returns:
            The number of sample rows written.

        Raises:
            OSError: the file cannot be written.
        """
        return write_csv(Path(path), self.store, self.visible_curves, self.view.selection or self.view.range())

    def save_picture(self, path: str | Path, plot: TimePlot | None = None) -> None:
        """Write `picture` as PNG, or `vector_picture` if the name ends in ".svg"; completely or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        svg = Path(path).suffix.lower() == ".svg"
        write_picture(Path(path), self.vector_picture(plot) if svg else as_png(self.picture(plot)))

    def picture(
        self, plot: TimePlot | None = None, *, palette: Palette | None = None, ratio: float | None = None
    ) -> QImage:
        """One plot or all of them, with title, device and range.

        Args:
            plot: the plot to draw; ``None`` for all.
            palette: the colours to use (the light ones for print); ``None`` for the current ones.
            ratio: device pixels per pixel; ``None`` for the screen's.
        """
        if plot is None:
            plots = self.plots
        else:
            plots = [plot]
        with self._drawn_alone(plots, palette):
            return picture(
                [*plots, self.axis],
                self._picture_caption(),
                palette or self._palette,
                ratio or self.devicePixelRatioF(),
            )

    def vector_picture(self, plot: TimePlot | None = None, *, palette: Palette | None = None) -> bytes:
        """The same content as `picture`, as SVG."""
        if plot is None:
            plots = self.plots
        else:
            plots = [plot]
        with self._drawn_alone(plots, palette):
            return vector_picture([*plots, self.axis], self._picture_caption(), palette or self._palette)

    @property
    def picture_size(self) -> QSize:
        """The size of a picture of all plots, in logical pixels."""
        return picture_size([*self.plots, self.axis])

    def _picture_caption(self) -> Caption:
        origin = self.view.wall_origin_s
        title, device = self.caption()
        return Caption(
            title,
            device or self.plots[0].spec.title,
            self.view.range(),
            None if origin is None else origin(),
        )

    @contextlib.contextmanager
    def _drawn_alone(self, plots: Sequence[TimePlot], palette: Palette | None) -> Iterator[None]:
        """Draw these plots for a picture, without the cursor, and restore everything afterwards."""
        own, order = self._palette, self._order
        cursor, pinned = self.view.cursor_s, self.view.cursor_pinned
        # Without a cursor, the readout shows the values of the range.
        self.view.set_cursor(None)
        # `refresh` draws the plots in `_order`: for a picture, only these.
        self._order = [plot.spec.id for plot in plots]
        if palette is not None:
            self.setStyleSheet(style_sheet(palette))
            self.set_palette(palette)
        self.refresh(force=True)
        for drawn in plots:
            drawn.handle.hide()  # until the next refresh: a picture has nothing to drag
        try:
            yield
        finally:
            self._order = order
            self.view.set_cursor(cursor, pinned=pinned)
            if palette is not None:
                self.setStyleSheet("")
                self.set_palette(own)
            # Everything is drawn twice without returning to the event loop: the user never sees the picture's state.
            self.refresh(force=True)

    def _create(self, spec: PlotSpec) -> TimePlot:
        plot = TimePlot(spec, self.view, self._palette)
        plot.legend.focus_group.join(self._legends)
        plot.hidden_changed.connect(self._hidden_changed)
        plot.gestures.area_resized.connect(self._touch)
        plot.gestures.y_zoomed.connect(self._touch)
        plot.size_wanted.connect(self.size_wanted)
        plot.menu_requested.connect(lambda position, plot=plot: self.menu_requested.emit(plot, position))
        self._plots[spec.id] = plot
        return plot

    def _draw(self, plots: Sequence[TimePlot], frame: FrameData, newest: float) -> None:
        for plot, points in zip(plots, frame.points, strict=True):
            plot.take(points, newest)
        # After `take`, which fits the y axes (their ticks decide the widths), and before anything is drawn.
        self._align()
        groups = [self._plots[spec.id].group(spec, group) for spec, group in frame.groups]
        rows = {spec.id: group for spec, group in groups}
        cursor = self.view.cursor_s
        # Labels of marks appear above the first plot only.
        for plot in plots:
            plot.draw(frame.marks, rows[plot.spec.id] if cursor is not None else ())
            if plot.geometry_now is not None:
                self.axis.show_ticks(plot.geometry_now, plot.time_ticks)
        self._place_mark_field()
        self.readout.show_rows(cursor, newest, groups, frame.read_s, live=self.view.live)
        self.strip.show_range(self.view.selection, self.view.range())
        if frame.statistics is not None:
            self.strip.card.show_statistics(*frame.statistics)
            self.strip.card.show_stayed(self._stayed())
            self._place_card()
        if frame.descriptions is not None:
            for plot, description in zip(plots, frame.descriptions, strict=True):
                plot.set_description(plot.prediction_text or description)
            self.readout.describe()

    def _stayed(self) -> str:
        """What was allocated in the selection and kept, from the plots that have a request log."""
        if self.view.selection is None:
            return ""
        logs = [plot.requests for plot in self.plots if plot.requests is not None]
        return "\n".join(filter(None, (stayed_text(log, self.view.selection) for log in logs)))

    def _align(self) -> None:
        """Align the left and right edges of all plots, with room for the widest axis so far."""
        widths = [plot.axis_widths() for plot in self.plots]
        # Widths only grow here: a tick label that is briefly shorter must not move every plot.
        self._axes = (
            max([self._axes[0], *(left for left, _ in widths)]),
            max([self._axes[1], *(right for _, right in widths)]),
        )
        left, right = self._axes[0] + 2, max(self._axes[1], 10.0) + 2
        for position, plot in enumerate(self.plots):
            plot.set_frame(left, right, shows_mark_labels=position == 0)
        self._column.settle()
        self.overview.set_insets(left, self._scroll.width() - self._column.width() + right)

    def _outline(self, *, force: bool) -> None:
        """Update the overview from time to time. The caller holds the store's lock."""
        if force or self._clock() - self._outlined_at >= OVERVIEW_S:
            self._outlined_at = self._clock()
            self._shape = session_shape(self.store, [plot.spec for plot in self.plots], self.width())
        self.overview.show_session(self._shape)

    def _bring_into_view(self, time_s: float) -> None:
        start, end = self.view.range()
        if not start <= time_s <= end:
            self.view.pan(time_s - (start + end) / 2)
        self.view.set_cursor(time_s, pinned=True)

    def _touch(self) -> None:
        self._changes += 1

    def _hidden_changed(self) -> None:
        self._touch()
        self.hidden_changed.emit()

    def _selection_changed(self) -> None:
        if self._alone:
            self._show_strip()
        self._reader.remeasure()
        self.strip.set_open(self.view.selection is not None)

    def _folded(self) -> None:
        if self.strip.open:
            pointer = self._scroll.mapFromGlobal(QCursor.pos())
            # Decided when the card opens, not as the pointer moves: a card that steps aside cannot be read.
            self._card_above = pointer.y() > self._scroll.height() / 2 and self._scroll.rect().contains(pointer)
            self._place_card()
            self.strip.card.raise_()
        self._remeasure()

    def _place_card(self) -> None:
        """Place the card where it was dragged to. Otherwise use the half without the pointer, on the side where it
        covers least of the selected range, and then least of the plots."""
        plots, card = self._scroll.geometry(), self.strip.card
        room = QRect(plots)
        room.setRight(self.width() - CARD_GAP_PX)
        room.adjust(CARD_GAP_PX, CARD_GAP_PX, 0, -CARD_GAP_PX)
        height = card.height_within(round(plots.height() * CARD_SHARE))
        place = QRect(0, 0, min(card.whole_width, room.width()), height)
        if self._card_at is None:
            if self._card_above:
                top = room.top()
            else:
                top = room.bottom() - height + 1
            left, right = QPoint(room.left(), top), QPoint(room.right() - place.width() + 1, top)
            # Compared as (range, plots): less of the range first, then less of the plots.
            hides = {side: self._hidden_by(QRect(corner, place.size())) for side, corner in ((0, right), (1, left))}
            place.moveTopLeft(right if hides[0] <= hides[1] else left)
        else:
            place.moveTopLeft(self._card_at)
            place.moveLeft(max(room.left(), min(place.left(), room.right() - place.width() + 1)))
            place.moveTop(max(room.top(), min(place.top(), room.bottom() - height + 1)))
        card.setGeometry(place)
        card.fit_names()

    def _hidden_by(self, card: QRect) -> tuple[int, int]:
        """How much a card would cover of the selected range and of the plots, in square pixels."""
        plots = self._scroll.geometry()
        covered = plots.intersected(card)
        ranged = QRect()
        selection, geometry = self.view.selection, self.plots[0].geometry_now if self.plots else None
        if selection is not None and geometry is not None:
            left, right = (self.plots[0].canvas.mapTo(self, QPoint(round(geometry.x_of(t)), 0)).x() for t in selection)
            ranged = covered.intersected(QRect(left, plots.top(), max(1, right - left), plots.height()))
        return ranged.width() * ranged.height(), covered.width() * covered.height()

    def _card_dragged(self, corner: QPoint) -> None:
        self._card_at = corner
        self._place_card()

    def _remeasure(self) -> None:
        self._reader.remeasure()
        self._touch()

    def show_readout(self, wanted: bool) -> None:
        """Show the values beside the plots if there is room."""
        self._readout_wanted = wanted
        self.readout.setVisible(wanted and self.width() >= scaled(READOUT_FROM_PX))

    def set_presented(self, presented: bool) -> None:
        """Present the first plots at a size that is read from afar; the others are scrolled to."""
        self._column.set_presented(presented)

    def show_alone(self, alone: bool) -> None:
        """Leave all room to the plots: hide readout and overview, and the strip while nothing is selected."""
        self._alone = alone
        self.show_readout(not alone)
        self.overview.set_wanted(not alone)
        self._show_strip()

    def _show_strip(self) -> None:
        self.strip.setVisible(not self._alone or self.view.selection is not None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.readout.set_wide(self.width() >= scaled(WIDE_READOUT_FROM_PX))
        self.show_readout(self._readout_wanted)
        self.place_over()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() is QEvent.Type.FontChange:
            self._axes = (0.0, 0.0)
            self._touch()
        super().changeEvent(event)


_HEIGHTS = "plot_heights"


class PlotColumn(QSplitter):
    """The plots from top to bottom, each as high as its spec requests, until the user drags a handle.

    Dragged heights are remembered for the workload and scaled when the window is resized.
    """

    def __init__(self) -> None:
        super().__init__(Qt.Orientation.Vertical)
        self.setProperty("role", "scrolled")
        self.setChildrenCollapsible(False)
        self.setHandleWidth(HANDLE_PX)
        self._shown: list[TimePlot] = []
        self._topic: str | None = None
        self._dragged: dict[str, float] = {}
        self._least: list[int] = []
        self._presented = False
        self.splitterMoved.connect(self._keep_heights)

    def turn_to(self, topic: str | None) -> None:
        """Use the heights that were dragged for ``topic``; with ``None`` nothing is remembered."""
        # Another topic loads its own heights; none (an idle window) keeps the current ones.
        if topic is not None and topic != self._topic:
            kept = recall_of(_HEIGHTS, topic)
            self._dragged = {name: float(px) for name, px in kept.items() if isinstance(px, (int, float)) and px > 0}
            self._share()
        self._topic = topic

    def set_presented(self, presented: bool) -> None:
        """Keep every plot as high as `PRESENTED_PX`; as many as that allows fill the view."""
        if presented != self._presented:
            self._presented = presented
            self._share()

    def settle(self) -> None:
        """Distribute the height again if a plot now needs more, as for mark labels above it."""
        if [plot.least_height for plot in self._shown] != self._least:
            self._share()

    def begin_again(self) -> None:
        """Forget the dragged heights."""
        self._dragged = {}
        self._remember()
        self._share()

    def place(self, plots: Sequence[TimePlot]) -> None:
        """Show these plots, in this order."""
        # Only if they changed: inserting an existing widget makes a splitter forget its sizes.
        if list(plots) != self._shown:
            self._shown = list(plots)
            for position, plot in enumerate(plots):
                self.insertWidget(position, plot)
                plot.show()
        self._share()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._share()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Resize:  # of the viewport; the column itself may be at its minimum height
            self._share()
        return super().eventFilter(watched, event)

    def _keep_heights(self) -> None:
        self._dragged.update({plot.spec.id: float(plot.height()) for plot in self._shown})
        self._remember()

    def _remember(self) -> None:
        if self._topic is not None:
            remember_of(_HEIGHTS, self._topic, dict(self._dragged))

    def _share(self) -> None:
        """Distribute the height among the plots."""
        specs = [plot.spec for plot in self._shown]
        if not specs:
            return
        self._set_least()
        weights = self._weights(specs)
        # The handles between the plots take room too.
        room = self.height() - HANDLE_PX * (len(weights) - 1)
        least = [plot.minimumHeight() or plot.minimumSizeHint().height() for plot in self._shown]
        heights = iter(shared_out(room, weights, least))
        shown = set(self._shown)
        # Hidden plots keep their place in the splitter, with height 0.
        self.setSizes([next(heights) if self.widget(place) in shown else 0 for place in range(self.count())])

    def _set_least(self) -> None:
        """Set minimum heights: those of the specs, or less if a plot would otherwise be out of view."""
        viewport = self.parentWidget()
        if viewport is None:
            return
        shares = [0.0 if self._dragged else plot.spec.least_share for plot in self._shown]
        promised = [round(share * viewport.height()) for share in shares]
        least = self._least = [plot.least_height for plot in self._shown]
        in_view = max(1, viewport.height() // (scaled(PRESENTED_PX) + self.handleWidth()))
        if self._presented and in_view < len(self._shown):
            height = (viewport.height() - self.handleWidth() * (in_view - 1)) // in_view
            for plot in self._shown:
                plot.tighten(0)
                plot.setMinimumHeight(height)
            return
        # How much is missing to show all plots without scrolling.
        lacking = sum(map(max, least, promised)) + self.handleWidth() * (len(least) - 1) - viewport.height()
        low = [plot for plot, own, given in zip(self._shown, least, promised, strict=True) if own > given]
        for plot, given in zip(self._shown, promised, strict=True):
            plot.setMinimumHeight(given)
            plot.tighten(0)
        # Each gives an equal part of what is still missing; the next ones give what one cannot.
        for left, plot in zip(range(len(low), 0, -1), low, strict=True):
            lacking -= plot.tighten(math.ceil(lacking / left))

    def _weights(self, specs: Sequence[PlotSpec]) -> list[float]:
        """Dragged heights, and for other plots their stretch at that scale; without any, stretch and least share."""
        heights = self._dragged
        # Pixels per unit of stretch among the dragged plots, so that an undragged one gets its usual share.
        known = [heights[spec.id] / spec.stretch for spec in specs if spec.id in heights]
        unit = 1.0
        if known:
            unit = sum(known) / len(known)
        weights = [heights.get(spec.id, unit * spec.stretch) for spec in specs]
        if not known:
            for place, spec in enumerate(specs):
                others = sum(weights) - weights[place]
                # Solved for this plot's weight: w / (w + others) must be at least its share.
                weights[place] = max(weights[place], others * spec.least_share / (1 - spec.least_share))
        return weights


def shared_out(room: int, weights: Sequence[float], least: Sequence[int]) -> list[int]:
    """Divide ``room`` by weight. Anything below its minimum gets the minimum, and the others share the rest.

    A splitter would take what is missing from a neighbour, depending on the previous sizes.
    """
    heights = dict(enumerate(least))
    sharing = set(heights)
    # A plot held at its minimum leaves less for the others, so another may fall short: repeat until none does.
    while sharing:
        left = room - sum(height for place, height in heights.items() if place not in sharing)
        unit = left / sum(weights[place] for place in sharing)
        short = {place for place in sharing if weights[place] * unit < least[place]}
        if not short:
            heights.update({place: round(weights[place] * unit) for place in sharing})
            break
        sharing -= short
    return [max(1, heights[place]) for place in range(len(weights))]
