"""Converts the events of a device to columns, some ten thousand at a time, or while a pickle is being read."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.snapshot.history.model import ACTIONS, EVENT_COLUMNS, NONE, Columns, Frame
from gpudash.memory.snapshot.reading.source import (
    ShapeError,
    as_dict,
    count,
    integer,
    pool_id,
    readable,
    shown,
    text,
)
from gpudash.memory.snapshot.reading.stacks import StackTable, frame_of

CHUNK = 32_768

INTEGERS = ("addr", "size", "stream", "time_us", "device_free")
TEXTS = ("compile_context", "user_metadata")
KNOWN = frozenset((*INTEGERS, *TEXTS, "action", "frames", "pool_id"))
ABSENT_TEXTS = ("", "N/A")
"""torch's values for missing metadata and context."""

MOST_ACTIONS = 255

_MISSING: Any = object()


class Numbering:
    """Numbers distinct values in order of appearance."""

    def __init__(self, known: Sequence[Any] = (), absent: Sequence[Any] = ()) -> None:
        self.numbers: dict[Any, int] = {value: number for number, value in enumerate(known)}
        self._absent: dict[Any, int] = dict.fromkeys(absent, NONE)

    def of(self, values: Sequence[Any], kind: type) -> NDArray[Any]:
        """The number of each value."""
        different = set(values)
        place = self._absent | self.numbers
        for value in different.difference(place):
            place[value] = self.numbers[value] = len(self.numbers)
        # The usual case for pools and texts: one value for all events.
        if len(different) == 1:
            return np.full(len(values), place[different.pop()], kind)
        return np.fromiter(map(place.__getitem__, values), kind, len(values))


