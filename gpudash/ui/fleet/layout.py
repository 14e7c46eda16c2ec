"""Which GPUs the overview shows, in what order and groups, when that order may change, and where their cells go.

Figures change every second; places must not: if a cell moves away under the pointer, the wrong GPU is opened. So every
reply updates the figures in place, but the order changes only

* at once, when the user asks for it: a different search, order, grouping or filter, or "Sort now";
* otherwise at most every `RESORT_S`, only when a GPU has overtaken another by more than `ENOUGH`, and not while the
  pointer or the keyboard is in use in the grid. Until then new GPUs come last in their group, and the order is marked
  as old.

Cells are laid out in rows below the headings of their groups. Only sections are stored, not a rectangle per GPU:
laying out hundreds of machines is cheap, and rectangles are computed for visible cells only. Pure.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from gpudash.ui.fleet.labels import Level, short_name
from gpudash.ui.widgets.fuzzy import rank
from gpudash.ui.widgets.text_size import scaled

if TYPE_CHECKING:
    from gpudash.telemetry.fleet_gpu import FleetGpu


Sort = Literal["fullness", "host", "utilisation", "temperature", "power"]
Group = Literal["none", "machine", "product", "exporter"]

SORTS: tuple[Sort, ...] = get_args(Sort)
GROUPS: tuple[Group, ...] = get_args(Group)

RESORT_S = 10.0
"""Minimum seconds between two sorts, unless the user asks for another order."""

ENOUGH: Mapping[Sort, float] = {"fullness": 0.02, "host": 0.0, "utilisation": 0.1, "temperature": 2.0, "power": 10.0}
"""By how much a GPU must overtake one that is ahead of it before sorting again is worth the movement."""

_SortKey = tuple[float, tuple[tuple[int, str], ...], tuple[tuple[int, str], ...], str]

_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What the user asked to see.

    Attributes:
        query: words to find in machine, number, product, UUID, run, pod, namespace or container.
        sort: what comes first.
        group: what GPUs are grouped by.
        only_warnings: hide GPUs without a warning.
    """

    query: str = ""
    sort: Sort = "fullness"
    group: Group = "none"
    only_warnings: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """GPUs under one heading; "" without grouping."""

    title: str
    keys: tuple[str, ...]


def arrange(gpus: Sequence[FleetGpu], wanted: Arrangement, levels: Mapping[str, Level]) -> tuple[Section, ...]:
    """The GPUs shown, in order; groups are ordered by their first GPU.

    Args:
        gpus: all GPUs of the fleet.
        wanted: what the user asked to see.
        levels: warning level of GPUs that have a warning.
    """
    shown = [gpu for gpu in gpus if not wanted.only_warnings or gpu.key in levels]
    found = found_by(wanted.query, sorted(shown, key=_sorting(wanted.sort)))
    groups: dict[str, list[str]] = {}
    for gpu in found:
        groups.setdefault(group_of(gpu, wanted.group), []).append(gpu.key)
    return tuple(Section(title, tuple(keys)) for title, keys in groups.items())


def group_of(gpu: FleetGpu, group: Group) -> str:
    """The heading of the group that ``gpu`` belongs to."""
    if group == "none":
        return ""
    named: dict[Group, str] = {"machine": gpu.host, "product": gpu.product, "exporter": gpu.exporter}
    return named[group] or "not reported"


def found_by(query: str, gpus: Sequence[FleetGpu]) -> list[FleetGpu]:
    """GPUs that contain every word of ``query``, in order. If there are none: those it may abbreviate, best match
    first.

    Whoever types "node-07" does not want GPUs that merely contain these letters as long as there is a node-07; and
    nobody
    abbreviates a UUID.
    """
    terms = query.casefold().split()
    if not terms:
        return list(gpus)
    entries = [(f"{gpu.host} {short_name(gpu)}", " ".join((gpu.product, gpu.run, *gpu.holders))) for gpu in gpus]
    texts = [f"{name} {place} {gpu.uuid}".casefold() for (name, place), gpu in zip(entries, gpus, strict=True)]
    literal = [gpu for gpu, text in zip(gpus, texts, strict=True) if all(word in text for word in terms)]
    return literal or [gpus[place] for place in rank(query, entries)]


def sort_value(gpu: FleetGpu, sort: Sort) -> float:
    """The value ``gpu`` is sorted by, highest first; -inf if unknown."""
    values = {
        "fullness": gpu.fullness,
        "host": 0.0,
        "utilisation": gpu.utilisation,
        "temperature": gpu.values.get("temperature_c"),
        "power": gpu.values.get("power_w"),
    }
    value = values[sort]
    if value is None or math.isnan(value):
        return -math.inf
    return value


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts node-2 before node-10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(text.casefold()))


def _sorting(sort: Sort) -> Callable[[FleetGpu], _SortKey]:
    def key(gpu: FleetGpu) -> _SortKey:
        return -sort_value(gpu, sort), natural(gpu.host), natural(gpu.number), gpu.uuid

    return key


