"""Labelled series of memory use: what a watcher is given, and whether and when the memory was exhausted.

A series is what a process needs over time, on a grid of 20 ms; what a watcher sees of it is read at 10 Hz with jitter,
with the noise of a driver and with other processes that come and go. Three views exist: a host's (use follows need), a
GPU's (torch's cache keeps the most that was ever needed, in whole segments), and a GPU's with the allocator's figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpudash.units import GIB, MIB

Array = NDArray[np.float64]
View = Literal["host", "gpu", "gpu with allocator"]

GRID_S = 0.02
PERIOD_S = 0.1
JITTER_S = 0.01
DEVELOPMENT_SEED = 1
"""Constants of the forecast are chosen on these series only."""

EVALUATION_SEED = 20_000
"""Reported figures come from these series only."""

LONGEST_S = 600.0
"""Longest growth: leaks are slow."""

TRACES = Path(__file__).parent / "recorded" / "traces.npz"
"""Allocated and reserved MiB over milliseconds of recorded GPU runs, thinned to their extremes."""

COLD = ("00", "02", "03", "04", "07", "08", "09", "14", "16", "17")
"""Recorded from a nearly empty cache, or with more than one round: played once."""

STEPS = ("01", "05", "06", "11", "12", "13", "15", "10")
"""Recorded in the steady state: played as steps that follow each other."""


@dataclass(frozen=True)
class Need:
    """What a process needs, in bytes on the grid, and the times at which its steps end."""

    allocated: Array
    steps: Array | None = None
    total_steps: int = 0
    reserved: Array | None = None


@dataclass(frozen=True)
class Series:
    """One labelled series.

    Attributes:
        kind: its class.
        capacity: bytes.
        times, used: readings, session seconds and bytes.
        steps: times at which steps end; empty where they are not known.
        total_steps: as the run announces them; 0 where it does not.
        allocated, reserved, peak: the allocator's figures at `times`; ``None`` where they are not known.
        exhausted_s: when the need passed the capacity; ``None`` when it never did.
    """

    kind: str
    view: View
    capacity: int
    times: Array
    used: Array
    steps: Array
    total_steps: int
    exhausted_s: float | None
    allocated: Array | None = None
    reserved: Array | None = None
    peak: Array | None = None

    @property
    def seconds(self) -> float:
        """For how long it is watched."""
        return float(self.times[-1] - self.times[0])


@dataclass
class Draw:
    """Random numbers of one series, and what is common to all kinds."""

    rng: np.random.Generator
    capacity: int
    fatal: bool
    extra: dict[str, float] = field(default_factory=dict)

    def between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def log(self, low: float, high: float) -> float:
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def grid(self, seconds: float) -> Array:
        return np.arange(0.0, seconds, GRID_S)

    def top(self, low: float = 0.5, high: float = 0.97) -> float:
        """Where a need ends: below the capacity, or beyond it."""
        return self.capacity * (self.between(1.03, 1.3) if self.fatal else self.between(low, high))


def steps_on(time: Array, step_s: float, rng: np.random.Generator) -> Array:
    """Ends of steps that take about ``step_s``, ±5 %."""
    lengths = step_s * np.clip(rng.normal(1, 0.05, int(time[-1] / step_s * 1.2) + 4), 0.7, 1.3)
    ends = np.cumsum(lengths)
    return np.asarray(ends[ends < time[-1]])


def saw(time: Array, ends: Array) -> Array:
    """0 to 1 and back within every step, as activations are kept and given back."""
    edges = np.concatenate(([0.0], ends, [time[-1] + 1.0]))
    which = np.clip(np.searchsorted(edges, time, side="right") - 1, 0, len(edges) - 2)
    phase = (time - edges[which]) / (edges[which + 1] - edges[which])
    return np.asarray(np.where(phase < 0.5, phase / 0.5, np.where(phase < 0.9, 1 - (phase - 0.5) / 0.4, 0.0)))


def ramp(draw: Draw) -> Need:
    """Growth along a line, from the beginning or later; it passes the capacity or stops below (a load, a cache)."""
    base, top = draw.capacity * draw.between(0.02, 0.6), draw.top()
    grows_s, waits_s = draw.log(2, 200), draw.between(0, 30)
    time = draw.grid(waits_s + grows_s + draw.between(20, 90))
    grown = np.clip((time - waits_s) / grows_s, 0, 1)
    return Need(base + max(0.0, top - base) * grown)


def leak_under_saw(draw: Draw) -> Need:
    """Steps that rise and fall, and keep a little each time; harmless ones keep nothing."""
    step_s = draw.log(0.05, 12)
    peak, part = draw.capacity * draw.between(0.3, 0.94), draw.between(0.1, 0.8)
    base, swing = peak * (1 - part), peak * part
    waits = draw.between(0, 10) * step_s
    if draw.fatal:
        grows_s = float(np.clip(draw.log(15, 1000) * step_s, 20, LONGEST_S))
        time = draw.grid(waits + grows_s * 1.3 + 3 * step_s)
    else:
        time = draw.grid(draw.between(60, 200))
    ends = steps_on(time, step_s, draw.rng)
    done = np.searchsorted(ends, time, side="right")
    need = base + swing * saw(time, ends)
    if draw.fatal:
        per_step = max(draw.capacity * 1.02 - peak, 0.02 * draw.capacity) / max(grows_s / step_s, 4)
        need = need + per_step * np.maximum(0, done - int(waits / step_s))
    else:
        need = need * min(1.0, draw.top(0.6, 0.97) / float(need.max()))
    return Need(need, ends, int(draw.between(1, 4) * len(ends)) + 5)


def staircase(draw: Draw) -> Need:
    """Growth in pieces of 20 MiB to 1 GiB at irregular times; harmless ones end."""
    base = draw.capacity * draw.between(0.1, 0.7)
    top = max(draw.top(), base + 0.02 * draw.capacity)
    size = draw.log(20 * MIB, max(21 * MIB, min(GIB, (top - base) / 8)))
    count = int(np.ceil((top - base) / size))
    grows_s = draw.log(15, LONGEST_S)
    time = draw.grid(grows_s + draw.between(10, 60))
    rises = np.sort(grows_s * (np.arange(count) + draw.rng.uniform(0, 0.8, count)) / count)
    return Need(base + size * np.searchsorted(rises, time, side="right"))


def plateau(draw: Draw) -> Need:
    """A level that stays; the fatal ones are asked at some moment for more than there is."""
    time = draw.grid(draw.between(60, 240))
    level = np.full(len(time), draw.capacity * draw.between(0.3, 0.985))
    if draw.fatal:
        level[time > time[-1] - draw.between(2, 20)] = draw.capacity * 1.1
    return Need(level)


def warm_up(draw: Draw) -> Need:
    """Growth that slows down, as of a cache; the fatal ones do not fit."""
    base, top = draw.capacity * draw.between(0.05, 0.5), draw.top(0.55, 0.97)
    fade_s = draw.log(2, 40)
    time = draw.grid(min(8 * fade_s, 200) + 40)
    need = base + (max(top, base * 1.1) - base) * -np.expm1(-time / fade_s)
    if draw.rng.random() < 0.5:
        piece = draw.log(20 * MIB, 0.03 * draw.capacity)
        need = base + np.floor((need - base) / piece) * piece
    return Need(need)


def epochs(draw: Draw) -> Need:
    """Growth within each epoch that is given back at its end; the fatal ones keep a part of it."""
    epoch_s, step_s = draw.log(8, 60), draw.log(0.05, 0.8)
    base, swing = draw.capacity * draw.between(0.1, 0.5), draw.capacity * draw.between(0.1, 0.4)
    rounds = int(np.clip(240 / epoch_s, 4, 12))
    time = draw.grid(rounds * epoch_s)
    which = np.floor(time / epoch_s)
    need = base + swing * (time / epoch_s - which)
    if draw.fatal:
        need = need + which * (draw.capacity * 1.02 - base - swing) / (rounds - 1.5)
    need = need + draw.capacity * 0.02 * saw(time, ends := steps_on(time, step_s, draw.rng))
    return Need(need if draw.fatal else need * min(1.0, draw.top(0.6, 0.97) / float(need.max())), ends, len(ends))


def drops(draw: Draw) -> Need:
    """Growth, given back at once, and growth again: a cache that is emptied, a run after a run."""
    base = draw.capacity * draw.between(0.1, 0.4)
    first_s, second_s = draw.log(8, 90), draw.log(8, 90)
    time = draw.grid(first_s + second_s + draw.between(15, 60))
    first = draw.capacity * draw.between(0.5, 0.95)
    second = draw.top()
    need = np.where(time < first_s, base + (first - base) * time / first_s, base)
    again = np.clip((time - first_s - 3) / second_s, 0, 1)
    return Need(need + np.where(time >= first_s, (second - base) * again, 0.0), reserved=need * np.nan)


def noise(draw: Draw) -> Need:
    """Requests of every size that come and go around a level, as of an inference server; none exhausts the memory."""
    time = draw.grid(draw.between(60, 240))
    level = np.zeros(len(time))
    for _ in range(int(draw.log(5, 200))):
        begin, size = draw.between(-10, time[-1]), draw.log(20 * MIB, 0.1 * draw.capacity)
        level[(time >= begin) & (time < begin + draw.log(0.5, 40))] += size
    base = draw.capacity * draw.between(0.2, 0.6)
    room = draw.capacity * draw.between(0.75, 0.975) - base
    return Need(base + level * min(1.0, room / max(float(level.max()), 1.0)))


@cache
def traces() -> dict[str, Array]:
    """Rows of every recorded trace: seconds, allocated and reserved bytes."""
    with np.load(TRACES, allow_pickle=False) as stored:
        scale = np.array([[1e-3], [MIB], [MIB]])
        return {name[-2:]: stored[name] * scale for name in stored.files}


def recorded(draw: Draw) -> Need:
    """A recorded run, slowed down; its steps repeated, with a leak in the fatal ones."""
    if draw.rng.random() < 0.5:
        seconds, allocated, reserved = traces()[str(draw.rng.choice(COLD))]
        lasts_s = draw.between(10, 120)
        time = draw.grid(lasts_s + 20)
        at = time * seconds[-1] / lasts_s
        last = np.clip(np.searchsorted(seconds, at, side="right") - 1, 0, len(seconds) - 1)
        draw.extra["capacity"] = float(allocated.max()) * _room(draw)
        return Need(allocated[last], reserved=reserved[last])
    seconds, allocated, _reserved = traces()[str(draw.rng.choice(STEPS))]
    step_s = draw.log(0.1, 8)
    time = draw.grid(float(np.clip(step_s * 60, 60, 240)))
    ends = np.arange(step_s, time[-1], step_s)
    at = (time % step_s) * seconds[-1] / step_s
    last = np.clip(np.searchsorted(seconds, at, side="right") - 1, 0, len(seconds) - 1)
    need, peak = allocated[last], float(allocated.max())
    draw.extra["capacity"] = peak * _room(draw)
    if draw.fatal:
        kept = peak * draw.between(0.1, 0.6)
        draw.extra["capacity"] = peak + kept * draw.between(0.2, 0.95)
        need = need + kept / len(ends) * np.floor(time / step_s)
    return Need(need, ends, 2 * len(ends))


def _room(draw: Draw) -> float:
    """Capacity as a part of a recorded peak."""
    return draw.between(0.75, 0.97) if draw.fatal else draw.between(1.06, 1.6)


KINDS: dict[str, tuple[Callable[[Draw], Need], float]] = {
    "ramp": (ramp, 0.5),
    "leak under a sawtooth": (leak_under_saw, 0.6),
    "staircase": (staircase, 0.5),
    "plateau": (plateau, 0.15),
    "warm-up": (warm_up, 0.25),
    "epochs": (epochs, 0.3),
    "drops": (drops, 0.5),
    "noise": (noise, 0.0),
    "recorded": (recorded, 0.5),
}
"""Kind → how it is made, and which part of it is fatal."""


def make(kind: str, seed: int) -> Series:
    """The series of ``kind`` with number ``seed``, always the same."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    source, fatal_part = KINDS[kind]
    capacity = int(rng.choice([8, 12, 16, 24, 40, 80])) * GIB
    draw = Draw(rng, capacity, bool(rng.random() < fatal_part))
    need = source(draw)
    capacity = int(draw.extra.get("capacity", capacity))
    view: View = ("host", "gpu", "gpu with allocator")[int(rng.integers(3))]
    return _seen(kind, need, view, capacity, rng)


