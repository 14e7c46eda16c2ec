"""What is to be drawn, said without drawing it: curves, lines across a plot, plots; and values in words.

Which of the plots that there are the user wants to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from gpudash.units import format_bytes, format_duration, format_percent, format_rate, format_scaled, format_throughput

Key = tuple[str, str, str | None]
"""Reading table, metric, device: the address of a series in the store."""

Unit = Literal["bytes", "rate", "ratio", "number", "nats", "loss"]
Style = Literal["solid", "dash", "dot", "dashdot"]

NO_VALUE = "-"


@dataclass(frozen=True, slots=True)
class CurveSpec:
    """One curve of a plot.

    Attributes:
        key: the series drawn.
        name: what the legend says.
        unit: how values are written; bytes, bytes per second, a ratio from 0 to 1, a number, nats, or a
            loss of which nobody told the unit.
        colour: name of a colour in `Palette.curves`.
        style: the second channel beside colour.
        width: pen width in pixels; above 1 only for curves of few points.
        stack: the curve is a band on top of the bands before it.
        axis: which axis it is read on; the right one goes from 0 to 100 %.
        smoothed: whether the smoothing slider applies (loss, accuracy).
        unit_name: what a "number" counts, such as "items/s".
        faint: drawn as a faint fill or a faint line, for what is not in use.
        note: tooltip of the legend entry.
        down_to: name of another curve of the plot; what lies between both is filled faintly.
    """

    key: Key
    name: str
    unit: Unit
    colour: str
    style: Style = "solid"
    width: int = 1
    stack: bool = False
    axis: Literal["left", "right"] = "left"
    smoothed: bool = False
    unit_name: str = ""
    faint: bool = False
    note: str = ""
    down_to: str = ""

    @property
    def pulses(self) -> bool:
        """Whether these are short bursts with gaps between them: drawn with edges down to 0, narrow gaps bridged."""
        return self.key[0] == "transfer"


@dataclass(frozen=True, slots=True)
class LineSpec:
    """A level drawn across a plot: capacity, warning level, link limit, unigram entropy.

    Attributes:
        name: label at the line.
        colour: name of a colour in `Palette.curves`.
        value: the level, where it is fixed.
        key: else the series whose newest value is the level.
        factor: multiplies the level (0.85 of the capacity).
        style: how the line is drawn.
        scales: whether the axis always reaches to the line.
        shows_value: whether the label says the level behind the name.
    """

    name: str
    colour: str
    value: float | None = None
    key: Key | None = None
    factor: float = 1.0
    style: Style = "dash"
    scales: bool = True
    shows_value: bool = True


@dataclass(frozen=True, slots=True)
class PlotSpec:
    """One plot.

    Attributes:
        id: name that stays the same while the plot is wanted; its widget is kept under it.
        title: heading, such as "MEMORY cuda:0".
        curves: bottom band first.
        unit: unit of the left axis.
        lines: levels across the plot.
        stretch: share of the height.
        may_log: whether the axis may be logarithmic (only where 0 cannot occur).
        unit_name: what a "number" counts.
        extra: whether it is left out until somebody asks for it.
    """

    id: str
    title: str
    curves: tuple[CurveSpec, ...]
    unit: Unit
    lines: tuple[LineSpec, ...] = ()
    stretch: int = 1
    may_log: bool = False
    unit_name: str = ""
    extra: bool = False


def format_value(unit: Unit, value: float | None, unit_name: str = "") -> str:
    """``value`` with its unit, as everywhere else (`gpudash.units`); "-" where there is none."""
    if value is None or math.isnan(value):
        return NO_VALUE
    if unit == "bytes":
        return format_bytes(value)
    if unit == "rate":
        return format_rate(value)
    if math.isinf(value):
        return f"{'∞' if value > 0 else '-∞'} {unit_name}".strip()
    if unit == "ratio":
        return format_percent(value)
    if unit in ("nats", "loss"):
        return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"
    if unit_name == "s":
        return format_duration(value)
    if unit_name == "items/s":
        return format_throughput(value)
    return format_scaled(value, unit_name).strip()


class PlotChoice:
    """What was chosen by hand, by a plot's id; without a choice those are shown that are no extras.

    Args:
        show: called with `offered` when something was chosen.

    Attributes:
        offered: all plots there are now, shown or not.
    """

    def __init__(self, show: Callable[[Sequence[PlotSpec]], object]) -> None:
        self._show = show
        self.offered: Sequence[PlotSpec] = ()
        self._chosen: dict[str, bool] = {}

    def of(self, specs: Sequence[PlotSpec]) -> list[PlotSpec]:
        """Those of ``specs`` that are wanted, which are at least one."""
        self.offered = specs
        return [spec for spec in specs if self.wanted(spec)] or list(specs[:1])

    def wanted(self, spec: PlotSpec) -> bool:
        """Whether a plot shall be shown."""
        return self._chosen.get(spec.id, not spec.extra)

    def choose(self, name: str, shown: bool) -> None:
        """Show the plot with this id from now on, whenever there is one, or do without it."""
        self._chosen[name] = shown
        self._show(self.offered)

    def actions(self, menu: QMenu) -> list[QAction]:
        """One checkable action a plot, for ``menu``; the last plot that is shown cannot be left out."""
        shown = self.of(self.offered)
        found = []
        for spec in self.offered:
            action = QAction(spec.title.partition(" · ")[0].removesuffix(" (solid)"), menu)
            action.setCheckable(True)
            action.setChecked(spec in shown)
            action.setEnabled(shown != [spec])
            action.toggled.connect(partial(self.choose, spec.id))
            found.append(action)
        return found

    def begin_again(self) -> None:
        """Forget what was chosen."""
        self._chosen.clear()
        self._show(self.offered)
