"""The scenes of the demo: what is run, what may be guessed first, and what is said and shown of what came out.

An act is lines of code on a simulated card, a run of a workload, or a rung of the ladder, which is predicted. Of a
simulated GPU bytes and losses are told, and a rate only as that of this computer's CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpudash.devices.names import shown_name
from gpudash.drawing.stages import StageBlock, StageChart, StageColumn, in_unit, unit_for
from gpudash.session.demo.ladder import RungResult, ladder, ladder_pictures, state_of
from gpudash.session.demo.pictures import (
    CodeLine,
    LineScript,
    LineState,
    StagePanel,
    StagePicture,
    Tone,
    code_of,
    empty_chart,
    pictures_of,
)
from gpudash.specs import Spec, TrainingSpec
from gpudash.units import MIB, format_bytes, format_count
from gpudash.workloads.lines.trace import LinesTrace

Run = Mapping[str, Any]

SAME_LOSS = 0.01
"""Relative difference up to which two losses count as the same: what rounding in another order brings about."""

LEAST_DIFFERENCE = 0.0001
"""Relative difference of losses below which it is only said to be below."""

MUCH_FASTER = 5.0
"""Ratio of speeds that parts the second guess from the third."""

ABOUT_AS_FAST = 1.05
"""Ratio of speeds up to which neither device counts as the faster."""

Where = Literal["cpu", "gpu", "best"]
"""The CPU; a GPU, real or simulated; the GPU where there is one, else the CPU."""


@dataclass(frozen=True, slots=True)
class SceneQuestion:
    """A guess that can be made before it is measured.

    Attributes:
        text: what is requested.
        choices: the three guesses.
        kinds: kinds of device on which the runs answer it.
    """

    text: str
    choices: tuple[str, str, str]
    kinds: tuple[str, ...] = ("cuda", "sim", "cpu")


@dataclass(frozen=True, slots=True)
class LinesAct:
    """Lines that are run one by one on a simulated card.

    Attributes:
        source: the lines.
        limit: bytes that the card has.
        on_gpu: whether a tensor that names no device is made there.
        script: what is said of them; its title and question are the scene's.
        is_mistake: whether they pass, and should not.
    """

    source: str
    limit: int
    on_gpu: bool = False
    script: LineScript = field(default_factory=LineScript)
    is_mistake: bool = False


@dataclass(frozen=True, slots=True)
class RunAct:
    """A run of a workload.

    Attributes:
        label: what it is, in a few words.
        code: the line that makes it differ.
        spec: what is run.
        where: on which device.
    """

    label: str
    code: str
    spec: Spec
    where: Where = "best"


@dataclass(frozen=True, slots=True)
class RungAct:
    """A rung of the ladder.

    Attributes:
        place: which one.
        spec: what is predicted.
    """

    place: int
    spec: Spec


Act = LinesAct | RunAct | RungAct
Result = LinesTrace | RungResult | Run | str
"""What came of an act: of a run its summary with its ``losses``; a sentence where it could not be played."""


@dataclass(frozen=True, slots=True)
class PlayedScene:
    """A scene as far as it has been played.

    Attributes:
        results: of the acts that are over.
        running: the run that is on, as its summary; ``None`` without one.
        device: that runs are on.
        waiting: why the next act has not begun, in a sentence; "" where it has.
    """

    results: tuple[Result, ...] = ()
    running: Run | None = None
    device: str = "cpu"
    waiting: str = ""

    @property
    def simulated(self) -> bool:
        """Whether the runs' device is."""
        return self.device.startswith("sim")


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene.

    Attributes:
        title: a few words.
        subject: what it is about, a short question or sentence.
        acts: what is run, in order.
        pictures: the steps, as far as they are known.
        questions: what may be guessed; the first that suits the device is requested.
        answer: which guess is right; ``None`` where the results do not tell.
        editable: whether the lines are the presenter's to change.
    """

    title: str
    subject: str
    acts: tuple[Act, ...]
    pictures: Callable[[Scene, PlayedScene], list[StagePicture]]
    questions: tuple[SceneQuestion, ...] = ()
    answer: Callable[[Sequence[Result]], int | None] = lambda _results: None
    editable: bool = False

    def question(self, kind: str) -> SceneQuestion | None:
        """What may be guessed where the runs are on a device of this kind; ``None`` when nothing may."""
        return next((question for question in self.questions if kind in question.kinds), None)


def line_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """The steps of lines: those of each act after those of the one before."""
    found: list[StagePicture] = []
    for place, act in enumerate(scene.acts):
        if not isinstance(act, LinesAct):
            continue
        script = replace(act.script, title=scene.title, question=scene.subject)
        if place < len(played.results):
            found += _act_pictures(act, script, played.results[place])
        elif place == len(played.results):
            corner = f"limit {format_bytes(act.limit)} · simulated"
            sentence = played.waiting or "The lines are running…"
            code = code_of(act.source.splitlines())
            titles = ("before", *(f"line {line.number}" for line in code), "after")
            chart = empty_chart(float(act.limit), titles)
            found.append(
                StagePicture(script.title, script.question, corner, code, "IN MEMORY", chart=chart, sentence=sentence)
            )
    return found


def _act_pictures(act: LinesAct, script: LineScript, result: Result) -> list[StagePicture]:
    if not isinstance(result, LinesTrace):
        sentence = result if isinstance(result, str) else ""
        return [StagePicture(script.title, script.question, code=code_of(act.source.splitlines()), sentence=sentence)]
    found = pictures_of(result, script)
    if act.is_mistake and result.failure is None and found:
        found[-1] = replace(found[-1], tone="wrong", remark=script.mend)
    return found


def peak_in_tensors(results: Sequence[Result]) -> int | None:
    """Scene 1: the peak in sizes of the tensor."""
    trace = results[0]
    if not isinstance(trace, LinesTrace) or not trace.peak:
        return None
    return min(max(1, round(trace.peak / MOVED_BYTES)), 3) - 1


def where_it_was(results: Sequence[Result]) -> int | None:
    """Scene 2: whether the tensor was still on the CPU after the first mistake."""
    trace = results[0]
    if not isinstance(trace, LinesTrace) or not trace.moments:
        return None
    if trace.failure is not None:
        return 2
    last = trace.moments[-1]
    return 1 if last.host and not last.blocks else 0


def filled_by(results: Sequence[Result]) -> int | None:
    """Scene 5: what held the most when memory ran out."""
    trace = results[0]
    if not isinstance(trace, LinesTrace) or not trace.moments:
        return None
    largest = max(trace.moments[-1].blocks, key=lambda block: block.bytes, default=None)
    if largest is None:
        return None
    return 0 if largest.named else 1


def copied_bytes(run: Run) -> int:
    """Bytes that crossed in all stages of a run."""
    return sum(stage["bytes"] or 0 for stage in run["stages"] if stage["copied"])


def copies(results: Sequence[Result]) -> int | None:
    """Scene 3: by how much more crosses there and back."""
    runs = [result for result in results if isinstance(result, Mapping)]
    if len(runs) < 3 or not copied_bytes(runs[1]):
        return None
    ratio = copied_bytes(runs[2]) / copied_bytes(runs[1])
    if ratio < 1.5:
        return 0
    return 1 if ratio < 5 else 2


def copy_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """Scene 3: bytes that crossed, a column a placement of the batches."""
    runs = _runs(played)
    acts = [act for act in scene.acts if isinstance(act, RunAct)]
    pictures = []
    for at in range(min(len(runs) + 1, len(acts))):
        known = runs[: at + 1]
        columns, code = [], []
        for place, act in enumerate(acts):
            size = 0
            blocks: tuple[StageBlock, ...] = ()
            figure = ""
            if place < len(known) and known[place] is not None:
                size = copied_bytes(known[place] or {})
                blocks = (StageBlock("copied", float(size), "h2d" if place < 2 else "d2h"),)
                figure = format_bytes(size)
            state = state_of(place, at)
            code.append(CodeLine(str(place + 1), act.code, figure, state, place == 2 and bool(figure)))
            columns.append(StageColumn(act.label, blocks, state))
        highest = max((column.bytes for column in columns), default=0.0)
        unit = unit_for(highest)[0]
        columns = [replace(column, figure=in_unit(column.bytes, unit) if column.blocks else " ") for column in columns]
        chart = StageChart("COPIED IN 60 STEPS", tuple(columns), None, "the same training each time")
        sentence, tone, remark = _copy_sentence(acts, known, at, played)
        pictures.append(
            StagePicture(
                scene.title,
                scene.subject,
                _corner(played),
                tuple(code),
                "COPIED",
                tuple(block for column in columns for block in (_labelled(column),) if block is not None),
                chart,
                sentence=sentence,
                tone=tone,
                remark=remark,
            )
        )
    return pictures


def _labelled(column: StageColumn) -> StageBlock | None:
    if not column.blocks:
        return None
    return replace(column.blocks[0], name=column.title)


def _copy_sentence(
    acts: Sequence[RunAct], known: Sequence[Run | None], at: int, played: PlayedScene
) -> tuple[str, Tone, str]:
    if at >= len(known):
        return played.waiting or f"Training, the batches copied {acts[at].label}…", "plain", ""
    run = known[at]
    if run is None:
        return _problem(played, at), "wrong", ""
    size, steps = format_bytes(copied_bytes(run)), format_count(run["steps"])
    if at == 2 and known[1] is not None and copied_bytes(known[1]):
        ratio = copied_bytes(run) / copied_bytes(known[1])
        return f"{size} crossed, {ratio:.1f} times as much as one way: every batch comes back, every step.", "warn", ""
    return f"{size} crossed in {steps} steps, three times through the data: {acts[at].label}.", "plain", ""


def panel_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """Runs beside each other: a panel a run, with its loss and its figures."""
    runs = _runs(played)
    acts = [act for act in scene.acts if isinstance(act, RunAct)]
    pictures = []
    for at in range(min(len(runs) + 1, len(acts))):
        panels, code = [], []
        for place, act in enumerate(acts):
            run: Run | None = None
            if place < len(runs) and place <= at:
                run = runs[place]
            elif place == at:
                run = played.running
            state = state_of(place, at)
            panels.append(_panel(act, run, state))
            code.append(CodeLine(str(place + 1), act.code, "", state))
        sentence, tone, remark = _panel_sentence(acts, runs, at, played)
        pictures.append(
            StagePicture(
                scene.title,
                scene.subject,
                _corner(played),
                tuple(code),
                panels=tuple(panels),
                sentence=sentence,
                tone=tone,
                remark=remark,
            )
        )
    return pictures


def _panel(act: RunAct, run: Run | None, state: LineState) -> StagePanel:
    steps = int(getattr(act.spec, "steps", 0))
    if run is None:
        return StagePanel(act.label, (), steps, (), state)
    peak = run["memory"]["peak_allocated_bytes"]
    loss = run_loss(run)
    figures = []
    if peak is not None:
        figures.append(("peak", format_bytes(peak)))
    if loss is not None:
        figures.append(("loss", f"{loss:.4f}"))
    if run["status"] == "finished":
        where = ", CPU" if run["simulated"] or run["device"] == "cpu" else ""
        figures.append((f"items/s{where}", run_speed(run)))
    return StagePanel(act.label, tuple(run.get("losses", ())), steps, tuple(figures), state)


def _panel_sentence(
    acts: Sequence[RunAct], runs: Sequence[Run | None], at: int, played: PlayedScene
) -> tuple[str, Tone, str]:
    if at >= len(runs):
        return played.waiting or f"Training: {acts[at].label}…", "plain", ""
    run = runs[at]
    if run is None:
        return _problem(played, at), "wrong", ""
    if at + 1 < len(acts) or any(found is None for found in runs):
        loss = run_loss(run)
        outcome = f"loss {loss:.3f} after {format_count(run['steps'])} steps" if loss is not None else "no loss"
        return f"{acts[at].label}: {outcome}.", "plain", ""
    compare = both_trained if len(acts) == 2 else precisions
    return compare([found for found in runs if found is not None])


def both_trained(runs: Sequence[Run]) -> tuple[str, Tone, str]:
    """Scene 4: whether both devices reach the same loss; which is faster only where both are real."""
    before, after = run_loss(runs[0]), run_loss(runs[1])
    if before is None or after is None:
        return "A run was stopped, so there is nothing to compare.", "plain", ""
    agreeing = abs(after - before) <= SAME_LOSS * abs(before)
    same = "the same within 1 %" if agreeing else "not the same"
    first, second = shown_name(runs[0]["device"]), shown_name(runs[1]["device"])
    sentence = f"Loss {before:.3f} on {first} and {after:.3f} on {second}: {same}."
    if runs[1]["simulated"]:
        return sentence, "good" if agreeing else "warn", "simulated: no word on speed"
    ratio = _speed_ratio(runs)
    if ratio is None:
        return sentence, "good", ""
    return sentence, "good", f"GPU {ratio:.1f} times as fast"


def trained_answer(results: Sequence[Result]) -> int | None:
    """Scene 4: which guess is right; on a simulated GPU of the losses, else of the speeds."""
    runs = [result for result in results if isinstance(result, Mapping)]
    if len(runs) < 2:
        return None
    before, after = run_loss(runs[0]), run_loss(runs[1])
    if before is None or after is None:
        return None
    if not runs[1]["simulated"]:
        ratio = _speed_ratio(runs)
        if ratio is None:
            return None
        if ratio <= ABOUT_AS_FAST:
            return 0
        return 1 if ratio <= MUCH_FASTER else 2
    if abs(after - before) <= SAME_LOSS * abs(before):
        return 1
    return 0 if before < after else 2


def precisions(runs: Sequence[Run]) -> tuple[str, Tone, str]:
    """Scene 6: what bf16 and fp16 take of memory, and what becomes of the loss."""
    peaks = [run["memory"]["peak_allocated_bytes"] for run in runs]
    losses = [run_loss(run) for run in runs]
    if None in peaks or None in losses:
        return "Not every run has a peak and a loss, so there is nothing to compare.", "plain", ""
    share = 1 - peaks[1] / peaks[0]
    worst = max(abs((loss or 0.0) - (losses[0] or 0.0)) / abs(losses[0] or 1.0) for loss in losses[1:])
    memory = f"bf16 takes {share:.0%} less memory than fp32".replace("%", " %")
    if share < 0:
        memory = f"bf16 takes {-share:.0%} more memory than fp32".replace("%", " %")
    losses_text = f"losses differ by {worst:.2%} at most".replace("%", " %")
    if worst < LEAST_DIFFERENCE:
        losses_text = "losses differ by less than 0.01 %"
    return f"{memory}; {losses_text}.", "good", ""


def fewer_bytes(results: Sequence[Result]) -> int | None:
    """Scene 6: how much of fp32's peak bf16 saves."""
    runs = [result for result in results if isinstance(result, Mapping)]
    peaks = [run["memory"]["peak_allocated_bytes"] for run in runs]
    if len(peaks) < 2 or not peaks[0] or peaks[1] is None:
        return None
    share = peaks[1] / peaks[0]
    if share < 0.6:
        return 0
    return 1 if share < 0.95 else 2


