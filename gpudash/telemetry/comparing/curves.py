"""Runs prepared for a comparison, and their curves on a common axis: by step, or by time from a common moment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpudash.devices.known_gpus import KnownGpu
from gpudash.devices.simulated_cards import card_called, card_label, exact_text
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.telemetry.series import Floats, cell_width, thin

_NONE = np.empty(0)

MEMORY: tuple[Quantity, ...] = ("allocated", "reserved", "used")

STEPPED: tuple[Quantity, ...] = ("loss", "accuracy", "throughput")


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """The steps of a run, one array for each column, all of shape (steps,); NaN where a step has no value.

    Attributes:
        number: step number, from 1.
        time_s: session time of its end, ascending.
        seconds: duration.
        loss: in nats, or in a watched program's own unit.
        accuracy: ratio, 0 to 1.
        throughput: items per second.
        reported: by metric, which steps reported it (NaN included), shape (steps,); without a mask, those with a
            number.
    """

    number: Floats = field(default_factory=lambda: _NONE)
    time_s: Floats = field(default_factory=lambda: _NONE)
    seconds: Floats = field(default_factory=lambda: _NONE)
    loss: Floats = field(default_factory=lambda: _NONE)
    accuracy: Floats = field(default_factory=lambda: _NONE)
    throughput: Floats = field(default_factory=lambda: _NONE)
    reported: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    def metric(self, name: str) -> Floats:
        """The column loss, accuracy or throughput."""
        column: Floats = getattr(self, name)
        return column


@dataclass(frozen=True, slots=True)
class RunMark:
    """A named moment of a run, in session time."""

    label: str
    time_s: float


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """A run and the facts about it.

    Attributes:
        label: short name of the recording, with the run's number if one was selected.
        recording: path of the recording.
        view: figures of the run, as in ``gpudash run --json``.
        steps: the individual steps.
        stages: seconds of each execution of a stage, one value for each report, in order.
        memory: curves of memory over session time, by name ("allocated", "reserved", "used").
        marks: named moments within the run.
        machine: facts about the machine in words: processor, GPU, torch and so on.
        crowding: share of the processor, 0 to 1, that other programs took from the run (see `noise.crowding`).
        notes: sentences about the limits of its figures.
        began_wall_s: start, in seconds since the epoch; ``None`` if unknown.
    """

    label: str
    recording: str
    view: RunView
    steps: StepColumns = field(default_factory=StepColumns)
    stages: Mapping[str, Floats] = field(default_factory=dict)
    memory: Mapping[str, Curve] = field(default_factory=dict)
    marks: Sequence[RunMark] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    crowding: float = 0.0
    notes: Sequence[str] = ()
    began_wall_s: float | None = None

    @property
    def began_s(self) -> float:
        """Session time of the run's start."""
        return self.view.began_s

    @property
    def card(self) -> str:
        """The run's GPU in words, a simulated one with its memory; "cpu"; "" if unknown."""
        product, capacity = self.machine.get("GPU", ""), self.view.memory.capacity_bytes
        if self.view.device == "cpu":
            return "cpu"
        if not self.view.simulated or capacity is None or isinstance(card_called(product, capacity), KnownGpu):
            return product
        return f"{product or 'simulated GPU'} of {card_label(exact_text(capacity))}"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Points in order of ``x``; shapes (n,). NaN in ``y`` is a gap, which breaks the line."""

    x: Floats
    y: Floats

    @property
    def extent(self) -> tuple[float, float] | None:
        """First and last ``x``; ``None`` without points."""
        if len(self.x):
            return (float(self.x[0]), float(self.x[-1]))
        return None

    def at(self, place: float) -> float:
        """The value at ``place``, or the newest one before it; NaN outside the curve."""
        extent = self.extent
        if extent is None or not extent[0] <= place <= extent[1]:
            return math.nan
        # A reading holds until the next one.
        return float(self.y[int(np.searchsorted(self.x, place, "right")) - 1])

    def moved(self, offset: float) -> Curve:
        """The curve shifted by ``offset``."""
        return Curve(self.x + offset, self.y)

    def drawn(self, low: float, high: float, columns: int) -> Curve:
        """The points to draw from ``low`` to ``high`` on ``columns`` pixel columns: the extremes of each column.

        Includes one point on either side, so that the line reaches the edge. Nothing is averaged.

        Raises:
            ValueError: if the range is empty or there is no column.
        """
        if not low < high or columns < 1:
            raise ValueError(f"nothing can be drawn from {low} to {high} on {columns} columns")
        first, last = np.searchsorted(self.x, low, "left"), np.searchsorted(self.x, high, "right")
        part = slice(max(int(first) - 1, 0), int(last) + 1)
        x, y = self.x[part], self.y[part]
        # Thinning yields up to two points a column: no use for fewer points than that.
        if len(x) <= 2 * columns:
            return Curve(x, y)
        thinned = thin(x, y, cell_width(high - low, columns))
        return Curve(*thinned)


EMPTY = Curve(np.empty(0), np.empty(0))


def difference(a: Curve, b: Curve, low: float, high: float, columns: int) -> Curve:
    """``b`` minus ``a`` from ``low`` to ``high``, where both have values, in at most a few points a pixel column.

    Curves are straight between points, so the difference is straight between the points of both. A gap in either is a
    gap in the difference.

    Raises:
        ValueError: if there is no column.
    """
    if columns < 1:
        raise ValueError("a difference needs a column to be drawn on")
    if len(a.x) == 0 or len(b.x) == 0:
        return EMPTY
    # Only where the curves overlap.
    start, end = max(a.x[0], b.x[0], low), min(a.x[-1], b.x[-1], high)
    if not start < end:
        return EMPTY
    # Thin first: the difference of recordings of hours is computed by pixel, with both runs' extremes.
    near = [curve.drawn(float(start), float(end), columns) for curve in (a, b)]
    # At the points of both: between them both curves are straight, and so is the difference.
    x = np.unique(np.concatenate([[start], *(curve.x for curve in near), [end]]))
    x = x[(x >= start) & (x <= end)]
    values = [_at(curve, x) for curve in near]
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN
        return Curve(x, values[1] - values[0])


def _at(curve: Curve, x: Floats) -> Floats:
    """Values at ``x``, interpolated linearly; NaN next to a gap."""
    with np.errstate(invalid="ignore", over="ignore"):
        values: Floats = np.interp(x, curve.x, curve.y)
    return values


Alignment = Literal["start", "step", "mark"]
Quantity = Literal["loss", "accuracy", "throughput", "allocated", "reserved", "used"]


def aligned(run: ComparedRun, quantity: Quantity, alignment: Alignment, mark: str = "") -> Curve:
    """The curve of ``quantity``, over seconds from the start or from the first mark called ``mark``, or over steps.

    Empty if the run lacks the quantity, the mark or steps.
    """
    times, values = _known(run, quantity)
    if not len(times):
        return EMPTY
    if alignment == "step":
        return _by_step(run, quantity, times, values)
    origin = run.began_s if alignment == "start" else marked(run, mark)
    if origin is None:
        return EMPTY
    return Curve(times - origin, values)


def marked(run: ComparedRun, label: str) -> float | None:
    """Session time of the first mark called ``label``; ``None`` without one."""
    return next((mark.time_s for mark in run.marks if mark.label == label), None)


def common_marks(runs: Sequence[ComparedRun]) -> list[str]:
    """Labels of the marks that all runs have, in the order of the first run."""
    # In the first run's order, without duplicates.
    if not runs:
        return []
    others = [{mark.label for mark in run.marks} for run in runs[1:]]
    found = dict.fromkeys(mark.label for mark in runs[0].marks)
    return [label for label in found if all(label in labels for labels in others)]


def shared_memory(runs: Sequence[ComparedRun]) -> Quantity | None:
    """The memory quantity that all runs have; prefers the allocator's own to readings from outside."""
    return next((name for name in MEMORY if runs and all(name in run.memory for run in runs)), None)


