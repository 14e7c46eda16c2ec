"""Which plots are shown, and how the user says so."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtWidgets import QMenu
from pytestqt.qtbot import QtBot

from gpudash.ui.plots.stack import PlotMenu, PlotStack
from tests.ui.plots.conftest import LOSS, MEMORY, UTILISATION

EXTRA = replace(UTILISATION, extra=True)


def shown(stack: PlotStack) -> list[str]:
    return [plot.spec.id for plot in stack.plots]


def test_an_extra_is_left_out_until_it_is_asked_for(stack: PlotStack) -> None:
    stack.set_plots([MEMORY, EXTRA, LOSS])
    assert shown(stack) == ["memory", "loss"]
    stack.choice.choose("utilisation", True)
    assert shown(stack) == ["memory", "utilisation", "loss"]
    stack.choice.begin_again()
    assert shown(stack) == ["memory", "loss"]


def test_a_choice_stays_when_other_plots_come(stack: PlotStack) -> None:
    stack.choice.choose("loss", False)
    assert shown(stack) == ["memory", "utilisation"]
    stack.set_plots([MEMORY, LOSS])
    assert shown(stack) == ["memory"]
    stack.set_plots([LOSS, UTILISATION])
    assert shown(stack) == ["utilisation"]


def test_one_plot_is_always_shown(stack: PlotStack, qtbot: QtBot) -> None:
    menu = QMenu()
    qtbot.addWidget(menu)
    for name in ("memory", "utilisation", "loss"):
        stack.choice.choose(name, False)
    assert shown(stack) == ["memory"]
    assert [action.isEnabled() for action in stack.choice.actions(menu)] == [False, True, True]


def test_the_plot_s_menu_lists_every_plot_with_whether_it_is_shown(stack: PlotStack) -> None:
    stack.set_plots([MEMORY, EXTRA, LOSS])
    menu = PlotMenu(stack).build(stack.plots[0])
    (plots,) = [action.menu() for action in menu.actions() if action.text() == "Plots"]
    assert [(action.text(), action.isChecked()) for action in plots.actions()] == [
        ("MEMORY cuda:0", True),
        ("UTILISATION", False),
        ("LOSS", True),
    ]
    plots.actions()[1].trigger()
    assert shown(stack) == ["memory", "utilisation", "loss"]
    menu.deleteLater()
