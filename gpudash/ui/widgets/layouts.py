"""Laying out widgets in a row or a column, also with a splitter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QFrame, QHBoxLayout, QLayout, QScrollArea, QSplitter, QVBoxLayout, QWidget

Part = QWidget | QLayout | int | tuple[QWidget | QLayout, int]
"""An item, alone or with its stretch factor; a number alone is empty space with that stretch factor."""

Margins = tuple[int, int, int, int]
"""Left, top, right and bottom, in logical pixels."""

L = TypeVar("L", bound=QBoxLayout)


def in_row(
    *parts: Part, parent: QWidget | None = None, margins: Margins | None = None, spacing: int | None = None
) -> QHBoxLayout:
    """Items side by side.

    Args:
        parts: from left to right.
        parent: widget to lay out; without one, the row is for use in another layout.
        margins, spacing: logical pixels; the style's if not given.
    """
    return _filled(QHBoxLayout() if parent is None else QHBoxLayout(parent), parts, margins, spacing)


def in_column(
    *parts: Part, parent: QWidget | None = None, margins: Margins | None = None, spacing: int | None = None
) -> QVBoxLayout:
    """Items below each other, from top to bottom; otherwise like `in_row`."""
    return _filled(QVBoxLayout() if parent is None else QVBoxLayout(parent), parts, margins, spacing)


def in_halves(*parts: tuple[QWidget, int], across: bool) -> QSplitter:
    """A splitter whose parts cannot be collapsed.

    Args:
        parts: each with its stretch factor.
        across: whether the parts are side by side rather than below each other.
    """
    splitter = QSplitter(Qt.Orientation.Horizontal if across else Qt.Orientation.Vertical)
    splitter.setChildrenCollapsible(False)
    for place, (part, share) in enumerate(parts):
        splitter.addWidget(part)
        splitter.setStretchFactor(place, share)
    return splitter


def scrolled(widget: QWidget, name: str = "") -> QScrollArea:
    """A frameless area of the widget's width in which it scrolls up and down.

    Args:
        widget: what is scrolled.
        name: accessible name.
    """
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setAccessibleName(name)
    area.setWidget(widget)
    return area


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
