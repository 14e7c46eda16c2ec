"""The selection within a snapshot: one moment or two, and filters on the blocks. Every pane observes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

Path = tuple[tuple[str, int, str], ...]
"""Frames (file, line, name) from the outermost to the innermost."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected moments and filters.

    Attributes:
        moment: a moment of the history; ``None`` for the default: the last out-of-memory, else the peak.
        compared: an earlier moment to compare `moment` with; ``None`` if only one is selected.
        category: only blocks of this category; "" for all.
        path: only blocks allocated below these frames; empty for all.
        search: only blocks with this text in their stack or category.
    """

    moment: int | None = None
    compared: int | None = None
    category: str = ""
    path: Path = ()
    search: str = ""

    @property
    def narrowed(self) -> bool:
        """Whether a filter leaves out blocks."""
        return bool(self.category or self.path or self.search)


NOTHING = Selection()

_TOGETHER = {"compared": ("compared", "moment")}
"""Fields to undo together: the two moments of a comparison."""


class Selector:
    """Holds the selection and notifies listeners when it changes."""

    def __init__(self) -> None:
        self.now = NOTHING
        self._listeners: list[Callable[[Selection], object]] = []
        self._order: list[str] = []

    def listen(self, listener: Callable[[Selection], object]) -> None:
        """Call ``listener`` with every new selection."""
        self._listeners.append(listener)

    def change(self, **changes: Any) -> None:
        """Change fields of the selection; a field set to its default is removed from the undo order."""
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
        """Undo the last choice; false if there was none."""
        if not self._order:
            return False
        newest = self._order[-1]
        self.change(**{name: getattr(NOTHING, name) for name in _TOGETHER.get(newest, (newest,))})
        return True

    def clear(self) -> None:
        """Reset the selection."""
        self.change(**{field.name: getattr(NOTHING, field.name) for field in fields(Selection)})
