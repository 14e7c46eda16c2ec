"""The scenes of the demo: what is run, what to look at, what may be guessed first; what they measured, in a sentence,
and which guess it bears out.

Runs are given as `RunView.summary` writes them, in the order of the scene's acts; ``None`` stands for one that could
not be started. Of a simulated GPU bytes and losses are told, and never a time or a rate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpudash.devices.names import shown_name
from gpudash.specs import PipelineSpec, Spec, TrainingSpec, workloads
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import MIB, format_bytes, format_count, format_duration, format_rate, format_throughput

Run = Mapping[str, Any]
Runs = Sequence[Run | None]

SAME_LOSS = 0.01
"""Relative difference up to which two losses count as the same: what rounding in another order brings about."""

ABOUT_AS_FAST = 1.05
"""Ratio of speeds up to which neither device counts as the faster."""

MUCH_FASTER = 5.0
"""Ratio of speeds that parts the second guess from the third."""


@dataclass(frozen=True, slots=True)
class MeasuredScene:
    """What came out.

    Attributes:
        sentence: in words.
        answer: index of the guess that is right; ``None`` where the runs do not tell.
    """

    sentence: str
    answer: int | None = None


_OFTEN = {1: "once", 2: "twice"}


def moved_and_back(runs: Runs) -> MeasuredScene:
    """Scene 1: the peak in sizes of the tensor, or on the CPU that nothing was copied."""
    run = _finished(runs, 0)
    if run is None:
        return _nothing(runs)
    move = _stage(run, "move")
    size = _stage(run, "create")["bytes"] / _stage(run, "create")["count"]
    device = shown_name(run["device"])
    if not move["copied"]:
        return MeasuredScene(f"The tensor of {format_bytes(size)} was on {device} already: 0 bytes were copied.")
    text = f"{format_bytes(move['bytes'])} went to {device}"
    text += "" if run["simulated"] else f" at {format_rate(move['bytes_per_second'])}"
    peak = run["memory"]["peak_allocated_bytes"]
    if peak is None:
        return MeasuredScene(f"{text}.")
    times = max(1, round(peak / size))
    return MeasuredScene(
        f"{text}, {format_bytes(size)} each time. At the peak {format_bytes(peak)} were allocated there: "
        f"{_OFTEN.get(times, f'{times} times')} the tensor.",
        min(times, 3) - 1,
    )


def mistakes(runs: Runs) -> MeasuredScene:
    """Scene 2: how many mistakes torch spoke up at, and where the tensor of the first one was."""
    pitfalls = [run["result"]["pitfall"] for run in runs if run is not None and "pitfall" in run["result"]]
    if not pitfalls:
        return _nothing(runs)
    silent = sum(1 for found in pitfalls if not found["message"])
    where = next((found["facts"].get("device_after") for found in pitfalls if found["pitfall"] == "unassigned"), None)
    sentence = f"PyTorch reported {len(pitfalls) - silent} of {len(pitfalls)} mistakes"
    sentence += f"; {silent} passed silently" if silent else ""
    if where is None:
        return MeasuredScene(f"{sentence}.")
    return MeasuredScene(f"{sentence}; after x.to(device) alone, x was on {where}.", 1 if where == "cpu" else 0)


_GPU = re.compile(r"(?<!imulated )\bGPU\b")


def of_gpu(text: str, *, simulated: bool) -> str:
    """``text`` of our own that speaks of a GPU, which is called simulated where it is."""
    if simulated:
        return _GPU.sub("simulated GPU", text)
    return text


def pitfall(run: Run) -> str:
    """One mistake of scene 2: torch's own words, whole, and what to do instead."""
    found = run["result"].get("pitfall")
    if found is None:
        return ending(run)
    message = " ".join((found["message"] or "").split())
    text = "PyTorch reports no error."
    if message:
        text = f"torch: “{message}”"
    return f"{text} {of_gpu(found['remedy'], simulated=run['simulated'])}"


