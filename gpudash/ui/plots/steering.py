"""What the keys of the plots do; the window binds them."""

from __future__ import annotations

from abc import abstractmethod

from PySide6.QtCore import SignalInstance

from gpudash.telemetry.store import Store
from gpudash.ui.plots.curve import CurveSpec
from gpudash.ui.plots.marks import Mark
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.view import TimeView


class Steering:
    """The commands of a stack of plots that move its view, its cursor or its axes."""

    view: TimeView
    store: Store
    mark_requested: SignalInstance

    @property
    @abstractmethod
    def plots(self) -> list[TimePlot]:
        """The plots shown, from top to bottom."""

    @property
    @abstractmethod
    def focused(self) -> TimePlot | None:
        """The plot that has the keyboard focus."""

    @property
    @abstractmethod
    def marks(self) -> list[Mark]:
        """The marks shown, in order of time."""

    @property
    @abstractmethod
    def visible_curves(self) -> list[CurveSpec]:
        """Every curve that is shown, from the top plot down."""

    @abstractmethod
    def _touch(self) -> None:
        """Let the next refresh draw."""

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
        times = [mark.time_s for mark in self.marks]
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

    def toggle_log_of(self, plot: TimePlot) -> None:
        """Logarithmic or linear axis for one plot."""
        plot.toggle_log()
        self._touch()

    def fit(self, plot: TimePlot) -> None:
        """Fit one plot's left axis to the data again."""
        plot.reset_y()
        self._touch()

    def zoom(self, factor: float) -> None:
        """Ctrl+plus and Ctrl+minus: zoom at the cursor, else at the middle."""
        self.view.zoom(factor, self.view.cursor_s)

    def _bring_into_view(self, time_s: float) -> None:
        start, end = self.view.range()
        if not start <= time_s <= end:
            self.view.pan(time_s - (start + end) / 2)
        self.view.set_cursor(time_s, pinned=True)
