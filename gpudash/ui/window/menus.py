"""Commands as data, and the menus that are built from them.

A command knows its place, its key, whether it can be used now and why not; the palette and the sheet of keys are made
of the same commands.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu, QWidget

from gpudash.ui.widgets.plain_text import plain_tip

logger = logging.getLogger(__name__)

PLOT_KEYS = Qt.ShortcutContext.WidgetWithChildrenShortcut
"""Where the keys of the commands that act on plots are heard: in those plots alone."""


def _always() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command; what is callable is asked whenever the menus are brought up to date, on the window's thread.

    Attributes:
        menu: "File", or "View/Theme" for a submenu.
        title: the verb and the thing it acts on.
        tip: one sentence.
        run: what it does; a checkable command is given the state that was chosen.
        keys: key sequences as text; the first is shown.
        id: what it is found by, as "file.open"; unique, and the same whatever its title becomes.
        after: id of the command that it stands below; without one, or where that is not there, it comes last.
        why_not: why it cannot be used now, in a sentence; "" when it can.
        text: what the menu says in place of the title.
        checked: its state, ``None`` for a command without one.
        group: commands with the same group exclude each other.
        plot: whether its keys act only while a plot has the focus (single letters must not act elsewhere).
        keys_taken: whether something else in the window means its keys now.
        above: entries that stand above it, asked for whenever its menu opens.
        separated: whether a line stands above it.
        repeats: whether its key, held down, means it again and again.
        role: where macOS puts it.
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

    def label(self) -> str:
        """What it is called now."""
        if self.text is None:
            return self.title
        return self.text()

    def key_sequences(self) -> list[QKeySequence]:
        """The keys that mean it now."""
        taken = self.keys_taken is not None and self.keys_taken()
        if taken:
            return []
        return [QKeySequence(key) for key in self.keys]

    def use(self) -> None:
        """Do it; a checkable command takes its other state, one of a group its own."""
        self.choose(bool(self.group) or (self.checked is not None and not self.checked()))

    def choose(self, checked: bool) -> None:
        """Do it, a checkable command with the state that was chosen."""
        logger.info("command %s", self.id)
        if self.checked is None:
            self.run()
        else:
            self.run(checked)


def in_order(commands: Sequence[Command]) -> list[Command]:
    """``commands`` as given, but each with an `after` right below that one, and below what stands there already."""
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
        window: whose menu bar is filled.
        commands: in the order of the menus; a `KeyError` where two have the same id.
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
        """What the menus show of each command, by its id; what commands a live session is missing over a recording."""
        return self._actions

    def refresh(self) -> None:
        """Bring words, states and availability up to date."""
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
        """Let the keys of the commands that act on plots mean something while ``plots`` have the focus."""
        plots.addActions([action for action in self.actions.values() if action.shortcutContext() == PLOT_KEYS])

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
        action.setShortcuts([QKeySequence(key) for key in command.keys])
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
        self.refresh()  # what was chosen may not have come to pass

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
    """List ``entries`` in ``menu`` above ``last``, in place of those of before."""
    for action in menu.actions():
        if action is last:
            break
        menu.removeAction(action)
        action.deleteLater()
    if entries is not None:
        menu.insertActions(last, entries(menu))
    menu.insertSeparator(last)
