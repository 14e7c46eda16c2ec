"""Takes frames, stacks and events out of a pickle's data while it is being read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from gpudash.memory.snapshot.history.model import Frame
from gpudash.memory.snapshot.reading.limits import TimeRange
from gpudash.memory.snapshot.reading.shape import ShapeError, shown
from gpudash.memory.snapshot.reading.stacks import StackTable, frame_of
from gpudash.memory.snapshot.reading.trace_columns import Numbering, TraceColumns

AT_ONCE = 8192
"""Events that are turned into columns together."""

_KEYS = frozenset((str, int))


class _StackReference:
    """Stands in the data for a list of frames, once for each content.

    Attributes:
        content: numbers of the frames, as `StackTable` has them.
    """

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content


class _Gone:
    """Stands in the memo for an event that has become a row of columns."""


GONE = _Gone()


class Collecting:
    """Is told of every list and dictionary that is filled, and says what stands there from then on.

    Args:
        stacks, texts: of the whole file.
        times: events before them are dropped at once.
        capacity: events to hold at most; beyond, the oldest of the longest trace are dropped.

    Attributes:
        memo: the objects that a pickle has numbered.
        places: by identity, where in the memo a list or dictionary is.
        traces: by identity of the list whose items the events were, which itself stays empty.
        dropped: whether events were dropped for want of room.
    """

    def __init__(self, stacks: StackTable, texts: Numbering, times: TimeRange | None, capacity: int) -> None:
        self._stacks, self._texts, self._times, self._capacity = stacks, texts, times, capacity
        self.memo: list[Any] = []
        self.places: dict[int, int] = {}
        self.traces: dict[int, TraceColumns] = {}
        self.dropped = False
        self._lists: list[Any] = []
        self._pending: list[dict[str, Any]] = []
        self._pending_of: TraceColumns | None = None
        self._strings: dict[str, str] = {}
        self._pairs: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._frames: dict[Frame, Frame] = {}
        self._frame_numbers: dict[int, int] = {}
        self._references: dict[bytes, _StackReference] = {}
        self._known_lists = dict(stacks.by_list)

    def text(self, text: str) -> str:
        """The same text, kept once."""
        return self._strings.setdefault(text, text)

    def pair(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same tuple, kept once where it is the identity of a pool."""
        if {*map(type, found)} != {int}:
            return found
        return self._pairs.setdefault(found, found)

    def filled(self, target: Any, items: Sequence[Any]) -> Any:
        """A dictionary has got keys and values, one after the other."""
        if id(target) in self._frame_numbers:
            return target  # torch adds what it knows of compiled code to a frame
        if type(target) is not dict or len(items) % 2:
            raise TypeError
        keys = items[::2]
        if not {*map(type, keys)} <= _KEYS:
            wrong = next(key for key in keys if type(key) not in _KEYS)
            raise ShapeError(f"a dictionary has the key {shown(wrong)}, not a text")
        target.update(zip(keys, items[1::2], strict=True))
        if "filename" in target and "name" in target and "line" in target:
            made = frame_of(target, lambda: "a stack")
            frame = self._frames.setdefault(made, made)
            self._frame_numbers[id(frame)] = self._stacks.frame(frame)
            return self._replaced(target, frame)
        return target

    def appended(self, target: Any, items: Sequence[Any], stack: Sequence[Any], begin: int) -> Any:
        """A list, on top of the stack of which the open container's items begin at ``begin``, has got items."""
        first = items[0]
        if id(first) in self._frame_numbers:
            return self._with_frames(target, items)
        if type(target) is not list:
            raise TypeError
        if type(first) is dict and "action" in first:
            if target:
                raise ShapeError("a list holds events and other things")
            self._collect(target, items, stack, begin)
        else:
            target.extend(items)
        return target

    def _with_frames(self, target: Any, items: Sequence[Any]) -> Any:
        if type(target) is _StackReference:
            before = target.content
        elif type(target) is list and not target:
            before = b""
        else:
            raise TypeError
        try:
            numbers = array("i", [self._frame_numbers[id(frame)] for frame in items])
        except KeyError:
            raise ShapeError("a stack holds something that is no frame") from None
        content = before + numbers.tobytes()
        reference = self._references.get(content)
        if reference is None:
            reference = self._references[content] = _StackReference(content)
            self._known_lists[id(reference)] = self._stacks.by_list[id(reference)] = self._stacks.interned(content)
        return self._replaced(target, reference)

    def _replaced(self, old: Any, new: Any) -> Any:
        """What stands for ``old``, also where it is in the memo."""
        place = self.places.pop(id(old), None)
        if place is not None:
            self.memo[place] = new
            if type(new) is _StackReference:
                self.places[id(new)] = place  # of a list that may go on
        else:
            self.places.pop(id(new), None)
        return new

    def _forget(self, old: Any, instead: Any) -> None:
        place = self.places.pop(id(old), None)
        if place is not None:
            self.memo[place] = instead

    def _collect(self, target: list[Any], items: Sequence[Any], stack: Sequence[Any], begin: int) -> None:
        trace = self.traces.get(id(target))
        if trace is None:
            self._lists.append(target)
            number = len(stack) - 1 - begin if type(stack[begin]) is list else 0
            trace = self.traces[id(target)] = TraceColumns(self._stacks, self._texts, f"device_traces[{number}]")
        if trace is not self._pending_of:
            self.flush()
            self._pending_of = trace
        self._pending += items
        if len(self._pending) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Turn the events that wait into columns."""
        waiting, self._pending = self._pending, []
        if self._pending_of is not None:
            for begin in range(0, len(waiting), AT_ONCE):
                self._convert(self._pending_of, waiting[begin : begin + AT_ONCE])

    def _convert(self, trace: TraceColumns, events: Sequence[dict[str, Any]]) -> None:
        trace.add(events)
        for event in events:
            self._forget(event, GONE)
            frames = event.get("frames")
            if type(frames) is list:
                self._forget(frames, ())
        # what the events held is about to be freed: its identities will be those of others
        self._stacks.by_list = dict(self._known_lists)
        if self._times is not None and self._times.from_us is not None:
            trace.drop_before(self._times.from_us)
        while sum(other.held for other in self.traces.values()) > self._capacity:
            max(self.traces.values(), key=lambda other: other.held).drop_oldest()
            self.dropped = True
