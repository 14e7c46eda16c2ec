"""Whether two devices found the same, within what the precision lets one expect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpudash.workloads.comparison.figures import Agreement

ROUNDOFF = {"fp32": 2**-24, "bf16": 2**-8, "fp16": 2**-11, "float64": 2**-53, "float32": 2**-24, "bfloat16": 2**-8}
ROUNDOFF |= {"float16": 2**-11}
"""Precision → unit roundoff (IEEE 754; bfloat16 has 8 bits of significand)."""

COMPARED_STEPS = 10
"""First steps whose losses are compared: later ones part for any two orders of summation, as training is chaotic."""

NOTHING = "This workload tells no loss, accuracy or values to compare."


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
