"""Which run of a session a dashboard shows, and how long the view stays with it."""

from __future__ import annotations

import math

from gpudash.session.recordings.run_names import given_name
from gpudash.session.source import DashboardSource
from gpudash.telemetry.plots import run_in_view
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.telemetry.store import Store
from gpudash.ui.plots.view import TimeView

MARGIN_S, MARGIN_RATIO = 0.5, 0.05
"""Margin in seconds on either side of a run, and its maximum as a fraction of the run."""

LEAST_SPAN_S = 2.0
"""Minimum seconds shown for a run: a shorter one has few readings of its own."""


class ShownRuns:
    """The runs of a session, seen through the view of its plots.

    Attributes:
        earlier_viewed: whether the view holds a run that the user asked for, which no prediction covers.
    """

    def __init__(self, session: DashboardSource, view: TimeView) -> None:
        self._session = session
        self._view = view
        self.earlier_viewed = False
        self._past: tuple[tuple[float, float], Store] | None = None

    def in_view(self) -> RunView | None:
        """The run in view; ``None`` if there is none."""
        with self._session.store.lock:
            return run_in_view(self._session.store, self._view.range())

    def newest(self) -> RunView | None:
        """The run that began last; ``None`` if there is none."""
        with self._session.store.lock:
            return self._session.store.run

    def in_front(self) -> RunView | None:
        """The run that commands act on: the one in view, else the newest."""
        if self._view.following:
            return self.newest()
        return self.in_view() or self.newest()

    def store(self) -> Store:
        """The session's store; in a recording, as of the end of the run in view where a later one follows."""
        store = self._session.store
        run = self.in_front()
        if self._session.live is not None or run is None or run.ended_s is None or run == self.newest():
            return store
        key = run.began_s, run.ended_s
        if self._past is None or self._past[0] != key:
            try:
                self._past = key, store.at(run.ended_s)
            except RecordingError:
                return store
        return self._past[1]

    def name(self, run: RunView) -> str:
        """Name of a run of the session, as in the library. The caller holds the store's lock."""
        runs = enumerate(self._session.store.runs, 1)
        number = next((number for number, one in runs if (one.run_id, one.began_s) == (run.run_id, run.began_s)), 0)
        return self._session.run_title(number) or given_name(run.workload, run.device, run.spec)

    def program_began_s(self) -> float:
        """When the program began that is watched now, if what ran before was another one: beside each other, the curves
        of two programs look like those of one. -inf otherwise."""
        with self._session.store.lock:
            runs = list(self._session.store.runs)[-2:]
        if len(runs) < 2 or not self._view.following or runs[1].ended_s is not None:
            return -math.inf
        before, now = ((run.workload, run.spec.get("command"), run.spec.get("pid")) for run in runs)
        if before == now or WATCH not in (before[0], now[0]):
            return -math.inf
        return runs[1].began_s

    def show(self, run: RunView | None) -> None:
        """Show a whole run as far as it has come, or everything for none."""
        with self._session.store.lock:
            newest = self._session.store.newest_s
        if run is None:
            self._view.show(0.0, max(newest, 1.0))
        elif run.ended_s is None:
            self._view.show(*_span_of(run, newest))
        else:
            self._view.show(*_span_of(run, run.ended_s))

    def hold_newest(self, *, program_ended: bool) -> RunView | None:
        """Keep the whole of the run that just ended in view; leave a paused view alone, the user chose it.

        Args:
            program_ended: whether the program of the run has ended, and its processes are still being ended.

        Returns:
            the run; ``None`` if the view was left alone.
        """
        with self._session.store.lock:
            run = self._session.store.run
            newest = self._session.store.newest_s
        if run is None or not (self._view.following or (self._view.held and program_ended)):
            return None
        if run.ended_s is not None:
            self._view.hold(*_span_of(run, run.ended_s))
        elif program_ended:
            self._view.hold(*_span_of(run, newest))
        return run

    def hold(self, number: int) -> RunView | None:
        """Keep a run, counted from 1, in view until something new starts; ``None`` if there is no such run."""
        with self._session.store.lock:
            runs = list(self._session.store.runs)
        if not 1 <= number <= len(runs):
            return None
        run = runs[number - 1]
        self.earlier_viewed = True
        if run.ended_s is None:
            self._view.follow()
            return run
        left, right = _span_of(run, run.ended_s)
        if number < len(runs):  # with the margin, the next run would become the run in view
            right = min(right, math.nextafter(runs[number].began_s, -math.inf))
        self._view.hold(left, right)
        return run


def _span_of(run: RunView, end_s: float) -> tuple[float, float]:
    """Session time range that shows a run up to ``end_s`` whole, with a margin."""
    margin = min(MARGIN_S, (end_s - run.began_s) * MARGIN_RATIO)
    return max(0.0, min(run.began_s - margin, end_s + margin - LEAST_SPAN_S)), end_s + margin
