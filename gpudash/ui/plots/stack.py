"""All plots under one another: the window's timer calls `refresh`, everything else follows from the shared view."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from gpudash.telemetry.store import Store
from gpudash.ui.plots.curve import CurveSpec, PlotSpec
from gpudash.ui.plots.describe import describe_plot
from gpudash.ui.plots.marks import CATEGORIES, Mark, marks_of
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.reading import PlotData, Row, Smoothing, read_plot, read_row, read_statistics, visible_rows
from gpudash.ui.plots.readout import Readout
from gpudash.ui.plots.strip import SelectionStrip
from gpudash.ui.plots.view import TimeView
from gpudash.ui.theme import Palette

DESCRIBE_S = 1.0
"""Shortest time between two updates of the words for a screen reader."""

STATISTICS_S = 0.4
"""Shortest time between two updates of the strip's figures while nothing but the data changes."""

SETTLED_S = 5.0
"""A paused view this far behind the newest reading gets no new samples."""

LEAD_RATIO = 0.06
"""Share of the window kept free right of now while a forecast is drawn."""


class PlotStack(QWidget):
    """The plots, the readout beside them and the strip below.

    Args:
        store: where the series are; read under its lock.
        view: the shared time axis.
        palette: colours in force.
        clock: monotonic seconds; for tests.

    Signals:
        mark_requested: session time at which the user wants a mark.
        hidden_changed: a curve was hidden or shown.
        menu_requested: the plot, and a global position.
    """

    mark_requested = Signal(float)
    hidden_changed = Signal()
    menu_requested = Signal(object, object)

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
        self.strip = SelectionStrip(palette)
        self._palette = palette
        self._clock = clock
        self._smoothing = Smoothing()
        self._plots: dict[str, TimePlot] = {}
        self._order: list[str] = []
        self._marks: list[Mark] = []
        self._marks_key: object = None
        self._hidden_marks: frozenset[str] = frozenset()
        self._drawn_key: object = None
        self._changes = 0
        self._axes = (0.0, 0.0)
        self._described_at = self._measured_at = -1e9
        self._measured_key: object = None
        self._build()
        for signal in (view.changed, view.cursor_changed, view.selection_changed):
            signal.connect(self._touch)
        view.selection_changed.connect(self._selection_changed)
        self.strip.cleared.connect(view.clear_selection)
        self.strip.folded.connect(self._remeasure)

    def _build(self) -> None:
        self._column_widget = QWidget()
        self._column_widget.setProperty("role", "scrolled")
        self._column = QVBoxLayout(self._column_widget)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(4)
        self._scroll = QScrollArea()
        self._scroll.setWidgetResizable(True)
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._scroll.setWidget(self._column_widget)
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(2)
        grid.addWidget(self._scroll, 0, 0)
        grid.addWidget(self.readout, 0, 1)
        grid.addWidget(self.strip, 1, 0, 1, 2)
        grid.setColumnStretch(0, 1)
        grid.setRowStretch(0, 1)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def set_plots(self, specs: Sequence[PlotSpec]) -> None:
        """Show these plots in this order. A plot whose spec is unchanged keeps its widget and what is hidden in it."""
        wanted = {spec.id: spec for spec in specs}
        if [plot.spec for plot in self.plots] == list(specs):
            return
        for name, plot in list(self._plots.items()):
            if name in wanted and plot.spec != wanted[name]:
                self._remove(name)
            elif name not in wanted:
                plot.hide()
        for position, spec in enumerate(specs):
            plot = self._plots.get(spec.id) or self._create(spec)
            self._column.removeWidget(plot)
            self._column.insertWidget(position, plot, spec.stretch)
            plot.show()
        self._order = list(wanted)
        self._axes = (0.0, 0.0)
        self._touch()

    @property
    def plots(self) -> list[TimePlot]:
        """The plots shown, from top to bottom."""
        return [self._plots[name] for name in self._order]

    def plot(self, name: str) -> TimePlot | None:
        """The plot with this id, where it is shown."""
        return self._plots[name] if name in self._order else None

    @property
    def focused(self) -> TimePlot | None:
        """The plot that has the keyboard focus."""
        return next((plot for plot in self.plots if plot.canvas.hasFocus()), None)

    @property
    def smoothing(self) -> float:
        """Weight of the past in the smoothed curves; 0 is raw."""
        return self._smoothing.weight

    def set_smoothing(self, weight: float) -> None:
        """Smooth loss and accuracy.

        Raises:
            ValueError: when ``weight`` is not from 0 to below 1.
        """
        self._smoothing.set_weight(weight)
        self._touch()

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        for part in (*self._plots.values(), self.readout, self.strip):
            part.set_palette(palette)
        self._remeasure()

    def set_forecast(self, name: str, points: Sequence[tuple[float, float]] | None) -> None:
        """Extend the plot ``name`` by a dashed line; the view keeps room for it while one is drawn."""
        plot = self._plots.get(name)
        if plot is not None:
            plot.set_forecast(points)
        self.view.set_lead(self.view.window_s * LEAD_RATIO if any(p.has_forecast for p in self.plots) else 0.0)
        self._touch()

    def set_hidden_marks(self, categories: Iterable[str]) -> None:
        """Hide marks of these categories (see `marks.CATEGORIES`)."""
        self._hidden_marks = frozenset(categories) & frozenset(CATEGORIES)
        self._marks_key = None
        self._touch()

    @property
    def marks(self) -> list[Mark]:
        """The marks shown, in order of time."""
        return self._marks

    def show_all_curves(self) -> None:
        """Hide nothing in any plot."""
        for plot in self._plots.values():
            plot.legend.show_all()

    @property
    def visible_curves(self) -> list[CurveSpec]:
        """Every curve that is shown, from the top plot down."""
        return [curve for plot in self.plots for curve in plot.visible_curves]

    def refresh(self, *, force: bool = False) -> bool:
        """Bring everything up to date; called by the window's one timer.

        Args:
            force: draw even when nothing changed or nothing is seen.

        Returns:
            Whether anything was drawn.
        """
        if not (force or self.isVisible()):
            return False
        plots = [plot for plot in self.plots if force or not plot.visibleRegion().isEmpty()]
        with self.store.lock:
            newest = self.store.newest_s
            self.view.set_now(newest)
            version = self.store.version if self.view.behind_s < SETTLED_S else -1
            key = (version, self._changes, tuple(plot.spec.id for plot in plots))
            if key == self._drawn_key and not force:
                return False
            self._read_marks()
            data = [self._read(plot) for plot in plots]
            groups = self._read_rows()
            statistics = self._read_statistics(force)
            self._describe(plots, data)
        self._drawn_key = key
        self._draw(plots, data, groups, newest)
        self.strip.show_range(self.view.selection, self.view.range())
        if statistics is not None:
            self.strip.show_statistics(*statistics)
        return True

    def pause(self) -> None:
        """Space: pause the view, or follow again."""
        self.view.toggle()

    def show_all(self) -> None:
        """Home: show everything the plots have."""
        with self.store.lock:
            extents = [s.extent() for c in self.visible_curves if (s := self.store.series(*c.key)) is not None]
        known = [extent for extent in extents if extent is not None]
        if known:
            self.view.show_all((min(e[0] for e in known), max(e[1] for e in known)))
        for plot in self.plots:
            plot.reset_y()
        self._touch()

    def jump_to_now(self) -> None:
        """End: follow the newest reading again."""
        self.view.set_cursor(None)
        self.view.follow()

    def move_cursor(self, steps: int) -> None:
        """Left and Right: move the cursor by samples of the focused plot's first curve with data."""
        plots = [plot for plot in (self.focused, *self.plots) if plot is not None]
        cursor = self.view.cursor_s
        with self.store.lock:
            at = self.store.newest_s if cursor is None else cursor
            for curve in (curve for plot in plots for curve in plot.visible_curves):
                series = self.store.series(*curve.key)
                target = None if series is None else series.neighbour(at, steps)
                if target is not None:
                    self._bring_into_view(target)
                    return

    def jump_mark(self, direction: int) -> None:
        """[ and ]: put the cursor on the mark before (−1) or after (1) it."""
        at = self.view.cursor_s if self.view.cursor_s is not None else self.view.right_s
        times = [mark.time_s for mark in self._marks]
        ahead = [t for t in times if t > at + 1e-9] if direction > 0 else [t for t in times if t < at - 1e-9]
        if ahead:
            self._bring_into_view(ahead[0] if direction > 0 else ahead[-1])

    def request_mark(self) -> None:
        """M: ask for a mark at the cursor, or now without one."""
        cursor = self.view.cursor_s
        self.mark_requested.emit(self.store.newest_s if cursor is None else cursor)

    def toggle_log(self) -> None:
        """L: logarithmic axis for the focused plot, else for every plot that may have one."""
        focused = self.focused
        for plot in [focused] if focused is not None and focused.spec.may_log else self.plots:
            plot.toggle_log()
        self._touch()

    def zoom(self, factor: float) -> None:
        """Ctrl+plus and Ctrl+minus: zoom at the cursor, else at the middle."""
        self.view.zoom(factor, self.view.cursor_s)

    def _bring_into_view(self, time_s: float) -> None:
        start, end = self.view.range()
        if not start <= time_s <= end:
            self.view.pan(time_s - (start + end) / 2)
        self.view.set_cursor(time_s, pinned=True)

    def _create(self, spec: PlotSpec) -> TimePlot:
        plot = TimePlot(spec, self.view, self._palette)
        plot.hidden_changed.connect(self._hidden_changed)
        plot.gestures.area_resized.connect(self._touch)
        plot.gestures.y_zoomed.connect(self._touch)
        plot.menu_requested.connect(lambda position, plot=plot: self.menu_requested.emit(plot, position))
        self._plots[spec.id] = plot
        return plot

    def _remove(self, name: str) -> None:
        plot = self._plots.pop(name)
        self._column.removeWidget(plot)
        plot.release()
        plot.deleteLater()

    def _read(self, plot: TimePlot) -> PlotData:
        return read_plot(self.store, plot.spec, plot.hidden, self.view.range(), plot.columns, self._smoothing)

    def _read_rows(self) -> list[tuple[PlotSpec, list[Row]]]:
        hidden = {plot.spec.id: plot.hidden for plot in self.plots}
        specs = [plot.spec for plot in self.plots]
        return visible_rows(self.store, specs, hidden, self.view.cursor_s, self._smoothing)

    def _read_marks(self) -> None:
        markers = self.store.markers
        key = (self.store.event_count, len(markers), markers[-1] if markers else None)
        if key != self._marks_key:
            self._marks_key = key
            marks = marks_of(markers, self.store.events)
            self._marks = [mark for mark in marks if mark.category not in self._hidden_marks]

    def _read_statistics(self, force: bool) -> tuple[list[CurveSpec], list[object]] | None:
        curves = self.visible_curves
        key = (self.view.selection, tuple(curves), self.strip.open)
        due = self._clock() - self._measured_at >= STATISTICS_S
        if not self.strip.open or not (due or force or key != self._measured_key):
            return None
        self._measured_at, self._measured_key = self._clock(), key
        return curves, list(read_statistics(self.store, curves, self.view.selection or self.view.range()))

    def _describe(self, plots: Sequence[TimePlot], data: Sequence[PlotData]) -> None:
        if self._clock() - self._described_at < DESCRIBE_S:
            return
        self._described_at = self._clock()
        for plot, fresh in zip(plots, data, strict=True):
            rows = [read_row(self.store, curve, None, self._smoothing) for curve in plot.visible_curves]
            plot.set_description(describe_plot(self.store, plot.spec, fresh, rows))
        self.readout.describe()

    def _draw(
        self,
        plots: Sequence[TimePlot],
        data: Sequence[PlotData],
        groups: list[tuple[PlotSpec, list[Row]]],
        newest: float,
    ) -> None:
        for plot, fresh in zip(plots, data, strict=True):
            plot.take(fresh, newest)
        widths = [plot.axis_widths() for plot in self.plots]
        self._axes = (
            max([self._axes[0], *(left for left, _ in widths)], default=0.0),
            max([self._axes[1], *(right for _, right in widths)], default=0.0),
        )
        for position, plot in enumerate(self.plots):
            plot.set_frame(
                self._axes[0] + 2,
                max(self._axes[1], 10.0) + 2,
                shows_time=position == len(self.plots) - 1,
                shows_mark_labels=position == 0,
            )
        rows = {spec.id: group for spec, group in groups}
        cursor = self.view.cursor_s
        for plot in plots:
            plot.draw(self._marks, rows[plot.spec.id] if cursor is not None else ())
        self.readout.show_rows(cursor, newest, groups)

    def _touch(self) -> None:
        self._changes += 1

    def _hidden_changed(self) -> None:
        self._touch()
        self.hidden_changed.emit()

    def _selection_changed(self) -> None:
        self._measured_key = None
        if self.view.selection is not None:
            self.strip.set_open(True)

    def _remeasure(self) -> None:
        self._measured_key = None
        self._touch()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() is QEvent.Type.FontChange:
            self._touch()
        super().changeEvent(event)
