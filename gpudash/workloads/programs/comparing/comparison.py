"""Runs a workload on two devices in the order A B B A, until the ratio of their times is known well enough.

Then the work is enlarged until the second device is faster. Energy is read from the machine's own counters. Two
devices agree if their results are equal within what the precision permits.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gpudash.devices.known_gpus import KnownGpu
from gpudash.devices.names import kind_of
from gpudash.specs import Spec
from gpudash.specs.comparison import ComparisonSpec
from gpudash.system.files import text_of
from gpudash.telemetry.records import Topic
from gpudash.units import format_percent
from gpudash.workloads.programs.comparing.comparison_side import (
    GROWING,
    WARM_UP,
    Repetition,
    Side,
    enlarged,
    resident,
    retries,
    size_of,
    whole_steps,
    with_steps,
)
from gpudash.workloads.programs.comparing.comparison_verdict import (
    COPYING,
    Agreement,
    Measured,
    Point,
    Ratio,
    SideFigures,
    Sweep,
    Verdict,
    interval_text,
    more_needed,
    name,
    ratio_of,
    times_text,
    verdict,
)
from gpudash.workloads.programs.comparing.predicted_card import a_card, card_step, predicted_verdict
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import Cancelled, GuardRefused, memory_ran_out

REPETITION_S = 0.15
"""Measured seconds in a repetition: long beside a scheduler's time slice of a few ms, short beside clock changes."""

FEWEST_STEPS = 4
"""Measured steps of a repetition."""

FEWEST_FOURSOMES = 8
"""With fewer, signed ranks give no interval of 99 %."""

MOST_STEPS = 100_000

MOST_ALONE = 16
"""The most repetitions on the CPU beside a predicted card: the prediction is less exact than their median."""


def run(spec: ComparisonSpec, context: Context) -> Mapping[str, Any]:
    """Compare.

    Returns:
        ``ratio``, ``interval``, ``cause``, ``verdict`` and what they are based on: see `result_of`.

    Raises:
        WorkloadError, GuardRefused, Cancelled: whatever ends one of the sides.
    """
    if spec.card is not None:
        return _with_predicted(spec, spec.card, context)
    return _Comparison(spec, context).result()


def _with_predicted(spec: ComparisonSpec, card: KnownGpu, context: Context) -> dict[str, Any]:
    """Measure the workload on the CPU, and predict it for a card that is not present.

    Returns:
        see `predicted_result`.
    """
    from gpudash.workloads.running.run import resolve

    side = Side(context, "cpu", "cpu", resolve(spec.chosen))
    context.begin_steps()
    context.note(Topic.COMPARISON, "Warming up on cpu; these repetitions do not count.")
    repeated = _repetition(spec.chosen, (side, side), context)
    context.note(Topic.COMPARISON, f"Repeating {_steps_text(repeated)} on cpu.")
    began = time.perf_counter()
    most = min(spec.repetitions, MOST_ALONE)
    for number in range(most):
        context.check_cancelled()
        side.measure(repeated)
        context.progress(number + 1, most)
        if number >= 1 and time.perf_counter() - began > spec.limit:
            break
    # Afterwards, because predicting takes a core from the measurement.
    context.note(Topic.COMPARISON, f"Predicting a step on {a_card(card.name)}, which is not here.")
    step = card_step(spec.chosen, card)
    figures = side_figures(side, context)
    judged = predicted_verdict(figures.step_seconds, card.name, step)
    steps = whole_steps(repeated)
    return {
        "predicted": True,
        "verdict": judged.text,
        "headline": judged.headline,
        "because": judged.because,
        "outcome": judged.outcome,
        "workload": spec.workload,
        "what": what(spec.chosen),
        "measured": _side_result(figures, spec.chosen),
        "card": {
            "predicted": True,
            "card": card.key,
            "name": card.name,
            "fits": step.fits,
            "spare_bytes": step.spare_bytes,
            "time": None if step.time is None else step.time.to_dict(),
            "problem": step.problem,
        },
        "repetitions": len(side.repetitions),
        "measured_steps": None if steps is None else steps - WARM_UP,
    }


