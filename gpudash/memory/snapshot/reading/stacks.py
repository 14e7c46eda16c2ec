"""Call stacks, each stored once: recognised first by the identity of its list, then by content."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.snapshot.history.model import NONE, Frame, Stack
from gpudash.memory.snapshot.reading.source import ShapeError, readable, shown

AS_TEXT = re.compile(r"(?s)(?P<file>.*?):(?P<line>\d{1,9}):(?P<name>.*)")
"""A frame as text, as other tools write it."""

UNKNOWN_LINE = 2**31
"""From here on, a line number is an unsigned -1, as generated code has it."""

Place = Callable[[], str]


def frame_of(value: object, where: Place) -> Frame:
    """A frame: a dictionary in torch's files, a string in those of some other tools.

    Raises:
        ShapeError: if it is neither, or a field has another type.
    """
    if isinstance(value, str):
        found = AS_TEXT.fullmatch(value)
        if found is None:
            return ("", 0, value)
        return (found["file"], int(found["line"]), found["name"])
    if type(value) is tuple and tuple(map(type, value)) == (str, int, str):
        return value  # already converted by this reader
    if not isinstance(value, dict):
        raise ShapeError(f"a frame of {where()} is {shown(value)}, not a dictionary")
    line = value.get("line", 0)
    if type(line) is not int or not -1 <= line < 2**64:
        raise ShapeError(f"a frame of {where()} has the line {shown(line)}")
    if not (line < UNKNOWN_LINE):
        line = 0
    for key in ("filename", "name"):
        if not isinstance(value.get(key), str):
            raise ShapeError(f"`{key}` of a frame of {where()} is {shown(value.get(key))}, not a text")
    return value["filename"], line, value["name"]


class StackTable:
    """Collects the stacks of a file.

    Lists are recognised by identity, since a pickle shares each list among all events that have it. They must
    therefore not be freed while any list of the file is still to be created.
    """

    def __init__(self) -> None:
        self.by_list: dict[int, int] = {id(None): NONE}
        self._frames: dict[Frame, int] = {}
        self._by_dict: dict[int, int] = {}
        self._stacks: dict[bytes, int] = {}

    def index(self, frames: object, where: Place) -> int:
        """The number of a stack; `NONE` for an empty one.

        Raises:
            ShapeError: if it is not a list of frames.
        """
        known = self.by_list.get(id(frames))
        if known is None:
            known = self.by_list[id(frames)] = self._new(frames, where)
        return known

    def _new(self, frames: object, where: Place) -> int:
        if not isinstance(frames, list | tuple):
            raise ShapeError(f"the frames of {where()} are {shown(frames)}, not a list")
        by_dict = self._by_dict
        numbers = [by_dict[id(f)] if id(f) in by_dict else self._frame(f, where) for f in frames]
        return self.interned(np.array(numbers, np.int32).tobytes())

    def interned(self, content: bytes) -> int:
        """The number of the stack with this content, the numbers of its frames in 4 bytes each."""
        if content:
            return self._stacks.setdefault(content, len(self._stacks))
        return NONE

    def _frame(self, value: object, where: Place) -> int:
        number = self._by_dict[id(value)] = self.frame(frame_of(value, where))
        return number

    def frame(self, frame: Frame) -> int:
        """The number of a frame, whose strings may contain anything."""
        file, line, name = frame
        return self._frames.setdefault((readable(file), line, readable(name)), len(self._frames))

    def stacks(self) -> StackList:
        """All stacks, by number."""
        counts = np.fromiter(map(len, self._stacks), np.int64, len(self._stacks)) // 4
        return StackList(
            tuple(self._frames),
            np.frombuffer(b"".join(self._stacks), np.int32),
            np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        )


class StackList(Sequence[Stack]):
    """Stacks as numbers of frames; each is assembled on first access.

    Attributes:
        frames: distinct frames.
        flat: frames of all stacks, one stack after the other, innermost frame first.
        ends: start of each stack in `flat`, and the end of the last.
    """

    def __init__(self, frames: Sequence[Frame], flat: NDArray[np.int32], ends: NDArray[np.int64]) -> None:
        self.frames = tuple(frames)
        self.flat = flat
        self.ends = ends
        self._made: dict[int, Stack] = {}

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, place: int) -> Stack: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Stack]: ...
    def __getitem__(self, place: int | slice) -> Stack | Sequence[Stack]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if place < 0:
            number = place + len(self)
        else:
            number = place
        if not 0 <= number < len(self):
            raise IndexError(place)
        made = self._made.get(number)
        if made is None:
            numbers = self.flat[self.ends[number] : self.ends[number + 1]].tolist()
            made = self._made[number] = tuple(map(self.frames.__getitem__, numbers))
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"StackList({len(self)} stacks of {len(self.frames)} frames)"


def frames_of(values: Iterable[Sequence[Any]]) -> list[Frame]:
    """Frames read from JSON, converted back to tuples."""
    return [(str(file), int(line), str(name)) for file, line, name in values]
