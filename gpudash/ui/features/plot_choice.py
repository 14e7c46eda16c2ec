"""The menu that says which plots are shown, beside its one command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QMenu

from gpudash.ui.window.actions import Command

if TYPE_CHECKING:
    from gpudash.ui.window.main_window import MainWindow

MENU = "View/Plots"


def plot_commands(window: MainWindow) -> list[Command]:
    """What the menu holds besides the plots themselves."""
    return [
        Command(
            MENU,
            "Usual Plots",
            "Show the plots that are shown without a choice",
            lambda: window.meant.plots.choice.begin_again(),
        )
    ]


def fill_plots(window: MainWindow) -> None:
    """List the plots of the session in front whenever the menu opens."""
    menu = window.findChild(QMenu, MENU)
    assert menu is not None
    usual = menu.actions()[-1]

    def fill() -> None:
        for action in menu.actions():
            if action is not usual:
                menu.removeAction(action)
                action.deleteLater()
        menu.insertActions(usual, window.meant.plots.choice.actions(menu))
        menu.insertSeparator(usual)

    menu.aboutToShow.connect(fill)
