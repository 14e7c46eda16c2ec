"""After an out-of-memory: finds changes with which the run would have fitted, by dry runs in a child process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpudash.memory.explaining.explanation_text import alike, failure_title
from gpudash.memory.explaining.remedies import NONE_FOUND, with_dry_run
from gpudash.memory.predicting.estimate import Estimate, Target
from gpudash.session.live.machine import Machine
from gpudash.session.predicting.estimates import Estimates
from gpudash.session.predicting.estimator import TOOK_TOO_LONG, Answer, Estimator
from gpudash.specs import Spec, workloads
from gpudash.specs.pressure import fills_memory
from gpudash.system.threads import started
from gpudash.telemetry.explanation import Explanation, PartKind, Remedy
from gpudash.telemetry.records import Event, RemediesFound, RunEnd, RunStarted
from gpudash.telemetry.runs import RunView, run_of
from gpudash.telemetry.store import Store
from gpudash.units import format_bytes, format_duration

WORK_LIMIT_S = 20.0
"""Processor time for a search; a busy machine takes longer for the same work."""

TIME_LIMIT_S = 90.0
"""Time limit for a search by the clock, however busy the machine is."""

AFTER_THE_CONTEXT: tuple[PartKind, ...] = ("context", "unattributed", "category", "idle", "pending", "private")
"""Parts that exist only after the CUDA context; if the context cannot be measured, it counts as "unattributed"."""

UNKNOWN = "The workload {workload} is not known here with these fields, so no change of it could be tried."

SEARCHING = "Looking for what would have fitted"
STILL_SEARCHING = "Looking further for what would have fitted"


@dataclass(frozen=True, slots=True)
class SoFar:
    """Progress of a search.

    Attributes:
        found: changes that would have fitted, the best first.
        tried: number of changes tried.
        predicted: whether the run itself has been simulated; changes are tried after that.
        seconds: time since the search began, in whole seconds.
    """

    found: tuple[Remedy, ...] = ()
    tried: int = 0
    predicted: bool = False
    seconds: int = 0

    @property
    def progress_text(self) -> str:
        """Progress in words: "Looking for what would have fitted: 3 changes tried, 12 s…"."""
        if not self.predicted:
            stage = "following the run itself"
        elif not self.tried:
            stage = "trying the first change"
        else:
            stage = f"{self.tried} change{'s' * (self.tried != 1)} tried"
        return f"{STILL_SEARCHING if self.found else SEARCHING}: {stage}, {self.seconds} s…"

    @property
    def brief_text(self) -> str:
        """The same in one narrow line, below what was found: "Still searching: 3 tried, 12 s…"."""
        return f"Still searching: {self.tried} tried, {self.seconds} s…"


class Remedies:
    """Searches remedies for the newest out-of-memory and reports them in a note.

    Args:
        machine: the devices.
        store: the runs and the newest readings.
        emit: callback for the note; called on a thread of its own.
        clock: session time in seconds.
        estimator: makes the process that predicts.
    """

    def __init__(
        self,
        machine: Machine,
        store: Store,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        estimator: Callable[[], Estimator] = Estimator,
    ) -> None:
        self._machine = machine
        self._store = store
        self._emit = emit
        self._clock = clock
        self._estimator = estimator
        self._search: _Search | None = None
        self._ending: list[_Search] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self, event: Event) -> None:
        """Start a search when memory runs out, and stop it when the next run begins. Called by the session's thread.

        Args:
            event: any event, once it is in the store.
        """
        if isinstance(event, RunStarted):
            self._end()
        elif isinstance(event, RunEnd) and event.explanation is not None:
            self._end()
            with self._lock:
                if not self._closed:
                    self._begin(event, event.explanation)
        elif isinstance(event, RemediesFound) and self._search is not None:
            self._search.reported.set()  # last: `wait` promises that the store has it

    @property
    def so_far(self) -> SoFar | None:
        """Progress of the search; ``None`` while there is none. Safe from any thread."""
        search = self._search
        if search is None or search.reported.is_set():
            return None
        return search.so_far

    def wait(self, timeout_s: float) -> bool:
        """Wait until the search's result is in the store; returns true immediately if there is no search."""
        search = self._search
        return search is None or search.reported.wait(timeout_s)

    def close(self) -> bool:
        """Stop searching, for good; false if the thread could not be joined."""
        with self._lock:
            self._closed = True
        self._end()
        closed = [search.close() for search in self._ending]
        return all(closed)

    def _begin(self, event: RunEnd, explanation: Explanation) -> None:
        with self._store.lock:
            run = run_of(self._store.runs, event.run_id)
        if run is None:
            return
        spec = _spec_of(run)
        # An estimator of its own: this search and the form's requests must not cancel each other.
        estimates = _Afterwards(self._machine, self._store, self._estimator(), explanation)

        def report(found: Explanation) -> None:
            self._emit(
                RemediesFound(
                    time_s=self._clock(),
                    run_id=event.run_id,
                    text=found_text(found.remedies, found.remedies_note),
                    found=found.findings,
                )
            )

        if spec is None:
            estimates.close()
            report(replace(explanation, remedies_note=UNKNOWN.format(workload=run.workload)))
        else:
            self._search = _Search(spec, run.device, estimates, explanation, report)

    def _end(self) -> None:
        """Stop the search without waiting, since the session's thread must go on; `close` waits."""
        search, self._search = self._search, None
        self._ending = [search for search in self._ending if search.alive]
        if search is not None:
            search.end()
            self._ending.append(search)


