"""Tables of who allocated the live memory, and what grew or shrank between two states, from columns of blocks. No
Qt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.explanation_text import workspace_text
from gpudash.memory.snapshot.history.groups import Sites
from gpudash.memory.snapshot.history.model import Stack
from gpudash.memory.snapshot.history.phases import NO_STACK
from gpudash.telemetry.explanation import short
from gpudash.units import KIB, format_bytes, format_change, format_count

Ints = NDArray[np.int64]

GROUPS = ("call site", "function", "file", "category", "size", "stream")
"""What a row can represent."""

NAMED = 2
"""Rows that a sentence names."""


class Places:
    """The call site of each stack as text; the last entry is for blocks without a stack."""

    def __init__(self, stacks: Sequence[Stack], sites: Sites) -> None:
        self.stacks = stacks
        self.sites = sites
        self.labels = list(map(sites.name, sites.of_stack.tolist()))
        self._mentions: tuple[str, NDArray[np.bool_]] = ("", np.ones(len(stacks) + 1, dtype=bool))

    def frame(self, stack: int) -> tuple[str, int, str]:
        """The innermost frame of a stack outside of libraries; its file is "" if there is none."""
        return self.sites.frames[int(self.sites.of_stack[stack])]

    def stack(self, number: int) -> Stack:
        """The frames of a stack, innermost first; none for -1."""
        if number >= 0:
            return self.stacks[number]
        return ()

    def beneath(self, path: Sequence[tuple[str, int, str]]) -> NDArray[np.bool_]:
        """Which stacks contain the frames of ``path`` in this order, outermost first, with any frames in between."""
        found = [_begins_with(stack, path) for stack in self.stacks]
        return np.array([*found, not path], dtype=bool)

    def mentioning(self, text: str) -> NDArray[np.bool_]:
        """Which stacks contain ``text`` in a frame."""
        text = text.lower()
        if self._mentions[0] != text:
            found = [any(text in f"{f}:{line} {name}".lower() for f, line, name in stack) for stack in self.stacks]
            self._mentions = text, np.array([*found, text in NO_STACK], dtype=bool)
        return self._mentions[1]


@dataclass(frozen=True, slots=True)
class Holder:
    """One row of the table.

    Attributes:
        name: what the row represents.
        own, count: bytes and number of its blocks.
        total: bytes of all blocks with its line anywhere in their stack; the same as ``own`` if that is not
            meaningful.
        categories: categories of its blocks, by bytes.
        stack: the stack that allocated most of it; -1 if there is none.
        stacks: the stacks of all its blocks.
    """

    name: str
    own: int
    count: int
    total: int
    categories: tuple[str, ...]
    stack: int
    stacks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class HeldRow:
    """Blocks as columns of equal length: bytes, and the fields to group by."""

    bytes: Ints
    stack: Ints
    category: Ints
    stream: Ints


def holders(held: HeldRow, group: str, places: Places, categories: Sequence[str]) -> list[Holder]:
    """The rows, the largest first.

    Args:
        held: the blocks.
        group: one of `GROUPS`.
        places: the call sites of the stacks.
        categories: category names by code.
    """
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for name, stack, category, size, count in _tallies(held, group, places, categories):
        sums[name].add(stack, category, size, count)
    totals = None
    if group == "call site":
        # As in an explanation: a workspace belongs to no line.
        is_lines = held.category != _workspace(categories)
        totals = places.sites.totals(held.stack[is_lines], held.bytes[is_lines]).tolist()
    rows = []
    for name, found in sums.items():
        stack = max(found.stacks, key=lambda number: found.stacks[number])
        total = 0
        if totals is not None and found.categories.keys() != {_workspace(categories)}:
            total = totals[int(places.sites.of_stack[stack])]
        ordered = sorted(found.categories, key=lambda code: -found.categories[code])
        rows.append(
            Holder(
                name,
                found.own,
                found.count,
                max(found.own, total),
                tuple(categories[code] for code in ordered),
                stack,
                tuple(found.stacks),
            )
        )
    return sorted(rows, key=lambda row: -row.own)


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A row of a comparison: bytes and block counts in both states, 0 if a state has none.

    Attributes:
        stack: the stack that allocated most of it in the state with more bytes; -1 if there is none.
    """

    name: str
    first: int
    second: int
    first_count: int
    second_count: int
    stack: int

    @property
    def grown(self) -> int:
        """The difference in bytes, second minus first."""
        return self.second - self.first

    @property
    def word(self) -> str:
        """How it changed, as one word."""
        if not self.grown:
            return "same"
        if not self.first:
            return "new"
        if not self.second:
            return "gone"
        if self.grown > 0:
            return "grew"
        return "shrank"


