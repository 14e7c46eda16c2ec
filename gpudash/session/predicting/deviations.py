"""Where a run deviated from its prediction, step by step, as far as its readings cover the steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudash.drawing.ghost import Ghost, RunningGhost
from gpudash.memory.predicting.prediction import CONTEXT
from gpudash.session.predicting.ghosts import OTHERS
from gpudash.units import MIB, format_bytes

Floats = NDArray[np.float64]
Readings = tuple[Floats, Floats]
"""Times of the allocator's readings (session time, ascending), and the most bytes since the reading before."""

LATE_S = 0.02
"""Seconds by which a reading may be older than its time: it is read within `PROMPT_S` of
`gpudash.workloads.running.accelerators`, as a rule."""

WATCHED_LATE_S = 0.3
"""The same for a watched program, which is polled every 0.1 s, or less often while it keeps its agent from the
interpreter, and reports only what has changed."""

LEAST_RATIO = 0.02
LEAST_BYTES = 64 * MIB
"""Smallest deviation that is reported: a share of the whole prediction, or bytes."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A step that held more or less than predicted.

    Attributes:
        step: number of the step.
        at_s: session time of the reading that shows it.
        held: the most that the device held during the step, in bytes, including memory outside the allocator.
        more: difference from the prediction in bytes; negative for less.
        allocated_more: the same for tensors alone; ``None`` if their peak is not known.
    """

    step: int
    at_s: float
    held: int
    more: int
    allocated_more: int | None

    @property
    def label(self) -> str:
        """The difference as a short label: "+80 MiB"."""
        return f"{'+' if self.more > 0 else '−'}{format_bytes(abs(self.more))}"

    @property
    def whole_label(self) -> str:
        """The label with what the difference is to: "80 MiB more than predicted"."""
        return f"{_difference(self.more)} than predicted"

    @property
    def text(self) -> str:
        """A sentence: "at step 3 the run held 80 MiB more than predicted: its tensors 64 MiB more, its cache 16 MiB
        more"."""
        whole = f"at step {self.step} the run held {self.whole_label}"
        if self.allocated_more is None:
            return whole
        parts = [("its tensors", self.allocated_more), ("its cache", self.more - self.allocated_more)]
        return f"{whole}: {', '.join(f'{name} {_difference(size)}' for name, size in parts if abs(size) >= MIB)}"


def deviations(
    running: RunningGhost, reserved: Readings, allocated: Readings, late_s: float = LATE_S
) -> tuple[Deviation, ...]:
    """The steps in view that deviated from the prediction by `LEAST_RATIO` or `LEAST_BYTES`, oldest first.

    A reading covers all the time since the one before. A step therefore held more if a reading that covers only this
    step says so; it held less only if all readings that overlap it do, and those that may be of it though they have a
    time up to ``late_s`` after it, once that has passed. Steps that fall between two readings are not reported.
    """
    ended = running.ended
    if not len(ended) or not running.ghost.steps or not len(reserved[0]):
        return ()
    first = running.step - len(ended) + 1
    begins = np.concatenate(([ended[0] - running.pace if first > 1 else running.began], ended[:-1]))
    expected = [_expected(running.ghost, step) for step in range(1, running.ghost.steps + 1)]
    base = _outside(running.ghost)
    times, values = reserved
    found = []
    for place, (begin, end) in enumerate(zip(begins.tolist(), ended.tolist(), strict=True)):
        low, behind = np.searchsorted(times, [begin, end], "right").tolist()
        if low + 1 >= behind or behind >= len(times):
            continue  # too few readings, or none after its end yet
        within = values[low + 1 : behind]  # the first one covers the end of the step before too
        most = float(within.max())
        latest = int(np.searchsorted(times, end + late_s, "right"))
        maybe_within = values[low : max(latest, behind + 1)]
        predicted, predicted_used = expected[min(first + place, len(expected)) - 1]
        bound = min(LEAST_BYTES, LEAST_RATIO * (base + predicted))
        if most - predicted >= bound:
            held = most
            at = low + 1 + int(within.argmax())
        elif predicted - float(maybe_within.max()) >= bound and (latest < len(times) or running.over):
            held = float(maybe_within.max())
            at = low + int(maybe_within.argmax())
        else:
            continue
        used = _most_between(allocated, begin, end)
        used_more = None
        if used is not None:
            used_more = int(used - predicted_used)
        found.append(Deviation(first + place, float(times[at]), int(base + held), int(held - predicted), used_more))
    return tuple(found)


def _outside(ghost: Ghost) -> float:
    """Memory outside the run's allocator: other processes', and the CUDA context."""
    return sum(ghost.parts.get(name, 0.0) for name in (OTHERS, CONTEXT))


def _expected(ghost: Ghost, step: int) -> tuple[float, float]:
    """The most that the allocator should reserve in a step, and the most that should be allocated."""
    panel = ghost.step_panel(step)
    base = _outside(ghost)
    used = ghost.edges[ghost.top, panel.first : panel.behind]
    return ghost.step_peak(step)[1] - base, float(used.max()) - base


def _most_between(readings: Readings, begin: float, end: float) -> float | None:
    times, values = readings
    low, behind = np.searchsorted(times, [begin, end], "right").tolist()
    if behind <= low:
        return None
    return float(values[low:behind].max())


def _difference(size: int) -> str:
    """A size in words: "80 MiB more", "80 MiB less"."""
    return f"{format_bytes(abs(size))} {'more' if size > 0 else 'less'}"
