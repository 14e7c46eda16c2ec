"""Keys that act where the focus is: in one widget, or in several buttons that are one tab stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QWidget

_UPRIGHT = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1}
_ALONG = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}
_MOVES_STOP = frozenset((QEvent.Type.FocusIn, QEvent.Type.Show, QEvent.Type.Hide, QEvent.Type.EnabledChange))


def shortcut_within(widget: QWidget, key: str, act: Callable[[], object]) -> QShortcut:
    """A key that acts while the focus is in ``widget``."""
    shortcut = QShortcut(QKeySequence(key), widget)
    shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
    shortcut.activated.connect(act)
    return shortcut


class FocusGroup(QObject):
    """Tab focuses the member that had the focus last, or else the first one that can have it.

    The plots around also use the arrow keys, so a member handles them before a shortcut does.

    Args:
        upright: whether the members are stacked vertically: Left and Right are ignored, and a click also focuses a
            member.

    Attributes:
        members: in the order of the arrow keys.
        joined: the groups that share one tab stop with this one, in order, including itself.
    """

    def __init__(self, parent: QObject, members: Sequence[QWidget] = (), *, upright: bool = False) -> None:
        super().__init__(parent)
        self._steps = _UPRIGHT
        self._stop = Qt.FocusPolicy.StrongFocus
        self._other = Qt.FocusPolicy.ClickFocus
        if not upright:
            self._steps = _UPRIGHT | _ALONG
            self._stop = Qt.FocusPolicy.TabFocus
            self._other = Qt.FocusPolicy.NoFocus
        self.members: list[QWidget] = []
        self.joined: list[FocusGroup] = [self]
        self.hold(members)

    def join(self, first: FocusGroup) -> None:
        """Share one tab stop with ``first`` and all groups that joined it; members of this group come after theirs."""
        self.joined = first.joined
        self.joined.append(self)
        self.destroyed.connect(partial(self.joined.remove, self))
        self._choose_stop()

    def hold(self, members: Sequence[QWidget]) -> None:
        """Set the members, in this order."""
        for left in set(self.members) - set(members):
            left.removeEventFilter(self)
        for new in set(members) - set(self.members):
            new.installEventFilter(self)
        self.members = list(members)
        self._choose_stop()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        # Every event of every member comes here, thousands while a window is styled: whatever is no key is let go.
        if event.type() in _MOVES_STOP:
            self._choose_stop()
        elif isinstance(event, QKeyEvent) and event.key() in self._steps and not event.modifiers():
            if event.type() is QEvent.Type.ShortcutOverride:
                event.accept()
                return True
            if event.type() is QEvent.Type.KeyPress:
                self._move(watched, self._steps[Qt.Key(event.key())])
                return True
        return False

    def _all(self) -> list[QWidget]:
        return [member for group in self.joined for member in group.members]

    def _open(self) -> list[QWidget]:
        return [member for member in self._all() if member.isEnabled() and member.isVisibleTo(member.window())]

    def _move(self, member: QObject, step: int) -> None:
        there = self._open()
        if member in there:
            place = there.index(member) + step
            there[place % len(there)].setFocus(Qt.FocusReason.TabFocusReason)

    def _choose_stop(self) -> None:
        there = self._open()
        focused = [member for member in there if member.hasFocus()]
        before = [member for member in there if member.focusPolicy() & Qt.FocusPolicy.TabFocus]
        stop = next(iter(focused or before or there), None)
        for member in self._all():
            policy = self._other
            if member is stop:
                policy = self._stop
            if member.focusPolicy() != policy:
                member.setFocusPolicy(policy)
