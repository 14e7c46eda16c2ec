"""What a comparison has found, as its result holds it and the verdict screen shows it.

Two devices agree where they found the same within what the precision lets one expect.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gpudash.devices.names import kind_of
from gpudash.specs import Spec
from gpudash.specs.comparison import ComparisonSpec
from gpudash.units import format_percent
from gpudash.workloads.programs.comparison.figures import Agreement, Measured, SideFigures, Sweep
from gpudash.workloads.programs.comparison.ratio import Ratio
from gpudash.workloads.programs.comparison.side import WARM_UP, Repetition, Side, retries
from gpudash.workloads.programs.comparison.steps import whole_steps
from gpudash.workloads.programs.comparison.verdict import Verdict, interval_words, name, times_words
from gpudash.workloads.running.context import Context

CPUINFO = Path("/proc/cpuinfo")

LOST = 0.05
"""Share of the time given to other programs that is worth a note."""

UNSTEADY = 0.1
"""Interquartile range over median of a side's times from which its spread is worth a note (torch.utils.benchmark's)."""


def result_of(
    spec: ComparisonSpec, repeated: Spec, found: Measured, judged: Verdict, repetitions: int
) -> dict[str, Any]:
    """The result of a comparison.

    Returns:
        ``ratio`` (the first device's time per step over the second's) with its ``interval`` at ``confidence``;
        ``compute_only``, the same without copies; ``outcome`` (faster, slower, close), ``cause`` (see
        `verdict.Verdict`), ``verdict`` (the words), ``headline`` and ``because`` (its parts), ``more_repetitions``;
        ``sides``: two mappings of figures, shares as ratios, times in seconds, energy in joules a step; ``agreement``,
        ``resident``, ``sweep``, ``notes``; ``repetitions`` of each side, of ``measured_steps`` each.
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
        "sides": [_side(side, spec.chosen) for side in (found.first, found.second)],
        "agreement": _agreement(found.agreement),
        "resident": _resident(found),
        "sweep": None if found.sweep is None else _sweep(found.sweep),
        "repetitions": repetitions,
        "measured_steps": None if steps is None else steps - WARM_UP,
        "notes": notes(found),
    }


def side_figures(side: Side, context: Context) -> SideFigures:
    """The figures of a side by what it has measured so far."""
    times = side.step_seconds
    repetitions = side.repetitions
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
        product=product(side.device),
        **memory,
    )


def agreement_of(spec: Spec, first: Repetition, second: Repetition) -> Agreement:
    """Whether the first repetitions of both sides found the same."""
    precision = str(getattr(spec, "precision", getattr(spec, "dtype", "fp32")))
    if first.losses or second.losses:
        return of_losses((first.losses, first.accuracies), (second.losses, second.accuracies), precision)
    return of_results(first.result, second.result, precision)


def what(spec: Spec) -> str:
    """The workload in a line: the fields that its time depends on."""
    shown = ("model", "mode", "size", "rows", "columns", "width", "depth", "batch", "sequence", "dtype", "precision")
    fields = type(spec).model_fields
    words = []
    for field in (*shown, "batches"):
        value = getattr(spec, field, None)
        extra: Any = fields[field].json_schema_extra if field in fields else None
        when = (extra or {}).get("when", {})
        matters = all(str(getattr(spec, other)) in allowed for other, allowed in when.items())
        if value is not None and matters:
            words.append(str(value) if isinstance(value, str) else f"{field} {value}")
    threads = spec.threads or torch.get_num_threads()
    return " · ".join([spec.title, *words, f"{threads} CPU thread{'' if threads == 1 else 's'}"])


def notes(found: Measured) -> list[str]:
    """What one should know when reading the figures."""
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