class TraceColumns:
    """Collects the events of a device; whole chunks of the oldest can be dropped.

    Args:
        stacks: stacks of the whole file.
        texts: contexts and metadata of the whole file.
        where: position in the file, for error messages.

    Attributes:
        seen: number of events added.
        held: number of events not dropped.
        unknown: unknown keys, with the number of events that have each.
        first_us: time of the first event that has one.
    """

    def __init__(self, stacks: StackTable, texts: Numbering, where: str) -> None:
        self._stacks = stacks
        self._texts = texts
        self._where = where
        self._actions = Numbering(ACTIONS)
        self._pools = Numbering((), (None,))
        self._rows: deque[Columns] = deque()
        self.seen = self.held = 0
        self.unknown: dict[str, int] = {}
        self.first_us: int | None = None

    def add(self, entries: Sequence[Any]) -> None:
        """Add the next events.

        Raises:
            ShapeError: if one of them is not an event, or has an invalid field.
        """
        if not entries:
            return
        try:
            rows = self._converted(entries)
        except (ShapeError, TypeError, OverflowError):
            # Whole columns are checked together, which is fast but does not say which event is wrong: find it now.
            self._refuse_first(entries)
            raise
        if self.first_us is None:
            timed = rows.time_us[rows.time_us != NONE]
            if len(timed):
                self.first_us = int(timed[0])
        self._rows.append(rows)
        self.seen += len(entries)
        self.held += len(entries)

    def drop_oldest(self) -> None:
        """Drop the oldest chunk."""
        self.held -= len(self._rows.popleft().action)

    def columns(self) -> Columns:
        """Return the events in one piece, and clear them here."""
        rows = self._rows
        self._rows = deque()
        return Columns(
            **{name: _joined([getattr(part, name) for part in rows], kind) for name, kind in EVENT_COLUMNS.items()},
            actions=tuple(map(readable, self._actions.numbers)),
            pools=tuple(self._pools.numbers),
            texts=tuple(map(readable, self._texts.numbers)),
        )

    def _converted(self, entries: Sequence[Any]) -> Columns:
        if {*map(type, entries)} != {dict}:
            raise ShapeError("an event is no dictionary")
        found, has_more = _columns(entries)
        if has_more:
            self._count_unknown(entries)
        if {*map(type, found["action"])} != {str}:
            raise ShapeError("an action is no text")
        action = self._actions.of(found["action"], np.int64)
        if len(self._actions.numbers) > MOST_ACTIONS:
            raise ShapeError(f"{self._where} has more than {MOST_ACTIONS} different actions")
        return Columns(
            action=action.astype(np.uint8),
            address=_integers(found["addr"], 0, 0),
            size=_integers(found["size"], 0, 0),
            stream=_integers(found["stream"], 0, None),
            time_us=_integers(found["time_us"], NONE, 0),
            stack=self._stack_numbers(found["frames"]),
            pool=self._pool_numbers(found["pool_id"]),
            device_free=_integers(found["device_free"], NONE, 0),
            context=self._text_numbers(found["compile_context"]),
            metadata=self._text_numbers(found["user_metadata"]),
        )

    def _stack_numbers(self, lists: Sequence[Any]) -> NDArray[np.int32]:
        # Events of one stack share one list of frames, through the pickle's memo: its identity identifies it.
        identities = [*map(id, lists)]
        known = self._stacks.by_list
        if not known.keys() >= set(identities):
            # Backwards, so that each new list is associated with the first event that has it.
            places = dict(zip(reversed(identities), range(len(lists) - 1, -1, -1), strict=True))
            for identity, place in places.items():
                if identity not in known:
                    self._stacks.index(lists[place], partial(self._place, place))
        return np.fromiter(map(known.__getitem__, identities), np.int32, len(lists))

    def _pool_numbers(self, pools: Sequence[Any]) -> NDArray[np.int32]:
        kinds = {*map(type, pools)}
        if kinds == {tuple} and {*map(len, pools)} == {2}:
            if {*map(type, chain.from_iterable(pools))} != {int}:
                raise ShapeError("a pool is not of integers")
        elif kinds != {type(None)}:
            pools = [None if pool is None else pool_id(pool, self._where) for pool in pools]
        return self._pools.of(pools, np.int32)

    def _text_numbers(self, texts: Sequence[Any]) -> NDArray[np.int32]:
        kinds = {*map(type, texts)}
        if not kinds <= {str, type(None)}:
            raise ShapeError("a text is none")
        return self._texts.of(texts, np.int32)

    def _count_unknown(self, entries: Sequence[Mapping[Any, Any]]) -> None:
        for entry in entries:
            for key in entry.keys() - KNOWN:
                if key in self.unknown or len(self.unknown) < 100:
                    name = key
                    if not isinstance(key, str):
                        name = shown(key)
                    self.unknown[name] = self.unknown.get(name, 0) + 1

    def _place(self, number: int) -> str:
        return f"{self._where}[{self.seen + number}]"

    def _refuse_first(self, entries: Sequence[Any]) -> None:
        """Find the first invalid event and what is wrong with it: slow, and done only once."""
        for number, entry in enumerate(entries):
            where = self._place(number)
            raw = as_dict(entry, where)
            text(raw, "action", where)
            for key, check in CHECKS.items():
                if raw.get(key) is not None:
                    check(raw, key, where)
            if raw.get("pool_id") is not None:
                pool_id(raw["pool_id"], where)
            self._stacks.index(raw.get("frames"), partial(self._place, number))


CHECKS: Mapping[str, Callable[[Mapping[str, Any], str, str], object]] = {
    "addr": count,
    "size": count,
    "stream": integer,
    "time_us": count,
    "device_free": count,
    "compile_context": text,
    "user_metadata": text,
}


def _columns(entries: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Sequence[Any]], bool]:
    """The values of each known key, ``None`` where an event lacks it, and whether there are other keys too."""
    # Entries not yet found: at 0 all events are complete, and no further key is needed.
    left = sum(map(len, entries))
    found: dict[str, Sequence[Any]] = dict.fromkeys(KNOWN, [None] * len(entries))
    # The first event's keys first: mostly there are no others, as the count then shows.
    for key in [*(KNOWN & entries[0].keys()), *(KNOWN - entries[0].keys())]:
        if left:
            found[key], present = _column(entries, key)
            left -= present
    return found, left > 0


def _column(entries: Sequence[Mapping[str, Any]], key: str) -> tuple[Sequence[Any], int]:
    """The values of one key, ``None`` where an event lacks it, and the number of events that have it."""
    try:
        return list(map(itemgetter(key), entries)), len(entries)
    except KeyError:
        values = [entry.get(key, _MISSING) for entry in entries]
    missing = values.count(_MISSING)
    return [None if value is _MISSING else value for value in values], len(values) - missing


