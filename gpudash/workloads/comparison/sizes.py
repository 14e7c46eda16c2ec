"""Growing the pieces of work until the second device is faster."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpudash.specs import Spec
from gpudash.workloads.comparison.figures import Measured, Point, Sweep
from gpudash.workloads.comparison.side import WARM_UP, Side
from gpudash.workloads.comparison.steps import GROWING, enlarged, size_of, with_steps
from gpudash.workloads.endings import Cancelled, GuardRefused, memory_ran_out

STEPS = 4
"""Measured steps of a size on either side, twice."""

MOST_SIZES = 8


def sweep(
    first: Side, second: Side, spec: Spec, found: Measured, limit_s: float, tell: Callable[[str], None]
) -> Sweep | None:
    """Measure larger and larger sizes until the challenger is faster.

    Args:
        spec: the workload at the size it was compared at.
        found: the comparison there, which is the first point.
        limit_s: seconds after which it is given up.
        tell: given a sentence before it begins.

    Returns:
        the points, of the other side and the challenger; ``None`` where no field makes the work larger.
    """
    start = size_of(spec)
    if start is None:
        return None
    field, size = start
    slow = second if found.challenger is found.second else first
    fast = first if slow is second else second
    seconds = found.first.step_seconds, found.second.step_seconds
    points = [Point(size, seconds if slow is second else seconds[::-1])]
    tell(f"Growing {field} until {slow.label} is faster.")
    began, factor = time.perf_counter(), GROWING[spec.name][1]
    ended = f"{MOST_SIZES} sizes were tried"
    while len(points) < MOST_SIZES and points[-1].ratio <= 1:
        size *= factor
        larger = enlarged(with_steps(spec, WARM_UP + STEPS), size)
        left = limit_s - (time.perf_counter() - began)
        if larger is None:
            ended = f"{field} {size} is more than is allowed"
        elif 2 * factor * (WARM_UP + STEPS) * sum(points[-1].seconds) > left:
            ended = f"{field} {size} would take too long"
        else:
            point = _point(fast, slow, larger, size)
            if point is not None:
                points.append(point)
                continue
            ended = f"{field} {size} does not fit the memory"
        break
    return Sweep(field, tuple(points), "" if points[-1].ratio > 1 else ended)


def _point(fast: Side, slow: Side, spec: Spec, size: int) -> Point | None:
    """One size on both sides, each twice; ``None`` where it does not fit."""
    times: dict[str, list[float]] = {fast.label: [], slow.label: []}
    try:
        for side in (fast, slow, slow, fast):
            times[side.label].append(side.run(spec).step_seconds)
    except Cancelled:
        raise
    except GuardRefused:
        return None
    except Exception as error:
        if memory_ran_out(error) is None:
            raise
        return None
    return Point(size, (min(times[fast.label]), min(times[slow.label])))
