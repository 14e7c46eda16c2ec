"""Which of the available plots the user wants to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from gpudash.telemetry.plots import PlotSpec
from gpudash.ui.widgets.remembered import recall_of, remember_of

_CHOSEN = "plots"


class PlotChoice:
    """Which plots the user chose, by plot id. Without a choice, every plot is shown except the extras.

    Args:
        show: called with `offered` after a choice.

    Attributes:
        offered: all available plots, shown or hidden.
    """

    def __init__(self, show: Callable[[Sequence[PlotSpec]], object]) -> None:
        self._show = show
        self.offered: Sequence[PlotSpec] = ()
        self._topic: str | None = None
        self._chosen: dict[str, bool] = {}

    def turn_to(self, topic: str | None) -> None:
        """Use the choice made for ``topic``, a workload, in this session or an earlier one.

        With ``None`` nothing is saved and the current choice stays.
        """
        if topic is not None and topic != self._topic:
            kept = recall_of(_CHOSEN, topic)
            self._chosen = {name: shown for name, shown in kept.items() if isinstance(shown, bool)}
        self._topic = topic

    def of(self, specs: Sequence[PlotSpec]) -> list[PlotSpec]:
        """The ones among ``specs`` to show; at least one."""
        self.offered = specs
        return list(filter(self.wanted, specs)) or list(specs[:1])

    def wanted(self, spec: PlotSpec) -> bool:
        """Whether to show this plot."""
        return self._chosen.get(spec.id, not spec.extra)

    def choose(self, name: str, shown: bool) -> None:
        """Show or hide the plot with this id from now on, whenever it is available."""
        self._chosen[name] = shown
        self._keep()

    def begin_again(self) -> None:
        """Forget every choice."""
        self._chosen.clear()
        self._keep()

    def _keep(self) -> None:
        if self._topic is not None:
            remember_of(_CHOSEN, self._topic, dict(self._chosen))
        self._show(self.offered)

    def actions(self, menu: QMenu) -> list[QAction]:
        """One checkable action per plot, for ``menu``. The last shown plot cannot be unchecked."""
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