def series(per_kind: int, seed: int) -> list[Series]:
    """``per_kind`` series of every kind."""
    return [make(kind, seed + number) for kind in KINDS for number in range(per_kind)]


def _seen(kind: str, need: Need, view: View, capacity: int, rng: np.random.Generator) -> Series:
    """What a watcher is given of ``need``."""
    time = np.arange(len(need.allocated)) * GRID_S
    others = _others(time, capacity, rng)
    over = need.allocated + others > capacity
    exhausted_s = float(time[int(over.argmax())]) if over.any() else None
    end_s = float(time[-1]) if exhausted_s is None else exhausted_s
    if view == "host":
        held = need.allocated
    elif need.reserved is not None and not np.isnan(need.reserved).any():
        held = np.maximum(need.reserved, need.allocated)
    else:
        held = _cached(need.allocated, resets=need.reserved is not None)
    used = np.minimum(held + others, capacity)
    times = np.arange(0.0, end_s, PERIOD_S)
    times = np.sort(np.clip(times + rng.normal(0, JITTER_S, len(times)), 0.0, end_s))
    at = np.minimum((times / GRID_S).astype(int), len(time) - 1)
    trembles = rng.normal(0, float(rng.choice([0.0, 1.0, 6.0])) * MIB, len(times))
    known = need.steps is not None and bool(rng.random() < 0.6)
    steps = need.steps[need.steps < end_s] if known and need.steps is not None else np.empty(0)
    allocator = view == "gpu with allocator"
    return Series(
        kind=kind,
        view=view,
        capacity=capacity,
        times=times,
        used=np.clip(used[at] + trembles, 0, capacity),
        steps=steps,
        total_steps=need.total_steps if rng.random() < 0.5 else 0,
        exhausted_s=exhausted_s,
        allocated=need.allocated[at] if allocator else None,
        reserved=np.minimum(held, capacity - others)[at] if allocator else None,
        peak=_peaks(need.allocated, at) if allocator else None,
    )


def _others(time: Array, capacity: int, rng: np.random.Generator) -> Array:
    """What other processes hold: now and then one comes or goes."""
    level = np.full(len(time), rng.uniform(0, 0.02) * capacity)
    if rng.random() < 0.3:
        for _ in range(int(rng.integers(1, 6))):
            begin = rng.uniform(0, time[-1])
            level[(time >= begin) & (time < begin + rng.uniform(2, 60))] += rng.uniform(0, 0.02) * capacity
    return level


def _cached(allocated: Array, resets: bool) -> Array:
    """Reserved bytes of a cache that keeps the most it ever held, in segments of 20 MiB, until it is emptied."""
    if resets:
        fall = int(np.diff(allocated).argmin()) + 1
        parts = np.split(allocated, [fall]) if np.diff(allocated).min() < 0 else [allocated]
    else:
        parts = [allocated]
    held = np.concatenate([np.maximum.accumulate(part) for part in parts])
    return np.asarray(np.ceil(held / (20 * MIB)) * 20 * MIB)


def _peaks(allocated: Array, at: NDArray[np.int64]) -> Array:
    """The most allocated since the reading before."""
    return np.array([allocated[first : last + 1].max() for first, last in zip(np.r_[0, at[:-1]], at, strict=True)])
