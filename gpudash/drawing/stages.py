"""Memory as columns of one width, each a stage of what happened, however long it took: data and where it lies.

A column is a pile of blocks. `StageChart.placed` says where everything is in a frame of pixels; it knows the height of
a line of text and nothing else of whoever paints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from gpudash.drawing.scene import PlotScene, SceneAxis, SceneCurve, SceneFrame
from gpudash.units import format_bytes, summed_bytes

KIB, MIB, GIB = 2**10, 2**20, 2**30

ColumnState = Literal["past", "now", "coming"]

FAR = 4.0
"""How many times the highest column a limit may be and still be drawn in its place; one beyond is named in a corner."""

TICKS = 5
"""Steps of the axis at most, about."""


@dataclass(frozen=True, slots=True)
class StageBlock:
    """A block of memory.

    Attributes:
        name: of the variable, or what made it.
        bytes: its size.
        kind: a name of a colour.
        named: whether a variable has it; one that nobody named has an edge of its own.
        remark: a few words more, such as "being made".
    """

    name: str
    bytes: float
    kind: str
    named: bool = True
    remark: str = ""


@dataclass(frozen=True, slots=True)
class StageColumn:
    """A stage, and what is held in it.

    Attributes:
        title: over it.
        blocks: from below.
        state: whether it is over, is looked at, or is still to come.
        figure: over the pile; its total where nothing else is said.
        is_peak: whether the figure is the highest of all.
        failed: whether it went wrong there.
    """

    title: str
    blocks: tuple[StageBlock, ...]
    state: ColumnState = "past"
    figure: str = ""
    is_peak: bool = False
    failed: bool = False

    @property
    def bytes(self) -> float:
        """Of all its blocks."""
        return summed_bytes(self.blocks)


class StageBox(NamedTuple):
    """A rectangle in pixels: its left and upper edge, its width and height."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class PlacedChart:
    """Where everything of a chart lies.

    Attributes:
        plot: the area of the columns.
        headers: one over each column.
        columns: the boxes of each column's blocks, from below.
        tops: the upper edge of each pile.
        ticks: heights and texts of the axis.
        limit: height of the limit; ``None`` where it lies beyond or there is none.
        guess: height of the guess, likewise.
    """

    plot: StageBox
    headers: tuple[StageBox, ...]
    columns: tuple[tuple[StageBox, ...], ...]
    tops: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]
    limit: float | None
    guess: float | None = None


@dataclass(frozen=True, slots=True)
class StageChart:
    """A chart of stages.

    Attributes:
        title: what is measured, without its unit.
        columns: in order.
        limit: bytes that there are; ``None`` without a limit.
        remark: a few words on its right.
        guess: bytes that somebody guessed for the highest column; ``None`` without a guess.
        reaches: bytes that the axis shows at least, however low the columns are.
    """

    title: str
    columns: tuple[StageColumn, ...]
    limit: float | None = None
    remark: str = "each stage has the same width, however long it took"
    guess: float | None = None
    reaches: float = 0.0

    @property
    def highest(self) -> float:
        """The highest column, bytes."""
        return max((column.bytes for column in self.columns), default=0.0)

    @property
    def shows_limit(self) -> bool:
        """Whether the limit has its place in the plot."""
        most = max(self.highest, self.reaches)
        return self.limit is not None and (not most or self.limit <= FAR * most)

    @property
    def unit(self) -> tuple[float, str]:
        """Bytes of the unit, and its name, the same for all figures of a chart."""
        return unit_for(self._most)

    @property
    def _most(self) -> float:
        """What the axis has to show, bytes."""
        return max(self.highest, self.reaches, self.limit or 0.0 if self.shows_limit else 0.0)

    def figure(self, size: float) -> str:
        """``size`` in the chart's unit, without it."""
        return in_unit(size, self.unit[0])

    def placed(self, frame: StageBox, *, line: float, axis: float, header: float) -> PlacedChart:
        """Lay it out.

        Args:
            frame: of the whole chart, without its title.
            line: height that a pile's figure needs above it, pixels.
            axis: width of the axis' figures.
            header: height of the columns' titles.
        """
        count = max(1, len(self.columns))
        plot = StageBox(frame.x + axis, frame.y + header, frame.width - axis, frame.height - header)
        most = self._most or 1.0
        # so high that above the highest pile its figure has room, and above a limit a little air
        room = plot.height - line * 1.25
        scale = room / most
        if self.shows_limit and self.limit is not None and max(self.highest, self.reaches) < self.limit:
            scale = min((plot.height - line * 0.5) / self.limit, room / max(self.highest, 1.0))
            if self.highest and (self.limit - self.highest) * scale < line * 1.25:
                scale = room / self.limit  # the figure of so high a pile stands above the limit
        width = plot.width / count
        gap = min(4.0, width * 0.02)
        headers, columns, tops = [], [], []
        for place, column in enumerate(self.columns):
            left = plot.x + place * width + gap / 2
            headers.append(StageBox(left, frame.y, width - gap, header * 0.8))
            boxes = []
            below = plot.bottom
            for block in column.blocks:
                height = block.bytes * scale
                boxes.append(StageBox(left, below - height, width - gap, height))
                below -= height
            columns.append(tuple(boxes))
            tops.append(below)
        step = _tick_step(plot.height / scale)
        ticks = []
        value = 0.0
        while value * scale <= plot.height + 0.5:
            ticks.append((plot.bottom - value * scale, self.figure(value)))
            value += step
        limit = None
        if self.shows_limit and self.limit is not None:
            limit = plot.bottom - self.limit * scale
        guess = None
        if self.guess is not None and self.guess * scale <= plot.height:
            guess = plot.bottom - self.guess * scale
        return PlacedChart(plot, tuple(headers), tuple(columns), tuple(tops), tuple(ticks), limit, guess)