class _Comparison:
    """One comparison, phase by phase; it keeps what is known for the result of a stopped run."""

    def __init__(self, spec: ComparisonSpec, context: Context) -> None:
        from gpudash.workloads.running.run import confirm, resolve

        self._spec, self._context = spec, context
        self._chosen = spec.chosen
        workload = resolve(self._chosen)
        first, second = spec.pair
        for device in spec.pair:
            # Check both devices before the first repetition, so that nothing is measured in vain.
            if device != str(context.device):
                confirm(torch.device(device), None)
        if first != second:
            labels = (first, second)
        else:
            labels = (f"{first} A", f"{second} B")
        self.first = Side(context, first, labels[0], workload)
        self.second = Side(context, second, labels[1], workload)
        self._done = 0

    def result(self) -> dict[str, Any]:
        spec, context = self._spec, self._context
        context.begin_steps()
        repeated = self._warm_up()
        self._report(f"Repeating {_steps_text(repeated)} on {self.first.label} and {self.second.label} in alternation.")
        ratio = self._measure(repeated)
        found = self._measured(repeated, ratio)
        judged = self._keep(repeated, found)
        unlike = len(set(map(kind_of, spec.pair))) == 2
        # Not faster, and decided: find out what would help.
        if judged.outcome != "faster" and not judged.more and unlike:
            found = self._looked_into(repeated, found)
            judged = self._keep(repeated, found)
        # Last, because it takes seconds of load that measure nothing else.
        energies = measure_energy(context, (self.first, self.second), self._chosen, self._report)
        found = found.with_energy(energies)
        self._keep(repeated, found)
        context.progress(self._done, self._done)
        return result_of(spec, repeated, found, verdict(found), self._repetitions)

    @property
    def _repetitions(self) -> int:
        return len(self.first.repetitions)

    def _keep(self, repeated: Spec, found: Measured) -> Verdict:
        """Store what is known as the result, in case the run is stopped."""
        judged = verdict(found)
        self._context.keep(**result_of(self._spec, repeated, found, judged, self._repetitions))
        return judged

    def _warm_up(self) -> Spec:
        """Run each side twice without counting it, and determine the number of steps in a repetition."""
        self._report(f"Warming up on {self.first.label} and {self.second.label}; these repetitions do not count.")
        return _repetition(self._chosen, (self.first, self.second, self.second, self.first), self._context)

    def _measure(self, repeated: Spec) -> Ratio:
        spec, began = self._spec, time.perf_counter()
        expected, target = FEWEST_FOURSOMES, math.log1p(spec.half_width)
        while True:
            # A B B A: a drift that is linear over the four cancels out in their mean.
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
            # Start no group that would exceed the requested limit.
            if 2 * foursomes + 2 > spec.repetitions or spent * (1 + 1 / foursomes) > spec.limit:
                return ratio
            wanted = foursomes + more_needed(ratio, target)
            affordable = int(foursomes * spec.limit / spent)
            # The progress bar gets the expected number, which may grow.
            expected = max(FEWEST_FOURSOMES, min(wanted, affordable, spec.repetitions // 2))

    def _measured(self, repeated: Spec, ratio: Ratio) -> Measured:
        first, second = self.first, self.second
        return Measured(
            side_figures(first, self._context),
            side_figures(second, self._context),
            ratio,
            ratio_of(first.kept_seconds, second.kept_seconds, self._spec.confidence),
            _agreement_of(self._chosen, first.repetitions[0], second.repetitions[0]),
        )

    def _looked_into(self, repeated: Spec, found: Measured) -> Measured:
        """Measure what would help: keeping the data on the device, and larger pieces of work."""
        kept = resident(repeated)
        if kept is not None and found.challenger.copied >= COPYING / 2:
            self._report(
                f"Copying takes part of the step on {found.challenger.label}: trying with the data kept there."
            )
            found = replace(found, resident=self._resident_ratio(repeated, kept, found))
        first, second = self.first, self.second
        swept = sweep(first, second, repeated, found, self._spec.limit / 2, self._report)
        if swept is None:
            return found
        return replace(found, sweep=swept)

    def _resident_ratio(self, repeated: Spec, kept: Spec, found: Measured) -> Ratio:
        """The ratio with the challenger's data kept on its device."""
        moved: dict[str, list[float]] = {self.first.label: [], self.second.label: []}
        for _ in range(FEWEST_FOURSOMES):
            for side in (self.first, self.second, self.second, self.first):
                self._context.check_cancelled()
                spec = repeated
                if side.label == found.challenger.label:
                    spec = kept
                moved[side.label].append(side.run(spec).step_seconds)
        return ratio_of(moved[self.first.label], moved[self.second.label], self._spec.confidence)

    def _report(self, text: str) -> None:
        self._context.note(Topic.COMPARISON, text)


def _repetition(chosen: Spec, sides: Sequence[Side], context: Context) -> Spec:
    """The spec of a repetition: ``chosen`` with enough steps, found by running each of ``sides`` once."""
    steps, fastest = WARM_UP + FEWEST_STEPS, math.inf
    for side in sides:
        context.check_cancelled()
        # The fastest of all counts, so that the faster side's repetitions are long enough.
        fastest = min(fastest, *side.run(with_steps(chosen, steps)).times)
    wanted = WARM_UP + min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(REPETITION_S / fastest)))
    most = whole_steps(chosen)
    # At least what a warm-up needs, at most what the workload has.
    return with_steps(chosen, wanted if most is None else max(steps, min(wanted, most)))


