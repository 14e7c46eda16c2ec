"""One memory over time: its readings in bins, the growth found in them, and when it will be full.

Readings are kept at many resolutions: the maximum and minimum of each bin, with bins twice as long at each level. A
bin that covers whole cycles of a sawtooth has its peak and trough, whatever the phase of the readings: what rises from
bin to bin is growth.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.watching.growth import (
    FITTED,
    SURE,
    Forecast,
    GrowthTrend,
    growth_of,
    has_precedent,
    lasting,
    outlook,
    settled,
)

STEP_BIN_S = 0.25
"""Shortest bin of steps: contains several readings even at 10 Hz."""

STEP_LEVELS = 8

STEPS_SEEN = 8
"""Number of newest step bins whose peak a rise within a step must exceed."""

STEPS_LEAST = 3

BEYOND = 0.1
"""How far above those peaks a rise must go to be new, as a part of a step's swing."""

TIMED, STEPPED, CYCLED = 0, 1, 2

LEAST_CYCLES = 6
"""Fewest bins of whole steps or cycles that show a growth: they are less noisy than bins by the clock."""

BRIEF_BINS = (8, 16)
"""Numbers of newest bins of the finest level that are also fitted alone: a growth may last only a second."""

TURN = 0.3
"""Part of the recent range by which use must rise from a trough, or fall from a peak, to count as a turn."""

TURN_LEVEL = 4
"""Level whose bins, of 1.6 s, define that range."""

HISTORY = 128
"""Bins kept of each level, at least: four times the fitted ones, so that earlier peaks are known."""

LEVELS = 10
"""Number of levels of time bins: 0.1 s to 51 s."""

SHORTEST_S = 0.1
"""Length of the shortest bins: collects readings at 50 Hz; at 10 Hz each bin has one."""


class Turns:
    """Finds the troughs of a series that rises and falls."""

    def __init__(self) -> None:
        self._rising = True
        self._extreme: float | None = None

    def at_trough(self, high: float, low: float, turn: float) -> bool:
        """Whether a fall ended before this reading: it has risen by ``turn`` bytes since."""
        if self._extreme is None:
            self._extreme = high
        if self._rising:
            # The maximum since the last trough; below, the minimum since the last peak.
            self._extreme = max(self._extreme, high)
            if low < self._extreme - turn:
                self._rising = False
                self._extreme = low
            return False
        self._extreme = min(self._extreme, low)
        if high > self._extreme + turn:
            self._rising = True
            self._extreme = high
            return True
        return False


@dataclass(slots=True)
class FoundGrowth:
    """A level's growth: recomputed when a bin closes; its whole duration again from `due_s` on."""

    closed: int
    growth: GrowthTrend | None
    whole: GrowthTrend | None = None
    due_s: float = -math.inf