def changes(first: Sequence[Holder], second: Sequence[Holder]) -> list[ChangeRow]:
    """The rows of both states, by size of change; unchanged rows come last."""
    before = {row.name: row for row in first}
    after = {row.name: row for row in second}
    found = []
    for name in {**after, **before}:
        old, new = before.get(name), after.get(name)
        larger = max((row for row in (old, new) if row is not None), key=lambda row: row.own)
        found.append(
            ChangeRow(
                name,
                0 if old is None else old.own,
                0 if new is None else new.own,
                0 if old is None else old.count,
                0 if new is None else new.count,
                larger.stack,
            )
        )
    return sorted(found, key=lambda change: (-abs(change.grown), -change.second, change.name))


def change_text(found: Sequence[ChangeRow], first: str, second: str) -> str:
    """The total change in a sentence, with the rows that account for most of it.

    Args:
        found: the result of `changes`.
        first, second: the names of the states, such as "event 12".
    """
    grown = sum(change.grown for change in found)
    if not any(change.grown for change in found):
        return f"The same is live at {first} and at {second}."
    word = "shrank"
    if grown > 0:
        word = "grew"
    verb = "live bytes are the same in sum"
    if grown:
        verb = f"live bytes {word} by {format_bytes(abs(grown))}"
    named = [change for change in found if change.grown][:NAMED]
    reasons = ", ".join(f"{signed(change.grown)} {change.name}" for change in named)
    rest = sum(1 for change in found if change.grown) - len(named)
    more = ""
    if rest:
        more = f" and {format_count(rest)} more"
    return f"From {first} to {second} {verb}: {reasons}{more}."


def signed(size: int) -> str:
    """Bytes with their sign: "+1.10 GiB", "−3 MiB", "same"."""
    if size:
        return format_change(size)
    return "same"


def _begins_with(stack: Stack, path: Sequence[tuple[str, int, str]]) -> bool:
    frames = iter(reversed(stack))
    return all(any(frame == wanted for frame in frames) for wanted in path)


@dataclass(slots=True)
class _Sum:
    own: int = 0
    count: int = 0
    categories: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    stacks: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, stack: int, category: int, size: int, count: int) -> None:
        self.own += size
        self.count += count
        self.categories[category] += size
        self.stacks[stack] += size


def _tallies(
    held: HeldRow, group: str, places: Places, categories: Sequence[str]
) -> list[tuple[str, int, int, int, int]]:
    """Group name, stack, category, bytes and count for each set of identical blocks."""
    extra = {"size": _size_class(held.bytes), "stream": held.stream}.get(group, np.zeros(len(held.bytes), np.int64))
    found, first, places_of = _distinct(held.stack, held.category, extra)
    sizes = np.bincount(places_of, held.bytes, len(found)).astype(np.int64)
    counts = np.bincount(places_of, minlength=len(found))
    name = _namer(group, places, categories)
    return [
        (name(stack, category, kind), stack, category, size, count)
        for stack, category, kind, size, count in zip(
            held.stack[first].tolist(),
            held.category[first].tolist(),
            extra[first].tolist(),
            sizes.tolist(),
            counts.tolist(),
            strict=True,
        )
    ]


def _distinct(*columns: Ints) -> tuple[Ints, Ints, Ints]:
    """The distinct rows of columns: their keys, the first block of each, and each block's position among them."""
    keys = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, numbers = np.unique(column, return_inverse=True)
        keys = keys * max(1, len(values)) + numbers
    found, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return found, first, numbers


def _size_class(sizes: Ints) -> Ints:
    """The power of two that a size is rounded up to, from 512 B."""
    return np.ceil(np.log2(np.maximum(sizes, 512))).astype(np.int64)


def _namer(group: str, places: Places, categories: Sequence[str]) -> Callable[[int, int, int], str]:
    def function(stack: int, _category: int, _kind: int) -> str:
        file, _line, name = places.frame(stack)
        if file:
            return f"{name} in {short(file)}"
        return NO_STACK

    def file(stack: int, _category: int, _kind: int) -> str:
        return places.frame(stack)[0] or NO_STACK

    def call_site(stack: int, category: int, _kind: int) -> str:
        name = places.labels[stack]
        if category == _workspace(categories) and places.frame(stack)[0]:
            return workspace_text(name)
        return name

    return {
        "call site": call_site,
        "function": function,
        "file": file,
        "category": lambda _stack, category, _kind: categories[category],
        "size": lambda _stack, _category, kind: f"{_bound(kind - 1)} to {_bound(kind)}" if kind > 9 else "up to 512 B",
        "stream": lambda _stack, _category, kind: f"stream {kind}",
    }[group]


def _workspace(categories: Sequence[str]) -> int:
    return categories.index(WORKSPACE)


def _bound(exponent: int) -> str:
    size = 2**exponent
    if size < KIB:
        return f"{size} B"
    return format_bytes(size)
