"""Laying widgets out in a row or a column, also with bars between them that can be dragged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLayout, QSplitter, QVBoxLayout, QWidget

Part = QWidget | QLayout | int | tuple[QWidget | QLayout, int]
"""What stands there, by itself or with its share of the space that is left; a number alone is empty space of that
share."""

Margins = tuple[int, int, int, int]
"""Left, top, right and bottom, in logical pixels."""

L = TypeVar("L", bound=QBoxLayout)


def in_row(
    *parts: Part, parent: QWidget | None = None, margins: Margins | None = None, spacing: int | None = None
) -> QHBoxLayout:
    """Parts beside one another.

    Args:
        parts: from left to right.
        parent: the widget that they fill; without one the row is a part of another layout.
        margins, spacing: in logical pixels; the style's unless given.
    """
    return _filled(QHBoxLayout() if parent is None else QHBoxLayout(parent), parts, margins, spacing)


def in_column(
    *parts: Part, parent: QWidget | None = None, margins: Margins | None = None, spacing: int | None = None
) -> QVBoxLayout:
    """Parts below one another, from the top down; otherwise as `in_row`."""
    return _filled(QVBoxLayout() if parent is None else QVBoxLayout(parent), parts, margins, spacing)


def in_halves(*parts: tuple[QWidget, int], across: bool) -> QSplitter:
    """Parts with a bar between each two, none of which can be dragged shut.

    Args:
        parts: each with its share of the space that comes or goes.
        across: whether they stand beside one another, or else below.
    """
    splitter = QSplitter(Qt.Orientation.Horizontal if across else Qt.Orientation.Vertical)
    splitter.setChildrenCollapsible(False)
    for place, (part, share) in enumerate(parts):
        splitter.addWidget(part)
        splitter.setStretchFactor(place, share)
    return splitter


def _filled(layout: L, parts: Iterable[Part], margins: Margins | None, spacing: int | None) -> L:
    if margins is not None:
        layout.setContentsMargins(*margins)
    if spacing is not None:
        layout.setSpacing(spacing)
    for part in parts:
        what, share = part if isinstance(part, tuple) else (part, 0)
        if isinstance(what, int):
            layout.addStretch(what)
        elif isinstance(what, QLayout):
            layout.addLayout(what, share)
        else:
            layout.addWidget(what, share)
    return layout
