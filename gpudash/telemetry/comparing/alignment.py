"""Where the curves of a run lie on an axis that several runs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from gpudash.telemetry.comparing.curves import EMPTY, Curve
from gpudash.telemetry.comparing.run import ComparedRun
from gpudash.telemetry.thinning import Floats

Alignment = Literal["start", "step", "mark"]
Quantity = Literal["loss", "accuracy", "throughput", "allocated", "reserved", "used"]

MEMORY: tuple[Quantity, ...] = ("allocated", "reserved", "used")
STEPPED: tuple[Quantity, ...] = ("loss", "accuracy", "throughput")


def aligned(run: ComparedRun, quantity: Quantity, alignment: Alignment, mark: str = "") -> Curve:
    """The curve of ``quantity``, over seconds from the start or from the first mark called ``mark``, or over steps.

    Empty where the run has no such quantity, mark or steps.
    """
    times, values = _known(run, quantity)
    if not len(times):
        return EMPTY
    if alignment == "step":
        return _by_step(run, quantity, times, values)
    origin = run.began_s if alignment == "start" else marked(run, mark)
    return EMPTY if origin is None else Curve(times - origin, values)


def marked(run: ComparedRun, label: str) -> float | None:
    """Session time of the first mark called ``label``; ``None`` without one."""
    return next((mark.time_s for mark in run.marks if mark.label == label), None)


def common_marks(runs: Sequence[ComparedRun]) -> list[str]:
    """Labels of marks that every run has, in the order of the first run."""
    if not runs:
        return []
    others = [{mark.label for mark in run.marks} for run in runs[1:]]
    found = dict.fromkeys(mark.label for mark in runs[0].marks)
    return [label for label in found if all(label in labels for labels in others)]


def shared_memory(runs: Sequence[ComparedRun]) -> Quantity | None:
    """The quantity of memory that all runs have, the allocator's own before what is read from outside."""
    return next((name for name in MEMORY if runs and all(name in run.memory for run in runs)), None)


def _known(run: ComparedRun, quantity: Quantity) -> tuple[Floats, Floats]:
    if quantity in MEMORY:
        curve = run.memory.get(quantity, EMPTY)
        return curve.x, curve.y
    values = run.steps.metric(quantity)
    return (run.steps.time_s, values) if np.isfinite(values).any() else (EMPTY.x, EMPTY.y)


def _by_step(run: ComparedRun, quantity: Quantity, times: Floats, values: Floats) -> Curve:
    """Over steps as the run numbered them; readings between two steps lie between their numbers."""
    numbers = np.maximum.accumulate(run.steps.number)  # a program may count anew, an axis may not
    if quantity in STEPPED:
        return Curve(numbers, values)
    if not len(numbers):
        return EMPTY
    inside = times <= run.steps.time_s[-1]
    known = np.concatenate(([run.began_s], run.steps.time_s)), np.concatenate(([0.0], numbers))
    return Curve(np.interp(times[inside], *known), values[inside])
