"""The list of lessons, without what is needed to play them: for menus and lists."""

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
        name: its name on the command line.
        title: a few words.
        about: what it teaches, in one line.
        minutes: how long it takes with guessing and reading.
        scene: each scene, as in the file.
    """

    name: str
    title: str
    about: str
    minutes: int
    scene: Sequence[Mapping[str, Any]]


@cache
def listed_lessons() -> tuple[ListedLesson, ...]:
    """All lessons, in learning order."""
    return tuple(ListedLesson(**entry) for entry in tomllib.loads(FILE.read_text(encoding="utf-8"))["lesson"])
