"""Keeps the fit panel in step with the form: requests predictions and shows the results, without ever blocking."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpudash.devices.names import SimulatedCard, card_name, shown_name
from gpudash.devices.simulated_cards import exact_text
from gpudash.drawing.ghost import Ghost, RunningGhost
from gpudash.memory.allocator.trace import ACTIVATIONS, INPUTS, TEMPORARY
from gpudash.memory.predicting.card_text import CardsAnswer
from gpudash.memory.predicting.estimate import Alternative, CardEstimate, Estimate, Target
from gpudash.memory.predicting.prediction import AFTER_RELEASE, Prediction, change_text, time_text
from gpudash.memory.serving.on_card import ServerOnCard
from gpudash.session import Answer, Session
from gpudash.session.predicting.deviations import LATE_S, WATCHED_LATE_S, Deviation, Readings, deviations
from gpudash.session.predicting.estimator import OTHER_PYTHON, Problem
from gpudash.session.predicting.ghosts import MOST_STEPS, OTHERS, in_time, prediction_note, server_ghost
from gpudash.session.watching.request import WatchRequest, python_with_torch
from gpudash.specs import Spec, TrainingSpec
from gpudash.specs.changes import batch_fields, largest_size, size_field
from gpudash.speed.time_text import span_text
from gpudash.telemetry.explanation import Remedy, RunChange
from gpudash.telemetry.plots import LineSpec
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.ui.forms.fit_panel import PREDICTING
from gpudash.ui.forms.workload_panel import FormState, WorkloadPanel
from gpudash.ui.plots.prediction.ghost import GhostVerdict, GhostView
from gpudash.ui.plots.prediction.peak_handle import SizedPeak
from gpudash.ui.plots.prediction.remedy import RemedyView
from gpudash.units import MIB, SizeScale, format_bytes, format_date

if TYPE_CHECKING:
    from gpudash.session.predicting.measured import MeasuredRun

POLL_S = 2.0
"""Seconds between checks whether free memory has changed."""

CHANGED_RATIO = 0.05
"""Change of free memory, as a fraction of capacity, that makes a prediction out of date."""

LEAST_CHANGE_BYTES = 64 * MIB

RUNS_AGAIN = "known when its run ends"
"""Why nothing is said of the cards while a script runs that was measured before."""

NAME_PYTHON = "Name a Python that has torch 2.9 or newer under More > Python."


class FitFollower:
    """Updates the predictions; the window calls it at every refresh.

    Args:
        session: makes the predictions.
        panel: the form, with the fit panel in it.
        clock: monotonic seconds.

    Attributes:
        cards: cards to predict besides the form's device, as if they were empty.
        on_answer: called after each answer, on the predicting thread; it must not wait.
        on_cards: what is known about them and about every device.
    """

    def __init__(self, session: Session, panel: WorkloadPanel, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._panel = panel
        self._clock = clock
        self._due = True
        self._show_for = 0.0
        self._requested_free: int | None = None
        self._requested_device = panel.device_name
        self._requested = False
        self._shown: Answer | None = None
        self._running = False
        self._ghost: GhostView | None = None
        self._ghost_wanted = True
        self._run_id = self._newest_run_id()
        self._of_run: _OfRun | None = None
        # `remedy` is queried at every frame: keep the view object while its drawing is the same.
        self._remedy: RemedyView | None = None
        self._deviations: tuple[object, tuple[Deviation, ...]] = (None, ())
        # The form before the change that was applied last, and that change; until the form is changed again.
        self._before_applied: tuple[FormState, str] | None = None
        self._script: WatchRequest | None = None
        self._measured: MeasuredRun | None = None
        self._refused: WatchRequest | None = None
        self._with_torch: tuple[WatchRequest | None, str] = (None, "")
        self.cards: Sequence[SimulatedCard] = ()
        self.on_answer: Callable[[], object] = lambda: None
        self.on_cards = CardsAnswer()
        self._workload_on_cards = ""
        # What is sure of the cards, for one spec: choosing another card must not make it less sure.
        self._decided: dict[str, CardEstimate] = {}
        self._decided_spec: Spec | None = None
        panel.changed.connect(self.form_changed)
        panel.fit.applied.connect(self._apply)
        panel.fit.taken_back.connect(self._take_back)
        panel.prediction.requested.connect(self._predict_script)
        panel.prediction.python_wanted.connect(self._predict_with)
        panel.prediction.stopped.connect(lambda: session.scripts.stop())

    @property
    def device(self) -> str:
        """torch's name of the device of the last request."""
        return self._requested_device

    @property
    def ghost(self) -> GhostView | None:
        """What the memory plot shows of the run before it starts: its ribbons, or why there are none.

        ``None`` during a run, and after it until the form is changed: the plot keeps the measurements.
        """
        if self._ghost_wanted and not self._running:
            return self._ghost
        return None

    @property
    def awaited(self) -> bool:
        """Whether a request was sent and none of its answers has been shown yet."""
        return self._requested and self._shown is None

    @property
    def remedy(self) -> RemedyView | None:
        """The change focused in the fit panel, as the plot shows it over the run's own ghost."""
        answer = self._shown
        way = self._panel.fit.regarded_alternative
        if answer is None or answer.estimate is None or way is None or self.ghost is None:
            return None
        tried = answer.estimate.alternatives
        if way.alternative not in tried:
            return None
        drawn = answer.remedies.get(tried.index(way.alternative))
        if drawn is None:
            return None
        if self._remedy is None or self._remedy.ghost is not drawn:
            detail = " · ".join(filter(None, (way.spare, time_text(way.alternative))))
            self._remedy = RemedyView(drawn, f"with {way.change}: {way.needs}", detail)
        return self._remedy

    def take_size(self, size: int, drag: int) -> None:
        """Set the batch in the form to the size that the peak was dragged to.

        Args:
            size: the batch.
            drag: number of the drag; 0 for a key.
        """
        spec = self._panel.spec()
        if isinstance(spec, TrainingSpec) and not self._running:
            change = partial(self._panel.change_fields, batch_fields(spec, size))
            self._panel.replace_fields("Change of Batch", change, kind="batch", drag=drag)

    def form_changed(self) -> None:
        """Request a new prediction with the next frame; the process drops the current one then."""
        if self._running:
            return
        self._before_applied = None
        self._panel.fit.show_applied("")
        self._ghost_wanted = True
        # Keep the old ghost, faded, until the next one is ready, so that nothing jumps while the user types.
        self._fade()
        self._fade_cards()
        self._due = True
        self._session.estimates.leave()
        self._panel.fit.withdraw(self._panel.correction or PREDICTING)
        self._panel.set_forecast("")

    def refresh(self) -> None:
        """Send a request if one is due, and show new results."""
        if self._session.running != self._running:
            self._run_changed()
        run_id = self._newest_run_id()
        if run_id != self._run_id:  # also if the run ended between two refreshes
            self._run_id = run_id
            self._ghost_wanted = False
            self._withdraw_measured()
        if not self._session.torch_ready and not self._running:
            self._panel.fit.withdraw("predicting needs PyTorch; it is loading…")
            return
        if self._due:
            self._ask()
            return
        self._show_script()
        # A request that raised (in `_ask`) has no result of its own.
        if self._requested:  # else the newest answer is for earlier values of the form
            self._show(self._session.estimates.newest())
        if self._running:
            self._show_reached()
        else:
            self._check_free()

    def _withdraw_measured(self) -> None:
        """Withdraw what the script took when it last ran, now that it runs again: it may take more."""
        if self._script is None or not self._is_newest(self._script):
            return
        self._session.measured.forget(self._script)
        if self._measured is not None and self._shown is None:  # a prediction holds
            self.on_cards = CardsAnswer(requested=True, reason=RUNS_AGAIN)

    def _is_newest(self, script: WatchRequest) -> bool:
        """Whether the newest run is of this script, on whatever card, without a change."""
        with self._session.store.lock:
            run = self._session.store.run
        if run is None or run.workload != WATCH:
            return False
        began = WatchRequest.from_spec(run.spec)
        return (tuple(began.command), began.folder, began.edit) == (tuple(script.command), script.folder, script.edit)

    def _newest_run_id(self) -> int | None:
        with self._session.store.lock:
            run = self._session.store.run
            if run is None:
                return None
            return run.run_id

    def _run_changed(self) -> None:
        """Keep the run's prediction; when the run ends, predict again, since free memory may have changed."""
        self._running = self._session.running
        self._ghost_wanted = self._ghost_wanted and not self._running
        self._panel.fit.set_running(self._running)
        # A form changed just before the start is still predicted: it is what runs.
        self._due = self._due or not self._running

    def _show_reached(self) -> None:
        """Compare the prediction with its run; runs with other values do not count."""
        store = self._session.store
        with store.lock:
            run = store.run
            if run is None:
                return
            change = self._change_in(run, [earlier for earlier in store.runs if earlier is not run])
            if change is not None:
                self._show_changed(change)
            if change is not None or not self._is_of_form(run):
                return
            requested = run.workload, run.device, run.spec
            reserved = run.peak_reserved_bytes
        self._panel.fit.show_reached(reserved)
        answer = self._shown
        if answer is None or answer.estimate is None or answer.ghost is None:
            return
        known = self._of_run
        # For each run again: on the CPU, the process may hold a different amount by then.
        if known is None or (known.run_id, known.ghost) != (run.run_id, answer.ghost):
            self._of_run = _OfRun(run.run_id, requested, Prediction(answer.estimate), answer.ghost)
            step = answer.times.get(answer.estimate.device)
            self._session.emit(prediction_note(answer.ghost, self._session.clock(), run.run_id, step))

    def _change_in(self, run: RunView, earlier: Sequence[RunView]) -> RunChange | None:
        """The change with which a run is of the form's script: one that was predicted, or found after an out-of-memory;
        ``None`` if it is another program, or has no known change."""
        script = self._script
        if script is None or run.workload != WATCH:
            return None
        known: list[RunChange] = []
        if self._shown is not None and self._shown.estimate is not None:
            known += self._shown.estimate.alternatives
        for failed in earlier:
            if failed.error is not None and failed.error.explanation is not None:
                known += failed.error.explanation.remedies
        began = run.spec
        for change in known:
            changed = script.with_remedy(_as_remedy(change))
            if replace(changed, find_need=script.find_need) == script:
                continue
            if changed.spec() == began:
                return change
        return None

    def _show_changed(self, change: RunChange) -> None:
        """Show what the script needs with the change that it runs with, in place of what it needs without."""
        estimate = None
        if self._shown is not None:
            estimate = self._shown.estimate
        need = None
        if isinstance(change, Alternative):
            need = change.needed_bytes
        elif isinstance(change, Remedy) and change.predicted_peak_bytes and estimate is not None:
            need = change.predicted_peak_bytes + estimate.overhead_bytes
        text = "what it needs so was not predicted"
        if need is not None and estimate is not None and estimate.free_bytes is not None:
            scale = SizeScale.of(need, estimate.free_bytes)
            text = f"needs {scale.label(need)} of {scale.label(estimate.free_bytes)} free"
        elif need is not None:
            text = f"needs {format_bytes(need)}"
        self._panel.fit.show_changed_run(f"with {change_text(change)}", text)

    def _is_of_form(self, run: RunView) -> bool:
        """Whether a run has the values of the form."""
        if self._script is not None:
            began = WatchRequest.from_spec(run.spec)
            script = self._script
            same = tuple(began.command) == tuple(script.command) and began.folder == script.folder
            return run.workload == WATCH and same and began.simulate == tuple(script.simulate) and not began.edit
        spec = self._panel.spec()
        if spec is None:
            return False
        return (run.workload, run.device, run.spec) == (spec.name, self._requested_device, spec.model_dump(mode="json"))

    def running_ghost_of(self, run: RunView, span: tuple[float, float]) -> RunningGhost | None:
        """The ghost of a run on its time axis, for the steps that end within ``span``; ``None`` if the run has no
        steps or was not predicted. The caller holds the store's lock.
        """
        known, store = self._known_of(run), self._session.store
        if known is None:
            return None
        ghost = self._ghost_of(known, run)
        if ghost is None:
            return None
        return in_time(ghost, run, store, span)

    def deviations_of(self, running: RunningGhost, run: RunView) -> tuple[Deviation, ...]:
        """The steps of a run in view that deviate from its prediction. The caller holds the store's lock.

        On the CPU nothing is marked: nobody reports what tensors hold, and the process holds more than they do.
        """
        if run.device == "cpu":
            return ()
        span = run.began_s, run.stepped_s or run.began_s
        reserved = self._readings("reserved_bytes", run.device, span)
        # Recompute deviations for a new step or reading only, not at every frame.
        key = running.ghost, running.step, len(running.ended), len(reserved[0])
        if key != self._deviations[0]:
            allocated = self._readings("allocated_bytes", run.device, span, only_peaks=True)
            late_s = WATCHED_LATE_S if run.workload == WATCH else LATE_S
            self._deviations = key, deviations(running, reserved, allocated, late_s)
        return self._deviations[1]

    def _readings(self, metric: str, device: str, span: tuple[float, float], *, only_peaks: bool = False) -> Readings:
        """The peaks since the previous reading if known, else the readings; up to the first after the span."""
        store = self._session.store
        # `only_peaks`: a reading between two steps says nothing about the peak of a step.
        for name in (f"peak_{metric}", metric)[: 1 if only_peaks else 2]:
            series = store.series("allocator", name, device)
            if series is not None and series.extent() is not None:
                return series.window(span[0], span[1] + BEHIND_S, MOST_STEPS)
        return np.empty(0), np.empty(0)

    def _known_of(self, run: RunView) -> _OfRun | None:
        known = self._of_run
        if known is None or known.requested != (run.workload, run.device, run.spec):
            return None
        return known

    def _ghost_of(self, known: _OfRun, run: RunView) -> Ghost | None:
        """The prediction for a run, placed on its readings: on the CPU on top of what its process held before;
        ``None`` if that was not read. The caller holds the store's lock."""
        if run.device != "cpu":
            return known.ghost
        if known.upon_process is not None:
            return known.upon_process
        series = self._session.store.series("host", "process_bytes")
        if series is None:
            return None
        before = series.at(run.began_s, BEFORE_S)
        if before is None:
            return None
        known.upon_process = known.ghost.above(OTHERS, before)
        known.upon_process.prepare()
        return known.upon_process

    def prediction_line(self, run: RunView) -> LineSpec | None:
        """The predicted peak of a run, with what it reached; ``None`` without a prediction, and on the CPU, where the
        memory includes more than a run's tensors. The caller holds the store's lock.
        """
        known = self._known_of(run)
        if known is None or run.device == "cpu":
            return None
        text = known.prediction.reached_text(run.peak_reserved_bytes)
        if not text:
            return None
        return LineSpec(text, "difference", value=known.ghost.highest, style="dot", shows_value=False)

    def _ask(self) -> None:
        self._due = self._requested = False
        self._shown = None
        self._script = self._measured = None
        spec = self._panel.spec()
        self._fade()
        self._fade_cards()
        if self._panel.watching and self._panel.script.ready:
            self._script = self._panel.script.request()
            self._session.measured.request(self._script)
            self._session.scripts.request(self._script, self.cards)
        if spec is None:
            self._panel.fit.withdraw(self._panel.correction or PREDICTING)
            return
        if spec.missing:
            self.on_cards = CardsAnswer()
            self._panel.fit.show_missing(spec.missing)
            self._ghost = GhostView(None, spec.missing)
            return
        self._show_for = self._clock() + POLL_S
        device = self._requested_device = spec.own_device or self._panel.device_name
        try:
            self._session.estimates.on_answer(self.on_answer)
            self._requested_free = self._session.estimates.target(device).free_bytes
            self._session.estimates.ask(spec, device, timeline=True, cards=self.cards)
        except (ValueError, RuntimeError) as error:
            self.on_cards = CardsAnswer(requested=True, reason=str(error))
            self._panel.fit.show_reason(str(error), "")
            self._ghost = GhostView(None, str(error))
            return
        self._requested = True
        self._panel.fit.withdraw()

    def _show(self, answer: Answer | None) -> None:
        if answer is None or answer is self._shown:
            return
        self._shown = answer
        if answer.servers:
            self._show_servers(answer.servers)
            return
        estimate, problem = answer.estimate, answer.problem
        self._ghost = _ghost_view(answer, self._panel.spec())
        if self._ghost is not None and self._script is not None and self._script.simulate:
            self._ghost = replace(self._ghost, title=f"MEMORY {card_name(self._script.simulate[0])}, predicted")
        self._show_cards(answer)
        if estimate is not None and estimate.peak_allocated_bytes is not None:
            at_peak = None
            if answer.ghost is not None:
                at_peak = answer.ghost.parts
            step = answer.times.get(estimate.device)
            self._panel.fit.show_estimate(estimate, whole=answer.final, at_peak=at_peak, step=step)
            short = estimate.fits is False and not estimate.fills_memory
            self._panel.set_forecast(self._panel.fit.headline if short else "")
        elif problem is not None:
            self._panel.fit.show_reason(problem.message, problem.remedy)
            if problem.kind != UNAVAILABLE and self._script is None:
                self._panel.set_forecast(problem.message)
        elif estimate is not None:
            self._panel.fit.show_reason(estimate.reason, "")

    def _show_servers(self, servers: Mapping[str, ServerOnCard]) -> None:
        """Show what a server of the model needs, here and on every card."""
        self.on_cards = CardsAnswer(servers, requested=True)
        own = servers.get(self._requested_device)
        if own is None:
            return
        self._panel.fit.show_server(own)
        self._ghost = _server_view(own)

    def _predict_script(self) -> None:
        if not self._panel.script.ready or self._running:
            return
        request = self._panel.script.request()
        try:
            self._session.scripts.begin(request, self.cards)
        except (ValueError, RuntimeError) as error:
            self._panel.prediction.show_problem(str(error), "")
            self._refused = request
            return
        self._refused = None
        self._panel.script.remember()

    def _show_script(self) -> None:
        """Show what is known about the user's script: its prediction, else what it took when it last ran."""
        if not self._panel.watching:
            return
        request, shown = self._script, self._panel.prediction
        following = self._session.scripts.following
        if following is not None:
            shown.show_following(following.name, time.monotonic() - following.began_s)
        if request is None:
            self._panel.show_fit(False)
            if following is None:
                shown.show_unasked(ready=False)
            return
        answer = self._session.scripts.of(request)
        if answer is None:
            self._panel.show_fit(False)
            self._show_measured(request)
            if following is None and request != self._refused:
                shown.show_unasked(ready=not self._running)
            return
        if following is None and answer.problem is not None:
            self._show_problem(request, answer.problem)
        elif following is None:
            shown.show_answered(ready=not self._running)
        if answer is not self._shown:
            self._panel.show_fit(answer.estimate is not None)
            self._show(answer)

    def _show_problem(self, request: WatchRequest, problem: Problem) -> None:
        """Show why a script has no prediction; if its Python has no torch, with one that has."""
        remedy, python = problem.remedy, ""
        if remedy == OTHER_PYTHON:
            if self._with_torch[0] != request:
                found = python_with_torch(request.folder or Path.cwd(), request.command[0])
                self._with_torch = request, str(found or "")
            python = self._with_torch[1]
            remedy = "" if python else NAME_PYTHON
        self._panel.prediction.show_problem(problem.message, remedy, python)

    def _predict_with(self, python: str) -> None:
        self._panel.script.python.setText(python)
        self._panel.script.remember()
        self._predict_script()

    def _show_measured(self, request: WatchRequest) -> None:
        """Show what the script took when it last ran, once that is found."""
        found = self._session.measured.of(request)
        if found is None or found is self._measured or (self._running and self._is_newest(request)):
            return
        self._measured = found
        self._ghost = _measured_view(found, self._target_of(request, found))
        # The script's own card need not be among those that are offered.
        cards = {exact_text(card): card for card in (*self.cards, *request.simulate)}
        answers = {key: found.on(key, self._session.estimates.empty_target(card)) for key, card in cards.items()}
        self.on_cards = CardsAnswer(answers, requested=True)

    def _target_of(self, request: WatchRequest, found: MeasuredRun) -> Target | None:
        """The device the script would run on now; ``None`` if unknown."""
        if request.simulate:
            return self._session.estimates.empty_target(request.simulate[0])
        try:
            return self._session.estimates.target(found.device)
        except ValueError:
            return None

    def _show_cards(self, answer: Answer) -> None:
        """Take over what is known about the cards; results of an earlier request stay until there are new ones."""
        known = dict(answer.cards)
        times = dict(answer.times)
        reason = ""
        if answer.estimate is not None:
            own = CardEstimate.of(answer.estimate)
            key = own.device
            if self._script is not None and self._script.simulate:
                key = exact_text(self._script.simulate[0])
            known[key] = replace(own, key=key)
            if own.device in times:
                times[key] = times[own.device]
            reason = own.reason
        elif answer.problem is not None:
            reason = answer.problem.message
        known = self._with_decided(known)
        self.on_cards = CardsAnswer(known, self.on_cards.before, True, not answer.final, reason, times)

    def _with_decided(self, cards: Mapping[str, CardEstimate]) -> dict[str, CardEstimate]:
        """The answers for cards; one that is not followed itself has its sure answer from when it was, if any."""
        spec = self._panel.spec()
        if spec != self._decided_spec:
            self._decided_spec = spec
            self._decided.clear()
        known = dict(cards)
        if spec is None:  # a script is only ever followed on one card
            return known
        for key, found in cards.items():
            sure = self._decided.get(key)
            if not found.borrowed:
                self._decided[key] = found
            elif sure is not None and sure.free_bytes == found.free_bytes:
                known[key] = sure.with_largest_of(found)
        return known

    def _fade_cards(self) -> None:
        """Mark what is known about the cards as results of an earlier request."""
        spec = self._panel.spec()
        before = {**self.on_cards.before, **self.on_cards.known}
        requested = spec is not None or bool(self._panel.correction)
        # If nothing can be predicted (a script), nothing is kept either.
        if not requested:
            before = {}
            self._workload_on_cards = ""
        # Results for another workload, or for a script, do not carry over.
        if spec is not None and spec.name != self._workload_on_cards:
            before = {}
            self._workload_on_cards = spec.name
        self.on_cards = CardsAnswer({}, before, requested, awaited=spec is not None)

    def _fade(self) -> None:
        """Keep the ghost of an earlier request, faded; drop it if nothing can be predicted."""
        wrong = self._panel.correction
        if self._panel.spec() is None and not wrong:
            self._ghost = None
        elif self._ghost is not None and self._ghost.ghost is None:
            # The reason why other values had no prediction does not apply to these.
            self._ghost = GhostView(None, wrong or PREDICTING, faded=True)
        elif self._ghost is not None:
            self._ghost = replace(self._ghost, faded=True, detail=wrong or self._asking(self._ghost.sized))

    def _asking(self, answered: SizedPeak | None) -> str:
        """The size being predicted, if it differs from the one drawn."""
        spec = self._panel.spec()
        if answered is None or not isinstance(spec, TrainingSpec) or spec.rank_batch == answered.size:
            return PREDICTING
        return f"asking for {answered.name} {spec.rank_batch}"

    def _check_free(self) -> None:
        """Predict again if free memory has changed noticeably since the request."""
        if self._clock() < self._show_for or self._requested_free is None:
            return
        self._show_for = self._clock() + POLL_S
        try:
            target = self._session.estimates.target(self._requested_device)
        except ValueError:
            return
        if target.free_bytes is None:
            return
        # A fraction of the card, but at least the amount by which desktops fluctuate all the time.
        bound = max(LEAST_CHANGE_BYTES, CHANGED_RATIO * (target.capacity_bytes or 0))
        if abs(target.free_bytes - self._requested_free) > bound:
            self._due = True

    def _apply(self, alternative: Alternative) -> None:
        if self._running:
            return
        if alternative.patch or alternative.command:
            self._run_edited(alternative)
            return
        before, change = self._panel.state, change_text(alternative)
        self._panel.replace_fields(f"Apply of {change}", partial(self._take, alternative))
        if before is not None and self._panel.state != before:
            self._before_applied = before, change
            self._panel.fit.show_applied(change)

    def _take_back(self) -> None:
        """Put the form back to what it was before the change that was applied last."""
        if self._before_applied is None or self._running:
            return
        before, change = self._before_applied
        self._panel.replace_fields(f"Undo of {change}", partial(self._panel.put_back, before))

    def _run_edited(self, alternative: Alternative) -> None:
        """Run the script with a change of it, from a copy."""
        if self._script is None:
            return
        try:
            self._session.watch(self._script.with_remedy(_as_remedy(alternative)))
        except (ValueError, RuntimeError) as error:
            self._panel.prediction.show_problem(str(error), "")

    def _take(self, alternative: Alternative) -> None:
        if alternative.device is not None:
            self._panel.take_device(alternative.device)
        if alternative.fields:
            self._panel.change_fields(alternative.fields)


