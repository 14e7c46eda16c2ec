"""The scenes of the demo: what is run, what to look at, what may be guessed first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpudash.session.demo.measured import (
    MeasuredScene,
    Runs,
    both_trained,
    copies,
    fixed,
    mistakes,
    moved_and_back,
    pitfall,
    placement,
    ran_out,
    trained,
)
from gpudash.specs import PipelineSpec, Spec, TrainingSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import MIB

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
        words: what it does, in a sentence or two; "{change}" in it is what the fix changes.
        spec: what is run; of a fix, ``None``: the run before with the first remedy that fits.
        where: on which device.
        look: what of the window to look at meanwhile.
        memory_cap: the most that torch may reserve on a GPU.
        may_run_out: whether an out-of-memory is what is wanted.
        then: what to look at once it has ended, for longer than a few words take.
        told: puts the run's summary into a sentence once it has ended.
    """

    words: str
    spec: Spec | None
    where: Where = "best"
    look: Place = "memory"
    memory_cap: MemoryCap | None = None
    may_run_out: bool = False
    then: Place | None = None
    told: Callable[[Mapping[str, Any]], str] | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene.

    Attributes:
        title: a few words.
        look: one sentence on what to look at.
        acts: its runs, in order.
        measured: puts their summaries into a sentence, and finds the right guess.
        questions: what may be guessed; the first that suits the device is asked.
        points_at: what of the window to look at when all has been told.
    """

    title: str
    look: str
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


def _mistake(name: str, words: str) -> Act:
    return Act(words, PipelineSpec.model_validate({"pitfall": name}), "gpu", "stages", told=pitfall)


def _batches(where: str, words: str) -> Act:
    fields = {"model": "mlp", "width": 256, "depth": 2, "batch": 1024, "steps": 60, "epochs": 1, "batches": where}
    return Act(words, TrainingSpec.model_validate(fields), look="stages", told=placement)


_SMALL = TrainingSpec.model_validate({"width": 64, "depth": 2, "sequence": 32, "steps": 120, "epochs": 2})

_KEEPS_TOO_MUCH = TrainingSpec.model_validate(
    {"width": 16, "depth": 1, "batch": 1024, "sequence": 32, "steps": 30, "epochs": 1, "keep_intermediates": True}
)
"""Keeps 12 MiB of every step: few steps until the cap is reached, and little work in each."""

SCENES = (
    Scene(
        title="Move a tensor",
        look="Watch the memory plot step up when the tensor arrives, and again when a result is computed.",
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
        look="Watch the Stages table: five common mistakes are made for real, each with torch's own words.",
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
        look="Watch the bytes in the Stages table: the same training, with its batches kept in three different places.",
        acts=(
            _batches("resident", "All batches are copied once, before the first step."),
            _batches("moved", "Each batch is copied when its step begins."),
            _batches("pingpong", "Each batch is copied there and back again, every step."),
        ),
        measured=copies,
        questions=(
            SceneQuestion(
                "Each batch goes there and back every step, in place of only there. How many bytes cross?",
                ("As many", "About twice as many", "Five times as many or more"),
            ),
        ),
        points_at="stages",
    ),
    Scene(
        title="Train on the CPU, then on the GPU",
        look="Watch the loss fall twice, from the same seed and the same data, on one device and then on the other.",
        acts=(
            Act("A small transformer is trained on the CPU.", _SMALL, "cpu", "loss", told=trained),
            Act("The same transformer is trained on the GPU.", _SMALL, "gpu", "loss", told=trained),
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
        look="Watch memory climb step by step until it is refused, then read why, and what would have fitted.",
        acts=(
            Act(
                "A training keeps what it should release, and may reserve 256 MiB.",
                _KEEPS_TOO_MUCH,
                "gpu",
                memory_cap=CAP,
                may_run_out=True,
                then="explanation",
                told=ran_out,
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
