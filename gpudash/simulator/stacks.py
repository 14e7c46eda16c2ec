"""Stacks of calls, taken at every allocation: cheap to take, kept once each, and spelt out only when they are read."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gpudash.memory.allocator import caching
from gpudash.simulator.tracking import line_of

Frame = dict[str, Any]

OWN_CODE = (str(Path(__file__).parent), str(Path(caching.__file__).parent))
"""Folders whose code is between the caller and the allocator, and not worth showing."""

ADDRESS_BITS = 57
"""Of a process, at the most (five-level paging); an id is an address."""

MOST_KNOWN = 50_000
"""Stacks that are compared with; a program that makes code as it goes has no end of them."""


class Stack:
    """Where the program was: every frame as its code and the instruction it was at, innermost first.

    Attributes:
        number: tells it from the others of its `Stacks`.
    """

    __slots__ = ("_frames", "_places", "number")

    def __init__(self, number: int, places: tuple[tuple[CodeType, int], ...]) -> None:
        self.number = number
        self._places = places
        self._frames: list[Frame] | None = None

    def frames(self) -> list[Frame]:
        """In the form of torch's snapshots, without the simulator's own; the same list at every call."""
        if self._frames is None:
            self._frames = [
                {"filename": code.co_filename, "line": line_of(code, place), "name": code.co_name}
                for code, place in self._places
                if not code.co_filename.startswith(OWN_CODE)
            ]
        return self._frames


class Stacks:
    """Takes stacks, each different one once."""

    def __init__(self) -> None:
        self.nothing = Stack(0, ())
        self._known: dict[tuple[int, ...], Stack] = {}
        self._taken = 0

    def take(self, depth: int) -> Stack:
        """The stack of the running thread from ``depth`` frames above on."""
        start: Any = sys._getframe(depth + 1)
        places: list[int] = []
        add = places.append
        frame = start
        while frame is not None:
            # an id stands for the code, whose own hash is slow; the stack keeps the code, so that no other takes the id
            add(id(frame.f_code) + (frame.f_lasti << ADDRESS_BITS))
            frame = frame.f_back
        key = tuple(places)
        found = self._known.get(key)
        return self._new(key, start) if found is None else found

    def _new(self, key: tuple[int, ...], start: FrameType) -> Stack:
        places: list[tuple[CodeType, int]] = []
        frame: FrameType | None = start
        while frame is not None:
            places.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._taken += 1
        made = self._known[key] = Stack(self._taken, tuple(places))
        return made
