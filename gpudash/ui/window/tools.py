"""What a window has beside its documents: undoing, presentation mode, compact cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudash.ui.features.tool_commands import PRESENTATION, fit_panels, restore_text_size
from gpudash.ui.widgets.plain_text import plain_tip, without_mnemonics
from gpudash.ui.widgets.undo import follow_action
from gpudash.ui.window.compact_card import CompactCards
from gpudash.ui.window.presentation import Presentation
from gpudash.ui.window.view_history import ViewHistory

if TYPE_CHECKING:
    from gpudash.ui.dashboard.dashboard import Dashboard
    from gpudash.ui.window.main_window import MainWindow

NOTHING = {"Undo": "There is nothing to take back.", "Redo": "There is nothing to make again."}


class Tools:
    """Wires them to one window, whose commands are there already."""

    def __init__(self, window: MainWindow) -> None:
        self._window = window
        self._histories: dict[Dashboard, ViewHistory] = {}
        actions = window.commands.actions
        self._tips = {name: actions[name].toolTip() for name in NOTHING}
        self.presentation = Presentation(window, self._presenting_changed)
        self.compact_cards = CompactCards(window)
        follow_action(window.undoing, actions["Workload Panel"], "Workload Panel")
        window.undoing.changed.connect(self._show_undo)
        window.undoing.failed.connect(window.documents.notice.tell)
        window.documents.front_changed.connect(self.follow_dashboards)
        self.follow_dashboards()
        self._show_undo()
        restore_text_size(window)

    def _presenting_changed(self, on: bool) -> None:
        self._window.commands.actions[PRESENTATION].setChecked(on)
        fit_panels(self._window)

    def refresh(self) -> None:
        """Bring up to date what is not in the window itself; called by its timer."""
        self.compact_cards.refresh()

    def close(self) -> None:
        """Let go of everything outside the window."""
        self.presentation.set_on(False)
        self.compact_cards.close()

    def follow_dashboards(self) -> None:
        """Serve the dashboards that are new in a tab, and forget those of closed tabs."""
        dashboards = self._window.documents.dashboards
        fit_panels(self._window)
        self._histories = {dashboard: self._history(dashboard) for dashboard in dashboards}
        self.presentation.follow()

    def _history(self, dashboard: Dashboard) -> ViewHistory:
        known = self._histories.get(dashboard)
        if known is None:
            known = ViewHistory(self._window.undoing, dashboard.plots, dashboard.tabs, dashboard.splitter)
            dashboard.refreshed.connect(known.settle)
        return known

    def _show_undo(self) -> None:
        """Name what Undo and Redo would do; grey them where there is nothing."""
        undoing = self._window.undoing
        for name, done in (("Undo", undoing.undo_text), ("Redo", undoing.redo_text)):
            action = self._window.commands.actions[name]
            action.setText(without_mnemonics(f"{name} {done}".strip()))
            action.setEnabled(bool(done))
            action.setToolTip(plain_tip(f"{self._tips[name]}\n{'' if done else NOTHING[name]}".strip()))
