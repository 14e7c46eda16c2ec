"""Plots above tables, with the height divided between them."""

from __future__ import annotations

from gpudash.ui.dashboard.tabs.lower_tabs import LowerTabs
from gpudash.ui.widgets.layouts import GripSplitter


class PlotsAndTables(GripSplitter):
    """Gives the tables the same height for every tab, and the plots the rest.

    A height that was dragged stays while the tables are open.
    """

    def __init__(self, tabs: LowerTabs) -> None:
        super().__init__("Height of the tables")
        self._tabs = tabs
        self._balanced: tuple[int, bool] | None = None
        self._dragged = 0
        self.splitterMoved.connect(self._balanced_by_hand)

    def reset(self) -> None:
        """Forget the height that was dragged."""
        self._dragged = 0
        self.rebalance()

    def rebalance(self) -> None:
        """Divide the height again, though neither the height nor what is shown has changed."""
        self._balanced = None
        self.balance()

    def balance(self) -> None:
        """Divide the height if it or the tables have changed."""
        state = (self.height(), self._tabs.collapsed)
        if self._balanced == state:
            return
        self._balanced = state
        self.set_adjustable(not self._tabs.collapsed)
        height = self.height() - self.handleWidth()
        lower = self._dragged or self._tabs.usual_height(height)
        if self._tabs.collapsed:
            lower = self._tabs.minimumHeight()
        self.setSizes([max(1, height - lower), lower])

    def _balanced_by_hand(self) -> None:
        if not self._tabs.collapsed:
            self._dragged = self.sizes()[1]
