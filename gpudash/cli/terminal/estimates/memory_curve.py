"""The memory of a predicted step as a curve of block characters, by category, compared with free memory."""

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
"""In characters: minimum width of the terminal, maximum columns of the curve, its rows, width of the axis labels."""

LIMIT_IN_VIEW = 1.6
"""The limit is drawn if it is below this multiple of the peak; further up, it would flatten the curve."""

EIGHTHS = " ▁▂▃▄▅▆▇█"

KEPT = "░"
"""Character for memory that PyTorch holds but does not use."""

BEYOND = "red"


def has_room(console: Console) -> bool:
    """Whether a console can show a curve: a terminal with colours, wide enough."""
    return console.is_terminal and console.color_system is not None and console.width >= LEAST_WIDTH


def print_curve(ghost: Ghost, colours: Mapping[str, str], console: Console) -> None:
    """Draw the step with the peak; what exceeds the limit is red.

    Args:
        ghost: memory of the run.
        colours: ribbon name → colour.
        console: a console for which `has_room` holds.
    """
    # Draw only the step with the peak; all steps together would be unreadable.
    panel = ghost.one_step
    width = min(console.width - LABEL_WIDTH - 1, MOST_COLUMNS)
    edges = panel.columns(width).edges
    peak = float(edges[-1].max())
    limit = ghost.limit
    if limit is not None and limit > LIMIT_IN_VIEW * peak:
        limit = None
    row_bytes = max(peak, limit or 0.0, 1.0) / ROWS
    console.print()
    # From top to bottom, as the terminal prints.
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
    # A height at a border belongs to the row below; a limit above the curve gets the top row.
    return min(ROWS - 1, max(0, round(height / row_bytes) - 1))


def _row(
    row: int, row_bytes: float, ghost: Ghost, edges: Floats, colours: Mapping[str, str], limit: float | None
) -> Text:
    """A line of the curve: blocks in the colour of what is at their middle, eighths at the top."""
    line = Text()
    cells = [_cell(row, row_bytes, ghost, edges[:, column], colours, limit) for column in range(edges.shape[1])]
    # One text per run of cells with the same style: rich emits escape codes for each piece.
    for style, group in groupby(cells, key=itemgetter(1)):
        line.append("".join(block for block, _ in group), style=style)
    return line


def _cell(
    row: int, row_bytes: float, ghost: Ghost, edges: Floats, colours: Mapping[str, str], limit: float | None
) -> tuple[str, str]:
    """The character of a cell, and its style.

    Args:
        edges: upper edge of each ribbon in this column, in bytes.
    """
    total = float(edges[-1])
    # The height within this row in eighths: 8 for a full row, 0 above the curve.
    block = EIGHTHS[round(min(1.0, max(0.0, total / row_bytes - row)) * 8)]
    if block == EIGHTHS[0]:
        if limit is not None and row == _row_of(limit, row_bytes):
            return "─", BEYOND
        return block, ""
    # The ribbon at the cell's middle gives the colour; at the top of the curve, the middle of the filled part does.
    middle = min((row + 0.5) * row_bytes, total)
    ribbon = int(np.searchsorted(edges, middle))
    style = colours.get(ghost.names[ribbon], "white")
    if limit is not None and middle > limit:
        style = BEYOND
    if block == EIGHTHS[-1] and ribbon > ghost.top % len(ghost.names):
        return KEPT, style
    return block, style


def _stages(panel: GhostPanel, width: int) -> Text:
    """The names of the stages, each where it begins; names that do not fit are dropped."""
    line = [" "] * width
    free_from = 0
    for stage in panel.stages:
        # Not before the end of the previous name.
        start = max(free_from, round(stage.start * width))
        room = round(stage.end * width) - start
        if len(stage.name) < room:
            line[start : start + len(stage.name)] = stage.name
            free_from = start + len(stage.name) + 1
    return Text(" " * LABEL_WIDTH + "".join(line), style="dim")
