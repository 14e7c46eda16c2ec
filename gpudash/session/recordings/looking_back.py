"""The runs of a recording as they were at a moment of it."""

from __future__ import annotations

from collections.abc import Sequence

from gpudash.telemetry.recording.digests import restore
from gpudash.telemetry.recording.pages import Digest, digests
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.recording.seekable_store import Everything
from gpudash.telemetry.records import EpochFinished, Event, Note, StageFinished, StepFinished, Warning
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.series import Series
from gpudash.telemetry.store import Key

MOST_EVENTS = 20_000
"""Events before a moment that are read again at most to tell how far a run had come."""

_TOLD = (EpochFinished, Note, Warning)


class LookingBack:
    """Makes the runs of a moment, going on from the moment before where it can.

    Args:
        whole: all of the recording.
        known: the digests that the recording had when it was opened; newer ones are read when they are needed.
    """

    def __init__(self, whole: Everything, known: Sequence[Digest]) -> None:
        self._whole = whole
        self._digests = list(known)
        self._run: RunView | None = None
        self._event = 0

    def runs_at(self, recording: Recording, rows: Rows, time_s: float) -> list[RunView]:
        """Those that had begun at ``time_s``, when each table had been written up to ``rows``."""
        with self._whole.lock:
            begun = [run for run in self._whole.runs if run.began_s <= time_s]
        return [
            run if run.ended_s is not None and run.ended_s <= time_s else self._then(recording, run, rows, time_s)
            for run in begun
        ]

    def _then(self, recording: Recording, run: RunView, rows: Rows, time_s: float) -> RunView:
        view, digest = self._run, self._newest_digest(recording, run, rows)
        known = -1 if digest is None else digest.event
        if view is None or view.began_s != run.began_s or not known <= self._event <= rows["event"]:
            view = RunView(run.run_id, run.workload, run.device, run.spec, run.simulated, run.began_s)
            if digest is None:
                known = recording.rows_at(run.began_s, {"event": rows["event"]})["event"]
            else:
                restore(view, digest.text)
            self._event = known
        steps = [
            event
            for event in recording.events(max(self._event, rows["event"] - MOST_EVENTS), rows["event"])
            if isinstance(event, StepFinished | StageFinished) and self._concerns(event, run)
        ]
        with self._whole.lock:
            told = [e for e in self._whole.events if isinstance(e, _TOLD) and run.began_s <= e.time_s <= time_s]
            view.notes, view.epochs, view.warnings = [], [], []
            for event in (*steps, *(event for event in told if self._concerns(event, run))):
                view.apply(event)
            self._peaks(view, time_s)
        self._run, self._event = view, rows["event"]
        return view

    def _newest_digest(self, recording: Recording, run: RunView, rows: Rows) -> Digest | None:
        """The newest digest of a run among the events of then; a recording that is being written gets more of them."""
        known = self._digests[-1].event if self._digests else -1
        if rows["event"] - known > MOST_EVENTS:
            self._digests.extend(digests(recording, known))
        return self._digest(run, rows)

    def _digest(self, run: RunView, rows: Rows) -> Digest | None:
        """The newest digest of a run among the events of then."""
        of_run = (digest for digest in reversed(self._digests) if digest.run_id == run.run_id)
        return next((digest for digest in of_run if digest.event <= rows["event"]), None)

    @staticmethod
    def _concerns(event: Event, run: RunView) -> bool:
        return event.run_id is None or event.run_id == run.run_id

    def _peaks(self, view: RunView, time_s: float) -> None:
        """Raise the peaks to the highest readings since the run began; the caller holds the lock."""
        uuid = self._whole.links.get(view.device)
        used: Key = ("host", "process_bytes", None) if view.device == "cpu" else ("gpu", "used_bytes", uuid)
        keys: tuple[tuple[str, Key], ...] = (
            ("used_bytes", used),
            ("allocated_bytes", ("allocator", "allocated_bytes", view.device)),
            ("allocated_bytes", ("allocator", "peak_allocated_bytes", view.device)),
            ("reserved_bytes", ("allocator", "reserved_bytes", view.device)),
            ("reserved_bytes", ("allocator", "peak_reserved_bytes", view.device)),
        )
        for name, key in keys:
            series = self._whole.series(*key)
            found = None if series is None else Series.statistics(series, view.began_s, time_s)  # extremes are exact
            if found is not None:
                view.memory.raise_to(name, found.max)  # type: ignore[arg-type]  # three literals
        total = self._whole.latest(*(("host", "total_bytes") if view.device == "cpu" else ("gpu", "total_bytes", uuid)))
        if isinstance(total.value, int | float):
            view.memory.capacity_bytes = int(total.value)