def passed(keys: Sequence[str], gpus: Mapping[str, FleetGpu], sort: Sort) -> bool:
    """Whether a GPU has overtaken one that is ahead of it by enough to sort again."""
    lowest = math.inf
    for key in keys:
        value = sort_value(gpus[key], sort)
        if value > lowest and value - lowest > ENOUGH[sort]:
            return True
        lowest = min(lowest, value)
    return False


class Order:
    """Keeps the order that is shown from one reply to the next.

    Attributes:
        sections: GPUs in the order shown.
        taken_s: time at which they were sorted.
        old: whether sorting is due but put off.
    """

    def __init__(self) -> None:
        self.sections: tuple[Section, ...] = ()
        self.taken_s = -math.inf
        self.old = False
        self._wanted: Arrangement | None = None

    def forget(self) -> None:
        """Sort again at the next `update`, even while the grid is in use."""
        self._wanted = None

    def update(
        self, gpus: Sequence[FleetGpu], wanted: Arrangement, levels: Mapping[str, Level], now_s: float, *, busy: bool
    ) -> bool:
        """Process a reply; return whether cells appeared, disappeared or moved.

        Args:
            gpus: all GPUs of the fleet.
            wanted: what the user asked to see.
            levels: warning level of GPUs that have a warning.
            now_s: any clock, in seconds.
            busy: whether the pointer or the keyboard is in use in the grid.
        """
        fresh = arrange(gpus, wanted, levels)
        rearranged = wanted != self._wanted
        self._wanted = wanted
        if rearranged or not self.sections:
            return self._take(fresh, now_s)
        if fresh == self.sections:
            self.old = False
            return False
        by_key = {gpu.key: gpu for gpu in gpus}
        kept = self._kept(fresh, by_key, wanted)
        due = _members(fresh) != _members(self.sections) or any(
            passed(section.keys, by_key, wanted.sort) for section in kept
        )
        if due and not busy and now_s - self.taken_s >= RESORT_S:
            return self._take(fresh, now_s)
        self.old = due
        changed = kept != self.sections
        self.sections = kept
        return changed

    def _take(self, fresh: tuple[Section, ...], now_s: float) -> bool:
        changed = fresh != self.sections
        self.sections, self.taken_s, self.old = fresh, now_s, False
        return changed

    def _kept(
        self, fresh: tuple[Section, ...], by_key: Mapping[str, FleetGpu], wanted: Arrangement
    ) -> tuple[Section, ...]:
        """The shown order without GPUs that are gone; new ones come last in their groups."""
        shown: set[str] = set()
        groups: dict[str, list[str]] = {}
        for section in self.sections:
            shown.update(section.keys)
            there = (key for key in section.keys if key in by_key)
            groups[section.title] = [key for key in there if group_of(by_key[key], wanted.group) == section.title]
        for section in fresh:
            groups.setdefault(section.title, []).extend(key for key in section.keys if key not in shown)
        return tuple(Section(title, tuple(keys)) for title, keys in groups.items() if keys)


def _members(sections: Sequence[Section]) -> set[str]:
    return {key for section in sections for key in section.keys}


Density = Literal["cells", "heat map"]

GAP = 6
DENSE_GAP = 2
"""Logical pixels between cells."""

TITLE = 26
"""Height of a group's heading, in logical pixels."""

CELL = (200, 62)
DENSE = (44, 27)
"""Minimum width, and height, of a cell in logical pixels at the normal text size; cells grow to fill the row."""

LARGER = (2.0, 1.8, 1.6, 1.4, 1.2, 1.0)
"""Scales to try, largest first, until all cells fit."""

LARGEST: Mapping[Density, float] = {"cells": 1.6, "heat map": LARGER[0]}
"""Largest scale by density: large cells contain text, which must not outweigh the page's header."""

COLUMN_GAP = 16
"""Logical pixels between groups side by side."""

TITLED = 580
"""Minimum width of groups side by side, so that headings fit; logical pixels at the normal text size."""

WIDEST = 1.5
"""Maximum width of a cell as a multiple of its minimum, so that three GPUs do not fill the screen."""

Rect = tuple[int, int, int, int]
"""Left, top, width, height."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A section in the layout: the index of its first cell, and the positions of its heading and first row."""

    section: Section
    first: int
    left: int
    top: int
    cells_top: int


