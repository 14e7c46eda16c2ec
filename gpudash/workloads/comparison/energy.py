"""The energy of a step on either side, from the machine's own counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpudash.devices import kind_of
from gpudash.specs import Spec
from gpudash.workloads.comparison.side import Side
from gpudash.workloads.comparison.steps import with_steps
from gpudash.workloads.context import Context

LASTS_S = 4.0
"""Time each side is kept busy: some ten readings of the counters."""

Reading = tuple[float, float]
"""When a counter was read (seconds), and what it said (joules)."""

NOT_MEASURABLE = "not measurable here: {why}"


def measure_energy(
    context: Context, sides: Sequence[Side], spec: Spec, tell: Callable[[str], None]
) -> list[tuple[float | None, str]]:
    """Joules a step of each side, and what they are of; ``None`` and why where a counter is missing.

    A side is kept busy without a break; the mean power between its first and last reading times the time of a step is
    a step's energy. A GPU's side counts the CPU's package too where that can be read, for it works on both.
    """
    found: list[tuple[float | None, str]] = []
    for side in sides:
        counters = ["cpu"] if kind_of(side.device) == "cpu" else ["cpu", side.device]
        missing = context.energy(side.device)
        if isinstance(missing, str):
            found.append((None, NOT_MEASURABLE.format(why=missing)))
            continue
        readable = [counter for counter in counters if not isinstance(context.energy(counter), str)]
        tell(f"Measuring the energy on {side.label} for about {LASTS_S:.0f} s.")
        power = _power(context, side, spec, readable)
        words = " and ".join("the CPU's package" if counter == "cpu" else counter for counter in readable)
        if power is None:
            found.append((None, NOT_MEASURABLE.format(why="its counter did not move")))
        else:
            found.append((power * _step_seconds(side), f"of {words}, {power:.0f} W on average"))
    return found


def _power(context: Context, side: Side, spec: Spec, counters: Sequence[str]) -> float | None:
    """Mean watts of ``counters`` together while ``side`` is busy; ``None`` when one of them stood still."""
    seen: dict[str, list[Reading]] = {counter: [] for counter in counters}

    def look() -> None:
        for counter, readings in seen.items():
            now = context.energy(counter)
            if not isinstance(now, str) and (not readings or now[0] > readings[-1][0]):
                readings.append(now)

    side.run(with_steps(spec, max(4, math.ceil(LASTS_S / _step_seconds(side)))), look)
    watts = 0.0
    for readings in seen.values():
        # the first may have been read before the side was busy
        busy = readings[1:]
        if len(busy) < 2 or busy[-1][0] <= busy[0][0] or busy[-1][1] <= busy[0][1]:
            return None
        watts += (busy[-1][1] - busy[0][1]) / (busy[-1][0] - busy[0][0])
    return watts


def _step_seconds(side: Side) -> float:
    times = sorted(side.step_seconds)
    return times[len(times) // 2]
