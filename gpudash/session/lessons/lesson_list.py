"""What lessons there are, without what it takes to play them: menus and lists read this."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("lessons.toml")


@dataclass(frozen=True, slots=True)
class ListedLesson:
    """A lesson in a list.

    Attributes:
        name: by which it is asked for.
        title: a few words.
        about: what it shows, in a line.
        minutes: that it takes somebody who guesses and reads.
        scene: each, as the file has it.
    """

    name: str
    title: str
    about: str
    minutes: int
    scene: Sequence[Mapping[str, Any]]


@cache
def listed_lessons() -> tuple[ListedLesson, ...]:
    """All lessons, in the order in which they are learnt."""
    return tuple(ListedLesson(**entry) for entry in tomllib.loads(FILE.read_text(encoding="utf-8"))["lesson"])
