"""Values of a plot in words, and which of the plots that there are the user wants to see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from gpudash.telemetry.plots import PlotSpec, Unit
from gpudash.units import format_bytes, format_duration, format_percent, format_rate, format_scaled, format_throughput

NO_VALUE = "-"


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
