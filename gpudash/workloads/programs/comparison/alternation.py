"""A workload on two devices in the order A B B A, until the ratio of their times is known well enough.

Then pieces of work grow until the second device is faster. Energy is read from the machine's own counters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gpudash.devices.names import kind_of
from gpudash.specs import Spec
from gpudash.specs.comparison import ComparisonSpec
from gpudash.workloads.programs.comparison.figures import Measured, Point, Sweep
from gpudash.workloads.programs.comparison.ratio import Ratio, more_needed, ratio_of
from gpudash.workloads.programs.comparison.result import agreement_of, result_of, side_figures
from gpudash.workloads.programs.comparison.side import WARM_UP, Side
from gpudash.workloads.programs.comparison.steps import GROWING, enlarged, resident, size_of, whole_steps, with_steps
from gpudash.workloads.programs.comparison.verdict import COPYING, Verdict, verdict
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import Cancelled, GuardRefused, memory_ran_out

TOPIC = "comparison"
"""Topic of the notes that tell what a comparison is about to do."""

REPETITION_S = 0.15
"""Measured time of one repetition: long beside a scheduler's slice of a few ms, short beside a change of the clock."""

FEWEST_STEPS = 4
"""Measured steps of a repetition."""

FEWEST_FOURSOMES = 8
"""Below these the signed ranks give no interval of 99 %."""

MOST_STEPS = 100_000


def run(spec: ComparisonSpec, context: Context) -> Mapping[str, Any]:
    """Compare.

    Returns:
        ``ratio``, ``interval``, ``cause``, ``verdict`` and what they rest on: see `result_of`.

    Raises:
        WorkloadError, GuardRefused, Cancelled: whatever ends one of the sides.
    """
    return _Comparison(spec, context).result()


class _Comparison:
    """One comparison, phase by phase; what is known is kept for the result of a run that is stopped."""

    def __init__(self, spec: ComparisonSpec, context: Context) -> None:
        from gpudash.workloads.running.run import confirm, resolve

        self._spec, self._context = spec, context
        self._chosen = spec.chosen
        workload = resolve(self._chosen)
        first, second = spec.pair
        for device in spec.pair:
            if device != str(context.device):
                confirm(torch.device(device), None)
        labels = (first, second) if first != second else (f"{first} A", f"{second} B")
        self.first = Side(context, first, labels[0], workload)
        self.second = Side(context, second, labels[1], workload)
        self._done = 0

    def result(self) -> dict[str, Any]:
        spec, context = self._spec, self._context
        context.begin_steps()
        repeated = self._warm_up()
        self._tell(f"Repeating {_steps_words(repeated)} on {self.first.label} and {self.second.label} in alternation.")
        ratio = self._measure(repeated)
        found = self._measured(repeated, ratio)
        judged = self._keep(repeated, found)
        if judged.outcome != "faster" and not judged.more and self._unlike:
            found = self._looked_into(repeated, found)
            judged = self._keep(repeated, found)
        energies = measure_energy(context, (self.first, self.second), self._chosen, self._tell)
        found = found.with_energy(energies)
        self._keep(repeated, found)
        context.progress(self._done, self._done)
        return result_of(spec, repeated, found, verdict(found), self._repetitions)

    @property
    def _repetitions(self) -> int:
        return len(self.first.repetitions)

    @property
    def _unlike(self) -> bool:
        return len({kind_of(device) for device in self._spec.pair}) == 2

    def _keep(self, repeated: Spec, found: Measured) -> Verdict:
        """Leave what is known for the result, should what follows be stopped."""
        judged = verdict(found)
        self._context.keep(**result_of(self._spec, repeated, found, judged, self._repetitions))
        return judged

    def _warm_up(self) -> Spec:
        """Run each side twice, which counts for nothing, and find how many steps a repetition is to have."""
        self._tell(f"Warming up on {self.first.label} and {self.second.label}; these repetitions do not count.")
        steps, fastest = WARM_UP + FEWEST_STEPS, math.inf
        for side in (self.first, self.second, self.second, self.first):
            self._context.check_cancelled()
            fastest = min(fastest, *side.run(with_steps(self._chosen, steps)).times)
        wanted = WARM_UP + min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(REPETITION_S / fastest)))
        most = whole_steps(self._chosen)
        return with_steps(self._chosen, wanted if most is None else max(steps, min(wanted, most)))

    def _measure(self, repeated: Spec) -> Ratio:
        spec, began = self._spec, time.perf_counter()
        expected, target = FEWEST_FOURSOMES, math.log1p(spec.half_width)
        while True:
            for side in (self.first, self.second, self.second, self.first):
                self._context.check_cancelled()
                side.measure(repeated)
                self._done += 1
                self._context.progress(self._done, max(4 * expected, self._done))
            ratio = ratio_of(self.first.step_seconds, self.second.step_seconds, spec.confidence)
            foursomes, spent = self._done // 4, time.perf_counter() - began
            if foursomes >= FEWEST_FOURSOMES:
                self._keep(repeated, self._measured(repeated, ratio))
                if ratio.half_width <= target:
                    return ratio
            if 2 * foursomes + 2 > spec.repetitions or spent * (1 + 1 / foursomes) > spec.limit:
                return ratio
            wanted = foursomes + more_needed(ratio, target)
            affordable = int(foursomes * spec.limit / spent)
            expected = max(FEWEST_FOURSOMES, min(wanted, affordable, spec.repetitions // 2))

    def _measured(self, repeated: Spec, ratio: Ratio) -> Measured:
        first, second = self.first, self.second
        return Measured(
            side_figures(first, self._context),
            side_figures(second, self._context),
            ratio,
            ratio_of(first.kept_seconds, second.kept_seconds, self._spec.confidence),
            agreement_of(self._chosen, first.repetitions[0], second.repetitions[0]),
        )

    def _looked_into(self, repeated: Spec, found: Measured) -> Measured:
        """Measure what would help: the data kept on the device, and larger pieces of work."""
        kept = resident(repeated)
        if kept is not None and found.challenger.copied >= COPYING / 2:
            self._tell(f"Copying takes part of the step on {found.challenger.label}: trying with the data kept there.")
            found = replace(found, resident=self._resident_ratio(repeated, kept, found))
        first, second = self.first, self.second
        swept = sweep(first, second, repeated, found, self._spec.limit / 2, self._tell)
        return found if swept is None else replace(found, sweep=swept)

    def _resident_ratio(self, repeated: Spec, kept: Spec, found: Measured) -> Ratio:
        """The ratio with the challenger's data kept on its device."""
        moved: dict[str, list[float]] = {self.first.label: [], self.second.label: []}
        for _ in range(FEWEST_FOURSOMES):
            for side in (self.first, self.second, self.second, self.first):
                self._context.check_cancelled()
                spec = kept if side.label == found.challenger.label else repeated
                moved[side.label].append(side.run(spec).step_seconds)
        return ratio_of(moved[self.first.label], moved[self.second.label], self._spec.confidence)

    def _tell(self, text: str) -> None:
        self._context.note(TOPIC, text)


def _steps_words(repeated: Spec) -> str:
    steps = whole_steps(repeated)
    return "the whole run" if steps is None else f"{steps - WARM_UP} steps, after {WARM_UP} of warm-up,"


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
