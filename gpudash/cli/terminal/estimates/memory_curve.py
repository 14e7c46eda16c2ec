"""A predicted step's memory as a curve of block characters, by category, against what is free."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.text import Text

from gpudash.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpudash.drawing.ghost import Floats, Ghost, GhostPanel

LEAST_WIDTH = 60
MOST_COLUMNS = 90
ROWS = 10
LABEL_WIDTH = 11
"""Characters that the terminal has at least, columns of the curve at most, its rows, and the axis at its left."""

LIMIT_IN_VIEW = 1.6
"""Up to how many times the peak what is free is drawn as a line; further up the curve would be flat."""

EIGHTHS = " ▁▂▃▄▅▆▇█"

KEPT = "░"
"""A block of what PyTorch holds and does not use."""

BEYOND = "red"


def has_room(console: Console) -> bool:
    """Whether a curve can be read there: a terminal with colours, wide enough."""
    return console.is_terminal and console.color_system is not None and console.width >= LEAST_WIDTH


def print_curve(ghost: Ghost, colours: Mapping[str, str], console: Console) -> None:
    """Draw the step of the peak; what is beyond the limit is red.

    Args:
        ghost: of the run.
        colours: name of a ribbon → its colour.
        console: where `has_room` holds.
    """
    # The step of the peak stands for all; a run's other steps would be squeezed beyond reading.
    panel = ghost.one_step
    width = min(console.width - LABEL_WIDTH - 1, MOST_COLUMNS)
    edges = panel.columns(width).edges
    peak = float(edges[-1].max())
    limit = ghost.limit
    if limit is not None and limit > LIMIT_IN_VIEW * peak:
        limit = None
    row_bytes = max(peak, limit or 0.0, 1.0) / ROWS
    console.print()
    # From the top down, as the terminal prints.
    for row in range(ROWS - 1, -1, -1):
        console.print(Text.assemble(_label(row, row_bytes, limit), _row(row, row_bytes, ghost, edges, colours, limit)))
    console.print(_stages(panel, width))
    if limit is None and ghost.limit is not None:
        free = f"free: {format_bytes(round(ghost.limit))}, above this curve"
        console.print(Text(" " * LABEL_WIDTH + free, style="dim"))


def _label(row: int, row_bytes: float, limit: float | None) -> Text:
    if limit is not None and row == _row_of(limit, row_bytes):
        return Text(f"{format_bytes(round(limit)):>{LABEL_WIDTH - 2}} ┤", style=BEYOND)
    if row == ROWS - 1:
        return Text(f"{format_bytes(round(row_bytes * ROWS)):>{LABEL_WIDTH - 2}} ┤", style="dim")
    if row == 0:
        return Text(f"{'0':>{LABEL_WIDTH - 2}} ┤", style="dim")
    return Text(f"{'│':>{LABEL_WIDTH}}", style="dim")


def _row_of(height: float, row_bytes: float) -> int:
    # A height at a border belongs to the row below it; a limit above the curve has the top row.
    return min(ROWS - 1, max(0, round(height / row_bytes) - 1))


def _row(
    row: int, row_bytes: float, ghost: Ghost, edges: Floats, colours: Mapping[str, str], limit: float | None
) -> Text:
    """One line of the curve: blocks in the colour of what lies at their middle, eighths at the top."""
    line = Text()
    cells = [_cell(row, row_bytes, ghost, edges[:, column], colours, limit) for column in range(edges.shape[1])]
    # One piece of text for each run of cells of a style, since rich emits the colour for each piece.
    for style, group in groupby(cells, key=itemgetter(1)):
        line.append("".join(block for block, _ in group), style=style)
    return line


def _cell(
    row: int, row_bytes: float, ghost: Ghost, edges: Floats, colours: Mapping[str, str], limit: float | None
) -> tuple[str, str]:
    """The character at a place, and its style.

    Args:
        edges: upper edge of each ribbon in this column, bytes.
    """
    total = float(edges[-1])
    # The height within this row in eighths: 8 for a row that is full, 0 for one above the curve.
    block = EIGHTHS[round(min(1.0, max(0.0, total / row_bytes - row)) * 8)]
    if block == EIGHTHS[0]:
        if limit is not None and row == _row_of(limit, row_bytes):
            return "─", BEYOND
        return block, ""
    # Which ribbon colours a cell is decided at its middle, but within the curve where the curve ends inside the cell.
    middle = min((row + 0.5) * row_bytes, total)
    ribbon = int(np.searchsorted(edges, middle))
    style = colours.get(ghost.names[ribbon], "white")
    if limit is not None and middle > limit:
        style = BEYOND
    if block == EIGHTHS[-1] and ribbon > ghost.top % len(ghost.names):
        return KEPT, style
    return block, style


def _stages(panel: GhostPanel, width: int) -> Text:
    """The names of the stages, each where it begins; one without room is left out."""
    line = [" "] * width
    free_from = 0
    for stage in panel.stages:
        # Not before the end of the name before it.
        start = max(free_from, round(stage.start * width))
        room = round(stage.end * width) - start
        if len(stage.name) < room:
            line[start : start + len(stage.name)] = stage.name
            free_from = start + len(stage.name) + 1
    return Text(" " * LABEL_WIDTH + "".join(line), style="dim")