def _as_remedy(change: RunChange) -> Remedy:
    """A predicted change as one that a program can run with."""
    if isinstance(change, Remedy):
        return change
    return Remedy(change.change, patch=change.patch, command=change.command)


@dataclass(slots=True)
class _OfRun:
    """The prediction for a run: its number; its workload, device and spec; and its drawing, on the CPU also placed on
    what the process held before, once that is known."""

    run_id: int | None
    requested: tuple[str, str, Mapping[str, object]]
    prediction: Prediction
    ghost: Ghost
    upon_process: Ghost | None = None


BEFORE_S = 5.0
"""Maximum age in seconds of the reading of the process before its run."""

BEHIND_S = 1.0
"""Maximum seconds after the newest step until the allocator is read again."""


UNAVAILABLE = "unavailable"
"""Kind of the problem that nothing can be predicted here at all; the plot then keeps showing measurements."""


def _ghost_view(answer: Answer, spec: Spec | None) -> GhostView | None:
    """What the memory plot shows for an answer; ``None`` if it has nothing to show."""
    estimate, problem = answer.estimate, answer.problem
    if problem is not None and answer.ghost is None:
        if problem.kind == UNAVAILABLE:
            return None
        return GhostView(None, problem.message, problem.remedy)
    if estimate is None or answer.ghost is None:
        return None
    prediction = Prediction(estimate)
    limit_text, limit = "", answer.ghost.limit
    if limit is not None:
        name = "capacity" if limit == answer.ghost.capacity else "limit"
        limit_text = f"{name} {format_bytes(round(limit))}"
    # If it fits for sure, nothing is missing; but it may fit only because the allocator releases cached memory.
    peak_remark, margin = prediction.release and AFTER_RELEASE, 0.0
    if prediction.verdict in ("short", "uncertain"):
        peak_remark = prediction.need
    sized = _sized(answer.ghost, spec)
    if sized is not None and peak_remark == AFTER_RELEASE:
        # Else a peak that rises to the top once the handle is let go looks like a refusal.
        peak_remark = f"{sized.name} {sized.size} {AFTER_RELEASE}, which fills the card first"
    unknown = estimate.convolutions.unknown_bytes
    if unknown and not peak_remark:
        peak_remark = f"hatched: up to {format_bytes(unknown)} more for convolutions"
    if prediction.verdict == "uncertain":
        margin = estimate.margin_bytes
    return GhostView(
        answer.ghost,
        prediction.peak,
        peak_remark,
        limit_text,
        prediction.verdict,
        steps=int(getattr(spec, "steps", 0) or 0),
        sized=sized,
        margin=margin,
        title=_title_of_ranks(estimate),
        step_text=_step_text(answer),
    )


