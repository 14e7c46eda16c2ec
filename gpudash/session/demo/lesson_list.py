"""What lessons there are, without what it takes to play them: menus and lists read this."""

from __future__ import annotations

import tomllib
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
        scenes: as the file has them.
    """

    name: str
    title: str
    about: str
    minutes: int
    scenes: tuple[dict[str, Any], ...]


@cache
def listed_lessons() -> tuple[ListedLesson, ...]:
    """All lessons, in the order in which they are learnt."""
    written = tomllib.loads(FILE.read_text(encoding="utf-8"))
    found = []
    for entry in written["lesson"]:
        scenes = tuple(entry["scene"])
        found.append(ListedLesson(entry["name"], entry["title"], entry["about"], entry["minutes"], scenes))
    return tuple(found)
