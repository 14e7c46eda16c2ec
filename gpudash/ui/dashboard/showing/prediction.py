"""What a dashboard's plots show of a prediction: of the run about to start, and behind the run in view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpudash.drawing.ghost import RunningGhost
from gpudash.session.predicting.deviations import Deviation
from gpudash.session.source import DashboardSource
from gpudash.telemetry.plots import CurveSpec, PlotSpec, run_in_view
from gpudash.telemetry.runs import RunView
from gpudash.ui.dashboard.showing.devices import ShownDevice
from gpudash.ui.dashboard.showing.overlay import ShownOverlay
from gpudash.ui.dashboard.showing.runs import ShownRuns
from gpudash.ui.forms.fit_follower import FitFollower
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.plots.prediction.copies import CopiesView, copies_plot
from gpudash.ui.plots.prediction.ghost import COLOURS, GhostView
from gpudash.ui.plots.stack import PlotStack

GHOST_STRETCH = 6
"""Stretch factor of a plot that shows a prediction."""


class ShownPrediction:
    """The prediction of `fit` in the plots of a session.

    Args:
        session: whose runs are predicted.
        fit: predicts the form's run; ``None`` for a recording.
        panel: the form.
        plots: where it is drawn.
        device, runs, overlay: what else the plots show.
    """

    def __init__(
        self,
        session: DashboardSource,
        fit: FitFollower | None,
        panel: WorkloadPanel,
        plots: PlotStack,
        device: ShownDevice,
        runs: ShownRuns,
        overlay: ShownOverlay,
    ) -> None:
        self._session = session
        self._fit = fit
        self._panel = panel
        self._plots = plots
        self._view = plots.view
        self._device = device
        self._runs = runs
        self._overlay = overlay

    @property
    def ghost(self) -> GhostView | None:
        """The prediction for the run about to start, if the memory plot shows it.

        It is shown while nothing runs and the view follows, or holds the last run. Going back in time, or selecting a
        range, shows measurements instead, and overlaid runs belong on measurements.
        """
        view = self._view
        if not (view.following or view.held) or view.selection is not None:
            return None
        if (self._runs.earlier_viewed and view.held) or self._overlay.is_shown:
            return None
        return self._predicted

    @property
    def _predicted(self) -> GhostView | None:
        """The prediction, whether or not it is shown at the moment."""
        if self._fit is None or self._device.on_first_screen:
            return None
        # A script names its device itself; it may be a card that exists only while the script runs.
        if not (self._panel.watching or self._device.is_called(self._fit.device)):
            return None
        return self._fit.ghost

    def draw(self) -> None:
        """Hand what is shown to the plots."""
        shown = self.ghost
        copies = None
        if shown is not None and shown.ghost is not None and len(shown.ghost.copies) > 0:
            copies = CopiesView(shown.ghost, shown.faded)
        self._plots.set_ghost("memory", shown)
        self._plots.set_copies("transfer", copies)
        self.draw_remedy()

    def draw_remedy(self) -> None:
        """Hand what the remedy under the pointer would change in the ghost to the plots."""
        remedy = None
        if self._fit is not None and self.ghost is not None:
            remedy = self._fit.remedy
        self._plots.set_remedy("memory", remedy)

    def draw_behind_run(self) -> None:
        """Draw the prediction of the run in view behind its readings, with the places where the run left it."""
        self._plots.set_running_ghost("memory", *self._behind_run())

    def _behind_run(self) -> tuple[RunningGhost | None, Sequence[Deviation]]:
        span = self._view.range()
        with self._session.store.lock:
            run = run_in_view(self._session.store, span)
            if self._fit is None or run is None or not self._device.is_called(run.device):
                return None, ()
            running = self._fit.running_ghost_of(run, span)
            if running is None:
                return None, ()
            return running, self._fit.deviations_of(running, run)

    def with_peak(self, plots: Sequence[PlotSpec], run: RunView | None) -> Sequence[PlotSpec]:
        """Mark the predicted peak of the run in view in the memory plot. The caller holds the store's lock."""
        if self._fit is None or run is None or not self._device.is_called(run.device):
            return plots
        line = self._fit.prediction_line(run)
        if line is None:
            return plots
        found = []
        for plot in plots:
            if plot.id == "memory":
                # Behind the capacity, which is named at any width.
                plot = replace(plot, lines=(*plot.lines[:1], line, *plot.lines[1:]))
            found.append(plot)
        return found

    def on(self, plots: Sequence[PlotSpec]) -> Sequence[PlotSpec]:
        """Replace the memory plot's curves with the ribbons of the ghost while one is shown."""
        predicted = self._predicted
        if predicted is None:
            return plots
        shown = self.ghost
        if predicted.ghost is not None and len(predicted.ghost.copies) > 0:
            below = copies_plot(shown is not None)
            plots = [*plots[:1], below, *(plot for plot in plots[1:] if plot.id != below.id)]
        found = []
        for plot in plots:
            if plot.id == "memory":
                # Keep the height when it shows readings for a while: a range is selected with the pointer, so nothing
                # may move.
                plot = replace(plot, stretch=GHOST_STRETCH)
                if shown is not None:
                    plot = _of_ghost(plot, shown)
            found.append(plot)
        return found


THIN = 0.02
"""Share of the peak below which a ribbon is hardly seen: the legend names it last."""


def _of_ghost(plot: PlotSpec, shown: GhostView) -> PlotSpec:
    """The memory plot with one curve per ribbon. They stand in for readings and have none."""
    table, _, device = plot.curves[0].key
    parts: Mapping[str, float] = {}
    state = "not predicted"
    if shown.ghost is not None and shown.ghost.names:
        parts = shown.ghost.parts
        state = "predicted"
    least = THIN * sum(parts.values())
    curves = tuple(
        CurveSpec(
            (table, f"predicted {name}", device),
            name,
            "bytes",
            COLOURS.get(name, name),
            stack=True,
            aside=size < least,
        )
        for name, size in parts.items()
    )
    return replace(plot, title=shown.title or f"{plot.title}, {state}", curves=curves, lines=())
