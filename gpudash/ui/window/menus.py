"""Commands as data, and the menus built from them.

A command knows its menu, its keys, and whether it is available or why not. The command palette and the list of keys
use the same commands.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from PySide6.QtCore import QKeyCombination, Qt
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu, QWidget

from gpudash.ui.widgets.plain_text import plain_tip

logger = logging.getLogger(__name__)

PLOT_KEYS = Qt.ShortcutContext.WidgetWithChildrenShortcut
"""Context for commands that act on plots: their keys work only while a plot has the focus."""


def _always() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command. Its callables run on the window's thread whenever the menus are updated.

    Attributes:
        menu: "File", or "View/Theme" for a submenu.
        title: the verb and its object.
        tip: one sentence.
        run: the action; for a checkable command it receives the chosen state.
        keys: key sequences as text; the first one is shown.
        id: a unique name such as "file.open", which does not depend on the title.
        after: the id of the command above it; if empty or missing, it comes last.
        why_not: why it is unavailable, in a sentence; "" if it is available.
        text: the menu's text in place of the title.
        checked: the state of a checkable command; ``None`` for others.
        group: commands with the same group exclude each other.
        plot: whether its keys work only while a plot has the focus (single letters must not act elsewhere).
        keys_taken: whether something else in the window uses its keys now.
        above: entries to insert above it whenever its menu opens.
        separated: whether a separator is above it.
        repeats: whether holding its key repeats it.
        role: its role in a macOS menu.
        keywords: other words by which the palette finds it, such as "png".
    """

    menu: str
    title: str
    tip: str
    run: Callable[..., object]
    keys: Sequence[str] = ()
    _: KW_ONLY
    id: str
    after: str = ""
    why_not: Callable[[], str] = _always
    text: Callable[[], str] | None = None
    checked: Callable[[], bool] | None = None
    group: str = ""
    plot: bool = False
    keys_taken: Callable[[], bool] | None = None
    above: Callable[[QMenu], list[QAction]] | None = None
    separated: bool = False
    repeats: bool = True
    role: QAction.MenuRole = QAction.MenuRole.NoRole
    keywords: str = ""

    def label(self) -> str:
        """The current text."""
        if self.text is None:
            return self.title
        return self.text()

    def key_sequences(self) -> list[QKeySequence]:
        """The keys that trigger it now."""
        taken = self.keys_taken is not None and self.keys_taken()
        if taken:
            return []
        return list(map(QKeySequence, self.keys))

    def key_texts(self) -> list[str]:
        """As `key_sequences`, as this system writes them."""
        return [key.toString(QKeySequence.SequenceFormat.NativeText) for key in self.key_sequences()]

    def use(self) -> None:
        """Run it; a checkable command toggles, and one in a group is checked."""
        self.choose(bool(self.group) or (self.checked is not None and not self.checked()))

    def choose(self, checked: bool) -> None:
        """Run it, with the chosen state if it is checkable."""
        logger.info("command %s", self.id)
        if self.checked is None:
            self.run()
        else:
            self.run(checked)


def in_order(commands: Sequence[Command]) -> list[Command]:
    """``commands`` in order, but each one with `after` directly below that one and what already follows it."""
    known = {command.id for command in commands}
    followers: dict[str, list[Command]] = {}
    for command in commands:
        followers.setdefault(command.after if command.after in known else "", []).append(command)

    def below(place: str) -> Iterator[Command]:
        for command in followers.get(place, ()):
            yield command
            yield from below(command.id)

    return list(below(""))


class Menus:
    """The menu bar of a window.

    Args:
        window: the window whose menu bar is filled.
        commands: in menu order; two with the same id raise a `KeyError`.
    """

    def __init__(self, window: QMainWindow, commands: Sequence[Command]) -> None:
        self._window = window
        self._menus: dict[str, QMenu] = {}
        self._groups: dict[str, QActionGroup] = {}
        self._commands = commands
        self._actions: dict[str, QAction] = {}
        for command in commands:
            if command.id in self._actions:
                raise KeyError(f"two commands have the id {command.id}")
            self._actions[command.id] = self._add(command)
        self.refresh()

    @property
    def actions(self) -> dict[str, QAction]:
        """The action of each command, by id. A recording's window lacks the commands of a live session."""
        return self._actions

    def refresh(self) -> None:
        """Update texts, states and availability."""
        for command in self._commands:
            action = self._actions[command.id]
            why_not = command.why_not()
            tip = f"{command.tip}\n{why_not}".strip()
            if action.isEnabled() == bool(why_not) or action.toolTip() != plain_tip(tip):
                action.setEnabled(not why_not)
                action.setToolTip(plain_tip(tip))
            action.setText(command.label())
            if command.checked is not None:
                action.setChecked(command.checked())
            if command.keys_taken is not None and action.shortcuts() != (keys := command.key_sequences()):
                action.setShortcuts(keys)

    def serve_plots(self, plots: QWidget) -> None:
        """Let the keys of plot commands work while ``plots`` has the focus."""
        plots.addActions([action for action in self.actions.values() if action.shortcutContext() == PLOT_KEYS])

    def plot_action(self, key: QKeyCombination) -> QAction | None:
        """The plot command with this key; ``None`` if there is none."""
        pressed = QKeySequence(key)
        plot_actions = (action for action in self.actions.values() if action.shortcutContext() == PLOT_KEYS)
        return next((action for action in plot_actions if pressed in action.shortcuts()), None)

    def _add(self, command: Command) -> QAction:
        menu = self._menu(command.menu)
        if command.separated:
            menu.addSeparator()
        action = QAction(command.title, self._window)
        action.setObjectName(command.id)
        action.setToolTip(plain_tip(command.tip))
        action.setStatusTip(command.tip)
        action.setMenuRole(command.role)
        action.setAutoRepeat(command.repeats)
        action.setShortcuts(list(map(QKeySequence, command.keys)))
        if command.checked is None:
            action.triggered.connect(lambda _checked=False: command.use())
        else:
            action.setCheckable(True)
            action.setChecked(command.checked())
            action.triggered.connect(lambda checked: self._choose(command, checked))
        if command.group:
            self._groups.setdefault(command.group, QActionGroup(self._window)).addAction(action)
        if command.plot:
            action.setShortcutContext(PLOT_KEYS)
        menu.addAction(action)
        if command.above is not None:
            menu.aboutToShow.connect(lambda: _fill(menu, action, command.above))
        return action

    def _choose(self, command: Command, checked: bool) -> None:
        command.choose(checked)
        self.refresh()  # the command may not have changed the state

    def _menu(self, path: str) -> QMenu:
        if path not in self._menus:
            parent, _, name = path.rpartition("/")
            if sys.platform == "darwin":
                title = name
            else:
                title = f"&{name}"
            if parent:
                menu = self._menu(parent).addMenu(title)
            else:
                menu = self._window.menuBar().addMenu(title)
            menu.setToolTipsVisible(True)
            menu.setObjectName(path)
            self._menus[path] = menu
        return self._menus[path]


def _fill(menu: QMenu, last: QAction, entries: Callable[[QMenu], list[QAction]] | None) -> None:
    """List ``entries`` in ``menu`` above ``last``, replacing the previous ones."""
    for action in menu.actions():
        if action is last:
            break
        menu.removeAction(action)
        action.deleteLater()
    if entries is not None:
        menu.insertActions(last, entries(menu))
    menu.insertSeparator(last)
