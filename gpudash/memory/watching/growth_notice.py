"""Telling that lines of a program keep something of every step, once it is sure and once for each line."""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from gpudash.telemetry.explanation import Growth
from gpudash.telemetry.records import Warning
from gpudash.units import format_bytes

PATIENCE = 2
"""Looks at which lines must be found growing before it is told."""


class GrowthNotice:
    """Decides at each look for lines that grow whether to tell it."""

    def __init__(self) -> None:
        self._looks = 0
        self._told: tuple[tuple[str, int], ...] = ()

    def is_due(self, growing: Sequence[Growth]) -> bool:
        """Whether these lines, the fastest first, are to be told now."""
        self._looks = self._looks + 1 if growing else 0
        lines = tuple((growth.file, growth.line) for growth in growing[:1])
        if self._looks < PATIENCE or lines == self._told:
            return False
        self._told = lines
        return True


def growth_warning(growing: Sequence[Growth], device: str, time_s: float, run_id: int) -> Warning:
    """What is told when lines are found to grow.

    Args:
        growing: the lines, the fastest first.
        device: whose memory it is: a GPU's UUID, or "host".
    """
    first = growing[0]
    rate = format_bytes(first.bytes_per_step)
    text = f"{first.place} keeps {rate} of every step since step {first.first_step}."
    return Warning(
        time_s=time_s,
        run_id=run_id,
        level="note",
        device=device,
        text=text,
        actions=("stop",),
        cause=f"{first.place}, {rate} a step",
    )


def source_line(file: str, line: int) -> str:
    """The text of a line of the program, without the blanks behind it; "" when its file cannot be read."""
    return linecache.getline(file, line).rstrip()
