"""After an out-of-memory: what change would have let the run fit, found by dry runs in a process of their own."""

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
from gpudash.telemetry.explanation import Explanation, PartKind, Remedy
from gpudash.telemetry.records import Event, RemediesFound, RunEnd, RunStarted
from gpudash.telemetry.runs import RunView, run_of
from gpudash.telemetry.store import Store
from gpudash.units import format_bytes, format_duration

WORK_LIMIT_S = 20.0
"""Processor time for which remedies are looked for: a machine that is busy otherwise takes longer for as many."""

TIME_LIMIT_S = 90.0
"""Longest that remedies are looked for, however busy the machine is."""

AFTER_THE_CONTEXT: tuple[PartKind, ...] = ("context", "unattributed", "category", "idle", "pending", "private")
"""What is there only once the context is; where it cannot be measured, it is among what is unattributed."""

UNKNOWN = "The workload {workload} is not known here with these fields, so no change of it could be tried."

SEARCHING = "Looking for what would have fitted"
STILL_SEARCHING = "Looking further for what would have fitted"


@dataclass(frozen=True, slots=True)
class SoFar:
    """How far a search has come.

    Attributes:
        found: what would have fitted of what was tried, the best first.
        tried: how many changes were tried.
        predicted: whether the run itself has been followed, without which no change can be.
        seconds: how long it has gone on, in whole ones.
    """

    found: tuple[Remedy, ...] = ()
    tried: int = 0
    predicted: bool = False
    seconds: int = 0

    @property
    def progress_text(self) -> str:
        """What goes on: "Looking for what would have fitted: 3 changes tried, 12 s…"."""
        if not self.predicted:
            stage = "following the run itself"
        elif not self.tried:
            stage = "trying the first change"
        else:
            stage = f"{self.tried} change{'s' * (self.tried != 1)} tried"
        return f"{STILL_SEARCHING if self.found else SEARCHING}: {stage}, {self.seconds} s…"


class Remedies:
    """Looks for remedies of the newest out-of-memory, and tells them by a note.

    Args:
        machine: the devices.
        store: the runs, and the newest readings.
        emit: takes the note; called on a thread of its own.
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
        """Begin to look when memory has run out, and end it when the next run begins; by the session's thread.

        Args:
            event: any, once the store has it.
        """
        if isinstance(event, RunStarted):
            self._end()
        elif isinstance(event, RunEnd) and event.explanation is not None:
            self._end()
            with self._lock:
                if not self._closed:
                    self._begin(event, event.explanation)
        elif isinstance(event, RemediesFound) and self._search is not None:
            # The store has it now, which is what `wait` promises.
            self._search.reported.set()  # not before: who waits for it reads it in the store

    @property
    def so_far(self) -> SoFar | None:
        """How far the search has come; ``None`` while nothing is looked for. For any thread."""
        search = self._search
        if search is None or search.reported.is_set():
            return None
        return search.so_far

    def wait(self, timeout_s: float) -> bool:
        """Wait until the store has what is looked for; true at once when nothing is looked for."""
        search = self._search
        return search is None or search.reported.wait(timeout_s)

    def close(self) -> bool:
        """Look no more, for good; false when the thread could not be joined."""
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
        # Its own estimator: the form's question must not take the place of this search, nor the other way round.
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
        """Stop the search without waiting for it; `close` waits, since the session's thread must go on."""
        search, self._search = self._search, None
        self._ending = [search for search in self._ending if search.alive]
        if search is not None:
            search.end()
            self._ending.append(search)


class _Search:
    """One search, on a thread of its own."""

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
        self._thread = threading.Thread(target=self._run, name="gpudash-remedies", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs still."""
        return self._thread.is_alive()

    @property
    def so_far(self) -> SoFar:
        """What is known until now."""
        return replace(self._known, seconds=int(time.monotonic() - self._began_s))

    def end(self) -> None:
        """Look no more, as soon as the thread notices."""
        self._ended = True
        # Also wakes waiters: nothing more will be reported.
        self.reported.set()

    def close(self) -> bool:
        """Wait for the end that `end` asked for; false when a thread could not be joined."""
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
        answer = self._answer()
        estimate = None
        problem = None
        if answer is not None:
            estimate = answer.estimate
            problem = answer.problem
        # Out of time is no problem of the run: what was found by then stands.
        if answer is None or not answer.final or (problem is not None and problem.kind == TOOK_TOO_LONG):
            note = f"Looking for remedies was stopped after {format_duration(time.monotonic() - began)}."
        else:
            if problem is None:
                note = ""
            else:
                note = problem.message
        if estimate is None:
            return replace(explanation, remedies_note=note)
        return self._with(estimate, note)

    def _with(self, estimate: Estimate, note: str) -> Explanation:
        return with_dry_run(self._explanation, estimate, raises_cap=not fills_memory(self._spec), note=note)

    def _answer(self) -> Answer | None:
        """The whole answer, or what there is of it at the limit; waited for in parts: `end` is heard."""
        answer = None
        while not self._ended:
            answer = self._estimates.wait(0.1)
            if answer is not None and answer.final:
                break
            estimate = None
            if answer is not None:
                estimate = answer.estimate
            # Only with each new change: judging all of them takes longer than a turn.
            if estimate is not None and (not self._known.predicted or len(estimate.alternatives) > self._known.tried):
                found = self._with(estimate, SEARCHING).remedies
                self._known = SoFar(found, len(estimate.alternatives), predicted=True)
        return answer


class _Afterwards(Estimates):
    """Predictions for a device as it was without the run that failed on it."""

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
        # The run had made its context before it failed: its bytes are among what the card held, and are not taken
        # twice.
        if not explanation.part_bytes(*AFTER_THE_CONTEXT):
            return found
        return replace(found, overhead_bytes=0, overhead_words="the context is there already")

    def used_bytes(self, device: str) -> int | None:
        if device == self._explanation.device:
            return self._others_bytes
        return super().used_bytes(device)

    @property
    def _others_bytes(self) -> int:
        """What was taken and not by the run's tensors."""
        return self._explanation.part_bytes("process", "context", "unattributed")


def _with_peak(remedy: Remedy) -> str:
    if remedy.predicted_peak_bytes is None:
        return remedy.change
    return f"{remedy.change} ({format_bytes(remedy.predicted_peak_bytes)})"


def found_text(found: tuple[Remedy, ...], note: str) -> str:
    """What was found, in a sentence."""
    if not found:
        return note or NONE_FOUND
    first = ", ".join(_with_peak(remedy) for remedy in alike(found)[:3])
    return f"{failure_title(found[:1])}: {first}."


def _spec_of(run: RunView) -> Spec | None:
    """The spec of a run; ``None`` when its workload is not known here."""
    kind = workloads().get(run.workload)
    if kind is None:
        return None
    # a field at its default counts as not given, which is not the same to every check of a spec
    given = {name: value for name, value in run.spec.items() if not _is_default(kind, name, value)}
    try:
        return kind.model_validate(given).predicted
    except ValueError:
        return None


def _is_default(kind: type[Spec], name: str, value: Any) -> bool:
    field = kind.model_fields.get(name)
    return field is not None and field.default == value