class Track:
    """Growth of one series, at every resolution."""

    def __init__(self) -> None:
        self._timed = Pyramid()
        self._stepped = Pyramid(STEP_LEVELS)
        self._cycled = Pyramid(STEP_LEVELS)
        self._turns = Turns()
        self._found: dict[tuple[int, int], FoundGrowth] = {}
        self._newest_s = self._newest = 0.0
        self.stepping = False

    def add(self, time_s: float, high: float, low: float) -> None:
        """Add a reading: the peak since the previous one and the present value, in bytes."""
        since = self._timed.open_since_s
        # Slightly early, since readings at 10 Hz are off by some milliseconds.
        if since is not None and time_s - since >= SHORTEST_S - 0.01:
            self._timed.close()
        self._timed.add(time_s, high, low)
        if self.stepping:
            self._stepped.add(time_s, high, low)
        self._cycle(time_s, high, low)
        self._newest_s = time_s
        self._newest = high

    def step(self, time_s: float) -> None:
        """Close a bin: a step has ended."""
        self.stepping = True
        since = self._stepped.open_since_s
        if since is not None and time_s - since >= STEP_BIN_S:
            self._stepped.close()

    def clear(self) -> None:
        """Delete everything."""
        self._timed.clear()
        self._stepped.clear()
        self._cycled.clear()
        self._turns = Turns()
        self._found.clear()
        self.stepping = False

    def clear_steps(self) -> None:
        """Delete the bins of steps: there are no more steps, or different ones."""
        self._stepped.clear()
        self._found = {key: found for key, found in self._found.items() if key[0] != STEPPED}
        self.stepping = False

    def growths(self, capacity: int) -> Iterator[GrowthTrend]:
        """All present growths: by whole steps first, then by cycles, then by the clock; finest first."""
        for which in (STEPPED, CYCLED, TIMED):
            yield from self._growths(which, capacity)

    def _growths(self, which: int, capacity: int) -> Iterator[GrowthTrend]:
        pyramid = (self._timed, self._stepped, self._cycled)[which]
        for number, level in enumerate(pyramid.levels):
            found = self._found.get((which, number))
            # A level is unchanged until one of its bins closes: coarse levels are fitted only every few seconds.
            if found is None or found.closed != level.closed:
                found = FoundGrowth(level.closed, self._fitted(level.table, capacity, number, which))
                self._found[which, number] = found
            if found.growth is None:
                continue
            if self._newest_s >= found.due_s:
                found.whole = self._whole(found.growth, pyramid, number, which)
                # The longer it has lasted, the less one reading matters: examine the whole duration again after 1/128
                # of it.
                found.due_s = self._newest_s + max(SHORTEST_S, found.growth.lasted_s / FITTED / 4) - 0.01
            if found.whole is not None:
                yield found.whole

    def _fitted(self, table: NDArray[np.float64], capacity: int, number: int, which: int) -> GrowthTrend | None:
        if which != TIMED:
            return growth_of(table, capacity, LEAST_CYCLES)
        # On the finest level the shortest stretch first: a growth of one second would be lost among all bins.
        if number == 0:
            for bins in BRIEF_BINS:
                brief = growth_of(table[-bins:], capacity)
                if brief is not None:
                    return brief
        return growth_of(table, capacity)

    def _cycle(self, time_s: float, high: float, low: float) -> None:
        """Close bins at the cycles visible in readings, as steps do where they are known."""
        coarse = self._timed.levels[TURN_LEVEL]
        if coarse.closed:
            swing = float(coarse.table[:, 2].max() - coarse.table[:, 3].min())
            if self._turns.at_trough(high, low, TURN * swing):
                self._cycled.close()
        self._cycled.add(time_s, high, low)

    def _whole(self, growth: GrowthTrend, pyramid: Pyramid, number: int, which: int) -> GrowthTrend | None:
        """``growth`` over its whole duration; ``None`` if it has ended, or is another rise like earlier ones that
        fell."""
        coarser = []
        for level in pyramid.levels[number:]:
            coarser.append(level.table)
            if len(level.table) == level.closed:
                break  # it reaches back to the start, so all coarser ones do
        lasted = dataclasses.replace(growth, lasted_s=lasting(growth, coarser))
        if has_precedent(lasted, coarser) or (which == TIMED and self._is_within_a_step(lasted)):
            return None
        # The finest level that still contains the start shows pauses and slowing best.
        began = growth.at_s - lasted.lasted_s
        finer = [level.table for level in pyramid.levels if level.closed]
        reaching = next((table for table in finer if table[0, 0] <= began + 1e-9), coarser[0])
        return settled(lasted, reaching, self._newest_s, self._newest)

    def _is_within_a_step(self, growth: GrowthTrend) -> bool:
        """Whether it stays below the peaks of the newest steps, or barely exceeds them."""
        steps = self._stepped.levels[0].table[-STEPS_SEEN:]
        if not self.stepping or len(steps) < STEPS_LEAST:
            return False
        swing = float((steps[:, 2] - steps[:, 3]).max())
        return growth.at_level < float(steps[:, 2].max()) + BEYOND * swing


class Bin(NamedTuple):
    """Readings over a time interval, in session seconds and bytes."""

    began_s: float
    ended_s: float
    high: float
    low: float

    def joined(self, later: Bin) -> Bin:
        """This bin joined with the next one."""
        return Bin(self.began_s, later.ended_s, max(self.high, later.high), min(self.low, later.low))


class TrackLevel:
    """Closed bins of one resolution.

    Attributes:
        half: a bin that waits for its partner, to form a bin of the next level.
        closed: number of bins ever closed.
    """

    def __init__(self) -> None:
        self.half: Bin | None = None
        self.closed = 0
        self._rows = np.empty((2 * HISTORY, 4))
        self._count = 0

    @property
    def table(self) -> NDArray[np.float64]:
        """Rows of began_s, ended_s, high and low, oldest first; a view that changes with the next bin."""
        return self._rows[: self._count]

    def append(self, done: Bin) -> None:
        """Add a closed bin."""
        if self._count == len(self._rows):
            # Every HISTORY bins the newer half moves to the front, so that the table is contiguous.
            self._rows[:HISTORY] = self._rows[HISTORY:]
            self._count = HISTORY
        self._rows[self._count] = done
        self._count += 1
        self.closed += 1


class Pyramid:
    """Closed bins of doubling length.

    Bins close by their length, or by the caller if the series has boundaries of its own (steps).

    Args:
        levels: number of resolutions.
    """

    def __init__(self, levels: int = LEVELS) -> None:
        self.levels = [TrackLevel() for _ in range(levels)]
        self._open: Bin | None = None

    def add(self, time_s: float, high: float, low: float) -> None:
        """Add a reading to the open bin; times ascend."""
        reading = Bin(time_s, time_s, high, low)
        if self._open is None:
            self._open = reading
        else:
            self._open = self._open.joined(reading)

    def close(self) -> None:
        """Close the open bin, if any, and all coarser ones that are then full."""
        if self._open is None:
            return
        done = self._open
        self._open = None
        # Carries like a binary counter: every second bin of a level closes one of the next.
        for level in self.levels:
            level.append(done)
            if level.half is None:
                level.half = done
                return
            done = level.half.joined(done)
            level.half = None

    @property
    def open_since_s(self) -> float | None:
        """Start of the open bin; ``None`` if there is none."""
        if self._open is None:
            return None
        return self._open.began_s

    def clear(self) -> None:
        """Delete everything, as after a gap or at the start of a run."""
        self.levels = [TrackLevel() for _ in self.levels]
        self._open = None


