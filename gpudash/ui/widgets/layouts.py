"""Laying out widgets in a row or a column, also with a splitter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from PySide6.QtCore import QPoint, QRect, QRectF, Qt
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPalette, QRegion, QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QHBoxLayout,
    QLayout,
    QScrollArea,
    QSplitter,
    QSplitterHandle,
    QVBoxLayout,
    QWidget,
)

from gpudash.ui.widgets.plain_text import plain_tip

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


GRIP_PX, GAP_PX = 10, 4
"""Logical pixels between the parts of a `GripSplitter`, and while its grip is not offered."""

TARGET_PX = (64, 24)
"""Width and height of the middle of a grip that can be dragged; it reaches into both parts."""

MARK_PX = (36, 4)
"""Width and height of the mark of a grip."""

KEY_STEP_PX = 24
"""Logical pixels that an arrow key moves a grip."""


class GripSplitter(QSplitter):
    """Two parts below each other, with a grip between them that is seen, and dragged or moved with the arrow keys.

    Args:
        name: what the grip changes, for screen readers: "Height of the tables".
    """

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__(Qt.Orientation.Vertical)
        self.setChildrenCollapsible(False)
        self.setHandleWidth(GRIP_PX)

    def createHandle(self) -> QSplitterHandle:
        return _Grip(self._name, self)

    def set_adjustable(self, adjustable: bool) -> None:
        """Offer the grip, or not."""
        for place in range(1, self.count()):
            self.handle(place).setEnabled(adjustable)
        self.setHandleWidth(GRIP_PX if adjustable else GAP_PX)


class _Grip(QSplitterHandle):
    """A handle whose middle is higher than the gap that it stands in."""

    def __init__(self, name: str, splitter: QSplitter) -> None:
        super().__init__(Qt.Orientation.Vertical, splitter)
        self._from: QPoint | None = None
        self.setAccessibleName(name)
        self.setToolTip(plain_tip(f"{name}: drag, or press the up and down keys"))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)

    @property
    def _beyond(self) -> int:
        """How far the middle reaches into each part."""
        return (TARGET_PX[1] - GRIP_PX) // 2

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if not self.isEnabled():
            self.clearMask()
            return
        if self.height() <= GRIP_PX:  # as the splitter places it
            self.setGeometry(self.geometry().adjusted(0, -self._beyond, 0, self._beyond))
            return
        middle = QRect(QPoint(), self.rect().size()).adjusted((self.width() - TARGET_PX[0]) // 2, 0, 0, 0)
        middle.setWidth(TARGET_PX[0])
        gap = self.rect().adjusted(0, self._beyond, 0, -self._beyond)
        self.setMask(QRegion(gap).united(QRegion(middle)))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton:
            self._from = event.position().toPoint()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._from is not None:
            self._move(round(event.position().y()) - self._from.y())

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._from = None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Up:
            self._move(-KEY_STEP_PX)
        elif event.key() == Qt.Key.Key_Down:
            self._move(KEY_STEP_PX)
        else:
            super().keyPressEvent(event)

    def _move(self, pixels: int) -> None:
        top = self.y()
        if self.height() > GRIP_PX:
            top += self._beyond
        self.moveSplitter(self.closestLegalPosition(top + pixels))

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self.isEnabled():
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        colour = self.palette().color(QPalette.ColorRole.WindowText)
        painter.setOpacity(1.0 if self.hasFocus() or self.underMouse() else 0.5)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        mark = QRectF(0, 0, *MARK_PX)
        mark.moveCenter(QRectF(self.rect()).center())
        painter.drawRoundedRect(mark, MARK_PX[1] / 2, MARK_PX[1] / 2)
        if self.hasFocus():
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(colour)
            painter.drawRoundedRect(mark.adjusted(-4, -3, 4, 3), 5, 5)


class ScrolledParts(QWidget):
    """Parts in a scroll area, which scrolls only where they have less height than they need with their words whole."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("role", "scrolled")

    def heightForWidth(self, width: int) -> int:
        """The least height; by default it is the preferred one, below which the area would scroll already."""
        layout = self.layout()
        assert layout is not None
        return layout.totalMinimumHeightForWidth(width)


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


def scrolled_both_ways(page: QWidget, name: str) -> QScrollArea:
    """An area for a whole page, which scrolls where the page has less than its least size. Tab does not stop at it.

    Args:
        page: the page; its `heightForWidth` is its least height.
        name: accessible name.
    """
    page.setProperty("role", "scrolled")
    area = scrolled(page, name)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
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
