"""The row at the bottom: the status line, and strips over it for what needs attention."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, Qt
from PySide6.QtGui import QMoveEvent, QRegion, QResizeEvent
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy, QWidget

from gpudash.ui.dashboard.status_line import StatusLine
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.text_size import scaled

HEIGHT_PX = 34
"""Logical pixels: two lines of a strip's text, or one of its buttons."""

BARE_PX = 6
"""Height of the row while the status line is hidden, as in a presentation, and there is no strip."""

_MOVED = frozenset({QEvent.Type.Show, QEvent.Type.Hide, QEvent.Type.LayoutRequest})


class Footer(QWidget):
    """The status line in a row of fixed height, with strips laid over it, so that nothing moves when one appears.

    A strip that needs more height extends upwards over the content. A passing message of the status line covers a
    strip while it is shown, except the strip's buttons.
    """

    def __init__(self, status_line: StatusLine) -> None:
        super().__init__()
        self._line = status_line
        self._strips: list[QFrame] = []
        self.setProperty("role", "footer")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        in_column(status_line, parent=self, margins=(0, 0, 0, 0))
        status_line.message_changed.connect(self._place)
        status_line.installEventFilter(self)
        self._bare = False
        self.setFixedHeight(scaled(HEIGHT_PX))

    def hold(self, strip: QFrame) -> None:
        """Place ``strip`` here while it is shown; strips added earlier lie on top."""
        shown = not strip.isHidden()
        strip.setParent(self.parentWidget())
        strip.setVisible(shown)
        strip.installEventFilter(self)
        self._strips.append(strip)
        self._place()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._line:
            if event.type() in (QEvent.Type.ShowToParent, QEvent.Type.HideToParent):
                self._bare = event.type() is QEvent.Type.HideToParent
                self._measure()
        elif event.type() in _MOVED:
            self._measure()
            self._place()
        return super().eventFilter(watched, event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._measure()

    def _measure(self) -> None:
        is_empty = self._bare and all(strip.isHidden() for strip in self._strips)
        self.setFixedHeight(scaled(BARE_PX if is_empty else HEIGHT_PX))

    def moveEvent(self, event: QMoveEvent) -> None:
        super().moveEvent(event)
        self._place()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()

    def _place(self) -> None:
        self.clearMask()
        shown = [strip for strip in self._strips if not strip.isHidden()]
        for strip in reversed(shown):
            height = max(scaled(HEIGHT_PX), strip.heightForWidth(self.width()))
            strip.setGeometry(QRect(self.x(), self.geometry().bottom() + 1 - height, self.width(), height))
            strip.raise_()
        if shown and self._line.has_message:
            buttons = (button for button in shown[0].findChildren(QPushButton) if button.isVisibleTo(shown[0]))
            room = min((button.mapTo(shown[0], QPoint()).x() for button in buttons), default=self.width())
            self.setMask(QRegion(0, 0, max(1, room), self.height()))
            self.raise_()