def _side(side: SideFigures, spec: Spec) -> dict[str, Any]:
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
    """The one number and its interval as they are shown: of the faster side where there is one."""
    ratio = found.ratio
    if ratio.value < 1:
        low = 1 / ratio.high if ratio.high else 0.0
        ratio = Ratio(1 / ratio.value, low, 1 / ratio.low if ratio.low > 0 else math.inf, ratio.values)
    ahead = found.second if found.ratio.value >= 1 else found.first
    return {
        "times": times_words(ratio.value) if judged.outcome != "close" else "≈ 1×",
        "interval": interval_words(ratio),
        "of": name(ahead, found),
    }


def _interval(ratio: Ratio) -> list[float | None]:
    """Both ends; ``None`` where there are too few values for one."""
    return [ratio.low if ratio.low > 0 else None, ratio.high if math.isfinite(ratio.high) else None]


def _agreement(agreement: Agreement) -> dict[str, Any]:
    return {
        "agrees": agreement.agrees,
        "words": agreement.words,
        "largest_difference": agreement.largest,
        "tolerance": agreement.tolerance,
        "loss": agreement.loss,
        "accuracy": agreement.accuracy,
    }


def _resident(found: Measured) -> dict[str, Any] | None:
    if found.resident is None:
        return None
    return {
        "ratio": found.resident.value,
        "interval": _interval(found.resident),
        "device": found.challenger.device,
    }


def _sweep(sweep: Sweep) -> dict[str, Any]:
    points = [{"size": point.size, "seconds": list(point.seconds)} for point in sweep.points]
    return {"field": sweep.field, "points": points, "crossing": sweep.crossing, "ended": sweep.ended}


def product(device: str) -> str:
    """What a device is called by its maker; "" where that is not known."""
    if kind_of(device) == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


ROUNDOFF = {"fp32": 2**-24, "bf16": 2**-8, "fp16": 2**-11, "float64": 2**-53, "float32": 2**-24, "bfloat16": 2**-8}
ROUNDOFF |= {"float16": 2**-11}
"""Precision → unit roundoff (IEEE 754; bfloat16 has 8 bits of significand)."""

COMPARED_STEPS = 10
"""First steps whose losses are compared: later ones part for any two orders of summation, as training is chaotic."""

NOTHING = "This workload reports no loss, accuracy or values to compare."


def tolerance(precision: str) -> float:
    """Largest relative difference that passes as the same: the root of the unit roundoff, half of its digits.

    Sums of n terms in another order differ by up to n roundoffs (Higham 2002, section 4.2), and a step passes that on
    to the weights; half of the digits is what is usually left.
    """
    return math.sqrt(ROUNDOFF.get(precision, ROUNDOFF["fp32"]))


def of_losses(
    first: tuple[Sequence[float], Sequence[float]], second: tuple[Sequence[float], Sequence[float]], precision: str
) -> Agreement:
    """Compare trainings from the same seed and data.

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
    same = "agree" if largest <= allowed else "differ"
    words = (
        f"Losses {same}: the largest difference over the first {len(pairs)} steps is {largest:.1e} of the loss, and "
        f"{precision} lets {allowed:.0e} pass."
    )
    return Agreement(largest <= allowed, words, largest, allowed, loss, accuracy)


def of_results(first: Mapping[str, Any], second: Mapping[str, Any], precision: str) -> Agreement:
    """Compare what two runs without losses returned: their ``values``, where they tell any."""
    values = _flat(first.get("values")), _flat(second.get("values"))
    if not values[0] or len(values[0]) != len(values[1]):
        return Agreement(None, NOTHING)
    allowed = tolerance(precision)
    largest = max(_apart(one, other) for one, other in zip(*values, strict=True))
    same = "agree" if largest <= allowed else "differ"
    words = f"Results {same}: the largest difference is {largest:.1e}, and {precision} lets {allowed:.0e} pass."
    return Agreement(largest <= allowed, words, largest, allowed)


def _apart(one: float, other: float) -> float:
    """Relative difference; two NaNs or equal infinities are the same, one alone is infinitely far."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def _flat(values: Any) -> list[float]:
    if isinstance(values, (list, tuple)):
        return [number for value in values for number in _flat(value)]
    return [float(values)] if isinstance(values, (int, float)) else []
