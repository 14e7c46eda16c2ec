"""Keeps the fit panel in step with the form: asks for predictions and shows the answers, without ever waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpudash.devices.names import SimulatedCard
from gpudash.drawing.ghost import Ghost, RunningGhost
from gpudash.memory.predicting.card_words import CardsAnswer
from gpudash.memory.predicting.estimate import Alternative, CardEstimate
from gpudash.memory.predicting.prediction import AFTER_RELEASE, Prediction
from gpudash.session import Answer, Session
from gpudash.specs import Spec
from gpudash.telemetry.plots import LineSpec
from gpudash.telemetry.records import STEP_METRICS
from gpudash.telemetry.runs import RunView
from gpudash.ui.forms.fit_panel import PREDICTING
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.plots.ghost import GhostView
from gpudash.units import MIB, format_bytes

DEBOUNCE_S = 0.3
"""How long the form must have been left alone before its values are asked about."""

POLL_S = 2.0
"""How often it is looked whether free memory has changed."""

CHANGED_RATIO = 0.05
"""Change of free memory, as a part of capacity, that makes a prediction out of date."""

LEAST_CHANGE_BYTES = 64 * MIB


class FitFollower:
    """Called by the window at every refresh.

    Args:
        session: predicts.
        panel: the form, and the fit panel in it.
        clock: seconds that only go forward.

    Attributes:
        cards: that are asked about beside the device of the form, as they are when empty.
        on_cards: what is known of them and of every device.
    """

    def __init__(self, session: Session, panel: WorkloadPanel, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._panel = panel
        self._clock = clock
        self._due: float | None = clock()
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
        self.cards: Sequence[SimulatedCard] = ()
        self.on_cards = CardsAnswer()
        panel.changed.connect(self.form_changed)
        panel.fit.applied.connect(self._apply)

    @property
    def device(self) -> str:
        """torch's name of the device that was asked about."""
        return self._requested_device

    @property
    def ghost(self) -> GhostView | None:
        """What the memory plot shows of the run before it starts: its ribbons, or why there are none.

        ``None`` during a run, and behind one until something of the form is changed: what was measured stays.
        """
        if self._ghost_wanted and not self._running:
            return self._ghost
        return None

    def form_changed(self) -> None:
        """Ask anew once the form is left alone."""
        if self._running:
            return
        self._ghost_wanted = True
        self._fade()
        self._fade_cards()
        self._due = self._clock() + DEBOUNCE_S
        self._panel.fit.withdraw(self._panel.correction or PREDICTING)
        self._panel.set_forecast("")

    def refresh(self) -> None:
        """Ask what is due, and show what has been answered."""
        if self._session.running != self._running:
            self._run_changed()
        run_id = self._newest_run_id()
        if run_id != self._run_id:  # also of one that was over before anybody looked
            self._run_id = run_id
            self._ghost_wanted = False
        if not self._session.torch_ready and not self._running:
            self._panel.fit.withdraw("predicting needs PyTorch; it is loading…")
            return
        if self._due is not None and self._clock() >= self._due:
            self._ask()
        elif self._due is None:
            if self._requested:  # else the newest answer is to values that are in the form no more
                self._show(self._session.estimates.newest())
            if self._running:
                self._show_reached()
            else:
                self._check_free()

    def _newest_run_id(self) -> int | None:
        with self._session.store.lock:
            run = self._session.store.run
            return None if run is None else run.run_id

    def _run_changed(self) -> None:
        """The prediction for the run stays, or is made still; afterwards the device may have more or less room."""
        self._running = self._session.running
        self._ghost_wanted = self._ghost_wanted and not self._running
        self._panel.fit.set_running(self._running)
        if not self._running or self._due is not None:
            self._due = self._clock()

    def _show_reached(self) -> None:
        """Hold the prediction against the run that it is of; a run of other values has nothing to do with it."""
        store, spec = self._session.store, self._panel.spec()
        if spec is None:
            return
        requested = (spec.name, self._requested_device, spec.model_dump(mode="json"))
        with store.lock:
            run = store.run
            if run is None or (run.workload, run.device, run.spec) != requested:
                return
            reserved = run.peak_reserved_bytes
        self._panel.fit.show_reached(reserved)
        answer = self._shown
        if answer is not None and answer.estimate is not None and answer.ghost is not None:
            self._of_run = _OfRun(requested, Prediction(answer.estimate), answer.ghost)

    def running_ghost_of(self, run: RunView, span: tuple[float, float]) -> RunningGhost | None:
        """The ghost of a run in its time, of the steps that end within ``span``; ``None`` where it has no steps, or
        nothing was predicted of it. Called under the store's lock.
        """
        known, store = self._known_of(run), self._session.store
        if known is None or run.stepped_s is None or run.pace_s is None:
            return None
        found = (store.series("run", name) for name in STEP_METRICS)
        series = next((series for series in found if series is not None and series.extent() is not None), None)
        if series is None:
            return None
        ended, _ = series.window(max(run.began_s, span[0]), run.stepped_s + run.pace_s / 2, MOST_STEPS)
        ended = ended[ended > run.began_s]
        if len(ended) > run.step or run.stepped_s > span[1]:
            return None  # they cannot be counted
        return RunningGhost(known.ghost, run.began_s, ended, run.step, run.pace_s, run.steps, not run.running)

    def _known_of(self, run: RunView) -> _OfRun | None:
        known = self._of_run
        if known is None or known.requested != (run.workload, run.device, run.spec) or run.device == "cpu":
            return None
        return known

    def prediction_line(self, run: RunView) -> LineSpec | None:
        """The level that was predicted of a run, and what it has reached; ``None`` where nothing was, and on the CPU,
        of whose memory a run's tensors are a part. Called under the store's lock.
        """
        known = self._known_of(run)
        if known is None:
            return None
        text = known.prediction.reached_text(run.peak_reserved_bytes)
        if not text:
            return None
        return LineSpec(text, "difference", value=known.ghost.highest, style="dot", shows_value=False)

    def _ask(self) -> None:
        self._due, self._shown, self._requested = None, None, False
        spec = self._panel.spec()
        self._fade()
        self._fade_cards()
        if spec is None:
            self._panel.fit.withdraw(self._panel.correction or PREDICTING)
            return
        self._show_for = self._clock() + POLL_S
        device = self._requested_device = spec.own_device or self._panel.device_name
        try:
            self._requested_free = self._session.estimates.target(device).free_bytes
            self._session.estimates.ask(spec, device, timeline=True, cards=self.cards)
        except (ValueError, RuntimeError) as error:
            self.on_cards = CardsAnswer(asked=True, reason=str(error))
            self._panel.fit.show_reason(str(error), "")
            self._ghost = GhostView(None, str(error))
            return
        self._requested = True
        self._panel.fit.withdraw()

    def _show(self, answer: Answer | None) -> None:
        if answer is None or answer is self._shown:
            return
        self._shown = answer
        estimate, problem = answer.estimate, answer.problem
        self._ghost = _ghost_view(answer, self._panel.spec())
        self._show_cards(answer)
        if estimate is not None and estimate.peak_allocated_bytes is not None:
            self._panel.fit.show_estimate(estimate, whole=answer.final)
            short = estimate.fits is False and not estimate.fills_memory
            self._panel.set_forecast(self._panel.fit.headline if short else "")
        elif problem is not None:
            self._panel.fit.show_reason(problem.message, problem.remedy)
        elif estimate is not None:
            self._panel.fit.show_reason(estimate.reason, "")

    def _show_cards(self, answer: Answer) -> None:
        """Take what is known of the cards; what there was of an earlier question stays until it is answered anew."""
        known = dict(answer.cards)
        reason = ""
        if answer.estimate is not None:
            own = CardEstimate.of(answer.estimate)
            known[self._requested_device] = replace(own, key=own.device)
        elif answer.problem is not None:
            reason = answer.problem.message
        self.on_cards = CardsAnswer(known, self.on_cards.before, True, not answer.final, reason)

    def _fade_cards(self) -> None:
        """What is known of the cards is of an earlier question from now on."""
        spec = self._panel.spec()
        before = {**self.on_cards.before, **self.on_cards.known}
        asked = spec is not None or bool(self._panel.correction)
        self.on_cards = CardsAnswer({}, before if asked else {}, asked, awaited=spec is not None)

    def _fade(self) -> None:
        """Let the ghost of an earlier question stay, as one of that; it goes where nothing can be asked."""
        wrong = self._panel.correction
        if self._panel.spec() is None and not wrong:
            self._ghost = None
        elif self._ghost is not None:
            self._ghost = replace(self._ghost, faded=True, detail=wrong or PREDICTING)

    def _check_free(self) -> None:
        """Predict anew when much more or less is free than when it was asked."""
        if self._clock() < self._show_for or self._requested_free is None:
            return
        self._show_for = self._clock() + POLL_S
        try:
            target = self._session.estimates.target(self._requested_device)
        except ValueError:
            return
        if target.free_bytes is None:
            return
        bound = max(LEAST_CHANGE_BYTES, CHANGED_RATIO * (target.capacity_bytes or 0))
        if abs(target.free_bytes - self._requested_free) > bound:
            self._due = self._clock()

    def _apply(self, alternative: Alternative) -> None:
        if self._running:
            return
        if alternative.device is not None:
            self._panel.take_device(alternative.device)
        if alternative.fields:
            self._panel.change_fields(alternative.fields)


