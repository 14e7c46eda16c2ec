"""Plays the scenes: acts are run one after another, and the presenter walks through what they showed.

`Show.tick` moves it on, whoever has a clock. The session is asked to start runs as its other users ask it; a run that
is not the demo's is never ended unless the presenter says so. A step that went wrong waits for a key, as a question
does and the end of a scene; other steps follow by themselves unless the show is paused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpudash.devices.names import kind_of
from gpudash.session.demo.demo_scenes import SCENES
from gpudash.session.demo.ladder import CARD_BYTES, RungResult, ladder
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
)
from gpudash.telemetry.records import Note, Topic
from gpudash.telemetry.runs import RunView, run_of
from gpudash.units import MIB
from gpudash.workloads.lines.trace import ENDED, LinesTrace

if TYPE_CHECKING:
    from gpudash.session.live.session import Session
    from gpudash.session.predicting.estimates import Estimates

GPU_PATIENCE_S = 3.0
"""How long a GPU is waited for once torch is there; a simulated one is offered only then."""

OnGuess = Callable[[Scene, SceneQuestion, float, float | None], None]

LOADING = "PyTorch is loading; then it begins."

BUSY = "One of your runs is in progress. Stop it or wait for its end; then the demo continues."

NO_GPU = "There is no GPU here, real or simulated, so this cannot be shown."


@dataclass(frozen=True, slots=True)
class ShowPace:
    """Seconds that a step stays before the next one follows by itself.

    Attributes:
        step: a step of lines or of the ladder.
        wrong: one that went wrong, and a question, in a show that waits for nobody.
        end: the last step of a scene, likewise.
    """

    step: float = 3.0
    wrong: float = 5.0
    end: float = 5.0


HELD = ShowPace(step=math.inf, wrong=math.inf, end=math.inf)
"""No step follows by itself."""


class Show:
    """The demo, from its first scene to its last.

    Args:
        session: runs the acts that are runs.
        auto: wait for nobody.
        guesses: ask before it is shown.
        simulate: prefer the simulated GPU, as ``--simulate`` asks.
        isolate: as `Session.start_run` takes it; asked at every run.
        pace: how long things stay.
        scenes: what is played.
        lines: runs the acts that are lines.
        estimates: makes what predicts the acts that are rungs; called when the first is asked for.
        on_guess: is called with the scene, its question, the guess, and the answer, ``None`` where that is not known:
            as a guess is taken, and once it is answered.

    Attributes:
        position: of the scene.
        step: of the scene, from 0: the picture that is shown.
        paused: no step follows by itself.
        ended: whether the demo is over.
        guess: that was taken, the place of a choice or a number; ``None``: none.
        asking: whether a guess is awaited.
        busy: whether a run of the user's is in the way.
        failures: acts that did not come to the end that they should, in sentences, of all scenes.
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
        self._run_id: int | None = None
        self._marked_id: int | None = None
        self._began = False
        self._ending = False
        self._since: float | None = None
        self._began_s: float | None = None
        self._gpu: str | None = None
        self._waiting = ""
        self._pictures: list[StagePicture] = []
        self._made_of: object = None

    @property
    def scene(self) -> Scene:
        """The scene that is played."""
        return self.scenes[self.position]

    @property
    def question(self) -> SceneQuestion | None:
        """What may be guessed in this scene, on the devices there are."""
        if not self.guesses:
            return None
        return self.scene.question(kind_of(self._device("best") or "cpu"))

    @property
    def pictures(self) -> Sequence[StagePicture]:
        """The steps of the scene as far as they are known; the first is always there."""
        return self._pictures

    @property
    def picture(self) -> StagePicture:
        """The step that is shown; while a guess is awaited the question, and at the end what became of the guess."""
        if not self._pictures:
            return StagePicture(self.scene.title, self.scene.subject, sentence=self._waiting or LOADING)
        shown = self._pictures[min(self.step, len(self._pictures) - 1)]
        question = self.question
        if self.asking and question is not None:
            hidden = _hidden(self._pictures[0])
            return replace(hidden, choices=question.choices, unit=question.unit, sentence=question.text)
        if self.at_end:
            return replace(shown, verdict=self.verdict)
        return shown

    @property
    def complete(self) -> bool:
        """Whether all acts of the scene are over."""
        return not self._pending

    @property
    def at_end(self) -> bool:
        """Whether the last step of a scene that is over is shown."""
        return not self._pending and self.step >= len(self._pictures) - 1

    @property
    def verdict(self) -> str:
        """The guess beside what came; "" where nothing was asked or the results do not tell."""
        question, answer = self.question, self.answer
        if question is None or answer is None:
            return ""
        came = question.label(answer)
        if self.guess is None:
            return f"What came: {came}."
        guess = question.label(self.guess)
        if guess == came:
            return f"Right: {came}."
        if question.is_right(self.guess, answer):
            return f"Right: guessed {guess}, and {came} came."
        return f"Guessed: {guess}. What came: {came}."

    @property
    def answer(self) -> float | None:
        """Which guess is right; ``None`` where nothing is asked, or not known, or not yet."""
        if self.question is None or self._pending:
            return None
        return self.scene.answer(self._results)

    @property
    def waits(self) -> bool:
        """Whether only a key goes on: a question, a step that went wrong, the end of a scene."""
        return self.asking or self.at_end or self.picture.tone == "wrong"

    @property
    def working(self) -> bool:
        """Whether an act is being played."""
        return self._pending and not self._waiting

    @property
    def follows(self) -> bool:
        """Whether a step that is known already comes next."""
        return self.step < len(self._pictures) - 1

    @property
    def source(self) -> str:
        """The lines of a scene that is the presenter's to change; "" of any other."""
        act = self.scene.editable_lines
        return "" if act is None else act.source

    @property
    def limit(self) -> int:
        """Bytes of the card of such a scene; 0 of any other."""
        act = self.scene.editable_lines
        return 0 if act is None else act.limit

    @property
    def runs_workloads(self) -> bool:
        """Whether a scene runs a workload, for which torch has to be there in the session."""
        return any(isinstance(act, RunAct) for scene in self.scenes for act in scene.acts)

    def warm_up(self) -> None:
        """Let the process that runs lines import torch while something else is done; a fault is told by its scene."""
        if any(isinstance(act, LinesAct) for scene in self.scenes for act in scene.acts):
            self._lines.warm_up()

    def start(self, position: int = 0) -> None:
        """Begin with a scene."""
        self._begin(position)

    def take_guess(self, guess: float | None) -> None:
        """Take a guess, or none, and go on; ignored when nothing is requested."""
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
        """Go on."""
        self.paused, self._since = False, None

    def forward(self) -> None:
        """The next step; at the end of a scene the next scene. A question is passed over."""
        if self.asking:
            self.take_guess(None)
            return
        self._since = None
        if self.step < len(self._pictures) - 1:
            self.step += 1
        elif not self._pending:
            self.next_scene()

    def back(self) -> None:
        """The step before, and pause; from the first one the scene before."""
        self._since = None
        if self.step:
            self.paused = True
            self.step -= 1
        elif self.position:
            self._begin(self.position - 1)

    def next_scene(self) -> None:
        """The next scene; after the last one the demo is over. A run of this scene is stopped."""
        if self.position + 1 < len(self.scenes):
            self._begin(self.position + 1)
        else:
            self.leave()

    def previous_scene(self) -> None:
        """The scene before, or this one from its beginning."""
        self._begin(max(0, self.position - 1))

    def edit(self, source: str, limit: int) -> None:
        """Run other lines in this scene, on a card of ``limit`` bytes."""
        act = self.scene.editable_lines
        if act is not None:
            changed = replace(act, source=source, limit=limit)
            self.scenes[self.position] = replace(self.scene, acts=(changed,))
            self._begin(self.position)

    def stop_lines(self) -> None:
        """End the lines that are on, such as an endless loop."""
        self._lines.stop()

    def stop_users_run(self) -> None:
        """Stop the run that is in the way, because the presenter says so; a program of the user's has SIGINT alone."""
        if self.busy and self._session.runs.stopping is None:
            self._session.stop_run("after the demo was to begin")

    def leave(self) -> None:
        """The demo is over; a run of it is stopped, and nobody else's."""
        if self.ended:
            return
        self._stop_act()
        self._lines.close()
        if self._estimates is not None:
            self._estimates.close()
        self.ended = True

    def tick(self, now_s: float) -> None:
        """Go on as far as possible.

        Args:
            now_s: monotonic seconds of any origin.
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
        """Whether acts of the scene are still to be played to their end."""
        return len(self._results) < len(self.scene.acts)

    def _begin(self, position: int) -> None:
        self._stop_act()
        self.position = min(max(0, position), len(self.scenes) - 1)
        self.step = 0
        self.guess = None
        self.busy = False
        self._results = []
        self._since = None
        self._began_s = None
        self._waiting = ""
        self.asking = self.question is not None
        self._made_of = None
        self._draw()

    def _follow(self, now_s: float) -> None:
        """Show the next step when this one has been seen for long enough."""
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
        """The pictures of what is known by now."""
        run = self._run_on()
        device = self._device("best") or "cpu"
        made_of = (self.position, len(self._results), self._waiting, self._progress(run), device, self.guess)
        if made_of == self._made_of:
            return
        self._made_of = made_of
        played = PlayedScene(tuple(self._results), self._summary_of(run), device, self._waiting)
        self._pictures = [*self.scene.pictures(self.scene, played), *self._closing(played)]
        if self.guess is not None and self.question is not None and self.question.unit == "MiB":
            self._pictures = [_with_guess(picture, self.guess * MIB) for picture in self._pictures]
        self.step = min(self.step, max(0, len(self._pictures) - 1))

    def _closing(self, played: PlayedScene) -> list[StagePicture]:
        """The step that says why it came out so, once all acts are over; none where the question has no reason."""
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
            self._play_rung(act)
        elif isinstance(act, RunAct):
            self._play_run(act, now_s)

    def _play_lines(self, act: LinesAct) -> None:
        if not self._began:
            self._lines.ask(act.source, act.limit, on_gpu=act.on_gpu)
            self._began = True
        trace = self._lines.poll()
        self._waiting = LOADING if self._lines.loading else ""
        if trace is None:
            return
        failure = trace.failure
        if failure is not None and failure.kind == ENDED and not self.scene.editable:
            self.failures.append(f"{self.scene.title}: {failure.message}.")
        self._end_act(trace)

    def _play_rung(self, act: RungAct) -> None:
        if self._estimates is None:
            self._estimates = self._make_estimates()
        if not self._began:
            self._estimates.ask_card(act.spec, CARD_BYTES)
            self._began = True
        answer = self._estimates.newest()
        if answer is None or not answer.final:
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
        """Note once that the run is the demo's, as soon as there is a run that the note can be of."""
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
        """The run of the act that is on."""
        if not (self._began and self._pending and isinstance(self.scene.acts[len(self._results)], RunAct)):
            return None
        with self._session.store.lock:
            return run_of(self._session.store.runs, self._run_id)

    def _progress(self, run: RunView | None) -> object:
        # Asked at every tick, so that the summary, with its medians, is made only of what is drawn.
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
        """Whether the demo has begun a run that has not ended."""
        if not self._began or self._run_id is None:
            return False
        with self._session.store.lock:
            run = run_of(self._session.store.runs, self._run_id)
            newest = self._session.store.run
            return run is None or run.running or (run is newest and self._session.running)

    def _stop_act(self) -> None:
        """Stop what the scene has on."""
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
        """Beside the session's, which answers the form."""
        from gpudash.session.predicting.estimates import Estimates

        return Estimates(self._session.machine, self._session.store)

    def _device(self, where: str) -> str | None:
        """The device for an act, the same GPU in every scene; ``None`` when there is none."""
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


def _with_guess(picture: StagePicture, guess: float) -> StagePicture:
    """A step with what was guessed beside its columns."""
    if picture.chart is None:
        return picture
    return replace(picture, chart=replace(picture.chart, guess=guess))


def _hidden(picture: StagePicture) -> StagePicture:
    """The first step without what would give the answer away."""
    code = tuple(replace(line, figure="", state="coming") for line in picture.code)
    panels = tuple(replace(panel, losses=(), figures=(), state="coming") for panel in picture.panels)
    chart = picture.chart
    if chart is not None:
        columns = tuple(replace(column, blocks=(), figure=" ", is_peak=False) for column in chart.columns)
        chart = replace(chart, columns=columns)
    return replace(picture, code=code, panels=panels, chart=chart, blocks=(), remark="", tone="plain")