class FleetLayout:
    """Cells in rows; small groups are placed side by side.

    Args:
        sections: GPUs in order.
        width: available width, in logical pixels.
        density: cell size.
        room: available height, in logical pixels; cells are drawn as large as fits into it.
        most: largest scale; ``None`` for that in `LARGEST`.

    Attributes:
        larger: scale that was chosen.
        columns: cells per row of a group.
        height: total height, in logical pixels.
        keys: keys of the GPUs, in the order of the cells.
    """

    def __init__(
        self, sections: Sequence[Section], width: int, density: Density, room: int = 0, most: float | None = None
    ) -> None:
        self.density = density
        self._sections = sections
        self._title = scaled(TITLE)
        self.keys = [key for section in sections for key in section.keys]
        self._places = {key: place for place, key in enumerate(self.keys)}
        if density == "cells":
            cell, gap = (CELL, GAP)
        else:
            cell, gap = (DENSE, DENSE_GAP)
        if most is None:
            most = LARGEST[density]
        for self.larger in (larger for larger in LARGER if larger <= most):
            self._lay_out(width, cell, gap, self.larger)
            if self.height <= room:
                break

    def _lay_out(self, width: int, cell: tuple[int, int], gap: int, larger: float) -> None:
        least, height = (round(scaled(px) * larger) for px in cell)
        self._gap, self._cell_height = gap, height
        longest = max((len(section.keys) for section in self._sections), default=1)
        self.columns = max(1, min((width + gap) // (least + gap), longest))
        self._across, self._room = self._side_by_side(width, longest, least + gap)
        if self._across == 1 and len(self._sections) > 1:
            # Fill the rows of a group evenly: 4 and 4, not 6 and 2.
            self.columns = -(-longest // -(-longest // self.columns))
        self._width = min((self._room + gap) / self.columns - gap, least * WIDEST)
        self._blocks: list[_Block] = []
        top, first, below = 0, 0, 0
        for number, section in enumerate(self._sections):
            place_across = number % self._across
            if not place_across:
                top = below
            cells_top = top + (self._title if section.title else 0)
            self._blocks.append(_Block(section, first, place_across * (self._room + COLUMN_GAP), top, cells_top))
            below = max(below, cells_top + self._rows(section) * (height + gap))
            first += len(section.keys)
        self.height = max(0, below - gap)

    def _side_by_side(self, width: int, longest: int, pitch: int) -> tuple[int, int]:
        """The number of groups side by side, and the width of each."""
        if len(self._sections) < 2:
            return 1, width
        least = max(longest * pitch, scaled(TITLED)) + COLUMN_GAP
        across = min(max(1, (width + COLUMN_GAP) // least), len(self._sections))
        return across, (width + COLUMN_GAP) // across - COLUMN_GAP

    def _rows(self, section: Section) -> int:
        return -(-len(section.keys) // self.columns)

    @property
    def row_height(self) -> int:
        """Distance from one row of cells to the next."""
        return self._cell_height + self._gap

    def place_of(self, key: str) -> int | None:
        """The index of a GPU's cell."""
        return self._places.get(key)

    def rect(self, place: int) -> Rect:
        """The rectangle of the cell at index ``place``."""
        block = self._blocks[self._number_of(place)]
        row, column = divmod(place - block.first, self.columns)
        left, right = (block.left + self._edge(edge) for edge in (column, column + 1))
        return left, block.cells_top + row * self.row_height, right - self._gap - left, self._cell_height

    def title_rect(self, block: int) -> Rect:
        """The rectangle of a section's heading."""
        return self._blocks[block].left, self._blocks[block].top, self._room, self._title

    def titles(self, top: int, bottom: int) -> Iterator[tuple[Section, Rect]]:
        """Sections whose heading is visible between two heights."""
        for number, block in enumerate(self._blocks):
            if block.section.title and block.top < bottom and block.cells_top > top:
                yield block.section, self.title_rect(number)

    def seen(self, top: int, bottom: int) -> Iterator[int]:
        """Indices of the cells visible between two heights."""
        for block in self._blocks:
            rows = self._rows(block.section)
            begin = max(0, (top - block.cells_top) // self.row_height)
            end = min(rows, -(-(bottom - block.cells_top) // self.row_height))
            last = min(end * self.columns, len(block.section.keys))
            yield from range(block.first + begin * self.columns, block.first + last)

    def at(self, x: int, y: int) -> int | None:
        """The index of the cell at a position; ``None`` between cells."""
        for place in self.seen(y, y + 1):
            left, top, width, height = self.rect(place)
            if left <= x < left + width and top <= y < top + height:
                return place
        return None

    def moved(self, place: int, columns: int, rows: int) -> int:
        """The cell that an arrow key leads to; up and down keep the column, also across groups."""
        if columns:
            return min(max(0, place + columns), len(self.keys) - 1)
        for _row in range(abs(rows)):
            if rows > 0:
                place = self._below(place)
            else:
                place = self._above(place)
        return place

    def _below(self, place: int) -> int:
        number = self._number_of(place)
        block = self._blocks[number]
        row, column = divmod(place - block.first, self.columns)
        count = len(block.section.keys)
        if (row + 1) * self.columns < count:
            return block.first + min((row + 1) * self.columns + column, count - 1)
        if number + self._across >= len(self._blocks):
            return place
        following = self._blocks[number + self._across]
        return following.first + min(column, len(following.section.keys) - 1)

    def _above(self, place: int) -> int:
        number = self._number_of(place)
        block = self._blocks[number]
        row, column = divmod(place - block.first, self.columns)
        if row:
            return place - self.columns
        if number < self._across:
            return place
        before = self._blocks[number - self._across]
        count = len(before.section.keys)
        last_row = (count - 1) // self.columns
        return before.first + min(last_row * self.columns + column, count - 1)

    def _number_of(self, place: int) -> int:
        return bisect_right(self._blocks, place, key=lambda block: block.first) - 1

    def _edge(self, column: int) -> int:
        """The left edge of a column, in whole pixels, so that cells are sharp."""
        return round(column * (self._width + self._gap))
