"""Accepts files dropped anywhere on the window, and shows a hint while they are dragged over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QEvent, QMimeData, QObject, QRectF, Qt
from PySide6.QtGui import QColor, QDropEvent, QFont, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QLineEdit, QWidget

from gpudash.ui.colours import Palette
from gpudash.ui.widgets.theme import PaintedWidget

INVITATION = "Drop a snapshot, an out-of-memory report, a recording or a model"
TRUST = "No data leaves this computer."

BOX = (560, 104)
"""Size in logical pixels of the framed text in the middle."""

OPACITY = 215
"""Opacity of the overlay, of 255: what is below stays recognisable."""


def dropped_files(data: QMimeData) -> list[Path]:
    """The local files and folders in the drag data."""
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]


class Dropping(QObject):
    """Accepts files dropped on ``window``, shows a hint during the drag, and passes the files to ``opened``."""

    def __init__(self, window: QWidget, palette: Palette, opened: Callable[[Sequence[Path]], None]) -> None:
        super().__init__(window)
        self.hint = DropHint(palette, window)
        self._opened = opened
        window.setAcceptDrops(True)
        window.installEventFilter(self)
        leave_drops(window)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QDropEvent):  # the base class of enter and move events
            files = dropped_files(event.mimeData())
            if not files:
                return False
            event.acceptProposedAction()
            if event.type() == QEvent.Type.DragEnter:
                self.hint.cover()
            elif event.type() == QEvent.Type.Drop:
                self.hint.hide()
                self._opened(files)
            return True
        if event.type() == QEvent.Type.DragLeave:
            self.hint.hide()
        return False


def leave_drops(parent: QWidget) -> None:
    """Let drops on every text field in ``parent`` go to the window: a field would insert the path as text."""
    for line in parent.findChildren(QLineEdit):
        line.setAcceptDrops(False)


class DropHint(PaintedWidget):
    """Covers ``window`` while files are dragged over it; transparent to the mouse."""

    def __init__(self, palette: Palette, window: QWidget) -> None:
        super().__init__(palette, window)
        self._window = window
        self.setAccessibleName(f"{INVITATION}. {TRUST}")
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()

    def cover(self) -> None:
        """Show the hint over the whole window."""
        self.setGeometry(self._window.rect())
        self.raise_()
        self.show()

    def paintEvent(self, event: QPaintEvent) -> None:
        colours = self._palette
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        ground = QColor(colours.window)
        ground.setAlpha(OPACITY)
        painter.fillRect(self.rect(), ground)
        width, height = min(BOX[0], self.width() - 40), BOX[1]
        box = QRectF((self.width() - width) / 2, (self.height() - height) / 2, width, height)
        painter.setPen(QPen(QColor(colours.accent), 2, Qt.PenStyle.DashLine))
        painter.setBrush(QColor(colours.panel))
        painter.drawRoundedRect(box, 10, 10)
        inside = box.adjusted(24, 20, -24, -20)
        large = QFont(self.font())
        large.setPointSizeF(large.pointSizeF() * 1.25)
        large.setBold(True)
        painter.setFont(large)
        painter.setPen(QColor(colours.text))
        flags = Qt.AlignmentFlag.AlignHCenter.value | Qt.TextFlag.TextWordWrap.value
        painter.drawText(inside, flags | Qt.AlignmentFlag.AlignTop.value, INVITATION)
        painter.setFont(self.font())
        painter.setPen(QColor(colours.muted))
        painter.drawText(inside, flags | Qt.AlignmentFlag.AlignBottom.value, TRUST)
        painter.end()