def _steps_text(repeated: Spec) -> str:
    steps = whole_steps(repeated)
    if steps is None:
        return "the whole run"
    return f"{steps - WARM_UP} steps, after {WARM_UP} of warm-up,"


LASTS_S = 4.0
"""Seconds that each side is kept busy: about ten readings of the counters."""

Reading = tuple[float, float]
"""When a counter was read (seconds), and its value (joules)."""

NOT_MEASURABLE = "not measurable here: {why}"


def measure_energy(
    context: Context, sides: Sequence[Side], spec: Spec, report: Callable[[str], None]
) -> list[tuple[float | None, str]]:
    """Joules per step of each side, and what they include; ``None`` and the reason if a counter is missing.

    A side is kept busy continuously; the energy of a step is the mean power between its first and last reading times
    the time of a step. A GPU's side includes the CPU's package if that can be read, because it uses both.
    """
    found: list[tuple[float | None, str]] = []
    for side in sides:
        if kind_of(side.device) == "cpu":
            counters = ["cpu"]
        else:
            counters = ["cpu", side.device]
        missing = context.energy(side.device)
        if isinstance(missing, str):
            found.append((None, NOT_MEASURABLE.format(why=missing)))
            continue
        readable = [counter for counter in counters if not isinstance(context.energy(counter), str)]
        report(f"Measuring the energy on {side.label} for about {LASTS_S:.0f} s.")
        power = _power(context, side, spec, readable)
        text = " and ".join("the CPU's package" if counter == "cpu" else counter for counter in readable)
        if power is None:
            found.append((None, NOT_MEASURABLE.format(why="its counter did not move")))
        else:
            found.append((power * _step_seconds(side), f"of {text}, {power:.0f} W on average"))
    return found


def _power(context: Context, side: Side, spec: Spec, counters: Sequence[str]) -> float | None:
    """Mean watts of ``counters`` together while ``side`` is busy; ``None`` if one of them did not advance."""
    seen: dict[str, list[Reading]] = {counter: [] for counter in counters}

    def read_counters() -> None:
        for counter, readings in seen.items():
            now = context.energy(counter)
            # A driver's counter is updated a few times per second: only a newer reading counts.
            if not isinstance(now, str) and (not readings or now[0] > readings[-1][0]):
                readings.append(now)

    side.run(with_steps(spec, max(4, math.ceil(LASTS_S / _step_seconds(side)))), read_counters)
    watts = 0.0
    for readings in seen.values():
        # the first reading may precede the load
        busy = readings[1:]
        if len(busy) < 2 or busy[-1][0] <= busy[0][0] or busy[-1][1] <= busy[0][1]:
            return None
        watts += (busy[-1][1] - busy[0][1]) / (busy[-1][0] - busy[0][0])
    return watts


