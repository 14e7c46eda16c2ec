"""Plays the scenes: a state machine that is moved on by `Tour.tick`, whoever has a clock.

The session is asked to start runs as its other users ask it. A run that is not the demo's is never ended unless the
presenter says so. The run that ran out of memory is run again, changed so that it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gpudash.devices.names import kind_of, shown_name
from gpudash.session.demo.scenes import SCENES, Act, MeasuredScene, Place, Scene, SceneQuestion, changed_text, of_gpu
from gpudash.specs import Spec, workloads
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.explanation import Remedy
from gpudash.telemetry.runs import RunView, run_of

if TYPE_CHECKING:
    from gpudash.session.live.session import Session

State = Literal["ready", "asking", "playing", "busy", "told", "ended"]
"""The devices are not known yet; a guess is awaited; runs are on; a run of the user's is in the way; what was measured
is told; over."""

GPU_PATIENCE_S = 3.0
"""How long a GPU is waited for once torch is there; a simulated one is offered only then."""

LOADING = "PyTorch is loading; then it begins."

BUSY = "One of your runs is in progress. Stop it or wait for its end; then the demo continues."

NO_GPU = "There is no GPU here, real or simulated, so this cannot be shown."

NO_REMEDY = "No change of the run was found that fits, so it is not run again."


@dataclass(frozen=True, slots=True)
class TourPace:
    """Seconds that something stays before a tour that goes on by itself goes on.

    Attributes:
        ask: a question that nobody answers.
        act: the words of an act before the next one begins, also where the tour does not go on by itself.
        read: the same, where an act leaves something to be read.
        measured: what a scene has measured.
    """

    ask: float = 6.0
    act: float = 2.5
    read: float = 7.0
    measured: float = 7.0


class Tour:
    """The demo, from its first scene to its last.

    Args:
        session: runs the acts.
        auto: go on by itself.
        guesses: ask before it is measured.
        simulate: prefer the simulated GPU, as ``--simulate`` asks.
        isolate: as `Session.start_run` takes it; asked at every run.
        pace: how long things stay.
        scenes: what is played.

    Attributes:
        position: of the scene.
        state: see `State`.
        paused: nothing new begins; a run that is on goes on to its end.
        act: the act that is played, or was played last; ``None`` before the first.
        question: what is asked in this scene; ``None`` when nothing is.
        guess: the choice that was taken; ``None``: none.
        measured: what came out of the scene, once it is told.
        log: what the scene's acts told so far.
        failures: acts that could not be played or ended otherwise than meant, in sentences, of all scenes.
        playing_spec, playing_device: what the newest act runs, and where.
    """

    def __init__(
        self,
        session: Session,
        *,
        auto: bool = False,
        guesses: bool = True,
        simulate: bool = False,
        isolate: Callable[[], bool | None] = lambda: None,
        pace: TourPace | None = None,
        scenes: Sequence[Scene] = SCENES,
    ) -> None:
        self.scenes = tuple(scenes)
        self.auto, self.guesses = auto, guesses
        self.position = 0
        self.state: State = "ready"
        self.paused = False
        self.act: Act | None = None
        self.question: SceneQuestion | None = None
        self.guess: int | None = None
        self.measured: MeasuredScene | None = None
        self.log: list[str] = []
        self.failures: list[str] = []
        self.playing_spec: Spec | None = None
        self.playing_device = ""
        self._session, self._simulate, self._isolate, self._pace = session, simulate, isolate, pace or TourPace()
        self._before: tuple[Spec, str] | None = None
        self._runs: list[Mapping[str, Any] | None] = []
        self._ended: RunView | None = None
        self._run_id: int | None = None
        self._on = False
        self._ending = False
        self._since: float | None = None
        self._gpu: str | None = None

    @property
    def scene(self) -> Scene:
        """The scene that is played."""
        return self.scenes[self.position]

    @property
    def progress(self) -> tuple[int, int]:
        """Acts of the scene that are over, and how many it has."""
        return len(self._runs), len(self.scene.acts)

    @property
    def place(self) -> Place:
        """What of the window to look at now."""
        if self.state == "told":
            return self.scene.points_at
        if self._between and self.act is not None and self.act.then is not None and self._runs[-1] is not None:
            return self.act.then
        if self.act is not None:
            return self.act.watch_for
        return self.scene.acts[0].watch_for

    @property
    def caption(self) -> str:
        """The sentence to be read now."""
        if self.state == "busy":
            return BUSY
        if self.state == "ready" and not self._session.torch_ready:
            return LOADING
        if self.state == "asking" and self.question is not None:
            return self.said(self.question.text)
        if self.state == "told" and self.measured is not None:
            return f"{self.verdict}{self.measured.sentence}"
        if self.state == "ended":
            return "That was the demo."
        if self._between and self.log:
            return self.log[-1]
        if self.act is not None and self.state == "playing":
            return self.act_text
        return self.said(self.scene.watch_for)

    def said(self, text: str) -> str:
        """``text`` of a scene as it is true of the GPU there is: a simulated one is called so."""
        return of_gpu(text, simulated=kind_of(self._device("gpu") or "cpu") == "sim")

    @property
    def act_text(self) -> str:
        """What the newest act does, in a sentence; of a run that was changed so that it fits, what was changed."""
        act = self.act
        if act is None:
            return ""
        return self.said(
            act.description
            if act.spec is not None
            else act.description.format(change=self.change or "a larger memory cap")
        )

    @property
    def change(self) -> str:
        """What the newest act changes of the one before: fields, or the device; "" where it is the first."""
        if self._before is None or self.playing_spec is None:
            return ""
        spec, device = self._before
        if device != self.playing_device:
            return f"{shown_name(self.playing_device)} instead of {shown_name(device)}"
        mistakes = {"pitfall"}  # which the act's own sentence names
        return changed_text(spec.name, spec.model_dump(), self.playing_spec.model_dump(exclude=mistakes))

    @property
    def step_text(self) -> str:
        """How far the run that is on has come; "" where none is or it has no steps."""
        if not self._on:
            return ""
        with self._session.store.lock:
            run = run_of(self._session.store.runs, self._run_id)
            if run is None or not run.steps:
                return ""
            return f"Step {run.step} of {run.steps}."

    @property
    def verdict(self) -> str:
        """Whether the guess was right, in a word; "" without a guess or where the runs do not tell."""
        answer = None
        if self.measured is not None:
            answer = self.measured.answer
        if self.guess is None or answer is None or self.question is None:
            return ""
        if self.guess == answer:
            return "Right. "
        return f"Not quite: {self.said(self.question.choices[answer])}. "

    @property
    def _between(self) -> bool:
        """Whether an act is over and the next one has not begun."""
        return self.state == "playing" and not self._on and bool(self._runs)

    @property
    def run_is_on(self) -> bool:
        """Whether an act is being played."""
        return self._on

    def start(self, position: int = 0) -> None:
        """Begin with a scene."""
        self._begin(position)

    def take_guess(self, choice: int | None) -> None:
        """Take a guess, or none, and measure; ignored when nothing is asked."""
        if self.state == "asking":
            self.guess = choice
            self._play()

    def pause(self) -> None:
        """Begin nothing new until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused, self._since = False, None

    def next(self) -> None:
        """The next scene; after the last one the demo is over. A run of this scene is stopped."""
        if self.position + 1 < len(self.scenes):
            self._begin(self.position + 1)
        else:
            self.leave()

    def back(self) -> None:
        """The scene before, or this one from its beginning; a run of it is stopped."""
        self._begin(max(0, self.position - 1))

    def go(self, position: int) -> None:
        """Another scene; a run of this one is stopped."""
        self._begin(position)

    def stop_users_run(self) -> None:
        """Stop the run that is in the way, because the presenter says so; a program of the user's has SIGINT alone."""
        if self.state == "busy" and self._session.runs.stopping is None:
            self._session.stop_run("after the demo was to begin")

    def leave(self) -> None:
        """The demo is over; a run of it is stopped, and nobody else's."""
        self._stop_own()
        self.state = "ended"

    def tick(self, now_s: float) -> None:
        """Go on as far as possible.

        Args:
            now_s: monotonic seconds of any origin.
        """
        if self._since is None:
            self._since = now_s
        if self._ending:
            if self._own_is_on:
                return
            self._ending = self._on = False
        if self.state == "ready":
            if self._session.torch_ready and (self._device("gpu") is not None or now_s - self._since >= GPU_PATIENCE_S):
                self._ask()
        elif self.state == "asking":
            if self.auto and not self.paused and now_s - self._since >= self._pace.ask:
                self.take_guess(None)
        elif self.state in ("playing", "busy"):
            self._go_on(now_s)
        elif self.state == "told" and self.auto and not self.paused and now_s - self._since >= self._pace.measured:
            self.next()

    def _begin(self, position: int) -> None:
        self._stop_own()
        self.position = min(max(0, position), len(self.scenes) - 1)
        self.act = self.guess = self.measured = None
        self.log, self._runs, self._since = [], [], None
        self.playing_spec = self._before = None
        self.question = None
        self.state = "ready"
        if self._session.torch_ready and self._device("gpu") is not None:
            self._ask()

    def _ask(self) -> None:
        """Ask what may be guessed on the devices there are, or begin at once."""
        if self.guesses:
            self.question = self.scene.question(kind_of(self._device("best") or "cpu"))
        else:
            self.question = None
        if self.question is None:
            self._play()
        else:
            self.state, self._since = "asking", None

    def _play(self) -> None:
        self.state, self._since = "playing", None

    @property
    def _own_is_on(self) -> bool:
        """Whether the demo has begun a run that has not ended."""
        if not self._on:
            return False
        with self._session.store.lock:
            run = run_of(self._session.store.runs, self._run_id)
            newest = self._session.store.run
            return run is None or run.running or (run is newest and self._session.running)

    def _stop_own(self) -> None:
        if not self._own_is_on:
            self._on = False
        elif not self._ending:
            self._session.stop_run()
            self._ending = True

    def _go_on(self, now_s: float) -> None:
        """Wait for the act that is on; begin the next one when its words have been read; tell when all are over."""
        if self._on:
            if self._own_is_on or not self._session.remedies.wait(0):
                return
            self._end_act()
            self._since = now_s
            return
        reading = self.act is not None and self.act.then is not None
        if reading:
            pause_s = self._pace.read
        else:
            pause_s = self._pace.act
        held = bool(self._runs) and now_s - (self._since or 0.0) < pause_s
        if self.paused or held:
            return
        if len(self._runs) == len(self.scene.acts):
            self.measured = self.scene.measured(self._runs)
            self.state, self._since = "told", now_s
        elif self._session.running:
            self.state = "busy"
        else:
            self.state = "playing"
            self._begin_act(self.scene.acts[len(self._runs)])
            self._since = now_s

    def _begin_act(self, act: Act) -> None:
        self.act = act
        device, before = self._device(act.where), self._runs[-1] if self._runs else None
        cap = act.memory_cap
        if device is None:
            self._fail(NO_GPU)
            return
        if act.spec is not None:
            spec = act.spec
        elif before is not None and self._ended is not None and (fix := fixed(self._ended, cap)) is not None:
            spec, cap = fix
        else:
            self._fail(NO_REMEDY)
            return
        if kind_of(device) == "cpu":
            cap = None
        if self.playing_spec is None:
            self._before = None
        else:
            self._before = (self.playing_spec, self.playing_device)
        self.playing_spec, self.playing_device = spec, device
        try:
            self._run_id = self._session.start_run(spec, device, None, cap, self._isolate())
        except (ValueError, RuntimeError) as error:
            self._fail(str(error))
        else:
            self._on = True

    def _fail(self, sentence: str) -> None:
        self.log.append(sentence)
        self.failures.append(f"{self.scene.title}: {sentence}")
        self._runs.append(None)

    def _end_act(self) -> None:
        self._on = False
        act = self.act
        with self._session.store.lock:
            self._ended = run = run_of(self._session.store.runs, self._run_id)
            summary = None
            if run is not None:
                summary = run.summary()
        self._runs.append(summary)
        if act is None or summary is None:
            return
        expected = ("finished", "out_of_memory") if act.may_run_out else ("finished",)
        if summary["status"] == "cancelled":
            self.log.append("The run was stopped.")
        elif summary["status"] not in expected:
            error = summary["error"] or {}
            self.log.append(f"{error.get('message', '')} {error.get('remedy', '')}".strip())
            self.failures.append(f"{self.scene.title}: {self.log[-1]}")
        elif act.describe is not None:
            self.log.append(act.describe(summary))

    def _device(self, where: str) -> str | None:
        """The device for an act, the same GPU in every scene; ``None`` when there is none."""
        if where == "cpu":
            return "cpu"
        usable = [device.name for device in self._session.devices() if device.problem is None]
        if self._gpu not in usable:
            default = self._session.default_device()
            if kind_of(default) == "cuda":
                self._gpu = default
            else:
                self._gpu = None
        simulated = next((name for name in usable if kind_of(name) == "sim"), None)
        if self._simulate:
            found = simulated or self._gpu
        else:
            found = self._gpu or simulated
        return found or ("cpu" if where == "best" else None)


CAP_FLAG = "--memory-cap "


def fixed(run: RunView, cap: MemoryCap | None) -> tuple[Spec, MemoryCap | None] | None:
    """What to run in place of ``run``, and the cap it may have; ``None`` where no change that can be made here fits.

    Args:
        run: that ran out of memory.
        cap: what the run was allowed.
    """
    explanation = None
    if run.error is not None:
        explanation = run.error.explanation
    kind = workloads().get(run.workload)
    if explanation is None or kind is None:
        return None
    remedies = explanation.remedies
    remedy = first_remedy(remedies)
    if remedy is not None:
        return kind.model_validate({**run.spec, **remedy.fields}), cap
    raised = next((found for found in remedies if found.fits and found.flags.startswith(CAP_FLAG)), None)
    if raised is None:
        return None
    return kind.model_validate(run.spec), MemoryCap.parse(raised.flags.removeprefix(CAP_FLAG))


def first_remedy(remedies: Sequence[Remedy]) -> Remedy | None:
    """The first that fits, changes fields of the run alone, and trains as before; else the first that trains not so."""
    usable = [remedy for remedy in remedies if remedy.fits and remedy.fields and not remedy.device]
    return next((remedy for remedy in usable if not remedy.changes_training), usable[0] if usable else None)
