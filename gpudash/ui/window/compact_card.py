"""A device's memory in a small window that stays on top."""

from __future__ import annotations

import math

import numpy as np
from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QCloseEvent, QColor, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QFrame, QSizePolicy, QWidget

from gpudash.devices.names import SIMULATED
from gpudash.drawing.shaping import Points
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.cards import CardContent, MemoryBar
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.window.workspace import Workspace
from gpudash.units import format_left, format_pair

WIDTH_PX, LINE_PX = 260, 34
"""Width of the card and height of its curve, at the default text size."""

SHOWN_S = 60.0
"""Seconds of memory that the curve shows."""

FLAGS = Qt.WindowType.Tool | Qt.WindowType.FramelessWindowHint | Qt.WindowType.WindowStaysOnTopHint


class Sparkline(QWidget):
    """The memory used in the last minute, relative to the capacity."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._points: Points = (np.empty(0), np.empty(0))
        self._range = (0.0, 1.0)
        self._capacity = 1.0
        self.setFixedHeight(scaled(LINE_PX))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_points(self, points: Points, span: tuple[float, float], capacity: float, palette: Palette) -> None:
        """Draw (times, bytes) over ``span`` in seconds, from 0 to ``capacity`` bytes."""
        self._points, self._range, self._capacity, self._palette = points, span, max(capacity, 1.0), palette
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        room = QRectF(self.rect()).adjusted(0.5, 1.5, -0.5, -1.5)
        painter.setPen(QPen(QColor(self._palette.border), 1))
        for y in (room.top(), room.bottom()):
            painter.drawLine(QPointF(room.left(), y), QPointF(room.right(), y))
        begin, end = self._range
        times, sizes = self._points
        line: list[QPointF] = []
        for time_s, size in zip(times, sizes, strict=True):
            if math.isnan(size):
                self._draw(painter, line, room)
                line = []
            else:
                x = room.left() + (time_s - begin) / max(end - begin, 1e-9) * room.width()
                line.append(QPointF(x, room.bottom() - min(size / self._capacity, 1.0) * room.height()))
        self._draw(painter, line, room)

    def _draw(self, painter: QPainter, line: list[QPointF], room: QRectF) -> None:
        if len(line) < 2:
            return
        colour = QColor(self._palette.curves["used"])
        painter.setPen(QPen(colour, 1.5))
        painter.drawPolyline(QPolygonF(line))
        colour.setAlphaF(0.2)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        feet = [QPointF(line[-1].x(), room.bottom()), QPointF(line[0].x(), room.bottom())]
        painter.drawPolygon(QPolygonF([*line, *feet]))


class CompactCard(QFrame):
    """The card of one device. Drag it to move it; Esc or × closes it.

    Signals:
        gone: the card was closed.
    """

    gone = Signal()

    def __init__(self, key: str, palette: Palette, window: QWidget) -> None:
        super().__init__(window, FLAGS)
        self.key = key
        self.setProperty("role", "card")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setAttribute(Qt.WidgetAttribute.WA_ShowWithoutActivating)
        self._name = PlainLabel()
        self._badge = PlainLabel(SIMULATED, role="badge")
        self._figures = PlainLabel(role="figure-small")
        self._text = PlainLabel(role="muted", wraps=True)
        self.bar, self.line = MemoryBar(palette), Sparkline(palette)
        close = worded_button("×", "Close (Esc)", self.close, role="chip", name="Close the compact card")
        close.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        top = in_row((self._name, 1), self._badge, close, spacing=8)
        parts = (top, self._figures, self.bar, self.line, self._text)
        in_column(*parts, parent=self, margins=(12, 8, 10, 10), spacing=4)
        self.setFixedWidth(scaled(WIDTH_PX))

    @property
    def text(self) -> str:
        """The text below the curve; "" for none."""
        if not self._text.isHidden():
            return self._text.text()
        return ""

    def show_content(self, content: CardContent, text: str, palette: Palette) -> None:
        """Show new figures, and ``text`` below the curve if there is any."""
        self.setWindowTitle(f"{content.device} – gpudash")
        self._name.setText(content.device)
        self._name.setToolTip(plain_tip(content.product))
        self._badge.setVisible(content.simulated)
        pair = content.state or f"{format_pair(content.used, content.total)} {content.memory_name}"
        self._figures.setText(pair)
        self.bar.show_content(content, palette)
        self._text.setText(text)
        self._text.setVisible(bool(text))
        marked = ""
        if content.simulated:
            marked = f", {SIMULATED}"
        self.setAccessibleName(f"{content.device}{marked}: {pair}. {text}".strip())
        self.adjustSize()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self.setFixedWidth(scaled(WIDTH_PX))
            self.line.setFixedHeight(scaled(LINE_PX))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        handle = self.windowHandle()
        if event.button() is Qt.MouseButton.LeftButton and handle is not None:
            handle.startSystemMove()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.close()
        else:
            super().keyPressEvent(event)

    def closeEvent(self, event: QCloseEvent) -> None:
        event.accept()
        self.gone.emit()


class CompactCards(QObject):
    """The compact cards of a window, at most one per device.

    Args:
        workspace: provides the live session; the cards close with its window.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._cards: dict[str, CompactCard] = {}
        self._contents: object = None
        workspace.refreshed.connect(self.refresh)
        workspace.colours_changed.connect(self._fill_all)
        workspace.closing.connect(self.close)

    @property
    def cards(self) -> list[CompactCard]:
        """The open cards."""
        return list(self._cards.values())

    def toggle(self) -> None:
        """Open a card for the device that the plots show, or close it."""
        key = self._workspace.dashboard.selected
        if key in self._cards:
            self._cards[key].close()
            return
        card = CompactCard(key, self._workspace.colours, self._workspace.window())
        card.gone.connect(lambda: self._cards.pop(key, None))
        self._cards[key] = card
        self._fill(card)
        card.adjustSize()
        card.move(self._place(card, sum(other.height() + 8 for other in self.cards[:-1])))
        card.show()

    def _place(self, card: CompactCard, taken: int) -> QPoint:
        """Where a card is put: below the figures of the readout, which it would hide, else in the upper right corner.

        Args:
            card: with its size.
            taken: height that the cards before it have there, in logical pixels.
        """
        readout = self._workspace.dashboard.plots.readout
        if readout.isVisible() and readout.free_height >= taken + card.height():
            corner = readout.mapToGlobal(readout.rect().bottomRight())
            return QPoint(corner.x() - card.width(), corner.y() - card.height() - taken)
        corner = self._workspace.window().geometry().topRight()
        return QPoint(corner.x() - card.width() - 16, corner.y() + 48 + taken)

    def refresh(self) -> None:
        """Update the cards; called in every frame."""
        contents = self._workspace.dashboard.figures.contents
        if contents is not self._contents:  # together with the window's cards, so that both show the same
            self._contents = contents
            self._fill_all()

    def close(self) -> None:
        """Close every card."""
        for card in self.cards:
            card.close()

    def _fill_all(self) -> None:
        for card in self.cards:
            self._fill(card)

    def _fill(self, card: CompactCard) -> None:
        dashboard = self._workspace.dashboard
        session, palette = dashboard.session, self._workspace.colours
        table, device = ("host", None) if card.key == "host" else ("gpu", card.key)
        content = next((one for one in dashboard.figures.contents if one.key == card.key), None)
        with session.store.lock:
            newest = session.store.newest_s
            series = session.store.series(table, "used_bytes", device)
            span = (newest - SHOWN_S, newest)
            if series is not None:
                points = series.window(*span, card.width())
            else:
                points = (np.empty(0), np.empty(0))
        if content is None:
            card.close()  # a simulated GPU that no longer exists
            return
        ahead = dashboard.figures.forecasts.get(card.key)
        text = ""
        if ahead is not None:
            text = f"Fills in about {format_left(ahead.seconds)} if it goes on growing."
        card.line.show_points(points, span, content.total or 1.0, palette)
        card.show_content(content, text, palette)