GAP_S = 2.0
"""Time without a reading after which everything is reset."""

FRESH_S = 1.0
"""Age of the allocator's figures from which they are out of date."""

OTHERS = 5
"""Readings for the median of other memory: driver and allocator are not read at the same time."""

QUIET_STEPS = 5.0
"""Time without a step, in steps, after which the run no longer counts as stepping; at least as many seconds."""

STEPS_APART_S = 0.1
"""Steps at shorter intervals are combined."""

RUN_ENDS = 1.2
"""A run whose remaining time is shorter by this factor than the earliest exhaustion will end first."""


class Forecaster:
    """Forecasts when one memory will be full. Belongs to one thread.

    If torch's allocator is known, the run's peak need counts: idle memory in torch's cache is usable, so that growing
    reserved memory alone exhausts nothing.
    """

    def __init__(self) -> None:
        self._used = Track()
        self._needed = Track()
        self._time_s: float | None = None
        self._capacity = 0
        self._others: deque[float] = deque(maxlen=OTHERS)
        self._allocator: tuple[float, float, float] | None = None
        self._peak = 0.0
        self._steps: deque[tuple[float, int]] = deque(maxlen=64)
        self._steps_left: int | None = None
        self._cause: str | None = None

    def observe(self, time_s: float, used: float, capacity: int) -> None:
        """Add a reading; times ascend, sizes are in bytes, ``capacity`` is positive."""
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
        # An allocation between the two readings counts as others' in one of them; the median ignores that.
        others = median(self._others)
        self._needed.add(time_s, others + max(self._peak, allocated), others + allocated)
        self._peak = 0.0

    def observe_allocator(self, time_s: float, allocated: float, reserved: float, peak: float | None = None) -> None:
        """Add the allocator's figures in bytes; ``peak`` is the peak of allocated memory since the previous call."""
        self._allocator = time_s, allocated, reserved
        if peak is None:
            peak = allocated
        # There may be several between two readings: keep the largest peak.
        self._peak = max(self._peak, peak)

    def observe_step(self, time_s: float, step: int, steps: int = 0) -> None:
        """Record the end of a step: number ``step`` of ``steps``; 0 if the total is unknown."""
        if self._steps and step == self._steps[-1][1]:
            return  # another report of the same step
        if self._steps and step < self._steps[-1][1]:
            self._forget_steps()
        if len(self._steps) > 1 and time_s - self._steps[-2][0] < STEPS_APART_S:
            self._steps[-1] = time_s, step
        else:
            self._steps.append((time_s, step))
        if steps > 0:
            self._steps_left = steps - step
        else:
            self._steps_left = None
        self._used.step(time_s)
        if self._allocator is not None:
            self._needed.step(time_s)

    def begin_run(self) -> None:
        """Reset for a new run: the previous one says nothing about it."""
        self._used.clear()
        self._needed.clear()
        self._forget_steps()
        self._cause = None

    def set_cause(self, cause: str | None) -> None:
        """Set what grows, for the end of a sentence ("losses.append at train.py:31"); ``None`` if unknown."""
        self._cause = cause

    def forecast(self, guard: int | None = None) -> Forecast | None:
        """When memory reaches its capacity, or ``guard`` bytes in use; ``None`` if it does not, or that is
        uncertain."""
        if self._time_s is None:
            return None
        track = self._used
        if self._allocator is not None:
            track = self._needed
        ahead = self._surest(track, "capacity", self._capacity)
        # The guard uses the driver's figure, which includes torch's idle memory.
        if guard is not None and guard <= self._capacity:
            guarded = self._surest(self._used, "guard", guard)
            if ahead is None or (guarded is not None and guarded.seconds <= ahead.seconds):
                ahead = guarded
        if ahead is None or self._run_ends_before(ahead):
            return None
        step_s = self._step_s()
        per_step = None
        if step_s > 0:
            per_step = ahead.bytes_per_second * step_s
        return dataclasses.replace(ahead, bytes_per_step=per_step, cause=self._cause)

    def _surest(self, track: Track, limit: Literal["capacity", "guard"], limit_bytes: int) -> Forecast | None:
        """The forecast of the finest resolution that is certain enough, else the most certain one."""
        found = []
        for growth in track.growths(self._capacity):
            ahead = outlook(growth, self._time_s or 0.0, limit, limit_bytes)
            if ahead is not None and ahead.confidence >= SURE:
                return ahead
            if ahead is not None:
                found.append(ahead)
        return max(found, key=lambda ahead: ahead.confidence, default=None)

    def _step_s(self) -> float:
        """Duration of a step in seconds; 0 without known steps."""
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