def _integers(values: Sequence[Any], default: int, lowest: int | None) -> NDArray[np.int64]:
    kinds = {*map(type, values)}
    if kinds == {type(None)}:
        return np.full(len(values), default, np.int64)
    if kinds != {int}:
        if kinds != {int, type(None)}:
            raise ShapeError("a number is none")
        values = [default if value is None else value for value in values]
        # The default may be below the smallest value allowed in an event.
        if lowest is None:
            lowest = default
        lowest = min(lowest, default)
    found = np.fromiter(values, np.int64, len(values))
    if lowest is not None and int(found.min()) < lowest:
        raise ShapeError("a number is negative")
    return found


def _joined(parts: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    if not parts:
        return np.zeros(0, kind)
    if len(parts) > 1:
        return np.concatenate(parts)
    return parts[0]


AT_ONCE = 8192
"""Number of events converted together."""

_KEYS = frozenset((str, int))


class _StackReference:
    """Stands in the data for a list of frames, once for each content.

    Attributes:
        content: numbers of the frames, as in `StackTable`.
    """

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content


class _Gone:
    """Stands in the memo for an event that has become a row of columns."""


GONE = _Gone()


class Collecting:
    """Receives every list and dictionary that is filled, and returns what replaces it.

    Args:
        stacks, texts: stacks and strings of the whole file.
        capacity: most events to hold; beyond that, the oldest of the longest trace are dropped.

    Attributes:
        memo: memoised objects of the pickle.
        places: index in the memo of a list or dictionary, by its identity.
        traces: traces by the identity of the list of their events, which itself stays empty.
        dropped: whether events were dropped for lack of memory.
    """

    def __init__(self, stacks: StackTable, texts: Numbering, capacity: int) -> None:
        self._stacks = stacks
        self._texts = texts
        self._capacity = capacity
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
        """The same string, stored once."""
        return self._strings.setdefault(text, text)

    def pair(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same tuple, stored once if it identifies a pool."""
        if {*map(type, found)} != {int}:
            return found
        return self._pairs.setdefault(found, found)

    def filled(self, target: Any, items: Sequence[Any]) -> Any:
        """A dictionary has received keys and values, alternately."""
        if id(target) in self._frame_numbers:
            return target  # torch adds information on compiled code to a frame
        if type(target) is not dict or len(items) % 2:
            raise TypeError
        keys = items[::2]
        if not {*map(type, keys)} <= _KEYS:
            wrong = next(key for key in keys if type(key) not in _KEYS)
            raise ShapeError(f"a dictionary has the key {shown(wrong)}, not a text")
        target.update(zip(keys, items[1::2], strict=True))
        # By its keys: the dictionary may have been filled in several steps.
        if "filename" in target and "name" in target and "line" in target:
            made = frame_of(target, lambda: "a stack")
            frame = self._frames.setdefault(made, made)
            self._frame_numbers[id(frame)] = self._stacks.frame(frame)
            return self._replaced(target, frame)
        return target

    def appended(self, target: Any, items: Sequence[Any], stack: Sequence[Any], begin: int) -> Any:
        """A list has received items; they begin at ``begin`` in the open container on top of the stack."""
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
        # A list of frames becomes a reference with its first part; the reference grows with each further one.
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
        """The replacement of ``old``, which also replaces it in the memo."""
        place = self.places.pop(id(old), None)
        if place is not None:
            self.memo[place] = new
            if type(new) is _StackReference:
                self.places[id(new)] = place  # the list may continue
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
            number = 0
            # The list of traces is below them on the stack: the number of lists above it is this one's index.
            if type(stack[begin]) is list:
                number = len(stack) - 1 - begin
            trace = self.traces[id(target)] = TraceColumns(self._stacks, self._texts, f"device_traces[{number}]")
        if trace is not self._pending_of:
            self.flush()
            self._pending_of = trace
        self._pending += items
        if len(self._pending) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Convert the waiting events to columns."""
        waiting = self._pending
        self._pending = []
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
        # The events' content is about to be freed: its identities will be reused.
        self._stacks.by_list = dict(self._known_lists)
        while sum(other.held for other in self.traces.values()) > self._capacity:
            max(self.traces.values(), key=lambda other: other.held).drop_oldest()
            self.dropped = True
