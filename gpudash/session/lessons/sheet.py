"""The learner's sheet: every guess beside the outcome, in a file that nobody else can read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpudash.session.demo.pictures import GuessRow, StagePicture
from gpudash.session.demo.scenes import PlayedScene, Scene, SceneQuestion
from gpudash.session.lessons.lessons import Lesson
from gpudash.system.files import make_private_folder, written_whole
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular_text

logger = logging.getLogger(__name__)

MOST_GUESSES = 2_000
"""How many guesses are kept, the newest."""

LONGEST_LINES = 4_000
"""How many characters of the learner's own lines are kept."""

LARGEST_BYTES = 16 * 2**20
"""Size of a sheet that is read: the most guesses with the longest lines fit."""


class KeptGuess(BaseModel):
    """A guess, as stored in the file.

    Attributes:
        lesson: name of the lesson.
        scene: title of the scene.
        question: as it was asked.
        guess: as text.
        came: the answer as text; "" if the learner left before there was one.
        right: whether both agree; ``None`` without an answer.
        source: the lines, if they are the learner's own.
        time_s: when, in seconds since 1970.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lesson: str
    scene: str
    question: str
    guess: str
    came: str = ""
    right: bool | None = None
    source: str = ""
    time_s: float = Field(0.0, allow_inf_nan=False)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = Field(1, ge=1, le=1)
    guesses: tuple[KeptGuess, ...] = ()


class Sheet:
    """The guesses; use from one thread. A file that cannot be read, or cannot be written, is left as it is.

    Args:
        path: the file; ``lessons.json`` in the data folder unless given.
        clock: returns seconds since 1970.

    Attributes:
        path: the file.
        problem: why guesses are not saved, in a sentence; "" while they are.
    """

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path or data_folder() / "lessons.json"
        self.problem = ""
        self._clock = clock
        self._guesses: tuple[KeptGuess, ...] = ()
        self._read()

    @property
    def guesses(self) -> tuple[KeptGuess, ...]:
        """All guesses, oldest first."""
        return self._guesses

    def of(self, lesson: Lesson) -> dict[str, KeptGuess]:
        """The newest guess for each scene of a lesson, by the scene's title."""
        return {guess.scene: guess for guess in self._guesses if guess.lesson == lesson.name}

    def note(self, lesson: Lesson, scene: Scene, question: SceneQuestion, guess: float, answer: float | None) -> None:
        """Save a guess, or the outcome of one that was saved without its answer."""
        lines = scene.editable_lines
        kept = KeptGuess(
            lesson=lesson.name,
            scene=scene.title,
            question=question.text,
            guess=question.label(guess),
            came="" if answer is None else question.label(answer),
            right=None if answer is None else question.is_right(guess, answer),
            source="" if lines is None else lines.source[:LONGEST_LINES],
            time_s=self._clock(),
        )
        if not self.problem:
            self._read()  # another gpudash process may have added to it
        others = self._guesses
        newest = self.of(lesson).get(scene.title)
        if newest is not None and not newest.came and (newest.guess, newest.source) == (kept.guess, kept.source):
            others = tuple(one for one in others if one is not newest)
        self._guesses = (*others, kept)[-MOST_GUESSES:]
        if not self.problem:
            self._write()

    def _read(self) -> None:
        try:
            written = read_regular_text(self.path, LARGEST_BYTES)
            self._guesses = _File.model_validate_json(written).guesses
        except FileNotFoundError:
            return
        except OSError as error:
            self.problem = f"{self.path} cannot be read: {error.strerror}; guesses are not kept until it can."
        except ValidationError:
            logger.warning("the sheet is none", exc_info=True)
            self.problem = f"{self.path} is no sheet of guesses; move it away, and new guesses are kept."
        except ValueError:
            self.problem = f"{self.path} is no text; move it away, and new guesses are kept."

    def _write(self) -> None:
        try:
            make_private_folder(self.path.parent)
            with written_whole(self.path, private=True) as part:
                part.write_text(_File(guesses=self._guesses).model_dump_json(), encoding="utf-8")
        except OSError as error:
            self.problem = f"{self.path} cannot be written: {error.strerror}; guesses are not kept."


def with_sheet(lesson: Lesson, sheet: Sheet) -> tuple[Scene, ...]:
    """The scenes of a lesson, followed by the guesses beside their outcomes."""
    pictures = partial(_sheet_pictures, lesson, sheet)
    return (*lesson.scenes, Scene("Your sheet", lesson.title, (), pictures))


def _sheet_pictures(lesson: Lesson, sheet: Sheet, scene: Scene, _played: PlayedScene) -> list[StagePicture]:
    kept = sheet.of(lesson)
    rows = []
    for played in lesson.scenes:
        guess = kept.get(played.title)
        if guess is None:
            rows.append(GuessRow(played.title))
        else:
            rows.append(GuessRow(played.title, guess.guess, guess.came, guess.right))
    sentence = sheet.problem or f"{_counted(rows)} gpudash lesson --export sheet.ipynb makes a notebook of them."
    return [StagePicture(scene.title, scene.subject, "simulated", rows=tuple(rows), sentence=sentence)]


def _counted(rows: list[GuessRow]) -> str:
    guessed = [row for row in rows if row.guess]
    if not guessed:
        return "No guess yet: the lesson can be played again."
    right = sum(row.right is True for row in guessed)
    kept = "1 guess is" if len(guessed) == 1 else f"{len(guessed)} guesses are"
    return f"{kept} kept, {right} of them right." if right else f"{kept} kept, beside what came."
