"""Which of the plots that there are the user wants to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from gpudash.ui.plots.curve import PlotSpec


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