def rung_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """Scene 7: the rungs that are predicted."""
    model, rungs, _specs = ladder()
    results = [result for result in played.results if isinstance(result, RungResult)]
    found = ladder_pictures(scene.title, scene.subject, rungs, results, model)
    if found and played.waiting and len(results) < len(rungs):
        found[-1] = replace(found[-1], sentence=played.waiting)
    return found


def run_loss(run: Run) -> float | None:
    """The loss at the end of a run, the median of its last 20 steps."""
    loss = run["metrics"].get("loss", {}).get("last_20_median")
    if loss is None:
        return None
    return float(loss)


def run_speed(run: Run) -> str:
    """How many items a second a run came to."""
    speed = run["metrics"].get("throughput", {}).get("median")
    if speed is None:
        return "–"
    return f"{speed:,.0f}"


def _speed_ratio(runs: Sequence[Run]) -> float | None:
    speeds = [run["metrics"].get("throughput", {}).get("median") for run in runs]
    if not speeds[0] or not speeds[1]:
        return None
    return float(speeds[1] / speeds[0])


def _runs(played: PlayedScene) -> list[Run | None]:
    """The runs that are over; ``None`` for one that did not come to its end."""
    found: list[Run | None] = []
    for result in played.results:
        whole = isinstance(result, Mapping) and result["status"] == "finished"
        found.append(result if whole and isinstance(result, Mapping) else None)
    return found