@dataclass(frozen=True, slots=True)
class _OfRun:
    """What was predicted of a run: its workload, device and spec, and the drawing of it."""

    requested: tuple[str, str, Mapping[str, object]]
    prediction: Prediction
    ghost: Ghost


MOST_STEPS = 4096
"""Steps in view whose ends are asked for; of more each would have less than a column of pixels."""


UNAVAILABLE = "unavailable"
"""Kind of the problem that nothing can be predicted here at all: then the plot goes on showing what is measured."""


def _ghost_view(answer: Answer, spec: Spec | None) -> GhostView | None:
    """What the memory plot shows of an answer; ``None`` where it has nothing to show."""
    estimate, problem = answer.estimate, answer.problem
    if problem is not None and answer.ghost is None:
        if problem.kind == UNAVAILABLE:
            return None
        return GhostView(None, problem.message, problem.remedy)
    if estimate is None or answer.ghost is None:
        return None
    prediction = Prediction(estimate)
    limit = answer.ghost.limit
    name = "limit"
    if limit == answer.ghost.capacity:
        name = "capacity"
    return GhostView(
        answer.ghost,
        prediction.peak,
        prediction.need if prediction.verdict in ("short", "uncertain") else prediction.release and AFTER_RELEASE,
        "" if limit is None else f"{name} {format_bytes(round(limit))}",
        prediction.verdict,
        steps=int(getattr(spec, "steps", 0) or 0),
    )