def unit_for(size: float) -> tuple[float, str]:
    """Bytes and name of the unit in which ``size`` has one to four digits."""
    if size >= 8 * GIB:
        return GIB, "GiB"
    if size >= 2 * MIB:
        return MIB, "MiB"
    return KIB, "KiB"


def in_unit(size: float, unit: float) -> str:
    """``size`` in a unit: whole, or with a decimal where few digits stand before it; more of GiB, which are large."""
    value = size / unit
    few = 100 if unit == GIB else 10
    if value and value < few and abs(value - round(value)) > 0.05:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def size_text(size: float) -> str:
    """``size`` with its unit, rounded as in a chart: with a decimal below 10 MiB."""
    if MIB <= size < 10 * MIB:
        return f"{in_unit(size, MIB)} MiB"
    return format_bytes(size)


def _tick_step(most: float) -> float:
    """The power of two of which about `TICKS` make ``most``."""
    return float(2 ** math.ceil(math.log2(max(most, 1.0) / (TICKS + 1))))


def sampled(columns: Sequence[StageColumn], most: int) -> tuple[StageColumn, ...]:
    """At most so many of them: the first ones, the last ones, and what is looked at; a gap is said in a title."""
    if len(columns) <= most:
        return tuple(columns)
    head = most // 2
    kept = [*range(head), *range(len(columns) - (most - head), len(columns))]
    now = next((place for place, column in enumerate(columns) if column.state == "now"), None)
    if now is not None and now not in kept:
        kept[head - 1] = now
        kept.sort()
    return tuple(columns[place] for place in kept)


def loss_ticks(highest: float) -> tuple[float, ...]:
    """Round values from 0 to ``highest`` or just above it. A loss begins near its highest value, the logarithm of the
    number of classes, so that the axis stays as it is during the run."""
    if not 0 < highest < math.inf:
        return 0.0, 1.0
    rough = highest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return tuple(place * step for place in range(math.ceil(highest / step * 0.999) + 1))


def curve_scene(values: Sequence[float], steps: int, ticks: Sequence[float], frame: SceneFrame) -> PlotScene:
    """The loss of a run by its steps, on axes that the runs beside it share.

    Args:
        values: of the steps so far; fewer than there were steps where a long run was thinned.
        steps: that the run takes.
        ticks: of the axis of losses, from its lower end to its upper one.
        frame: pixels.
    """
    y = np.asarray(values, np.float64)
    x = np.linspace(1.0, float(max(1, min(steps, len(values)))), len(y)) if len(y) else y
    left = SceneAxis(ticks[0], ticks[-1], tuple((value, f"{value:g}") for value in ticks))
    across = SceneAxis(0.0, float(max(1, steps)), ((0.0, "0"), (float(steps), f"{steps} steps")))
    return PlotScene("loss by steps", across, left, (SceneCurve(x, y, "loss"),), frame=frame)