def _step_seconds(side: Side) -> float:
    times = sorted(side.step_seconds)
    return times[len(times) // 2]


STEPS = 4
"""Measured steps for each size, twice on either side."""

MOST_SIZES = 8


def sweep(
    first: Side, second: Side, spec: Spec, found: Measured, limit_s: float, report: Callable[[str], None]
) -> Sweep | None:
    """Measure larger and larger sizes until the challenger is faster.

    Args:
        spec: the workload at the size it was compared at.
        found: the comparison there, which is the first point.
        limit_s: seconds after which the search ends.
        report: called with a sentence before it starts.

    Returns:
        the points of the other side and the challenger; ``None`` if no field makes the work larger.
    """
    start = size_of(spec)
    if start is None:
        return None
    field, size = start
    slow = first
    if found.challenger is found.second:
        slow = second
    if slow is second:
        fast = first
    else:
        fast = second
    seconds = found.first.step_seconds, found.second.step_seconds
    # In the order (other side, challenger), whatever the order of the devices.
    points = [Point(size, seconds if slow is second else seconds[::-1])]
    report(f"Growing {field} until {slow.label} is faster.")
    began, factor = time.perf_counter(), GROWING[spec.name][1]
    ended = f"{MOST_SIZES} sizes were tried"
    # `ratio` above 1: the challenger is faster, and the size is found.
    while len(points) < MOST_SIZES and points[-1].ratio <= 1:
        size *= factor
        larger = enlarged(with_steps(spec, WARM_UP + STEPS), size)
        left = limit_s - (time.perf_counter() - began)
        if larger is None:
            ended = f"{field} {size} is more than is allowed"
        # Work grows at least by `factor` with the size, so the latest point shows whether there is enough time.
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
    """One size on both sides, twice each; ``None`` if it does not fit."""
    times: dict[str, list[float]] = {fast.label: [], slow.label: []}
    try:
        # Twice in alternation, and the better of the two: disturbances only slow it down.
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


CPUINFO = Path("/proc/cpuinfo")

LOST = 0.05
"""Fraction of time used by other programs that is worth a note."""

UNSTEADY = 0.1
"""Relative interquartile range of a side's times that is worth a note (as in torch.utils.benchmark)."""


def result_of(
    spec: ComparisonSpec, repeated: Spec, found: Measured, judged: Verdict, repetitions: int
) -> dict[str, Any]:
    """The result of a comparison.

    Returns:
        ``ratio`` (the first device's time per step over the second's) with its ``interval`` at ``confidence``;
        ``compute_only``, the same without copies; ``outcome`` (faster, slower, close), ``cause`` (see
        `verdict.Verdict`), ``verdict`` (the text), ``headline`` and ``because`` (its parts), ``more_repetitions``;
        ``sides``: two mappings of figures, shares as ratios, times in seconds, energy in joules per step;
        ``agreement``, ``resident``, ``sweep``, ``notes``; ``repetitions`` of each side, of ``measured_steps`` each.
    """
    steps = whole_steps(repeated)
    return {
        "ratio": found.ratio.value,
        "interval": _interval(found.ratio),
        "confidence": spec.confidence,
        "outcome": judged.outcome,
        "cause": judged.cause,
        "verdict": judged.text,
        "headline": judged.headline,
        "because": judged.because,
        "number": _number(found, judged),
        "more_repetitions": judged.more,
        "workload": spec.workload,
        "what": what(spec.chosen),
        "compute_only": {"ratio": found.compute_only.value, "interval": _interval(found.compute_only)},
        "sides": [_side_result(side, spec.chosen) for side in (found.first, found.second)],
        "agreement": _agreement_result(found.agreement),
        "resident": _resident_result(found),
        "sweep": None if found.sweep is None else _sweep_facts(found.sweep),
        "repetitions": repetitions,
        "measured_steps": None if steps is None else steps - WARM_UP,
        "notes": notes(found),
    }


def side_figures(side: Side, context: Context) -> SideFigures:
    """The figures of a side from what it has measured so far."""
    times = side.step_seconds
    repetitions = side.repetitions
    # Possibly no repetition has a reading: some devices report none.
    used = [repetition.peak_bytes for repetition in repetitions if repetition.peak_bytes is not None]
    memory = _gpu_memory(side, context)
    return SideFigures(
        label=side.label,
        device=side.device,
        step_seconds=statistics.median(times),
        quartiles=(min(times), *statistics.quantiles(times, n=4, method="inclusive"), max(times)),
        copied=statistics.median(repetition.copied for repetition in repetitions),
        computed=statistics.median(repetition.computed for repetition in repetitions),
        peak_used_bytes=max(used) if used else None,
        lost=statistics.median(repetition.lost for repetition in repetitions),
        strays=tuple(repetitions[-1].strays),
        product=_product(side.device),
        **memory,
    )


def _agreement_of(spec: Spec, first: Repetition, second: Repetition) -> Agreement:
    """Whether the first repetitions of both sides have the same results."""
    precision = str(getattr(spec, "precision", getattr(spec, "dtype", "fp32")))
    if first.losses or second.losses:
        return of_losses((first.losses, first.accuracies), (second.losses, second.accuracies), precision)
    return of_results(first.result, second.result, precision)


_NAMED_FIELDS = (
    *("model", "path", "mode", "task", "size", "rows", "columns", "width", "depth", "batch", "sequence"),
    *("dtype", "precision", "batches"),
)
"""Fields that affect the time, in the order in which they are listed."""

_DIFFERING = ("mode", "batches")
"""Fields that are listed only if they differ from the default."""

_LEFT_TO_IT = (None, 0, "", "auto")
"""Values that leave the choice to the workload."""


def what(spec: Spec) -> str:
    """The workload in a line: the fields that affect its time, with the form's labels.

    Omits what is insignificant beside the others, what is left to the workload, and defaults.
    """
    fields = type(spec).model_fields
    parts = []
    for field_name in (field_name for field_name in _NAMED_FIELDS if field_name in fields):
        value, field = getattr(spec, field_name), fields[field_name]
        extra: Any = field.json_schema_extra or {}
        matters = all(str(getattr(spec, other)) in allowed for other, allowed in extra.get("when", {}).items())
        if not matters or value in _LEFT_TO_IT or (field_name in _DIFFERING and value == field.default):
            continue
        if field_name == "path":
            parts.append(Path(value).expanduser().resolve().name)
        elif isinstance(value, str):
            shown = str(extra.get("labels", {}).get(value, value))
            parts.append(f"{field_name} {shown}" if field_name == "batches" else shown)
        else:
            parts.append(f"{field_name} {value}")
    threads = spec.threads or torch.get_num_threads()
    return " · ".join([spec.title, *parts, f"{threads} CPU thread{'' if threads == 1 else 's'}"])


def notes(found: Measured) -> list[str]:
    """What to know when reading the figures."""
    said = [
        f"The times on {side.label} vary by more than 10 %; other programs may be running."
        for side in (found.first, found.second)
        if side.quartiles and (side.quartiles[3] - side.quartiles[1]) / side.step_seconds > UNSTEADY
    ]
    lost = max(found.first.lost, found.second.lost)
    if lost >= LOST:
        said.append(f"Other programs had the cores for {format_percent(lost)} of the time.")
    if found.first.device == found.second.device:
        said.append("Both sides are the same device: the ratio is 1 but for noise.")
    sweep = found.sweep
    if sweep is not None and sweep.crossing is None and sweep.points:
        last = sweep.points[-1]
        said.append(f"Up to {sweep.field} {last.size} it does not pay off; {sweep.ended}.")
    said.append(f"PyTorch {torch.__version__}; the first {WARM_UP} steps of each repetition do not count.")
    return said


def _gpu_memory(side: Side, context: Context) -> dict[str, Any]:
    if kind_of(side.device) == "cpu":
        return {}
    device = torch.device(side.device)
    if device == context.device and context.peaks is not None:
        peaks = context.peaks()
        allocated, reserved = peaks["peak_allocated_bytes"], peaks["peak_reserved_bytes"]
    else:
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return {
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "capacity_bytes": torch.cuda.get_device_properties(device).total_memory,
        "retries": retries(device) - side.retries_before,
    }


def _side_result(side: SideFigures, spec: Spec) -> dict[str, Any]:
    steps = whole_steps(spec)
    return {
        "device": side.device,
        "label": side.label,
        "product": side.product,
        "step_seconds": side.step_seconds,
        "step_seconds_quartiles": list(side.quartiles),
        "compute_only_seconds": side.step_seconds * (1 - side.copied),
        "shares": {"compute": side.computed, "transfer": side.copied, "waiting": side.waiting},
        "steps": steps,
        "whole_seconds": None if steps is None else steps * side.step_seconds,
        "peak_used_bytes": side.peak_used_bytes,
        "peak_allocated_bytes": side.peak_allocated_bytes,
        "peak_reserved_bytes": side.peak_reserved_bytes,
        "capacity_bytes": side.capacity_bytes,
        "allocation_retries": side.retries,
        "lost": side.lost,
        "strays": list(side.strays),
        "energy_j": side.energy_j,
        "energy": side.energy_words,
    }


def _number(found: Measured, judged: Verdict) -> Mapping[str, str]:
    """The main number and its interval for display: of the faster side, if there is one."""
    ratio = found.ratio
    if ratio.value < 1:
        # Inverting a ratio inverts its interval and swaps the ends.
        low = 0.0
        if ratio.high:
            low = 1 / ratio.high
        ratio = Ratio(1 / ratio.value, low, 1 / ratio.low if ratio.low > 0 else math.inf, ratio.values)
    if found.ratio.value >= 1:
        ahead = found.second
    else:
        ahead = found.first
    return {
        "times": times_text(ratio.value) if judged.outcome != "close" else "≈ 1×",
        "interval": interval_text(ratio),
        "of": name(ahead, found),
    }


def _interval(ratio: Ratio) -> list[float | None]:
    """Both ends; ``None`` if there are too few values for one."""
    return [ratio.low if ratio.low > 0 else None, ratio.high if math.isfinite(ratio.high) else None]


def _agreement_result(agreement: Agreement) -> dict[str, Any]:
    return {
        "agrees": agreement.agrees,
        "words": agreement.sentence,
        "largest_difference": agreement.largest,
        "tolerance": agreement.tolerance,
        "loss": agreement.loss,
        "accuracy": agreement.accuracy,
    }


def _resident_result(found: Measured) -> dict[str, Any] | None:
    if found.resident is None:
        return None
    return {
        "ratio": found.resident.value,
        "interval": _interval(found.resident),
        "device": found.challenger.device,
    }


def _sweep_facts(sweep: Sweep) -> dict[str, Any]:
    points = [{"size": point.size, "seconds": list(point.seconds)} for point in sweep.points]
    return {"field": sweep.field, "points": points, "crossing": sweep.crossing, "ended": sweep.ended}


def _product(device: str) -> str:
    """A device's product name; "" if unknown."""
    if kind_of(device) == "cuda":
        return str(torch.cuda.get_device_name(device))
    lines = text_of(CPUINFO).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


ROUNDOFF = {"fp32": 2**-24, "bf16": 2**-8, "fp16": 2**-11, "float64": 2**-53, "float32": 2**-24, "bfloat16": 2**-8}
ROUNDOFF |= {"float16": 2**-11}
"""Precision → unit roundoff (IEEE 754; bfloat16 has 8 bits of significand)."""

COMPARED_STEPS = 10
"""How many first steps are compared by loss: later, any two orders of summation diverge, as training is chaotic."""

NOTHING = "This workload reports no loss, accuracy or values to compare."


def tolerance(precision: str) -> float:
    """Largest relative difference that counts as equal: the square root of the unit roundoff, half of its digits.

    Sums of n terms in a different order differ by up to n roundoffs (Higham 2002, section 4.2), which a step passes on
    to the weights; usually half of the digits remain.
    """
    return math.sqrt(ROUNDOFF.get(precision, ROUNDOFF["fp32"]))


def of_losses(
    first: tuple[Sequence[float], Sequence[float]], second: tuple[Sequence[float], Sequence[float]], precision: str
) -> Agreement:
    """Compare trainings with the same seed and data.

    Args:
        first, second: losses and accuracies step by step.
    """
    allowed = tolerance(precision)
    pairs = list(zip(first[0], second[0], strict=False))[:COMPARED_STEPS]
    if not pairs:
        return Agreement(None, NOTHING)
    apart = [_apart(one, other) for one, other in pairs]
    largest = max(apart)
    loss = pairs[-1]
    accuracy = None
    if first[1] and second[1]:
        steps = min(len(first[1]), len(second[1]), len(pairs))
        accuracy = first[1][steps - 1], second[1][steps - 1]
    same = "differ"
    if largest <= allowed:
        same = "agree"
    if largest:
        text = (
            f"The losses {same}: over the first {len(pairs)} steps they are at most {largest:.1e} of the loss apart, "
            f"and {precision} lets {allowed:.0e} pass."
        )
    else:
        text = f"The losses match over the first {len(pairs)} steps."
    return Agreement(largest <= allowed, text, largest, allowed, loss, accuracy)


def of_results(first: Mapping[str, Any], second: Mapping[str, Any], precision: str) -> Agreement:
    """Compare the results of two runs without losses: their ``values``, if they report any."""
    values = _flat(first.get("values")), _flat(second.get("values"))
    if not values[0] or len(values[0]) != len(values[1]):
        return Agreement(None, NOTHING)
    allowed = tolerance(precision)
    largest = max(_apart(one, other) for one, other in zip(*values, strict=True))
    same = "differ"
    if largest <= allowed:
        same = "agree"
    text = f"Results {same}: the largest difference is {largest:.1e}, and {precision} lets {allowed:.0e} pass."
    return Agreement(largest <= allowed, text, largest, allowed)


def _apart(one: float, other: float) -> float:
    """Relative difference; two NaNs or equal infinities are the same, a single one is infinitely far."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def _flat(values: Any) -> list[float]:
    if isinstance(values, (list, tuple)):
        return [number for value in values for number in _flat(value)]
    if isinstance(values, (int, float)):
        return [float(values)]
    return []
