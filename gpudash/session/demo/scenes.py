"""Scenes, for the demo and for lessons: what runs, what can be guessed first, and how it is shown.

An act is lines of code on a simulated card, a run of a workload, or a rung of the ladder, which is only predicted.
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
from gpudash.workloads.lines.trace import ENDED, LinesTrace

Run = Mapping[str, Any]

MOST = 1_000_000_000
"""The largest number accepted as a guess."""

Where = Literal["cpu", "gpu", "best"]
"""The CPU; a GPU, real or simulated; the GPU if there is one, else the CPU."""


@dataclass(frozen=True, slots=True)
class SceneQuestion:
    """A guess to make before the measurement.

    Attributes:
        text: the question.
        choices: the three guesses; empty if a number is guessed.
        kinds: kinds of device on which the runs answer it.
        unit: of the number: "MiB", or "times".
        near: relative difference up to which a number counts as right.
        why: the reason for the outcome, in a sentence, shown as the last step of the scene; "" if none.
    """

    text: str
    choices: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("cuda", "sim", "cpu")
    unit: str = ""
    near: float = 0.1
    why: str = ""

    def label(self, value: float) -> str:
        """A guess, or the answer, as text."""
        if self.choices:
            return self.choices[int(value)]
        digits = 0 if value >= 10 or value == round(value) else 1
        return f"{value:,.{digits}f} {self.unit}"

    def is_right(self, guess: float, answer: float) -> bool:
        """Whether a guess counts as right."""
        if self.choices:
            return guess == answer
        return abs(guess - answer) <= self.near * abs(answer)

    def verdict(self, guess: float | None, answer: float) -> str:
        """The answer, then the guess: what does not fit a narrow screen is the end."""
        came = self.label(answer)
        if guess is None:
            return f"What came: {came}."
        made = self.label(guess)
        if made == came:
            return f"Right: {came}."
        if self.choices:
            return f"{came[:1].upper()}{came[1:]}. You said “{made}”."
        if self.is_right(guess, answer):
            return f"Right: {came}. You said {made}."
        return f"{came}. You said {made}."

    def read(self, text: str) -> float:
        """The guess that somebody typed: the number of a choice, from 1, or a number in the question's unit.

        Raises:
            ValueError: one sentence, when the text is neither.
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
        if math.isnan(number):
            raise ValueError(f"{_shown(typed)} is not a number. Write one, such as 128.")
        if not 0 <= number <= MOST:
            raise ValueError(f"{_shown(typed)} is out of range. Write a number such as 128.")
        return number


@dataclass(frozen=True, slots=True)
class LinesAct:
    """Lines that run one by one on a simulated card.

    Attributes:
        source: the lines.
        limit: bytes of the card.
        script: text about them; its title and question are the scene's.
        is_mistake: whether they succeed although they should fail.
    """

    source: str
    limit: int
    script: LineScript = field(default_factory=LineScript)
    is_mistake: bool = False


@dataclass(frozen=True, slots=True)
class RunAct:
    """A run of a workload.

    Attributes:
        label: what it is, in a few words.
        code: the line that distinguishes it.
        spec: what to run.
        where: the device.
    """

    label: str
    code: str
    spec: Spec
    where: Where = "best"


@dataclass(frozen=True, slots=True)
class RungAct:
    """A rung of the ladder.

    Attributes:
        place: its index.
        spec: what to predict.
    """

    place: int
    spec: Spec


Act = LinesAct | RunAct | RungAct
Result = LinesTrace | RungResult | Run | str
"""The result of an act: for a run its summary with its ``losses``; a sentence if it could not be played."""


@dataclass(frozen=True, slots=True)
class PlayedScene:
    """A scene, as far as it has been played.

    Attributes:
        results: of the finished acts.
        running: the current run, as its summary; ``None`` without one.
        device: the device of the runs.
        waiting: why the next act has not begun, in a sentence; "" if it has.
    """

    results: tuple[Result, ...] = ()
    running: Run | None = None
    device: str = "cpu"
    waiting: str = ""

    @property
    def simulated(self) -> bool:
        """Whether the runs' device is simulated."""
        return self.device.startswith("sim")


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene.

    Attributes:
        title: a few words.
        subject: the topic, a short question or sentence.
        acts: what runs, in order; empty for a scene that only shows something.
        pictures: the steps known so far.
        questions: possible questions; the first one that suits the device is asked.
        answer: the right guess, the index of a choice or a number; ``None`` if the results do not determine it.
        editable: whether the presenter may change the lines.
        answered_by: index of the act of lines that answers the question, at whose end the guess is judged; ``None`` if
            all acts together do, at the end of the scene.
    """

    title: str
    subject: str
    acts: tuple[Act, ...]
    pictures: Callable[[Scene, PlayedScene], list[StagePicture]]
    questions: tuple[SceneQuestion, ...] = ()
    answer: Callable[[Sequence[Result]], float | None] = lambda _results: None
    editable: bool = False
    answered_by: int | None = None

    @property
    def editable_lines(self) -> LinesAct | None:
        """The lines that the presenter may change; ``None`` for any other scene."""
        if self.editable and self.acts and isinstance(self.acts[0], LinesAct):
            return self.acts[0]
        return None

    def question(self, kind: str) -> SceneQuestion | None:
        """The question to ask if the runs are on a device of this kind; ``None`` if there is none."""
        return next((question for question in self.questions if kind in question.kinds), None)


def came_to_its_end(result: Result) -> bool:
    """Whether an act need not be played again."""
    if isinstance(result, LinesTrace):
        return result.failure is None or result.failure.kind != ENDED
    if isinstance(result, RungResult):
        return not result.problem
    return isinstance(result, Mapping) and result["status"] == "finished"


def _shown(text: str) -> str:
    """What somebody typed, shortened for display."""
    return repr(text if len(text) <= 20 else f"{text[:20]}…")
