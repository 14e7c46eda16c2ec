"""What of a snapshot is looked at: one moment or two, and what narrows the blocks. Every pane observes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

Path = tuple[tuple[str, int, str], ...]
"""Frames (file, line, name) from the outermost inwards."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice.

    Attributes:
        moment: of the history; ``None`` for the snapshot's own: its out-of-memory, else its peak.
        compared: a second moment, ``None`` while one is looked at; `moment` is the later one then.
        category: only blocks of this one; "" for all.
        path: only blocks allocated beneath these frames; empty for all.
        search: only blocks with this text in their stack or category.
    """

    moment: int | None = None
    compared: int | None = None
    category: str = ""
    path: Path = ()
    search: str = ""

    @property
    def narrowed(self) -> bool:
        """Whether some blocks are left out."""
        return bool(self.category or self.path or self.search)


NOTHING = Selection()

_TOGETHER = {"compared": ("compared", "moment")}
"""What goes back together: the two moments of a comparison."""


class Selector:
    """Holds the selection and tells of its changes."""

    def __init__(self) -> None:
        self.now = NOTHING
        self._listeners: list[Callable[[Selection], object]] = []
        self._order: list[str] = []

    def listen(self, listener: Callable[[Selection], object]) -> None:
        """Call ``listener`` with every new selection."""
        self._listeners.append(listener)

    def change(self, **changes: Any) -> None:
        """Change fields of the selection; one that gets its first value back counts as taken back."""
        new = replace(self.now, **changes)
        if new == self.now:
            return
        for name in changes:
            if name in self._order:
                self._order.remove(name)
            if getattr(new, name) != getattr(NOTHING, name):
                self._order.append(name)
        self.now = new
        for listener in self._listeners:
            listener(new)

    def take_back(self) -> bool:
        """Undo the newest choice; false when there was none."""
        if not self._order:
            return False
        newest = self._order[-1]
        self.change(**{name: getattr(NOTHING, name) for name in _TOGETHER.get(newest, (newest,))})
        return True

    def clear(self) -> None:
        """Undo all choices."""
        self.change(**{field.name: getattr(NOTHING, field.name) for field in fields(Selection)})