def _server_view(server: ServerOnCard) -> GhostView:
    """What the memory plot shows for a server before it is started."""
    if server.standing == "refused":
        return GhostView(None, server.reason, "choose a card above")
    limit = f"limit {format_bytes(server.limit_bytes)}"
    verdict: GhostVerdict = server.standing
    return GhostView(
        server_ghost(server),
        server.headline,
        server.detail,
        limit,
        verdict,
        title=f"MEMORY {shown_name(server.key)}, a server's, predicted",
        caption="as a server starts; how long that takes is not predicted",
    )


def _step_text(answer: Answer) -> str:
    """The predicted time of a step on the device in question; "" if unknown."""
    time = None
    if answer.estimate is not None:
        time = answer.times.get(answer.estimate.device)
    if time is None:
        return ""
    return span_text(time.median_s, time.low_s, time.high_s)


def _title_of_ranks(estimate: Estimate) -> str:
    """For a distributed run, which rank is drawn; else ""."""
    if estimate.deciding_rank is None:
        return ""
    rank = estimate.ranks[estimate.deciding_rank]
    return f"MEMORY {rank.device}, predicted: rank {rank.rank}, the fullest of {len(estimate.ranks)}"


VERDICTS: Mapping[bool | None, GhostVerdict] = {True: "fits", None: "uncertain", False: "short"}


