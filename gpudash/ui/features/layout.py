"""What is where: the documents, the tables and the panel beside the plots, the compact card, the window itself."""

from __future__ import annotations

from functools import partial

from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.window.compact_card import CompactCards
from gpudash.ui.window.menus import Command
from gpudash.ui.window.place import default_place, forget_layout
from gpudash.ui.window.workspace import Workspace


def commands(workspace: Workspace) -> list[Command]:
    """The commands of View that place things."""
    compact_cards = CompactCards(workspace)
    workspace.serve_dashboards(partial(_place_panel, workspace))
    return [
        Command(
            "View",
            "Next Tab",
            "Bring the next document to the front, after the last one the dashboard",
            workspace.show_next,
            ("Ctrl+Tab",),
            id="view.next_tab",
            why_not=lambda: "" if workspace.count else "No document is open.",
            separated=True,
        ),
        Command(
            "View",
            "Show or Hide Tables",
            "Collapse the tables to their bar, or open them",
            lambda: workspace.meant_dashboard.toggle_tables(),
            ("F9",),
            id="view.tables",
            separated=True,
        ),
        Command(
            "View",
            "Workload Panel",
            "Show the panel at the left",
            workspace.show_panels,
            ("F8",),
            id="view.panel",
            checked=lambda: workspace.panel_shown,
        ),
        Command(
            "View",
            "Compact Card",
            "Show the device's memory in a small window that stays above all others, or close it; "
            "where the system is Wayland it may not be allowed to stay above",
            compact_cards.toggle,
            id="view.compact_card",
        ),
        Command(
            "View",
            "Full Screen",
            "Use the whole screen",
            partial(_fill_screen, workspace),
            ("F11",),
            id="view.full_screen",
            checked=lambda: workspace.window().isFullScreen(),
            separated=True,
        ),
        Command(
            "View",
            "Reset Layout",
            "Everything back to where it was at the first start",
            partial(reset_layout, workspace),
            id="view.reset_layout",
        ),
    ]


def _place_panel(workspace: Workspace, dashboard: Dashboard) -> None:
    dashboard.panel.setVisible(workspace.panel_shown)
    dashboard.panel.fit_width()


def _fill_screen(workspace: Workspace, full: bool) -> None:
    """Use the whole screen, or the window's own place again."""
    window = workspace.window()
    if full:
        window.showFullScreen()
    else:
        window.showNormal()


def reset_layout(workspace: Workspace) -> None:
    """Everything back to where it was at the first start."""
    window = workspace.window()
    forget_layout()
    window.showNormal()
    window.setGeometry(default_place(window))
    workspace.show_panels(True)
    for page in workspace.pages:
        page.reset_layout()
    workspace.changed.emit()
