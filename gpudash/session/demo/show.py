"""Plays the scenes: acts run one after another, and the presenter steps through their results.

Whoever has a clock calls `Show.tick` to advance it. Runs are started through the session like any other; a run that is
not the demo's is ended only if the presenter says so. A step with an error waits for a key, as do a question and the
end of a scene; other steps follow by themselves unless the show is paused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from gpudash.devices.names import kind_of
from gpudash.session.demo.demo_scenes import SCENES
from gpudash.session.demo.ladder import CARD_BYTES, RungResult, ladder, predicting_text
from gpudash.session.demo.lines import LinesProcess
from gpudash.session.demo.pictures import StagePicture, Tone
from gpudash.session.demo.scenes import (
    LinesAct,
    PlayedScene,
    Result,
    RunAct,
    RungAct,
    Scene,
    SceneQuestion,
    came_to_its_end,
)
from gpudash.telemetry.records import Note, Topic
from gpudash.telemetry.runs import RunView, run_of
from gpudash.units import MIB
from gpudash.workloads.lines.trace import ENDED, LinesTrace

if TYPE_CHECKING:
    from gpudash.session.live.session import Session
    from gpudash.session.predicting.estimates import Estimates

GPU_PATIENCE_S = 3.0
"""How long to wait for a GPU once torch is imported; only then a simulated one is offered."""

OnGuess = Callable[[Scene, SceneQuestion, float, float | None], None]

LOADING = "PyTorch is loading; then it begins."

BUSY = "One of your runs is in progress. Stop it or wait for its end; then the demo continues."

NO_GPU = "There is no GPU here, real or simulated, so this cannot be shown."


@dataclass(frozen=True, slots=True)
class ShowPace:
    """How long a step stays before the next one follows by itself, in seconds.

    Attributes:
        step: a step of lines or of the ladder.
        wrong: a step with an error, and a question, in a show that waits for nobody.
        end: the last step of a scene, in such a show.
    """

    step: float = 3.0
    wrong: float = 5.0
    end: float = 5.0


HELD = ShowPace(step=math.inf, wrong=math.inf, end=math.inf)
"""No step follows by itself."""


@dataclass(frozen=True, slots=True)
class _LeftScene:
    """What is kept of a scene while another one is shown: the results of its acts, and the guess."""

    results: list[Result] = field(default_factory=list)
    guess: float | None = None
    asking: bool = True


class Show:
    """The demo, from its first scene to its last.

    Args:
        session: executes the acts that are runs.
        auto: never wait for the presenter.
        guesses: ask for guesses before results are shown.
        simulate: prefer the simulated GPU, as with ``--simulate``.
        isolate: as for `Session.start_run`; called for every run.
        pace: how long steps stay.
        scenes: the scenes to play.
        lines: executes the acts that are lines.
        estimates: creates the predictor for acts that are rungs; called for the first of them.
        on_guess: called with the scene, its question, the guess, and the answer, ``None`` if that is not known: when a
            guess is made, and again when it is answered.

    Attributes:
        position: index of the scene.
        step: of the scene, from 0: the picture shown.
        paused: whether steps do not follow by themselves.
        ended: whether the demo is over.
        guess: the guess made, the index of a choice or a number; ``None`` if none.
        asking: whether the show waits for a guess.
        busy: whether a run of the user's blocks the next act.
        failures: acts that did not end as they should, in sentences, for all scenes.
    """

    def __init__(
        self,
        session: Session,
        *,
        auto: bool = False,
        guesses: bool = True,
        simulate: bool = False,
        isolate: Callable[[], bool | None] = lambda: None,
        pace: ShowPace | None = None,
        scenes: Sequence[Scene] = SCENES,
        lines: LinesProcess | None = None,
        estimates: Callable[[], Estimates] | None = None,
        on_guess: OnGuess | None = None,
    ) -> None:
        self.scenes = list(scenes)
        self.auto, self.guesses = auto, guesses
        self.position = 0
        self.step = 0
        self.paused = False
        self.ended = False
        self.guess: float | None = None
        self.asking = False
        self.busy = False
        self.failures: list[str] = []
        self._session, self._simulate, self._isolate, self._pace = session, simulate, isolate, pace or ShowPace()
        self._lines = lines or LinesProcess()
        self._make_estimates = estimates or self._own_estimates
        self._on_guess = on_guess
        self._estimates: Estimates | None = None
        self._results: list[Result] = []
        self._left: dict[int, _LeftScene] = {}
        self._run_id: int | None = None
        self._marked_id: int | None = None
        self._began = False
        self._ending = False
        self._since: float | None = None
        self._began_s: float | None = None
        self._requested_s = 0.0
        self._gpu: str | None = None
        self._waiting = ""
        self._pictures: list[StagePicture] = []
        self._made_of: object = None

    @property
    def scene(self) -> Scene:
        """The current scene."""
        return self.scenes[self.position]

    @property
    def question(self) -> SceneQuestion | None:
        """The question of this scene for the available devices."""
        if not self.guesses:
            return None
        return self.scene.question(kind_of(self._device("best") or "cpu"))

    @property
    def pictures(self) -> Sequence[StagePicture]:
        """The steps of the scene known so far; the first one always exists."""
        return self._pictures

    @property
    def picture(self) -> StagePicture:
        """The current step; during a question the question, and at the end whether the guess was right."""
        if not self._pictures:
            return StagePicture(self.scene.title, self.scene.subject, sentence=self._waiting or LOADING)
        shown = self._pictures[min(self.step, len(self._pictures) - 1)]
        question = self.question
        if self.asking and question is not None:
            hidden = self._pictures[0].hidden()
            return replace(hidden, choices=question.choices, unit=question.unit, sentence=question.text)
        judged = self.at_end
        if self._answered_by is not None:
            judged = shown.answers
        if judged:
            return replace(shown, verdict=self.verdict)
        return shown

    @property
    def complete(self) -> bool:
        """Whether all acts of the scene are done."""
        return not self._pending

    @property
    def at_end(self) -> bool:
        """Whether the last step of a finished scene is shown."""
        return not self._pending and self.step >= len(self._pictures) - 1

    @property
    def verdict(self) -> str:
        """The guess beside the outcome; "" if nothing was asked or the results do not determine it."""
        question, answer = self.question, self.answer
        if question is None or answer is None:
            return ""
        return question.verdict(self.guess, answer)

    @property
    def _answered_by(self) -> int | None:
        """The act that answers the question before the scene ends; with a reason to show, it ends with both."""
        if self.question is None or self.question.why:
            return None
        return self.scene.answered_by

    @property
    def answer(self) -> float | None:
        """The right guess; ``None`` if nothing is asked, or it is not known (yet)."""
        if self.question is None:
            return None
        last = self._answered_by
        if self._pending and (last is None or len(self._results) <= last):
            return None
        return self.scene.answer(self._results)

    @property
    def waits(self) -> bool:
        """Whether only a key continues: a question, a step with an error, the end of a scene."""
        return self.asking or self.at_end or self.picture.tone == "wrong"

    @property
    def working(self) -> bool:
        """Whether an act is being played."""
        return self._pending and not self._waiting

    @property
    def follows(self) -> bool:
        """Whether the next step is already known."""
        return self.step < len(self._pictures) - 1

    @property
    def steps(self) -> int | None:
        """Number of steps of the scene; ``None`` as long as lines still have to run, which alone know theirs."""
        known = max(1, len(self._pictures))
        if not self._pending:
            return known
        if any(isinstance(act, LinesAct) for act in self.scene.acts[len(self._results) :]):
            return None
        gives_reason = self.question is not None and bool(self.question.why)
        return max(known, len(self.scene.acts) + gives_reason)

    @property
    def source(self) -> str:
        """The lines that the presenter may change in this scene; "" for any other scene."""
        act = self.scene.editable_lines
        return "" if act is None else act.source

    @property
    def limit(self) -> int:
        """Bytes of the card of such a scene; 0 for any other."""
        act = self.scene.editable_lines
        return 0 if act is None else act.limit

    @property
    def runs_workloads(self) -> bool:
        """Whether a scene runs a workload, for which the session needs torch."""
        return any(isinstance(act, RunAct) for scene in self.scenes for act in scene.acts)

    def warm_up(self) -> None:
        """Let the process for lines import torch in the background; its scene reports an error."""
        if any(isinstance(act, LinesAct) for scene in self.scenes for act in scene.acts):
            self._lines.warm_up()

    def start(self, position: int = 0) -> None:
        """Begin with the scene at this position; one that was played before keeps its results and its guess."""
        self._begin(position)

    def take_guess(self, guess: float | None) -> None:
        """Accept a guess, or none, and continue; ignored if nothing is asked."""
        if not self.asking:
            return
        self.guess = guess
        self.asking = False
        self._since = None
        self._report_guess()
        self._draw()

    def pause(self) -> None:
        """Let no step follow by itself until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Continue."""
        self.paused, self._since = False, None

    def forward(self) -> None:
        """Go to the next step, or at the end of a scene to the next scene. Skips a question."""
        if self.asking:
            self.take_guess(None)
            return
        self._since = None
        if self.step < len(self._pictures) - 1:
            self.step += 1
        elif not self._pending:
            self.next_scene()

    def back(self) -> None:
        """Go to the step before, and pause; from the first step to the last known one of the scene before."""
        self._since = None
        if self.step:
            self.paused = True
            self.step -= 1
        elif self.position:
            self._begin(self.position - 1)
            if not self.asking:
                self.step = max(0, len(self._pictures) - 1)

    def next_scene(self) -> None:
        """Go to the next scene, after the last one end the demo. Stops a run of this scene."""
        if self.position + 1 < len(self.scenes):
            self._begin(self.position + 1)
        else:
            self.leave()

    def edit(self, source: str, limit: int) -> None:
        """Run different lines in this scene, on a card of ``limit`` bytes."""
        act = self.scene.editable_lines
        if act is not None:
            changed = replace(act, source=source, limit=limit)
            self._stop_act()
            self.scenes[self.position] = replace(self.scene, acts=(changed,))
            self._left.pop(self.position, None)
            self._enter(self.position)

    def stop_lines(self) -> None:
        """End the running lines, such as an endless loop."""
        self._lines.stop()

    def stop_users_run(self) -> None:
        """Stop the run that blocks the demo, at the presenter's request; a program of the user's only gets SIGINT."""
        if self.busy and self._session.runs.stopping is None:
            self._session.stop_run("after the demo was to begin")

    def leave(self) -> None:
        """End the demo; stop a run of its own, and nobody else's."""
        if self.ended:
            return
        self._stop_act()
        self._lines.close()
        if self._estimates is not None:
            self._estimates.close()
        self.ended = True

    def tick(self, now_s: float) -> None:
        """Advance as far as possible.

        Args:
            now_s: monotonic seconds from any origin.
        """
        if self.ended:
            return
        if self._since is None:
            self._since = now_s
        if self._began_s is None:
            self._began_s = now_s
        if self._ending:
            if self._own_is_on:
                return
            self._ending = self._began = False
        if self._pending:
            self._play(now_s)
        self._draw()
        self._follow(now_s)

    @property
    def _pending(self) -> bool:
        """Whether acts of the scene still have to be played."""
        return len(self._results) < len(self.scene.acts)

    def _begin(self, position: int) -> None:
        self._stop_act()
        if self._pictures:
            whole = takewhile(came_to_its_end, self._results)
            self._left[self.position] = _LeftScene(list(whole), self.guess, asking=self.asking)
        self._enter(position)

    def _enter(self, position: int) -> None:
        self.position = min(max(0, position), len(self.scenes) - 1)
        before = self._left.get(self.position, _LeftScene())
        self.step = 0
        self.guess = before.guess
        self.busy = False
        self._results = before.results
        self._since = None
        self._began_s = None
        self._waiting = ""
        self.asking = before.asking and self.question is not None
        self._made_of = None
        self._draw()

    def _follow(self, now_s: float) -> None:
        """Show the next step once this one has been shown for long enough."""
        if self.paused or (self.waits and not self.auto):
            return
        stays = self._pace.step
        if self.at_end:
            stays = self._pace.end
        elif self.waits:
            stays = self._pace.wrong
        if now_s - (self._since or now_s) < stays:
            return
        if self.asking or self.step < len(self._pictures) - 1 or not self._pending:
            self.forward()
            self._since = now_s

    def _draw(self) -> None:
        """Update the pictures from the results so far."""
        run = self._run_on()
        device = self._device("best") or "cpu"
        made_of = (self.position, len(self._results), self._waiting, self._progress(run), device, self.guess)
        if made_of == self._made_of:
            return
        self._made_of = made_of
        played = PlayedScene(tuple(self._results), self._summary_of(run), device, self._waiting)
        self._pictures = [*self.scene.pictures(self.scene, played), *self._closing(played)]
        if self.guess is not None and self.question is not None and self.question.unit == "MiB":
            self._pictures = [picture.with_guess(self.guess * MIB) for picture in self._pictures]
        self.step = min(self.step, max(0, len(self._pictures) - 1))

    def _closing(self, played: PlayedScene) -> list[StagePicture]:
        """The step that gives the reason for the outcome, once all acts are done; empty if the question has none."""
        question = self.question
        if question is None or not question.why or self.answer is None:
            return []
        last = self.scene.pictures(self.scene, played)[-1]
        tone: Tone = "good"
        return [replace(last, sentence=question.why, remark="", tone=tone)]

    def _report_guess(self) -> None:
        question = self.question
        if self._on_guess is not None and self.guess is not None and question is not None:
            self._on_guess(self.scene, question, self.guess, self.answer)

    def _play(self, now_s: float) -> None:
        act = self.scene.acts[len(self._results)]
        if isinstance(act, LinesAct):
            self._play_lines(act)
        elif isinstance(act, RungAct):
            self._play_rung(act, now_s)
        elif isinstance(act, RunAct):
            self._play_run(act, now_s)

    def _play_lines(self, act: LinesAct) -> None:
        if not self._began:
            self._lines.ask(act.source, act.limit)
            self._began = True
        trace = self._lines.poll()
        self._waiting = LOADING if self._lines.loading else ""
        if trace is None:
            return
        failure = trace.failure
        if failure is not None and failure.kind == ENDED and not self.scene.editable:
            self.failures.append(f"{self.scene.title}: {failure.message}.")
        self._end_act(trace)

    def _play_rung(self, act: RungAct, now_s: float) -> None:
        if self._estimates is None:
            self._estimates = self._make_estimates()
        if not self._began:
            self._estimates.ask_card(act.spec, CARD_BYTES)
            self._began = True
            self._requested_s = now_s
        answer = self._estimates.newest()
        if answer is None or not answer.final:
            self._waiting = predicting_text(act.place, int(now_s - self._requested_s))
            return
        rung = ladder()[1][act.place]
        problem = ""
        if answer.problem is not None:
            problem = f"{answer.problem.message} {answer.problem.remedy}".strip()
            self.failures.append(f"{self.scene.title}: {problem}")
        self._end_act(RungResult(rung, answer.estimate, problem))

    def _play_run(self, act: RunAct, now_s: float) -> None:
        if self._began:
            self._mark_run()
            if not self._own_is_on:
                self._end_run()
            return
        device = self._device(act.where)
        patient = now_s - (self._began_s or now_s) < GPU_PATIENCE_S
        if not self._session.torch_ready or (self._device("gpu") is None and patient):
            self._waiting = LOADING
            return
        self.busy = self._session.running
        self._waiting = BUSY if self.busy else ""
        if self.busy:
            return
        if device is None:
            self._fail(NO_GPU)
            return
        try:
            self._run_id = self._session.start_run(act.spec, device, isolate=self._isolate())
        except (ValueError, RuntimeError) as error:
            self._fail(str(error))
        else:
            self._began = True

    def _mark_run(self) -> None:
        """Add a note once that the run is the demo's, as soon as there is a run to attach it to."""
        with self._session.store.lock:
            run = run_of(self._session.store.runs, self._run_id)
        if run is None or self._run_id == self._marked_id:
            return
        self._marked_id = self._run_id
        self._session.emit(
            Note(time_s=self._session.clock(), run_id=self._run_id, topic=Topic.DEMO, text="This run is the demo's.")
        )

    def _end_run(self) -> None:
        with self._session.store.lock:
            run = run_of(self._session.store.runs, self._run_id)
            summary = None if run is None else _summary(run)
        if summary is None:
            self._fail("The run left nothing behind.")
            return
        if summary["status"] not in ("finished", "cancelled"):
            error = summary["error"] or {}
            text = f"{error.get('message', '')} {error.get('remedy', '')}".strip()
            self.failures.append(f"{self.scene.title}: {text}")
        self._end_act(summary)

    def _end_act(self, result: Result) -> None:
        self._began = False
        self._waiting = ""
        newest = self.step >= len(self._pictures) - 1 and not isinstance(result, LinesTrace)
        self._results.append(result)
        if not self._pending and self.answer is not None:
            self._report_guess()
        self._draw()
        if newest and not self.asking and not self.paused:
            self._since = None

    def _fail(self, sentence: str) -> None:
        self.failures.append(f"{self.scene.title}: {sentence}")
        self._end_act(sentence)

    def _run_on(self) -> RunView | None:
        """The run of the current act."""
        if not (self._began and self._pending and isinstance(self.scene.acts[len(self._results)], RunAct)):
            return None
        with self._session.store.lock:
            return run_of(self._session.store.runs, self._run_id)

    def _progress(self, run: RunView | None) -> object:
        # Called at every tick: the summary, with its medians, is computed only for what is drawn.
        if run is None:
            return None
        with self._session.store.lock:
            return run.status, run.step

    def _summary_of(self, run: RunView | None) -> Mapping[str, Any] | None:
        if run is None:
            return None
        with self._session.store.lock:
            return _summary(run)

    @property
    def _own_is_on(self) -> bool:
        """Whether a run of the demo's has begun and not ended."""
        if not self._began or self._run_id is None:
            return False
        with self._session.store.lock:
            run = run_of(self._session.store.runs, self._run_id)
            newest = self._session.store.run
            return run is None or run.running or (run is newest and self._session.running)

    def _stop_act(self) -> None:
        """Stop the current act of the scene."""
        act = self.scene.acts[len(self._results)] if self._pending else None
        if isinstance(act, RunAct) and self._own_is_on:
            if not self._ending:
                self._session.stop_run()
                self._ending = True
            return
        if isinstance(act, LinesAct) and self._began:
            self._lines.stop()
            self._lines.poll()
        self._began = False

    def _own_estimates(self) -> Estimates:
        """A separate predictor: the session's answers the form."""
        from gpudash.session.predicting.estimates import Estimates

        return Estimates(self._session.machine, self._session.store)

    def _device(self, where: str) -> str | None:
        """The device for an act, the same GPU in every scene; ``None`` if there is none."""
        if where == "cpu":
            return "cpu"
        usable = [device.name for device in self._session.devices() if device.problem is None]
        if self._gpu not in usable:
            default = self._session.default_device()
            self._gpu = default if kind_of(default) == "cuda" else None
        simulated = next((name for name in usable if kind_of(name) == "sim"), None)
        if self._simulate:
            found = simulated or self._gpu
        else:
            found = self._gpu or simulated
        return found or ("cpu" if where == "best" else None)


def _summary(run: RunView) -> dict[str, Any]:
    """A run's summary with its losses so far."""
    losses: list[float] = []
    if "loss" in run.metrics:
        losses = list(run.metrics["loss"].digest()["values"])
    return {**run.summary(), "losses": losses}