def copies(runs: Runs) -> MeasuredScene:
    """Scene 3: bytes that crossed by placement of the batches, and on a GPU the speed beside them."""
    placements: dict[str, Run] = {}
    for run in runs:
        if run is not None and run["status"] == "finished":
            placements[run["spec"]["batches"]] = run
    if not {"moved", "pingpong"} <= placements.keys():
        return _nothing(runs)
    carried = {name: _copied_bytes(run) for name, run in placements.items()}
    device = shown_name(placements["moved"]["device"])
    if not carried["moved"]:
        return MeasuredScene(f"On {device} nothing was copied: the batches were there already.")
    ratio = carried["pingpong"] / carried["moved"]
    sentence = (
        f"Moved each step, {format_bytes(carried['moved'])} crossed to {device}; there and back, "
        f"{format_bytes(carried['pingpong'])} crossed: {ratio:.1f} times as much."
    )
    if "resident" in placements and not placements["moved"]["simulated"]:
        speeds = ", ".join(f"{name} {_speed(run)}" for name, run in placements.items())
        sentence += f" Throughput: {speeds}."
    return MeasuredScene(sentence, 0 if ratio < 1.5 else 1 if ratio < 5 else 2)


def placement(run: Run) -> str:
    """One placement of scene 3."""
    copied = _copied_bytes(run)
    steps = format_count(run["steps"])
    return f"batches {run['spec']['batches']}: {format_bytes(copied)} copied in {steps} steps."


def trained(run: Run) -> str:
    """One training of scene 4."""
    loss = _loss(run)
    if loss is None:
        text = ending(run)
    else:
        text = f"loss {loss:.3f} after {format_count(run['steps'])} steps"
    if run["simulated"]:
        speed = ""
    else:
        speed = f", {_speed(run)}"
    return f"{shown_name(run['device'])}: {text}{speed}."


def both_trained(runs: Runs) -> MeasuredScene:
    """Scene 4: whether both devices reach the same loss; the speeds only where both are real."""
    first, second = _finished(runs, 0), _finished(runs, 1)
    if first is None or second is None:
        return _nothing(runs)
    before, after = _loss(first), _loss(second)
    if before is None or after is None:
        return _nothing(runs)
    agreeing = abs(after - before) <= SAME_LOSS * abs(before)
    sentence = (
        f"Loss {before:.3f} on {shown_name(first['device'])} and {after:.3f} on {shown_name(second['device'])}: "
        f"{'the same within 1 %' if agreeing else 'not the same'}."
    )
    if second["simulated"]:
        sentence += " The arithmetic was the CPU's both times, so nothing is said of speed."
        return MeasuredScene(sentence, 1 if agreeing else 0 if before < after else 2)
    ratio = second["metrics"]["throughput"]["median"] / first["metrics"]["throughput"]["median"]
    if ratio > ABOUT_AS_FAST:
        sentence += f" {second['device']} was {_times(ratio)} as fast."
    elif ratio < 1 / ABOUT_AS_FAST:
        sentence += f" {first['device']} was {_times(1 / ratio)} as fast: this model is too small for the GPU."
    else:
        sentence += " Both took as long."
    return MeasuredScene(sentence, 0 if ratio <= ABOUT_AS_FAST else 1 if ratio <= MUCH_FASTER else 2)


def ran_out(run: Run) -> str:
    """The first act of scene 5: what was asked for, and what had been kept; else the explanation's own headline."""
    explanation = (run["error"] or {}).get("explanation")
    if explanation is None:
        return ending(run)
    requested, growing = explanation["requested_bytes"], explanation["growing"]
    if requested is None or not growing:
        return str(explanation["headline"])
    return (
        f"Step {explanation['step']} asked for {format_bytes(requested)} more, and they were not to be had: "
        f"{format_bytes(growing[0]['bytes_per_step'])} of every step had been kept."
    )


