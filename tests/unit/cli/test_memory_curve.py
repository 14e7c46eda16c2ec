"""The curve of a predicted step in the terminal."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpudash.cli.terminal.estimates import estimate_report
from gpudash.cli.terminal.estimates.memory_curve import (
    LABEL_WIDTH,
    LEAST_WIDTH,
    MOST_COLUMNS,
    ROWS,
    has_room,
    print_curve,
)
from gpudash.drawing.ghost import Ghost
from gpudash.units import MIB

KEPT = "idle in the allocator"

COLOURS = {"weights": "cyan", "activations": "green", KEPT: "bright_black"}

MARKS = ((0, 1, "forward"), (50, 1, "backward"), (95, 1, "optimizer"))


def terminal(width: int = 80, *, colours: Literal["256"] | None = "256", forced: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=forced, color_system=colours, width=width)


def drawn(ghost: Ghost, width: int = 80) -> list[str]:
    """The lines without the axis, from the top."""
    written = io.StringIO()
    print_curve(ghost, COLOURS, Console(file=written, force_terminal=True, color_system=None, width=width))
    return written.getvalue().splitlines()[1:]


def rising(limit: float | None) -> Ghost:
    """Weights of 100 MiB, activations up to 100 MiB in the middle and down again, 50 MiB kept."""
    there = np.concatenate([np.linspace(0, 100, 50), np.linspace(100, 0, 50)]) * MIB
    ribbons = {"weights": np.full(100, 100.0 * MIB), "activations": there, KEPT: 250 * MIB - 100 * MIB - there}
    return Ghost.of(ribbons, MARKS, kept=KEPT, limit=limit)


def test_the_curve_rises_to_its_peak_and_what_is_only_kept_is_another_block() -> None:
    lines = drawn(rising(None))
    assert len(lines) == ROWS + 1
    full = [line[LABEL_WIDTH:].count("█") for line in lines[:ROWS]]
    assert full == sorted(full) and full[-1] == 80 - LABEL_WIDTH - 1
    assert full[1] < full[4] and "░" in lines[1]
    assert lines[0].split()[0] == "250" and lines[ROWS - 1].split()[0] == "0"


def test_stages_stand_below_where_they_begin_and_one_without_room_is_left_out() -> None:
    stages = drawn(rising(None))[ROWS][LABEL_WIDTH:]
    assert stages.index("forward") == 0 and stages.index("backward") == round(0.5 * (80 - LABEL_WIDTH - 1))
    assert "optimizer" not in stages, "it has four characters"


def test_what_is_free_is_a_line_where_it_is_near_and_a_sentence_where_it_is_far() -> None:
    lines = drawn(rising(200 * MIB))
    assert [line.split()[0] for line in lines[:ROWS] if "MiB" in line] == ["250", "200"]
    lines = drawn(rising(300 * MIB))
    assert "─" in lines[0] and lines[0].split()[:2] == ["300", "MiB"]
    assert drawn(rising(8000 * MIB))[-1].strip() == "free: 7.81 GiB, above this curve"


@given(st.floats(1, 1e12), st.one_of(st.none(), st.floats(0, 1e13)), st.integers(LEAST_WIDTH, 200))
def test_no_line_is_wider_than_the_terminal_whatever_the_sizes(peak: float, limit: float | None, width: int) -> None:
    ghost = Ghost.of({"weights": np.linspace(0, peak, 7)}, ((0, 1, "forward"), (3, 1, "backward")), limit=limit)
    lines = drawn(ghost, width)
    assert max(map(len, lines)) <= width
    assert len(lines[0]) <= LABEL_WIDTH + MOST_COLUMNS


def test_there_is_room_in_a_wide_terminal_with_colours_alone() -> None:
    assert has_room(terminal())
    assert not has_room(terminal(LEAST_WIDTH - 1))
    assert not has_room(terminal(colours=None))
    assert not has_room(terminal(forced=False))


def test_no_two_parts_of_a_prediction_have_one_colour_or_one_letter() -> None:
    letters, colours = zip(*estimate_report.MARKS.values(), strict=True)
    assert len(set(letters)) == len(set(colours)) == len(estimate_report.MARKS)
