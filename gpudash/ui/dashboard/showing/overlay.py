"""Recorded runs overlaid as thin curves on the plots of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.session.source import DashboardSource
from gpudash.telemetry.plots import PlotSpec
from gpudash.ui.dashboard.showing.runs import MARGIN_RATIO, ShownRuns
from gpudash.ui.plots.view import TimeView

if TYPE_CHECKING:
    from gpudash.session.recordings.comparing.overlaid_runs import OverlaidRuns


class ShownOverlay:
    """The overlaid runs, kept aligned with the run in view.

    Args:
        session, view, runs: what they lie over.
        report: called with a sentence about a run that could not be read.
    """

    def __init__(
        self, session: DashboardSource, view: TimeView, runs: ShownRuns, report: Callable[[str], object]
    ) -> None:
        self._session = session
        self._view = view
        self._runs = runs
        self._report = report
        self._overlaid: OverlaidRuns | None = None
        self._brings_into_view = False
        self._before: tuple[float, float] | None = None

    @property
    def is_shown(self) -> bool:
        """Whether runs are overlaid."""
        return self._overlaid is not None and self._overlaid.chosen

    def choose(self, runs: OverlaidRuns, places: Sequence[Path]) -> None:
        """Overlay recorded runs, from the start of the run in view, else from now; no places remove them.

        Unless a run goes on, the view stays with them: they are in view whole, and do not move away with time. Once
        they are removed it returns to the run that it held before, or follows.
        """
        was_shown = self.is_shown
        if not was_shown:
            self._before = None
            if self._view.held:
                self._before = self._view.range()
        self._overlaid = runs
        run = self._runs.in_view()
        if run is not None:
            began_s = run.began_s
        elif self._view.origin_s is not None:
            began_s = self._view.origin_s
        else:
            began_s = self._session.store.newest_s
        runs.choose(places, began_s)
        self._brings_into_view = runs.chosen and (run is None or run.ended_s is not None)
        if was_shown and not runs.chosen:
            self._view.origin_s = None
            if self._before is None:
                self._view.follow()
            elif not self._view.following:
                self._view.hold(*self._before)

    def align(self) -> None:
        """Align them with the run in view, and report what could not be read."""
        overlaid = self._overlaid
        if overlaid is None:
            return
        run = self._runs.in_view()
        if run is not None:
            overlaid.align(run.began_s)
        span = overlaid.span
        if not overlaid.chosen:
            self._view.origin_s = None
        elif span is not None:
            self._view.origin_s = span[0]
        if span is not None and self._brings_into_view:
            self._brings_into_view = False
            self._view.hold(span[0], span[1] + (span[1] - span[0]) * MARGIN_RATIO)
        if overlaid.problem:
            self._report(overlaid.problem)
            overlaid.problem = ""

    def on(self, plots: Sequence[PlotSpec]) -> Sequence[PlotSpec]:
        """The plots with the curves of the overlaid runs. The caller holds the store's lock."""
        if self._overlaid is None:
            return plots
        return self._overlaid.on(plots)