FILLERS = ({"weights"}, {"activations"}, {"optimizer state"})
"""Categories of memory that each guess of scene 5 stands for."""


def fixed(runs: Runs) -> MeasuredScene:
    """Scene 5: what filled the memory, and whether the fix let the run reach its end."""
    first = None
    if runs:
        first = runs[0]
    error = None
    if first is not None:
        error = first["error"]
    explanation = None
    if error is not None:
        explanation = error.get("explanation")
    if first is None or explanation is None:
        return _nothing(runs)
    held = explanation["by_category"]
    category = max(held, key=lambda name: held[name])
    answer = next((number for number, names in enumerate(FILLERS) if category in names), None)
    sentence = f"Memory was full of {category}: {format_bytes(held[category])}."
    second = None
    if len(runs) > 1:
        second = runs[1]
    if second is None:
        return MeasuredScene(f"{sentence} No change was found that could be tried.", answer)
    changed = changed_text(first["workload"], first["spec"], second["spec"]) or "a larger memory cap"
    if second["status"] != "finished":
        return MeasuredScene(f"{sentence} With {changed} it still did not come to its end: {ending(second)}", answer)
    return MeasuredScene(
        f"{sentence} With {changed} the run finished all {format_count(second['steps'])} steps.", answer
    )


def ending(run: Run) -> str:
    """How a run ended that did not reach its end, in a few words."""
    if run["status"] == "cancelled":
        return "was stopped"
    if run["error"] is not None:
        return str(run["error"]["message"])
    return f"{run['status']} after {format_duration(run['seconds'])}"