def _problem(played: PlayedScene, at: int) -> str:
    """Why an act came to nothing, in a sentence."""
    result = played.results[at]
    if isinstance(result, str):
        return result
    if isinstance(result, Mapping):
        if result["status"] == "cancelled":
            return "The run was stopped."
        return str((result["error"] or {}).get("message") or "The run did not come to its end.")
    return "It could not be played."


def _corner(played: PlayedScene) -> str:
    if played.simulated:
        return f"{played.device} · simulated: the CPU computes"
    return shown_name(played.device)


MOVED_BYTES = 64 * MIB
"""Size of the tensor of scene 1."""

LIMIT = 256 * MIB
"""What a card of the lines has: few blocks fill it."""

_SMALL = TrainingSpec.model_validate({"width": 64, "depth": 2, "sequence": 32, "steps": 120, "epochs": 2})

_PRECISE = {"width": 128, "depth": 2, "sequence": 64, "batch": 16, "steps": 30, "epochs": 1}

MY_LINES = "a = torch.randn(4096, 4096)\nb = a @ a\nc = (a + b).relu()"
"""What the editor has at first."""


def _mistake(source: str, mend: str, end: str = "", limit: int = 48 * MIB) -> LinesAct:
    return LinesAct(source, limit, script=LineScript(mend=mend, end=end), is_mistake=True)


