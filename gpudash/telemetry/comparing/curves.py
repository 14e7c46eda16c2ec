"""Runs as they are compared, and their curves over one another: by step, or by time from a moment that both have."""

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
    """The steps of a run, one array a column, all of shape (steps,); NaN where a step did not tell.

    Attributes:
        number: which step, from 1.
        time_s: session time at its end, ascending.
        seconds: how long it took.
        loss: nats, or whatever a watched program counts.
        accuracy: ratio, 0 to 1.
        throughput: items a second.
        reported: metric → which steps told it, as NaN too, shape (steps,); without a mask those that told a number.
    """

    number: Floats = field(default_factory=lambda: _NONE)
    time_s: Floats = field(default_factory=lambda: _NONE)
    seconds: Floats = field(default_factory=lambda: _NONE)
    loss: Floats = field(default_factory=lambda: _NONE)
    accuracy: Floats = field(default_factory=lambda: _NONE)
    throughput: Floats = field(default_factory=lambda: _NONE)
    reported: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    def metric(self, name: str) -> Floats:
        """The column ``name``: loss, accuracy or throughput."""
        column: Floats = getattr(self, name)
        return column


@dataclass(frozen=True, slots=True)
class RunMark:
    """A named moment of a run, in session time."""

    label: str
    time_s: float


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """One run and what is known of it.

    Attributes:
        label: short name of the recording, with the number of the run where one was picked.
        recording: path of the recording.
        view: figures of the run, as ``gpudash run --json`` tells them.
        steps: the steps one by one.
        stages: stage → seconds an execution, one value for each time the stage was told, in order.
        memory: curve of each quantity of memory over session time, by name ("allocated", "reserved", "used").
        marks: named moments within the run.
        machine: fact → words: processor, GPU, torch and so on.
        crowding: share of the processor, 0 to 1, that other programs took from the run (see `noise.crowding`).
        notes: sentences on what limits the comparison.
        began_wall_s: when it began, seconds since the epoch; ``None`` where its recording does not say.
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
        """Session time at which the run began."""
        return self.view.began_s

    @property
    def card(self) -> str:
        """The GPU that the run was on, in words, a simulated one with its memory; "cpu"; "" where it is not known."""
        product, capacity = self.machine.get("GPU", ""), self.view.memory.capacity_bytes
        if self.view.device == "cpu":
            return "cpu"
        if not self.view.simulated or capacity is None or isinstance(card_called(product, capacity), KnownGpu):
            return product
        return f"{product or 'simulated GPU'} of {card_label(exact_text(capacity))}"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Points in order of ``x``; shapes (n,). A NaN in ``y`` is a gap, which breaks the line."""

    x: Floats
    y: Floats

    @property
    def extent(self) -> tuple[float, float] | None:
        """First and last ``x``; ``None`` without points."""
        if len(self.x):
            return (float(self.x[0]), float(self.x[-1]))
        return None

    def at(self, place: float) -> float:
        """The newest value at or before ``place``; NaN outside the curve."""
        extent = self.extent
        if extent is None or not extent[0] <= place <= extent[1]:
            return math.nan
        # Readings hold until the next one.
        return float(self.y[int(np.searchsorted(self.x, place, "right")) - 1])

    def moved(self, offset: float) -> Curve:
        """The curve ``offset`` further right."""
        return Curve(self.x + offset, self.y)

    def drawn(self, low: float, high: float, columns: int) -> Curve:
        """What a picture from ``low`` to ``high`` on ``columns`` pixel columns needs: the extremes of each column.

        One point on either side is included, so that the line reaches the edge. Nothing is averaged.

        Raises:
            ValueError: when the range is empty or there is no column.
        """
        if not low < high or columns < 1:
            raise ValueError(f"nothing can be drawn from {low} to {high} on {columns} columns")
        first, last = np.searchsorted(self.x, low, "left"), np.searchsorted(self.x, high, "right")
        part = slice(max(int(first) - 1, 0), int(last) + 1)
        x, y = self.x[part], self.y[part]
        # Thinning gives up to two points a column: fewer than that are drawn as they are.
        if len(x) <= 2 * columns:
            return Curve(x, y)
        thinned = thin(x, y, cell_width(high - low, columns))
        return Curve(*thinned)


