"""Makes what the user changes of a dashboard's view undoable: hidden curves, tables, the splitter between them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import shiboken6
from PySide6.QtCore import QObject

from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.dashboard.plots_page import PlotsPage
from gpudash.ui.widgets.undo import Undoing

Hidden = Mapping[str, frozenset[str]]
"""Plot → names of its hidden curves."""


class CurveHistory(QObject):
    """Puts on the stack which curves are hidden and shown.

    Args:
        undoing: the window's stack.
        page: whose curves can be hidden.
    """

    def __init__(self, undoing: Undoing, page: PlotsPage) -> None:
        super().__init__(page)
        self._undoing, self._plots = undoing, page.plots
        self._hidden: Hidden = self._hidden_now()
        page.plots.hidden_changed.connect(self._hidden_changed)
        page.refreshed.connect(self._settle)

    def _settle(self) -> None:
        """Take what is now for what was before the user's next change: the window itself changes some of it too."""
        self._hidden = self._hidden_now()

    def _hidden_now(self) -> Hidden:
        return {plot.spec.id: plot.hidden for plot in self._plots.plots}

    def _hidden_changed(self) -> None:
        before, after = self._hidden, self._hidden_now()
        self._hidden = after
        hides = sorted({name for plot, names in after.items() for name in names - before.get(plot, frozenset())})
        shows = sorted({name for plot, names in before.items() for name in names - after.get(plot, frozenset())})
        if hides:
            self._push_hidden(f"Hide of {_named(hides)}", before, after)
        elif shows:
            self._push_hidden(f"Show of {_named(shows)}", before, after)

    def _push_hidden(self, text: str, before: Hidden, after: Hidden) -> None:
        self._undoing.push(text, partial(self._hide, before), partial(self._hide, after))

    def _hide(self, hidden: Hidden) -> None:
        _there(self._plots)
        for plot in self._plots.plots:
            plot.legend.set_hidden(hidden.get(plot.spec.id, frozenset()))


class LayoutHistory(QObject):
    """Puts on the stack how the height is shared between plots and tables.

    Args:
        undoing: the window's stack.
        dashboard: whose tables can be collapsed.
    """

    def __init__(self, undoing: Undoing, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._undoing = undoing
        self._tabs, self._splitter = dashboard.tabs, dashboard.splitter
        self._settle()
        dashboard.tabs.collapsed_changed.connect(self._collapsed_changed)
        dashboard.splitter.splitterMoved.connect(self._moved)
        dashboard.refreshed.connect(self._settle)

    def _settle(self) -> None:
        """Take what is now for what was before the user's next change."""
        self._collapsed = self._tabs.collapsed
        self._sizes = self._splitter.sizes()

    def _collapsed_changed(self) -> None:
        before, after = self._collapsed, self._tabs.collapsed
        self._collapsed = after
        if before != after:
            text = "Hide of Tables" if after else "Show of Tables"
            self._undoing.push(text, partial(self._collapse, before), partial(self._collapse, after))

    def _collapse(self, collapsed: bool) -> None:
        _there(self._tabs)
        self._tabs.set_collapsed(collapsed)
        self._tabs.collapsed_changed.emit()

    def _moved(self) -> None:
        before, after = self._sizes, self._splitter.sizes()
        self._sizes = after
        self._undoing.push(
            "Change of Layout",
            partial(self._resize, before),
            partial(self._resize, after),
            kind=f"splitter {id(self._splitter)}",
        )

    def _resize(self, sizes: list[int]) -> None:
        _there(self._tabs)
        self._splitter.setSizes(sizes)
        self._splitter.splitterMoved.emit(sizes[0], 1)


def _there(part: QObject) -> None:
    if not shiboken6.isValid(part):
        raise RuntimeError("The tab that this was done in is closed.")


def _named(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} Curves"
