"""The lessons: scenes with a guess before each, read from ``lessons.toml``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from gpudash.session.demo.act_pictures import comparison_pictures, line_pictures
from gpudash.session.demo.answers import (
    asserted,
    first_fitting,
    kept_mib,
    outcome,
    peak_mib,
    predicted_times,
    where_it_was,
)
from gpudash.session.demo.demo_scenes import SCENES
from gpudash.session.demo.pictures import LineScript
from gpudash.session.demo.scenes import LinesAct, Result, RunAct, Scene, SceneQuestion
from gpudash.session.lessons.lesson_list import ListedLesson, listed_lessons
from gpudash.specs import ComparisonSpec
from gpudash.specs.comparison import PREDICTED_CARD
from gpudash.specs.invalid import did_you_mean
from gpudash.units import read_size

MINE = "My three lines"

MINE_QUESTION = "What is the peak of these lines?"
"""Asked again after every change that the learner makes."""

MEASURED_S = 1.0
"""How long the CPU is measured at most, for a comparison."""

Answer = Callable[[Sequence[Result]], float | None]

ANSWERS: dict[str, Answer] = {
    "peak": peak_mib,
    "kept": kept_mib,
    "where": where_it_was,
    "outcome": outcome,
    "times": predicted_times,
}
"""Functions that compute a question's answer, by their names in the file."""

OF_CHOICES: dict[str, Callable[[Sequence[str], Sequence[Result]], int | None]] = {
    "asserted": asserted,
    "first fitting": first_fitting,
}
"""Those that compare the result with the text of the choices."""


@dataclass(frozen=True, slots=True)
class Lesson(ListedLesson):
    """A lesson.

    Attributes:
        scenes: in order; the last one is for the learner's own lines.
    """

    scenes: tuple[Scene, ...]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Lines(_Entry):
    source: str
    limit: Annotated[int, BeforeValidator(read_size)]
    before: str = ""
    mend: str = ""

    def act(self) -> LinesAct:
        script = LineScript(before=self.before, mend=self.mend)
        return LinesAct(self.source.strip("\n"), self.limit, script)


class _Comparison(_Entry):
    label: str
    code: str
    workload: str
    fields: dict[str, Any]

    def act(self) -> RunAct:
        spec = ComparisonSpec(
            workload=self.workload,
            fields=self.fields,
            devices=f"cpu,{PREDICTED_CARD}",
            repetitions=16,
            limit=MEASURED_S,
        )
        return RunAct(self.label, self.code, spec, "cpu")


class _Scene(_Entry):
    """A scene of the demo, lines, or comparisons; its question replaces the demo's, if given."""

    demo: str = ""
    acts: tuple[int, ...] = ()
    title: str = ""
    subject: str = ""
    lines: tuple[_Lines, ...] = ()
    compare: tuple[_Comparison, ...] = ()
    mine: bool = False
    question: str = ""
    choices: tuple[str, ...] = ()
    unit: Literal["", "MiB", "times"] = ""
    near: float = 0.1
    answer: str = ""
    why: str = ""

    def scene(self) -> Scene:
        if self.demo:
            scene = next(scene for scene in SCENES if scene.title == self.demo)
            acts = scene.acts
            if self.acts:
                acts = tuple(scene.acts[place] for place in self.acts)
            found = replace(scene, acts=acts, title=self.title or scene.title, subject=self.subject or scene.subject)
        elif self.compare:
            found = Scene(self.title, self.subject, tuple(one.act() for one in self.compare), comparison_pictures)
        else:
            title = MINE if self.mine else self.title
            found = Scene(title, self.subject, tuple(one.act() for one in self.lines), line_pictures)
        if self.mine:
            question = SceneQuestion(MINE_QUESTION, unit="MiB")
            return replace(found, questions=(question,), answer=peak_mib, editable=True)
        if not self.question:
            kept = tuple(replace(question, why=self.why) for question in found.questions)
            return replace(found, questions=kept)
        question = SceneQuestion(self.question, self.choices, unit=self.unit, near=self.near, why=self.why)
        return replace(found, questions=(question,), answer=self._answer())

    def _answer(self) -> Answer:
        if self.answer in OF_CHOICES:
            return partial(OF_CHOICES[self.answer], self.choices)
        return ANSWERS[self.answer]


@cache
def lessons() -> tuple[Lesson, ...]:
    """All lessons, in learning order."""
    found = []
    for listed in listed_lessons():
        scenes = tuple(_Scene.model_validate(entry).scene() for entry in listed.scene)
        found.append(Lesson(**asdict(listed), scenes=scenes))
    return tuple(found)


def find_lesson(name: str) -> Lesson:
    """The lesson with this name.

    Raises:
        ValueError: one sentence, when there is none.
    """
    names = [lesson.name for lesson in listed_lessons()]
    if name.strip().lower() in names:
        return lessons()[names.index(name.strip().lower())]
    shown = repr(name if len(name) <= 40 else f"{name[:40]}…")
    raise ValueError(f"There is no lesson {shown}{did_you_mean(name, names)}. There is: {', '.join(names)}.")