def _measured_view(found: MeasuredRun, target: Target | None) -> GhostView:
    """What a script took when it last ran, against the room there is now beside its context."""
    ghost = found.ghost
    limit = None
    verdict: GhostVerdict = "unknown"
    if target is not None and target.free_bytes is not None:
        limit = target.free_bytes - target.overhead_bytes
        ghost = replace(ghost, capacity=target.capacity_bytes, limit=limit)
        verdict = VERDICTS[found.on("", target).fits]
    run = f"the run of {format_date(found.began_s)} on {shown_name(found.device)}"
    if found.devices > 1:
        run = f"{run}, the fullest of {found.devices}"
    headline = f"peak {format_bytes(found.peak_bytes)}"
    if found.ran_out:
        headline = f"ran out of memory at {format_bytes(found.peak_bytes)}"
    elif found.cut_short:
        headline = f"{found.cut_short}: at least {format_bytes(found.peak_bytes)}"
    return GhostView(
        ghost,
        headline,
        f"as of {run}",
        "" if limit is None else f"limit {format_bytes(limit)}",
        verdict,
        steps=found.steps,
        title=f"MEMORY, as of {run}",
    )


GROWING = (ACTIVATIONS, INPUTS, TEMPORARY)
"""Categories that grow with the batch."""


def _sized(ghost: Ghost, spec: Spec | None) -> SizedPeak | None:
    """What dragging the peak changes; ``None`` if a run has no batch, or nothing grows with it."""
    name = None
    if spec is not None:
        name = size_field(spec)
    if name is None or not isinstance(spec, TrainingSpec):
        return None
    # Only these grow with the batch; the rest is there with any batch.
    growing = sum(ghost.parts.get(part, 0.0) for part in GROWING)
    if not growing:
        return None
    return SizedPeak(name, spec.rank_batch, largest_size(spec, name), growing / spec.rank_batch)