class _Search:
    """A search, on a thread of its own."""

    def __init__(
        self,
        spec: Spec,
        device: str,
        estimates: Estimates,
        explanation: Explanation,
        report: Callable[[Explanation], None],
    ) -> None:
        self.reported = threading.Event()
        self._spec = spec
        self._device = device
        self._estimates = estimates
        self._explanation = explanation
        self._report = report
        self._ended = False
        self._known = SoFar()
        self._began_s = time.monotonic()
        self._thread = started("gpudash-remedies", self._run)

    @property
    def alive(self) -> bool:
        """Whether its thread is still running."""
        return self._thread.is_alive()

    @property
    def so_far(self) -> SoFar:
        """Its progress."""
        return replace(self._known, seconds=int(time.monotonic() - self._began_s))

    def end(self) -> None:
        """Stop, as soon as the thread notices."""
        self._ended = True
        # Also wakes waiters: there will be no further report.
        self.reported.set()

    def close(self) -> bool:
        """Wait for the thread after `end`; false if one could not be joined."""
        closed = self._estimates.close()
        self._thread.join(0.5)
        return closed and not self._thread.is_alive()

    def _run(self) -> None:
        reported = False
        try:
            found = self._found()
            if not self._ended:
                self._report(found)
                reported = True
        finally:
            if not reported:
                self.reported.set()
            self._estimates.close()

    def _found(self) -> Explanation:
        explanation = self._explanation
        try:
            self._estimates.ask(self._spec, self._device, time_limit_s=WORK_LIMIT_S, longest_s=TIME_LIMIT_S)
        except (ValueError, RuntimeError) as error:
            return replace(explanation, remedies_note=f"{error}")
        began = time.monotonic()
        answer = self._answer() or Answer()
        problem = answer.problem
        note = ""
        # Running out of time is no problem of the run: the results so far stand.
        if not answer.final or (problem is not None and problem.kind == TOOK_TOO_LONG):
            note = f"Looking for remedies was stopped after {format_duration(time.monotonic() - began)}."
        elif problem is not None:
            note = problem.message
        if answer.estimate is None:
            return replace(explanation, remedies_note=note)
        return self._with(answer.estimate, note)

    def _with(self, estimate: Estimate, note: str) -> Explanation:
        return with_dry_run(self._explanation, estimate, raises_cap=not fills_memory(self._spec), note=note)

    def _answer(self) -> Answer | None:
        """The final answer, or the latest one at the time limit. Waits in short intervals, so that `end` takes
        effect."""
        answer = None
        while not self._ended:
            answer = self._estimates.wait(0.1)
            if answer is None:
                continue
            if answer.final:
                break
            estimate = answer.estimate
            # Only for a new change: judging all of them takes longer than an interval.
            if estimate is not None and (not self._known.predicted or len(estimate.alternatives) > self._known.tried):
                found = self._with(estimate, SEARCHING).remedies
                self._known = SoFar(found, len(estimate.alternatives), predicted=True)
        return answer


class _Afterwards(Estimates):
    """Predictions for a device in the state that it had without the failed run."""

    def __init__(self, machine: Machine, store: Store, estimator: Estimator, explanation: Explanation) -> None:
        super().__init__(machine, store, estimator)
        self._explanation = explanation

    def target(self, device: str) -> Target:
        found, explanation = super().target(device), self._explanation
        if device != explanation.device:
            return found
        free = explanation.capacity_bytes - self._others_bytes
        found = replace(
            found,
            capacity_bytes=explanation.capacity_bytes,
            free_bytes=free if explanation.allowed_bytes is None else min(free, explanation.allowed_bytes),
        )
        # The run had its context before it failed. The card's used memory includes it: do not count it twice.
        if not explanation.part_bytes(*AFTER_THE_CONTEXT):
            return found
        return replace(found, overhead_bytes=0, overhead_words="the context is there already")

    def used_bytes(self, device: str) -> int | None:
        if device == self._explanation.device:
            return self._others_bytes
        return super().used_bytes(device)

    @property
    def _others_bytes(self) -> int:
        """Memory in use that did not belong to the run's tensors."""
        return self._explanation.part_bytes("process", "context", "unattributed")


def _with_peak(remedy: Remedy) -> str:
    if remedy.predicted_peak_bytes is None:
        return remedy.change
    return f"{remedy.change} ({format_bytes(remedy.predicted_peak_bytes)})"


def found_text(found: tuple[Remedy, ...], note: str) -> str:
    """The result in one sentence."""
    if not found:
        return note or NONE_FOUND
    first = ", ".join(map(_with_peak, alike(found)[:3]))
    return f"{failure_title(found[:1])}: {first}."


def _spec_of(run: RunView) -> Spec | None:
    """The spec of a run; ``None`` if its workload is unknown here."""
    kind = workloads().get(run.workload)
    if kind is None:
        return None
    # A field at its default is passed as not given: some checks of a spec tell the two apart.
    given = {name: value for name, value in run.spec.items() if not _is_default(kind, name, value)}
    try:
        return kind.model_validate(given).predicted
    except ValueError:
        return None


def _is_default(kind: type[Spec], name: str, value: Any) -> bool:
    field = kind.model_fields.get(name)
    return field is not None and field.default == value