EMPTY = Curve(np.empty(0), np.empty(0))


def difference(a: Curve, b: Curve, low: float, high: float, columns: int) -> Curve:
    """``b`` minus ``a`` where both have values, from ``low`` to ``high``, in at most a few points a pixel column.

    Between its points a curve is a straight line, so the difference is one between the points of both together. A gap
    in either is a gap in the difference.

    Raises:
        ValueError: when there is no column.
    """
    if columns < 1:
        raise ValueError("a difference needs a column to be drawn on")
    if len(a.x) == 0 or len(b.x) == 0:
        return EMPTY
    # Only where both curves are: beyond either end there is nothing to subtract.
    start, end = max(a.x[0], b.x[0], low), min(a.x[-1], b.x[-1], high)
    if not start < end:
        return EMPTY
    # Thinned first: the difference of two recordings of hours is taken at pixels, with both runs' extremes.
    near = [curve.drawn(float(start), float(end), columns) for curve in (a, b)]
    # At the points of both: between two of them both curves are straight, and so is their difference.
    x = np.unique(np.concatenate([[start], *(curve.x for curve in near), [end]]))
    x = x[(x >= start) & (x <= end)]
    values = [_at(curve, x) for curve in near]
    with np.errstate(invalid="ignore"):  # infinite minus infinite is no number
        return Curve(x, values[1] - values[0])


def _at(curve: Curve, x: Floats) -> Floats:
    """Values at ``x`` on the straight lines between points; NaN beside a gap."""
    with np.errstate(invalid="ignore", over="ignore"):
        values: Floats = np.interp(x, curve.x, curve.y)
    return values


Alignment = Literal["start", "step", "mark"]
Quantity = Literal["loss", "accuracy", "throughput", "allocated", "reserved", "used"]


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
    if origin is None:
        return EMPTY
    return Curve(times - origin, values)


def marked(run: ComparedRun, label: str) -> float | None:
    """Session time of the first mark called ``label``; ``None`` without one."""
    return next((mark.time_s for mark in run.marks if mark.label == label), None)


def common_marks(runs: Sequence[ComparedRun]) -> list[str]:
    """Labels of marks that every run has, in the order of the first run."""
    # In the first run's order, each label once.
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
    reported = _reported(run, quantity)
    values = run.steps.metric(quantity)[reported]
    # A quantity that is never a number has no curve.
    if np.isfinite(values).any():
        return (run.steps.time_s[reported], values)
    return (EMPTY.x, EMPTY.y)


def _reported(run: ComparedRun, quantity: Quantity) -> NDArray[np.bool_]:
    """Which steps tell a quantity: those of a program that is watched mostly do not, which is no gap in a line."""
    values = run.steps.metric(quantity)
    if run.view.workload != WATCH:
        return np.full(len(values), True)
    return run.steps.reported.get(quantity, ~np.isnan(values))


def _by_step(run: ComparedRun, quantity: Quantity, times: Floats, values: Floats) -> Curve:
    """Over steps as the run numbered them; readings between two steps lie between their numbers."""
    numbers = np.maximum.accumulate(run.steps.number)  # a program may count anew, an axis may not
    if quantity in STEPPED:
        return Curve(numbers[_reported(run, quantity)], values)
    if not len(numbers):
        return EMPTY
    # Readings behind the last step belong to no step.
    inside = times <= run.steps.time_s[-1]
    # Step 0 is the run's beginning, so that readings before the first step have a place too.
    known = np.concatenate(([run.began_s], run.steps.time_s)), np.concatenate(([0.0], numbers))
    return Curve(np.interp(times[inside], *known), values[inside])
