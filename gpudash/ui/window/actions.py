"""Every command of the window: its name, its place in the menus, its key and what it does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu, QWidget

from gpudash.ui.widgets.plain_text import plain_tip

PLOT_KEYS = Qt.ShortcutContext.WidgetWithChildrenShortcut
"""Where the keys of the commands that act on plots are heard: in those plots alone."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        menu: "File", or "View/Theme" for a submenu.
        name: the verb and the thing it acts on; unique.
        tip: one sentence.
        run: what it does; a checkable command is given its new state.
        keys: key sequences as text; the first is shown.
        plot: whether its keys act only while a plot has the focus (single letters must not act elsewhere).
        checked: its state at the start, ``None`` for a command without one.
        group: commands of the same menu with the same group exclude each other.
        separated: whether a line stands above it.
        role: where macOS puts it.
    """

    menu: str
    name: str
    tip: str
    run: Callable[..., object]
    keys: Sequence[str] = ()
    plot: bool = False
    checked: bool | None = None
    group: str = ""
    separated: bool = False
    role: QAction.MenuRole = QAction.MenuRole.NoRole


def build_menus(window: QMainWindow, commands: Sequence[Command]) -> dict[str, QAction]:
    """Fill the menu bar with ``commands`` in order; returns name → action.

    The keys of those that act on plots mean nothing until `add_plot_actions`.
    """
    menus: dict[str, QMenu] = {}
    groups: dict[str, QActionGroup] = {}
    actions: dict[str, QAction] = {}
    for command in commands:
        menu = _menu(window, menus, command.menu)
        if command.separated:
            menu.addSeparator()
        action = QAction(command.name, window)
        action.setToolTip(plain_tip(command.tip))
        action.setStatusTip(command.tip)
        action.setMenuRole(command.role)
        action.setShortcuts([QKeySequence(key) for key in command.keys])
        if command.checked is None:
            action.triggered.connect(lambda _checked=False, run=command.run: run())
        else:
            action.setCheckable(True)
            action.setChecked(command.checked)
            action.toggled.connect(command.run)
        if command.group:
            group = groups.setdefault(command.group, QActionGroup(window))
            group.addAction(action)
        if command.plot:
            action.setShortcutContext(PLOT_KEYS)
        menu.addAction(action)
        actions[command.name] = action
    return actions


def add_plot_actions(plots: QWidget, actions: Iterable[QAction]) -> None:
    """Let the keys of the commands that act on plots mean something while ``plots`` have the focus."""
    plots.addActions([action for action in actions if action.shortcutContext() == PLOT_KEYS])


def _menu(window: QMainWindow, menus: dict[str, QMenu], path: str) -> QMenu:
    if path not in menus:
        parent, _, name = path.rpartition("/")
        title = name if sys.platform == "darwin" else f"&{name}"
        bar = window.menuBar()
        menus[path] = _menu(window, menus, parent).addMenu(title) if parent else bar.addMenu(title)
        menus[path].setToolTipsVisible(True)
        menus[path].setObjectName(path)
    return menus[path]
