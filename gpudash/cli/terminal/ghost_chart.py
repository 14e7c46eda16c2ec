"""A predicted run over its requests, in block characters: what the window's memory plot shows before a start."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from gpudash.drawing.ghost import Ghost, GhostPanel
from gpudash.units import format_bytes

LEAST_WIDTH, MOST_WIDTH, LEAST_HEIGHT = 60, 100, 24
"""Columns of a terminal below which there is no chart, those that it takes at most, and lines of the terminal."""

ROWS = 10
"""Lines of the chart; each has two halves that are coloured apart."""

NEAR = 0.45
"""Share of the limit from which the chart reaches to it."""

BEYOND = "red"
KEPT = "kept"
"""What is only kept and not in use, which is shaded and not filled."""


def has_room(console: Console) -> bool:
    """Whether a chart can be seen on a console: a terminal with colours that is large enough."""
    if not console.is_terminal or console.color_system is None:
        return False
    return console.width >= LEAST_WIDTH and console.height >= LEAST_HEIGHT


def chart(ghost: Ghost, width: int, colours: Mapping[str, str]) -> list[Text]:
    """The step of the peak as lines of text, from above: its ribbons, the limit where that is in reach, its stages.

    Args:
        ghost: what is predicted.
        width: columns of text that there are.
        colours: of each ribbon, as rich calls them; one that has none is white.
    """
    panel, limit = ghost.one_step, ghost.limit
    top = ghost.highest
    if limit is not None and top >= NEAR * limit:
        top = max(top, limit)
    scale = [format_bytes(top), format_bytes(top / 2), "0"]
    margin = max(map(len, scale)) + 1
    columns = min(width, MOST_WIDTH) - margin
    edges = panel.columns(columns).edges / max(top, 1.0) * 2 * ROWS
    bound = 2.0 * ROWS + 1
    if limit is not None:
        bound = limit / max(top, 1.0) * 2 * ROWS
    styles = [colours.get(name, "white") for name in ghost.names]

    def colour(half: int, column: int) -> str:
        """Of a half of a line, counted from below; "" for what is empty."""
        middle = half + 0.5
        row = next((row for row, edge in enumerate(edges[:, column]) if edge > middle), None)
        if row is None:
            return ""
        if row > ghost.top:
            return KEPT
        return BEYOND if middle > bound else styles[row]

    labels = {ROWS - 1: scale[0], (ROWS - 1) // 2: scale[1], 0: scale[2]}
    lines = []
    for line in reversed(range(ROWS)):
        text = Text(f"{labels.get(line, ''):>{margin - 1}} ", style="dim")
        limited = 2 * line < bound <= 2 * line + 2
        for column in range(columns):
            upper, lower = colour(2 * line + 1, column), colour(2 * line, column)
            text.append(*_cell(upper, lower, limited=limited))
        lines.append(text)
    return [*lines, _stages(panel, margin, columns)]


def _cell(upper: str, lower: str, *, limited: bool) -> tuple[str, str]:
    """The character and the style of two halves, one above the other."""
    if lower == KEPT:
        return "░", "bright_black"
    upper = upper.replace(KEPT, "")
    if upper and upper == lower:
        return "█", upper
    if upper:
        return "▄", f"{lower or 'default'} on {upper}"
    if lower:
        return "▄", lower
    if limited:
        return "╌", BEYOND
    return " ", ""


def _stages(panel: GhostPanel, margin: int, columns: int) -> Text:
    """The names of the stages under where they begin, as far as they have room; what is drawn where there are none."""
    line = [" "] * columns
    for stage in panel.stages:
        begin, end = round(stage.start * columns), round(stage.end * columns)
        if len(stage.name) + 1 <= end - begin:
            line[begin : begin + len(stage.name)] = stage.name
    return Text(" " * margin + "".join(line).rstrip(), style="dim")
