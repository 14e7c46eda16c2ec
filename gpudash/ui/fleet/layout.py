"""Where the cells of the overview stand: rows of equal cells under the titles of their groups. Pure.

Only sections are kept, not one rectangle a GPU, so that laying out hundreds of machines costs nothing and a rectangle
is worked out where it is seen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpudash.ui.fleet.arranging import Section
from gpudash.ui.text_size import scaled

Density = Literal["cells", "heat map"]

GAP = 6
DENSE_GAP = 2
"""Logical pixels between cells."""

TITLE = 26
"""Height of a group's title, logical pixels."""

CELL = (200, 62)
DENSE = (44, 29)
"""Least width, and height, of a cell in logical pixels at the normal text size; cells grow to fill the row."""

WIDEST = 1.5
"""How many times its least width a cell may become, so that three GPUs do not fill the screen."""

Rect = tuple[int, int, int, int]
"""Left, top, width, height."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A section on the screen: its first cell's number, the place of its title and of its first row."""

    section: Section
    first: int
    top: int
    cells_top: int


class Layout:
    """Cells in rows.

    Args:
        sections: what is shown.
        width: room, in logical pixels.
        density: large cells or small ones.

    Attributes:
        columns: cells in a row.
        height: of everything, in logical pixels.
        keys: of the GPUs, in the order of the cells.
    """

    def __init__(self, sections: Sequence[Section], width: int, density: Density) -> None:
        self.density = density
        least, height = (scaled(px) for px in (CELL if density == "cells" else DENSE))
        self._gap = GAP if density == "cells" else DENSE_GAP
        self._cell_height = height
        longest = max((len(section.keys) for section in sections), default=1)
        self.columns = max(1, min((width + self._gap) // (least + self._gap), longest))
        self._width = min((width + self._gap) / self.columns - self._gap, least * WIDEST)
        self._title = scaled(TITLE)
        self.keys = [key for section in sections for key in section.keys]
        self._places = {key: place for place, key in enumerate(self.keys)}
        self._blocks: list[_Block] = []
        top, first = 0, 0
        for section in sections:
            cells_top = top + (self._title if section.title else 0)
            self._blocks.append(_Block(section, first, top, cells_top))
            rows = -(-len(section.keys) // self.columns)
            top = cells_top + rows * (height + self._gap)
            first += len(section.keys)
        self.height = max(0, top - self._gap)

    @property
    def row_height(self) -> int:
        """From one row of cells to the next."""
        return self._cell_height + self._gap

    def place_of(self, key: str) -> int | None:
        """The number of a GPU's cell."""
        return self._places.get(key)

    def rect(self, place: int) -> Rect:
        """Where cell ``place`` stands."""
        block = self._block_of(place)
        row, column = divmod(place - block.first, self.columns)
        left, right = self._edge(column), self._edge(column + 1) - self._gap
        return left, block.cells_top + row * self.row_height, right - left, self._cell_height

    def title_rect(self, block: int) -> Rect:
        """Where the title of a section stands."""
        return 0, self._blocks[block].top, self._edge(self.columns) - self._gap, self._title

    def titles(self, top: int, bottom: int) -> Iterator[tuple[Section, Rect]]:
        """The sections whose title can be seen between two heights."""
        for number, block in enumerate(self._blocks):
            if block.section.title and block.top < bottom and block.cells_top > top:
                yield block.section, self.title_rect(number)

    def seen(self, top: int, bottom: int) -> Iterator[int]:
        """Numbers of the cells that can be seen between two heights."""
        for block in self._blocks:
            rows = -(-len(block.section.keys) // self.columns)
            begin = max(0, (top - block.cells_top) // self.row_height)
            end = min(rows, -(-(bottom - block.cells_top) // self.row_height))
            last = min(end * self.columns, len(block.section.keys))
            yield from range(block.first + begin * self.columns, block.first + last)

    def at(self, x: int, y: int) -> int | None:
        """The number of the cell at a place; ``None`` between cells."""
        for place in self.seen(y, y + 1):
            left, top, width, height = self.rect(place)
            if left <= x < left + width and top <= y < top + height:
                return place
        return None

    def moved(self, place: int, columns: int, rows: int) -> int:
        """The cell that an arrow key leads to; up and down keep the column, also from group to group."""
        if columns:
            return min(max(0, place + columns), len(self.keys) - 1)
        for _row in range(abs(rows)):
            place = self._below(place) if rows > 0 else self._above(place)
        return place

    def _below(self, place: int) -> int:
        number = self._number_of(place)
        block = self._blocks[number]
        row, column = divmod(place - block.first, self.columns)
        count = len(block.section.keys)
        if (row + 1) * self.columns < count:
            return block.first + min((row + 1) * self.columns + column, count - 1)
        if number + 1 == len(self._blocks):
            return place
        following = self._blocks[number + 1]
        return following.first + min(column, len(following.section.keys) - 1)

    def _above(self, place: int) -> int:
        number = self._number_of(place)
        block = self._blocks[number]
        row, column = divmod(place - block.first, self.columns)
        if row:
            return place - self.columns
        if not number:
            return place
        before = self._blocks[number - 1]
        count = len(before.section.keys)
        last_row = (count - 1) // self.columns
        return before.first + min(last_row * self.columns + column, count - 1)

    def _block_of(self, place: int) -> _Block:
        return self._blocks[self._number_of(place)]

    def _number_of(self, place: int) -> int:
        return bisect_right(self._blocks, place, key=lambda block: block.first) - 1

    def _edge(self, column: int) -> int:
        """The left edge of a column, on whole pixels, so that cells are sharp."""
        return round(column * (self._width + self._gap))
