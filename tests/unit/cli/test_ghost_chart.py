"""A predicted run in the terminal: block characters in the colours of its parts, and none where there is no room."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from gpudash.cli.terminal.ghost_chart import ROWS, chart, has_room
from gpudash.drawing.ghost import Ghost
from gpudash.units import GIB

MARKS = ((0, 0, ""), (100, 1, "forward"), (200, 1, "backward"))
COLOURS = {"weights": "cyan", "activations": "green"}


def ghost(peak: float, limit: float | None) -> Ghost:
    rising = np.interp(np.arange(300), [100, 200, 299], [0, peak - GIB, 0])
    return Ghost.of({"weights": np.full(300, float(GIB)), "activations": rising}, MARKS, capacity=limit, limit=limit)


def lines(drawn: Ghost, width: int = 80) -> list[str]:
    return [line.plain for line in chart(drawn, width, COLOURS)]


def styles(drawn: Ghost) -> set[str]:
    return {str(span.style) for line in chart(drawn, 80, COLOURS) for span in line.spans}


def test_the_highest_point_fills_the_chart_and_the_stages_are_under_it() -> None:
    found = lines(ghost(4 * GIB, 16 * GIB))
    assert len(found) == ROWS + 1
    assert found[0].startswith("4.00 GiB ") and ("█" in found[0] or "▄" in found[0])
    assert "forward" in found[-1] and "backward" in found[-1]
    assert all(len(line) <= 80 for line in found)


def test_what_lies_beyond_the_limit_is_red_and_the_limit_is_a_line() -> None:
    assert "red" in styles(ghost(10 * GIB, 8 * GIB))
    assert any("╌" in line for line in lines(ghost(10 * GIB, 8 * GIB)))
    assert "red" not in styles(ghost(3 * GIB, 8 * GIB)) and not any("╌" in line for line in lines(ghost(3 * GIB, None)))


def test_what_is_only_kept_is_shaded_and_not_filled() -> None:
    ribbons = {"weights": np.full(300, float(GIB)), "idle in the allocator": np.full(300, 3.0 * GIB)}
    found = lines(Ghost.of(ribbons, MARKS, kept="idle in the allocator", limit=16 * GIB))
    assert "░" in found[0] and "█" not in found[0] and "█" in found[ROWS - 1]


def test_a_limit_near_the_peak_is_in_reach() -> None:
    assert lines(ghost(6 * GIB, 8 * GIB))[0].startswith("8.00 GiB ╌")


@pytest.mark.parametrize(
    ("size", "terminal", "room"),
    [((80, 24), True, True), ((50, 24), True, False), ((80, 12), True, False), ((80, 24), False, False)],
)
def test_there_is_room_in_a_terminal_with_colours_that_is_large_enough(
    size: tuple[int, int], terminal: bool, room: bool
) -> None:
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=size[0],
        height=size[1],
        color_system="truecolor" if terminal else None,
    )
    assert has_room(console) is room