def _known(run: ComparedRun, quantity: Quantity) -> tuple[Floats, Floats]:
    if quantity in MEMORY:
        curve = run.memory.get(quantity, EMPTY)
        return curve.x, curve.y
    reported = _reported(run, quantity)
    values = run.steps.metric(quantity)[reported]
    # A quantity that is always NaN has no curve.
    if np.isfinite(values).any():
        return (run.steps.time_s[reported], values)
    return (EMPTY.x, EMPTY.y)


def _reported(run: ComparedRun, quantity: Quantity) -> NDArray[np.bool_]:
    """Which steps reported a quantity: most steps of a watched program do not, and that is not a gap in the line."""
    values = run.steps.metric(quantity)
    if run.view.workload != WATCH:
        return np.full(len(values), True)
    return run.steps.reported.get(quantity, ~np.isnan(values))


def _by_step(run: ComparedRun, quantity: Quantity, times: Floats, values: Floats) -> Curve:
    """Over step numbers; readings between two steps get fractional numbers."""
    numbers = np.maximum.accumulate(run.steps.number)  # a program may reset its count; an axis must ascend
    if quantity in STEPPED:
        return Curve(numbers[_reported(run, quantity)], values)
    if not len(numbers):
        return EMPTY
    # Readings after the last step belong to no step.
    inside = times <= run.steps.time_s[-1]
    # Step 0 is the run's start, which gives readings before the first step a position.
    known = np.concatenate(([run.began_s], run.steps.time_s)), np.concatenate(([0.0], numbers))
    return Curve(np.interp(times[inside], *known), values[inside])
