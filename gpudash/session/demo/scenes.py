"""Scenes, of the demo and of lessons: what is run, what may be guessed first, and how it is shown.

An act is lines of code on a simulated card, a run of a workload, or a rung of the ladder, which is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpudash.session.demo.ladder import RungResult
from gpudash.session.demo.pictures import LineScript, StagePicture
from gpudash.specs import Spec
from gpudash.units import MIB, parse_size
from gpudash.workloads.lines.trace import LinesTrace

Run = Mapping[str, Any]

MOST = 1_000_000_000
"""The largest number that is taken for a guess."""

Where = Literal["cpu", "gpu", "best"]
"""The CPU; a GPU, real or simulated; the GPU where there is one, else the CPU."""


@dataclass(frozen=True, slots=True)
class SceneQuestion:
    """A guess that can be made before it is measured.

    Attributes:
        text: what is requested.
        choices: the three guesses; none where a number is guessed.
        kinds: kinds of device on which the runs answer it.
        unit: of the number: "MiB", or "times".
        near: relative difference up to which a number is right.
        why: why it came out so, in a sentence, which is the last step of the scene; "" for none.
    """

    text: str
    choices: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("cuda", "sim", "cpu")
    unit: str = ""
    near: float = 0.1
    why: str = ""

    def label(self, value: float) -> str:
        """A guess, or the answer, in words."""
        if self.choices:
            return self.choices[int(value)]
        digits = 0 if value >= 10 or value == round(value) else 1
        return f"{value:,.{digits}f} {self.unit}"

    def is_right(self, guess: float, answer: float) -> bool:
        """Whether a guess counts as right."""
        if self.choices:
            return guess == answer
        return abs(guess - answer) <= self.near * abs(answer)

    def read(self, text: str) -> float:
        """The guess that somebody typed: the number of a choice, from 1, or a number in the question's unit.

        Raises:
            ValueError: one sentence, when it is none.
        """
        typed = text.strip()
        if self.choices:
            if typed in ("1", "2", "3"):
                return float(int(typed) - 1)
            raise ValueError(f"{_shown(typed)} is none of the guesses; write 1, 2 or 3.")
        if self.unit == "MiB" and typed[-1:].isalpha():
            return parse_size(typed) / MIB
        try:
            number = float(typed.removesuffix("times").removesuffix("×").replace(",", ".").strip())
        except ValueError:
            number = math.nan
        if not 0 <= number <= MOST:
            raise ValueError(f"{_shown(typed)} is no number that could be; write one, such as 128.")
        return number


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
        acts: what is run, in order; none of a scene that only shows.
        pictures: the steps, as far as they are known.
        questions: what may be guessed; the first that suits the device is requested.
        answer: which guess is right, the place of a choice or a number; ``None`` where the results do not tell.
        editable: whether the lines are the presenter's to change.
    """

    title: str
    subject: str
    acts: tuple[Act, ...]
    pictures: Callable[[Scene, PlayedScene], list[StagePicture]]
    questions: tuple[SceneQuestion, ...] = ()
    answer: Callable[[Sequence[Result]], float | None] = lambda _results: None
    editable: bool = False

    @property
    def editable_lines(self) -> LinesAct | None:
        """The lines that are the presenter's to change; ``None`` of any other scene."""
        if self.editable and self.acts and isinstance(self.acts[0], LinesAct):
            return self.acts[0]
        return None

    def question(self, kind: str) -> SceneQuestion | None:
        """What may be guessed where the runs are on a device of this kind; ``None`` when nothing may."""
        return next((question for question in self.questions if kind in question.kinds), None)


def _shown(text: str) -> str:
    """What somebody typed, within bounds."""
    return repr(text if len(text) <= 20 else f"{text[:20]}…")