def _batches(where: str, label: str, code: str) -> RunAct:
    fields = {"model": "mlp", "width": 256, "depth": 2, "batch": 1024, "steps": 60, "epochs": 3, "batches": where}
    return RunAct(label, code, TrainingSpec.model_validate(fields))


def _precision(name: str, code: str) -> RunAct:
    return RunAct(name, code, TrainingSpec.model_validate({**_PRECISE, "precision": name}))


_MODEL, _RUNGS, _RUNG_SPECS = ladder()

SCENES = (
    Scene(
        "Move a tensor",
        "What does a copy on the GPU, and a result there, take?",
        (
            LinesAct(
                "x = torch.randn(4096, 4096)\nx = x.to(gpu)\ny = x + 10\nz = y.cpu()",
                LIMIT,
                script=LineScript(before="x has 64 MiB. It is made on the CPU, moved, added to, and brought back."),
            ),
        ),
        line_pictures,
        (
            SceneQuestion(
                "A tensor of 64 MiB is moved to the GPU, and y = x + 10 is computed there. How much is allocated?",
                ("64 MiB", "128 MiB", "192 MiB"),
            ),
        ),
        peak_in_tensors,
    ),
    Scene(
        "What can go wrong",
        "Four mistakes, made for real, in PyTorch's own words",
        (
            _mistake(
                "x = torch.randn(4096, 4096)\nx.to(gpu)",
                "x = x.to(gpu)",
                "No error, but x is still on the CPU: its copy had no name and is gone.",
                128 * MIB,
            ),
            _mistake(
                "x = torch.randn(2048, 2048)\nw = torch.randn(2048, 2048, device=gpu)\ny = x + w", "x.to(gpu) + w"
            ),
            _mistake(
                "x = torch.randn(2048, 2048)\nx.requires_grad_()\ny = x.to(gpu)\ny.sum().backward()\ny.grad.norm()",
                "x.grad has it",
            ),
            _mistake("x = torch.randn(2048, 2048, device=gpu)\nx.numpy()", "x.cpu().numpy()"),
        ),
        line_pictures,
        (
            SceneQuestion(
                "x.to(gpu) stands on a line of its own. Where is x afterwards?",
                ("On the GPU", "Still on the CPU", "Nowhere: an error"),
            ),
        ),
        where_it_was,
    ),
    Scene(
        "Copy once, or every step",
        "The same training, its batches in three places",
        (
            _batches("resident", "once", "data = data.to(gpu)    # before step 1"),
            _batches("moved", "every step", "x = batch.to(gpu)      # in each step"),
            _batches("pingpong", "there and back", "x = batch.to(gpu); batch = x.cpu()"),
        ),
        copy_pictures,
        (
            SceneQuestion(
                "Every batch is copied to the GPU and back, not just to it. How many bytes cross?",
                ("As many", "About twice as many", "Five times as many"),
                ("cuda", "sim"),
            ),
        ),
        copies,
    ),
    Scene(
        "Train on the CPU, then on the GPU",
        "The same seed, the same data, another device",
        (
            RunAct("on the CPU", 'model.to("cpu")', _SMALL, "cpu"),
            RunAct("on the GPU", "model.to(gpu)", _SMALL, "gpu"),
        ),
        panel_pictures,
        (
            SceneQuestion(
                "This model is small. How fast is the GPU compared with the CPU?",
                ("No faster", "Up to five times", "More than five times"),
                ("cuda",),
            ),
            SceneQuestion(
                "Same seed, same data, another device. After 120 steps the loss is …",
                ("lower on the CPU", "the same within 1 %", "lower on the GPU"),
                ("sim",),
            ),
        ),
        trained_answer,
    ),
    Scene(
        "Run out of memory, and fix it",
        "A training loop keeps one number a step. Or more?",
        (
            LinesAct(
                "model = nn.Linear(1024, 4096)\n"
                "x = torch.randn(2304, 1024)\n"
                "losses = []\n"
                "for step in range(6):\n"
                "    loss = model(x).square().mean()\n"
                "    losses.append(loss)",
                LIMIT,
                True,
                LineScript(
                    mend="write losses.append(loss.item())",
                    before="Six steps on a card of 256 MiB. Each keeps its loss: one number.",
                ),
            ),
            LinesAct(
                "model = nn.Linear(1024, 4096)\n"
                "x = torch.randn(2304, 1024)\n"
                "losses = []\n"
                "for step in range(6):\n"
                "    loss = model(x).square().mean()\n"
                "    losses.append(loss.item())",
                LIMIT,
                True,
                LineScript(
                    before="The same loop with loss.item(): a number keeps no graph.",
                    end="Fixed: all six steps fit; from the second on, each takes the same.",
                ),
            ),
        ),
        line_pictures,
        (
            SceneQuestion(
                "This loop runs out of memory. What is the memory full of?",
                ("Weights", "Results of past steps", "Optimizer state"),
            ),
        ),
        filled_by,
    ),
    Scene(
        "Three precisions",
        "The same training in fp32, bf16 and fp16: memory, loss, speed",
        (
            _precision("fp32", "loss = model(x)"),
            _precision("bf16", "with autocast(dtype=bfloat16): loss = model(x)"),
            _precision("fp16", "with autocast(dtype=float16): scaler.scale(loss)"),
        ),
        panel_pictures,
        (
            SceneQuestion(
                "Under autocast results take two bytes, not four. How much of the peak is left?",
                ("About half", "Between half and all", "As much as before"),
                ("cuda", "sim"),
            ),
        ),
        fewer_bytes,
    ),
    Scene(
        "The ladder of remedies",
        f"{_MODEL}, on a card of 4 GiB",
        tuple(RungAct(place, spec) for place, spec in enumerate(_RUNG_SPECS)),
        rung_pictures,
    ),
    Scene(
        "My three lines",
        "What does line 3 need, beyond the block it keeps?",
        (LinesAct(MY_LINES, 320 * MIB, True, LineScript()),),
        line_pictures,
        editable=True,
    ),
)
"""The scenes, in the order in which they are shown."""
