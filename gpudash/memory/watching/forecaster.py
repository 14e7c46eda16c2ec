"""Foretells one memory: takes in readings, steps and the allocator's own figures, and says when it is exhausted."""

from __future__ import annotations

import dataclasses
from collections import deque
from statistics import median
from typing import Literal

from gpudash.memory.watching.outlook import SURE, Forecast, outlook
from gpudash.memory.watching.track import Track

GAP_S = 2.0
"""Time without a reading after which everything begins anew."""

FRESH_S = 1.0
"""Age of the allocator's figures beyond which they no longer tell what torch holds."""

OTHERS = 5
"""Readings over which what others hold is the median: driver and allocator are not read at the same moment."""

QUIET_STEPS = 5.0
"""Time without a step, in steps, after which the run is no longer stepping; at least as many seconds."""

STEPS_APART_S = 0.1
"""Steps that follow each other faster are counted together."""

RUN_ENDS = 1.2
"""A run that has this much less to go than the earliest exhaustion ends before it."""


class Forecaster:
    """When one memory is exhausted. Belongs to one thread.

    Where torch's allocator is known, what counts is what the run needs at its peaks: idle memory inside torch can
    still be used, so that growth of the reserved bytes alone exhausts nothing.
    """

    def __init__(self) -> None:
        self._used, self._needed = Track(), Track()
        self._time_s: float | None = None
        self._capacity = 0
        self._others: deque[float] = deque(maxlen=OTHERS)
        self._allocator: tuple[float, float, float] | None = None
        self._peak = 0.0
        self._steps: deque[tuple[float, int]] = deque(maxlen=64)
        self._steps_left: int | None = None
        self._cause: str | None = None

    def observe(self, time_s: float, used: float, capacity: int) -> None:
        """Take in a reading; times ascend, sizes are in bytes, ``capacity`` is above nought."""
        if self._time_s is not None and (time_s - self._time_s > GAP_S or time_s < self._time_s):
            self._used.clear()
            self._needed.clear()
        if capacity != self._capacity:
            self._capacity = capacity
            self._used.clear()
            self._needed.clear()
        self._time_s = time_s
        if self._steps and time_s - self._steps[-1][0] > max(1.0, self._step_s()) * QUIET_STEPS:
            self._forget_steps()
        self._used.add(time_s, used, used)
        if self._allocator is None:
            return
        at_s, allocated, reserved = self._allocator
        if time_s - at_s > FRESH_S:
            self._allocator = None
            self._needed.clear()
            self._others.clear()
            return
        self._others.append(max(0.0, used - reserved))
        others = median(self._others)
        self._needed.add(time_s, others + max(self._peak, allocated), others + allocated)
        self._peak = 0.0

    def observe_allocator(self, time_s: float, allocated: float, reserved: float, peak: float | None = None) -> None:
        """Take in the allocator's figures in bytes; ``peak`` is the most allocated since they were last taken."""
        self._allocator = time_s, allocated, reserved
        self._peak = max(self._peak, allocated if peak is None else peak)

    def observe_step(self, time_s: float, step: int, steps: int = 0) -> None:
        """A step has ended: the ``step``-th of ``steps``; 0 where their number is not known."""
        if self._steps and step <= self._steps[-1][1]:
            self._forget_steps()
        if len(self._steps) > 1 and time_s - self._steps[-2][0] < STEPS_APART_S:
            self._steps[-1] = time_s, step
        else:
            self._steps.append((time_s, step))
        self._steps_left = steps - step if steps > 0 else None
        self._used.step(time_s)
        if self._allocator is not None:
            self._needed.step(time_s)

    def begin_run(self) -> None:
        """Another run begins: what the one before did says nothing about it."""
        self._used.clear()
        self._needed.clear()
        self._forget_steps()
        self._cause = None

    def set_cause(self, cause: str | None) -> None:
        """What grows, for the end of a sentence ("losses.append at train.py:31"); ``None`` when not known."""
        self._cause = cause

    def forecast(self, guard: int | None = None) -> Forecast | None:
        """When the memory reaches its capacity, or ``guard`` bytes in use; ``None`` when it does not, or is unsure."""
        if self._time_s is None:
            return None
        known = self._allocator is not None
        ahead = self._surest(self._needed if known else self._used, "capacity", self._capacity)
        if guard is not None and guard <= self._capacity:
            guarded = self._surest(self._used, "guard", guard)
            if ahead is None or (guarded is not None and guarded.seconds <= ahead.seconds):
                ahead = guarded
        if ahead is None or self._run_ends_before(ahead):
            return None
        step_s = self._step_s()
        per_step = ahead.bytes_per_second * step_s if step_s > 0 else None
        return dataclasses.replace(ahead, bytes_per_step=per_step, cause=self._cause)

    def _surest(self, track: Track, limit: Literal["capacity", "guard"], limit_bytes: int) -> Forecast | None:
        """The forecast from the finest resolution that is sure, else the surest."""
        found = []
        for growth in track.growths(self._capacity):
            ahead = outlook(growth, self._time_s or 0.0, limit, limit_bytes)
            if ahead is not None and ahead.confidence >= SURE:
                return ahead
            if ahead is not None:
                found.append(ahead)
        return max(found, key=lambda ahead: ahead.confidence, default=None)

    def _step_s(self) -> float:
        """Seconds of a step; 0 where no steps are known."""
        if len(self._steps) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        return (last_s - first_s) / (last - first)

    def _run_ends_before(self, ahead: Forecast) -> bool:
        step_s = self._step_s()
        if self._steps_left is None or step_s <= 0:
            return False
        return ahead.seconds_low > RUN_ENDS * self._steps_left * step_s

    def _forget_steps(self) -> None:
        self._steps.clear()
        self._steps_left = None
        self._used.clear_steps()
        self._needed.clear_steps()