def changed_text(workload: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The fields of ``after`` that are not as in ``before``: "batches moved instead of resident"; "" without any."""
    kind = workloads().get(workload)
    if kind is None:
        fields = {}
    else:
        fields = kind.model_fields
    changes = []
    for name, value in after.items():
        if value != before.get(name):
            extra = None
            if name in fields:
                extra = fields[name].json_schema_extra
            labels = None
            if isinstance(extra, dict):
                labels = extra.get("labels")
            changes.append(_changed(name, value, before.get(name), labels if isinstance(labels, dict) else {}))
    return ", ".join(changes)


def _changed(name: str, value: Any, before: Any, labels: Mapping[str, Any]) -> str:
    """A field that is not what it was, as a person says it; ``labels`` are those of its choices."""
    field = name.replace("_", " ")
    if isinstance(value, bool):
        return f"{field} {'on' if value else 'off'}"
    now, was = (labels.get(choice, choice) if isinstance(choice, str) else choice for choice in (value, before))
    return f"{field} {now} instead of {was}"


def _times(ratio: float) -> str:
    if ratio < 10:
        return f"{ratio:.1f} times"
    return f"{ratio:.0f} times"


def _finished(runs: Runs, number: int) -> Run | None:
    run = None
    if number < len(runs):
        run = runs[number]
    if run is not None and run["status"] == "finished":
        return run
    return None


def _nothing(runs: Runs) -> MeasuredScene:
    """What is said of a scene whose runs did not all reach their end."""
    stopped = any(run is not None and run["status"] == "cancelled" for run in runs)
    return MeasuredScene(
        "A run was stopped, so there is nothing to show." if stopped else "There is nothing to show here."
    )


def _stage(run: Run, name: str) -> Mapping[str, Any]:
    return next(stage for stage in run["stages"] if stage["name"] == name)


def _copied_bytes(run: Run) -> int:
    return sum(stage["bytes"] or 0 for stage in run["stages"] if stage["copied"])


def _loss(run: Run) -> float | None:
    loss = run["metrics"].get("loss", {}).get("last_20_median")
    if loss is None:
        return None
    return float(loss)


def _speed(run: Run) -> str:
    return format_throughput(run["metrics"].get("throughput", {}).get("median"))


Where = Literal["cpu", "gpu", "best"]
"""The CPU; a GPU, real or simulated; the GPU where there is one, else the CPU."""

Place = Literal["cards", "memory", "transfer", "loss", "utilisation", "stages", "result", "explanation"]
"""What of the window a scene speaks of: the cards, a plot by its name, a table, what explains an out-of-memory."""


@dataclass(frozen=True, slots=True)
class SceneQuestion:
    """A guess that can be made before it is measured.

    Attributes:
        text: what is asked.
        choices: the three guesses.
        kinds: kinds of device on which the runs answer it.
    """

    text: str
    choices: tuple[str, str, str]
    kinds: tuple[str, ...] = ("cuda", "sim")


@dataclass(frozen=True, slots=True)
class Act:
    """One run of a scene.

    Attributes:
        description: what it does, in a sentence or two; "{change}" in it is what the fix changes.
        spec: what is run; of a fix, ``None``: the run before with the first remedy that fits.
        where: on which device.
        watch_for: what of the window to look at meanwhile.
        memory_cap: the most that torch may reserve on a GPU.
        may_run_out: whether an out-of-memory is what is wanted.
        then: what to look at once it has ended, for longer than a few words take.
        describe: puts the run's summary into a sentence once it has ended.
    """

    description: str
    spec: Spec | None
    where: Where = "best"
    watch_for: Place = "memory"
    memory_cap: MemoryCap | None = None
    may_run_out: bool = False
    then: Place | None = None
    describe: Callable[[Mapping[str, Any]], str] | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene.

    Attributes:
        title: a few words.
        watch_for: one sentence on what to look at in the window.
        read: likewise on what to read in the terminal.
        acts: its runs, in order.
        measured: puts their summaries into a sentence, and finds the right guess.
        questions: what may be guessed; the first that suits the device is asked.
        points_at: what of the window to look at when all has been told.
    """

    title: str
    watch_for: str
    read: str
    acts: tuple[Act, ...]
    measured: Callable[[Runs], MeasuredScene]
    questions: tuple[SceneQuestion, ...] = ()
    points_at: Place = "memory"

    def question(self, kind: str) -> SceneQuestion | None:
        """What may be guessed where the runs are on a device of this kind; ``None`` when nothing may."""
        return next((question for question in self.questions if kind in question.kinds), None)


MOVED_BYTES = 64 * MIB
"""Size of the tensor of scene 1: seen on the memory plot, and copied a few times a second by any machine."""

CAP = MemoryCap(size=256 * MIB)
"""What scene 5 may reserve, so that a large GPU runs out as soon as a small one."""


def _mistake(name: str, description: str) -> Act:
    return Act(description, PipelineSpec.model_validate({"pitfall": name}), "gpu", "stages", describe=pitfall)


def _batches(where: str, description: str) -> Act:
    fields = {"model": "mlp", "width": 256, "depth": 2, "batch": 1024, "steps": 60, "epochs": 1, "batches": where}
    return Act(description, TrainingSpec.model_validate(fields), watch_for="stages", describe=placement)


_SMALL = TrainingSpec.model_validate({"width": 64, "depth": 2, "sequence": 32, "steps": 120, "epochs": 2})

_KEEPS_TOO_MUCH = TrainingSpec.model_validate(
    {"width": 16, "depth": 1, "batch": 1024, "sequence": 32, "steps": 30, "epochs": 1, "keep_intermediates": True}
)
"""Keeps 12 MiB of every step: few steps until the cap is reached, and little work in each."""

SCENES = (
    Scene(
        title="Move a tensor",
        watch_for="Watch the memory plot step up when the tensor arrives, and again when a result is computed.",
        read="Below is what each step takes of the device's memory: the tensor when it arrives, and again a result.",
        acts=(
            Act(
                "A tensor of 64 MiB is made on the CPU, moved, added to, and brought back, five times over.",
                PipelineSpec.model_validate({"size": MOVED_BYTES, "repeat": 5}),
            ),
        ),
        measured=moved_and_back,
        questions=(
            SceneQuestion(
                "A tensor of 64 MiB is moved to the GPU and y = x + 10 is computed there. "
                "How much GPU memory is allocated at the peak?",
                ("64 MiB", "128 MiB", "192 MiB or more"),
            ),
        ),
        points_at="stages",
    ),
    Scene(
        title="What can go wrong",
        watch_for="Watch the table of stages: five common mistakes are made for real, each with torch's own words.",
        read="Five common mistakes are made for real; below are torch's own words for each.",
        acts=(
            _mistake("unassigned", "x.to(device) is called, and what it returns is not kept."),
            _mistake("mixed_devices", "A tensor on the CPU is added to one on the GPU."),
            _mistake("leaf", "A tensor that requires gradients is moved, and the copy is taken for it."),
            _mistake("numpy", ".numpy() is called on a tensor that lies on the GPU."),
            _mistake("current_device", "A tensor is sent to “the GPU” without saying which."),
        ),
        measured=mistakes,
        questions=(
            SceneQuestion(
                "x.to(device) stands on a line of its own. Where is x afterwards?",
                ("On the GPU", "Still on the CPU", "Nowhere: torch raises an error"),
            ),
        ),
        points_at="stages",
    ),
    Scene(
        title="Copy once, or every step",
        watch_for="Watch the bytes of the stages: the same training, its batches kept in three different places.",
        read="Compare the bytes below: the same training, with its batches kept in three different places.",
        acts=(
            _batches("resident", "All batches are copied once, before the first step."),
            _batches("moved", "Each batch is copied when its step begins."),
            _batches("pingpong", "Each batch is copied there and back again, every step."),
        ),
        measured=copies,
        questions=(
            SceneQuestion(
                "Every batch is copied to the GPU and back, not just to it. How many bytes cross the bus?",
                ("As many", "About twice as many", "Five times as many or more"),
            ),
        ),
        points_at="stages",
    ),
    Scene(
        title="Train on the CPU, then on the GPU",
        watch_for="Watch the loss fall twice, from the same seed and data, on one device and then on the other.",
        read="Compare the losses below: the same seed and the same data, on one device and then on the other.",
        acts=(
            Act("A small transformer is trained on the CPU.", _SMALL, "cpu", "loss", describe=trained),
            Act("The same transformer is trained on the GPU.", _SMALL, "gpu", "loss", describe=trained),
        ),
        measured=both_trained,
        questions=(
            SceneQuestion(
                "This model is small. How fast is the GPU compared with the CPU?",
                ("No faster", "Up to five times as fast", "More than five times as fast"),
                ("cuda",),
            ),
            SceneQuestion(
                "Same seed, same data, another device. After 120 steps the loss is …",
                ("… lower on the CPU", "… the same within 1 %", "… lower on the GPU"),
                ("sim",),
            ),
        ),
        points_at="loss",
    ),
    Scene(
        title="Run out of memory, and fix it",
        watch_for="Watch memory climb step by step until it is refused, then read why, and what would have fitted.",
        read="Memory climbs step by step until it is refused; read below why, and what would have fitted.",
        acts=(
            Act(
                "A training loop that leaks, with a limit of 256 MiB.",
                _KEEPS_TOO_MUCH,
                "gpu",
                memory_cap=CAP,
                may_run_out=True,
                then="explanation",
                describe=ran_out,
            ),
            Act("The first change that fits: {change}. With it the training runs again.", None, "gpu", memory_cap=CAP),
        ),
        measured=fixed,
        questions=(
            SceneQuestion(
                "The training runs out of memory. What is the memory full of?",
                ("Weights", "Activations of past steps", "Optimizer state"),
            ),
        ),
    ),
)
"""The scenes, in the order in which they are shown."""
