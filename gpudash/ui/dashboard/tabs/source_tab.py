"""The source of the running program, with the bytes each line holds in the margin, updated live."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpudash.memory.explaining.annotated_source import is_own_file
from gpudash.memory.request_log import RequestLog
from gpudash.telemetry.runs import RunView
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.source_view.held_source import HeldSource
from gpudash.units import format_moment

PERIOD_S = 0.5
"""Seconds between updates of what the lines hold."""

NOW = "Bytes that each line holds now, and keeps of every step."
PEAK = "Bytes that each line held at the peak of the run, and kept of every step."
AT = "Bytes that each line held at {}, and kept of every step."


class SourceTab(HeldSource):
    """The memory that the lines of the program hold, updated live.

    Args:
        clock: monotonic seconds; for tests.
    """

    def __init__(self, palette: Palette, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(palette)
        self._clock = clock
        self._refreshed_s = float("-inf")
        self._key: object = None

    def refresh(
        self, log: RequestLog, run: RunView | None, cursor_s: float | None, *, program_ended: bool = False
    ) -> None:
        """Show what the lines hold at the cursor; without one, now, or at the peak of a run that has ended.

        Args:
            log: allocation requests of the device shown.
            run: run in view; its steps show what lines keep from each step.
            cursor_s: session time of the cursor; ``None`` without one.
            program_ended: whether the run goes on only to read what its program left, which holds nothing now.
        """
        running = run is not None and run.running and not program_ended
        key = (log, log.version, cursor_s, running)
        if key == self._key or self._clock() - self._refreshed_s < PERIOD_S:
            return
        self._key = key
        self._refreshed_s = self._clock()
        found = log.allocations()
        first, last, steps = 0, len(found.place) - 1, None
        if run is not None:
            # A device's log goes on from run to run, and other runs have other files.
            first = found.moment(run.began_s) + 1
            steps = run.step_times.known()[0]
            if run.ended_s is not None:
                last = found.moment(run.ended_s)
        moment, foot = last, NOW
        if cursor_s is not None:
            moment, foot = found.moment(cursor_s), AT.format(format_moment(cursor_s))
        elif not running:
            moment, foot = first - 1 + int(found.level[first : last + 2].argmax()), PEAK
        self.show_held(log.held_by_line(moment, steps, first), foot)


def has_own_lines(log: RequestLog) -> bool:
    """Whether any of the program's own files has allocated memory."""
    return any(is_own_file(line.file) for line in log.lines)
