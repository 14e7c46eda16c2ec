"""The overview's grid: one widget that paints only the visible cells, however many there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QColor,
    QContextMenuEvent,
    QFocusEvent,
    QFont,
    QFontMetrics,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QToolTip

from gpudash.devices.names import SIMULATED
from gpudash.ui.colours import Palette, mixed, text_on
from gpudash.ui.fleet.labels import Cell, Level
from gpudash.ui.fleet.layout import Density, FleetLayout, Rect, Section
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.widgets.text_size import scaled

PAD = 8
"""Logical pixels between a cell's edge and its text."""

ABOVE, BELOW = 5, 4
"""Logical pixels above a cell's first line of text, and below its last."""

BAR = 8
"""Height of the bar, in logical pixels at the normal text size."""

STEPS = 100
"""Number of shades in the heat map, one per percent."""

FAINTEST = 0.12
"""Share of the colour in an empty GPU's cell, so that the cell is still visible."""

SMALL_PT, TINY_PT = 8.0, 7.0

MOST_ELIDED = 4096
"""Maximum number of elided names that are cached."""

LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
CENTRE = int(Qt.AlignmentFlag.AlignCenter)
UPPER = int(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignBottom)
LOWER = int(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop)


class CellPainter:
    """Paints cells of one density in one palette.

    Args:
        palette: colours.
        density: cell size.
        font: the window's font.
        larger: scale of text and bar in large cells.
    """

    def __init__(self, palette: Palette, density: Density, font: QFont, larger: float = 1.0) -> None:
        self.larger = larger
        if density == "cells":
            self.paint = self._paint_cell
        else:
            self.paint = self._paint_dense
        self._panel, self._text, self._muted = map(QColor, (palette.panel, palette.text, palette.muted))
        self._border, self._accent = QPen(QColor(palette.border), 1), QPen(QColor(palette.accent), 2)
        self._focus = QPen(QColor(palette.text), 2)
        self._chosen = mixed(QColor(palette.accent), self._panel, 0.8)
        self._ground = QColor(palette.grid)
        base: Mapping[Level, str] = {"": palette.curves["used"], "warning": palette.warn, "critical": palette.critical}
        self._marks = {"": self._muted, "warning": QColor(palette.warn), "critical": QColor(palette.critical)}
        self._stale = QBrush(self._muted, Qt.BrushStyle.BDiagPattern)
        self._colours: dict[Level, QColor] = {}
        self._shades: dict[Level, list[QColor]] = {}
        self._inks: dict[Level, list[QColor]] = {}
        for level, name in base.items():
            colour = self._colours[level] = QColor(name)
            shades = self._shades[level] = [self._shade(colour, step) for step in range(STEPS + 1)]
            self._inks[level] = list(map(text_on, shades))
        times = 1.0
        if density == "cells":
            times = larger
        self._font = QFont(font)
        self._font.setPointSizeF(font.pointSizeF() * times)
        self._small, self._tiny = sized(font, SMALL_PT * times), sized(font, TINY_PT)
        self._bold = sized(font, SMALL_PT * times)
        self._bold.setBold(True)
        self._warn = QColor(palette.warn)
        self._dashes = QPen(self._muted, 1, Qt.PenStyle.DashLine)
        self._measure = QFontMetrics(self._font)
        self._line, self._bar = self._measure.height(), round(scaled(BAR) * times)
        self._pad, self._above, self._below = (round(px * times) for px in (PAD, ABOVE, BELOW))
        bold = QFontMetrics(self._bold)
        self._percent, self._badge_width = (bold.horizontalAdvance(text) + self._pad for text in ("100 %", SIMULATED))
        self._elided: dict[tuple[str, int], str] = {}

    def _shade(self, colour: QColor, step: int) -> QColor:
        share = FAINTEST + (1 - FAINTEST) * step / STEPS
        return mixed(colour, self._panel, 1 - share)

    def _paint_cell(self, painter: QPainter, rect: Rect, cell: Cell, *, chosen: bool, current: bool) -> None:
        left, top, width, height = rect
        painter.setPen(self._outline(self._border, chosen=chosen, current=current))
        painter.setBrush(self._chosen if chosen else self._panel)
        painter.drawRect(left, top, width - 1, height - 1)
        inner, room, line = left + self._pad, width - 2 * self._pad, self._line
        head = QRect(inner, top + self._above, room, line)
        below = QRect(inner, top + height - line - self._below, room, line)
        # The badge goes beside the name if the whole name still fits; else it replaces the utilisation, which for a
        # simulated GPU is not a GPU's.
        # simulated
        in_head = not cell.simulated or cell.marked or self._has_room_alongside(cell.name, room)
        badge = 0
        if cell.simulated and in_head:
            badge = self._badge_width
        painter.setFont(self._font)
        painter.setPen(self._text)
        painter.drawText(head.adjusted(0, 0, -badge, 0), LEFT, self._elide(cell.name, room - badge))
        self._paint_bar(painter, (inner, top + (height - self._bar) // 2, room - self._percent, self._bar), cell)
        painter.setFont(self._bold)
        painter.setPen(self._text)
        painter.drawText(QRect(inner, top + (height - line) // 2, room, line), RIGHT, cell.percent)
        if cell.simulated:
            painter.setPen(self._warn)
            painter.drawText(head if in_head else below, RIGHT, SIMULATED)
        if cell.marked:
            painter.setPen(self._marks[cell.level])
            painter.drawText(below, RIGHT, cell.status)
        painter.setFont(self._small)
        if not cell.marked and in_head:
            painter.setPen(self._muted)
            painter.drawText(below, RIGHT, cell.status)
        painter.setPen(self._text)
        painter.drawText(below, LEFT, cell.figure)

    def _has_room_alongside(self, name: str, room: int) -> bool:
        """Whether the whole name leaves room for the badge."""
        return self._measure.horizontalAdvance(name) <= room - self._badge_width

    def _paint_bar(self, painter: QPainter, rect: Rect, cell: Cell) -> None:
        left, top, width, height = rect
        painter.fillRect(left, top, width, height, self._ground)
        if cell.fullness is None:
            return
        filled = round(width * min(max(cell.fullness, 0.0), 1.0))
        if cell.stale:
            painter.fillRect(left, top, filled, height, self._stale)
        else:
            painter.fillRect(left, top, filled, height, self._colours[cell.level])

    def _paint_dense(self, painter: QPainter, rect: Rect, cell: Cell, *, chosen: bool, current: bool) -> None:
        left, top, width, height = rect
        if cell.fullness is None:
            step = 0
        else:
            step = round(min(max(cell.fullness, 0.0), 1.0) * STEPS)
        known = cell.fullness is not None and not cell.stale
        painter.fillRect(left, top, width, height, self._shades[cell.level][step] if known else self._ground)
        if known:
            ink = self._inks[cell.level][step]
        else:
            ink = self._text
        painter.setPen(ink)
        if cell.short:
            painter.setFont(self._small)
            painter.drawText(QRect(left, top, width, height // 2), UPPER, cell.percent)
            painter.setFont(self._tiny)
            painter.drawText(QRect(left, top + height // 2, width, height - height // 2), LOWER, cell.short)
        else:
            painter.setFont(self._small)
            painter.drawText(QRect(left, top, width, height), CENTRE, cell.percent)
        if chosen or current or cell.stale:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(self._outline(self._dashes, chosen=chosen, current=current))
            painter.drawRect(left, top, width - 1, height - 1)

    def _outline(self, usual: QPen, *, chosen: bool, current: bool) -> QPen:
        if current:
            return self._focus
        if chosen:
            return self._accent
        return usual

    def _elide(self, text: str, width: int) -> str:
        known = self._elided.get((text, width))
        if known is None:
            if len(self._elided) >= MOST_ELIDED:  # each width of a resized window has its own elided names
                self._elided.clear()
            known = self._measure.elidedText(text, Qt.TextElideMode.ElideMiddle, width)
            self._elided[text, width] = known
        return known


def sized(font: QFont, points: float) -> QFont:
    """``font`` at another size, scaled by the user's text size."""
    result = QFont(font)
    result.setPointSizeF(scaled(points * 10) / 10)
    return result


REST_S = 8.0
"""Seconds after the last pointer move or key in the grid during which its order is kept."""

_ARROWS = {
    Qt.Key.Key_Left: (-1, 0),
    Qt.Key.Key_Right: (1, 0),
    Qt.Key.Key_Up: (0, -1),
    Qt.Key.Key_Down: (0, 1),
}

CONTROL = Qt.KeyboardModifier.ControlModifier


class FleetGrid(QAbstractScrollArea):
    """The grid of GPUs. Arrows move, Enter or a double click opens, Ctrl+click (or Space) selects several.

    Args:
        palette: current colours.
        clock: any clock, in seconds.

    Attributes:
        cells: what is drawn for each GPU, by key.
        current: key of the current cell, on which keys act; "" for none.
        chosen: keys of the selected cells, in the order of selection.

    Signals:
        opened: key of the GPU to open.
        choice_changed: the current cell or the selection changed.
        typed: typed text, for the search.
        menu_wanted: key, and global position of the context menu.
    """

    opened = Signal(str)
    choice_changed = Signal()
    typed = Signal(str)
    menu_wanted = Signal(str, QPoint)

    def __init__(self, palette: Palette, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._palette = palette
        self._clock = clock
        self._sections: Sequence[Section] = ()
        self._density: Density = "cells"
        self._touched_s = -REST_S
        self._titles: Mapping[str, str] = {}
        self.tip: Callable[[str], str] = lambda _key: ""
        self.cells: Mapping[str, Cell] = {}
        self.current = ""
        self.chosen: list[str] = []
        self.layout_ = FleetLayout((), 400, self._density)
        self._painter = CellPainter(palette, self._density, self.font())
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setAccessibleName("Overview of the GPUs")
        self.setMinimumHeight(120)

    @property
    def busy(self) -> bool:
        """Whether the pointer or the keyboard is, or just was, in use here."""
        return self._clock() - self._touched_s < REST_S

    @property
    def density(self) -> Density:
        """The cell size."""
        return self._density

    def set_density(self, density: Density) -> None:
        """Change the cell size; the current cell stays visible."""
        if density != self._density:
            self._density = density
            self._restyle()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self._restyle()

    def _restyle(self) -> None:
        self._painter = CellPainter(self._palette, self._density, self.font())
        self._lay_out()
        if self.current:
            self._bring_into_sight()

    def show_cells(self, cells: Mapping[str, Cell]) -> None:
        """Update the figures; the cells stay in place."""
        self.cells = cells
        self.viewport().update()

    def show_sections(self, sections: Sequence[Section], titles: Mapping[str, str]) -> None:
        """Rearrange the cells. The current cell and the selection stay while they are shown, and so does the scroll
        position.

        Args:
            sections: GPUs in order.
            titles: heading of each group.
        """
        self._sections, self._titles = sections, titles
        self._lay_out()
        gone = self.current and self.layout_.place_of(self.current) is None
        chosen = [key for key in self.chosen if self.layout_.place_of(key) is not None]
        if gone or chosen != self.chosen:
            if gone:
                self.current = ""
            self.chosen = chosen
            self.choice_changed.emit()

    def show_titles(self, titles: Mapping[str, str]) -> None:
        """Change the headings of the groups."""
        self._titles = titles

    def _lay_out(self) -> None:
        bar, room, width = self.verticalScrollBar(), self.viewport().height(), self.viewport().width() - 2
        # At most as large as with the whole fleet shown, so that a search enlarges no cell.
        most = FleetLayout((Section("", tuple(self.cells)),), width, self._density, room).larger
        self.layout_ = FleetLayout(self._sections, width, self._density, room, most)
        if self.layout_.larger != self._painter.larger:
            self._painter = CellPainter(self._palette, self._density, self.font(), self.layout_.larger)
        bar.setRange(0, max(0, self.layout_.height - room))
        bar.setPageStep(room)
        bar.setSingleStep(self.layout_.row_height)
        self.viewport().update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._lay_out()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._restyle()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.viewport().update()

    def paintEvent(self, event: QPaintEvent) -> None:
        layout, paint, cells = self.layout_, self._painter.paint, self.cells
        painter = QPainter(self.viewport())
        painter.fillRect(event.rect(), QColor(self._palette.window))
        offset = self.verticalScrollBar().value()
        painter.translate(0, -offset)
        top, bottom = event.rect().top() + offset, event.rect().bottom() + 1 + offset
        self._paint_titles(painter, top, bottom)
        current, chosen = self.current if self.hasFocus() else "", set(self.chosen)
        keys, rect = layout.keys, layout.rect
        for place in layout.seen(top, bottom):
            key = keys[place]
            cell = cells.get(key)
            if cell is not None:
                paint(painter, rect(place), cell, chosen=key in chosen, current=key == current)
        painter.end()

    def _paint_titles(self, painter: QPainter, top: int, bottom: int) -> None:
        font = self.font()
        font.setBold(True)
        painter.setFont(font)
        painter.setPen(QColor(self._palette.muted))
        for section, rect in self.layout_.titles(top, bottom):
            text = painter.fontMetrics().elidedText(
                self._titles.get(section.title, section.title), Qt.TextElideMode.ElideRight, rect[2]
            )
            painter.drawText(QRect(*rect), LEFT, text)

    def make_current(self, key: str, *, alone: bool = True) -> None:
        """Make this GPU the current one and scroll to it; ``alone`` also selects it and nothing else."""
        if self.layout_.place_of(key) is None:
            return
        self.current = key
        if alone:
            self.chosen = [key]
        self._bring_into_sight()
        self._announce()

    def toggle(self, key: str) -> None:
        """Add this GPU to the selection, or remove it."""
        if key in self.chosen:
            self.chosen = [other for other in self.chosen if other != key]
        else:
            self.chosen = [*self.chosen, key]
        self.current = key
        self._announce()

    def _announce(self) -> None:
        self.setAccessibleDescription(self.tip(self.current))
        self.viewport().update()
        self.choice_changed.emit()

    def _bring_into_sight(self) -> None:
        place = self.layout_.place_of(self.current)
        if place is None:
            return
        _left, top, _width, height = self.layout_.rect(place)
        bar, room = self.verticalScrollBar(), self.viewport().height()
        if top < bar.value():
            bar.setValue(top if top > self.layout_.row_height else 0)
        elif top + height > bar.value() + room:
            bar.setValue(top + height - room)

    def key_at(self, place: QPoint) -> str:
        """The GPU at a position in the viewport; "" between cells."""
        found = self.layout_.at(place.x(), place.y() + self.verticalScrollBar().value())
        if found is None:
            return ""
        return self.layout_.keys[found]

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._touched_s = self._clock()
        key = self.key_at(event.position().toPoint())
        if event.button() == Qt.MouseButton.RightButton:
            return
        if not key:
            self.chosen = []
            self._announce()
        elif event.modifiers() & CONTROL:
            self.toggle(key)
        else:
            self.make_current(key)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        key = self.key_at(event.position().toPoint())
        if key and event.button() == Qt.MouseButton.LeftButton:
            self.opened.emit(key)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._touched_s = self._clock()

    def leaveEvent(self, event: QEvent) -> None:
        self._touched_s = -REST_S
        super().leaveEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        self._touched_s = self._clock()
        super().wheelEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        mouse = event.reason() == QContextMenuEvent.Reason.Mouse
        if mouse:
            key = self.key_at(event.pos())
        else:
            key = self.current
        if key:
            if key not in self.chosen:
                self.make_current(key)
            self.menu_wanted.emit(key, event.globalPos() if mouse else self._place_on_screen(key))

    def _place_on_screen(self, key: str) -> QPoint:
        left, top, _width, height = self.layout_.rect(self.layout_.place_of(key) or 0)
        return self.viewport().mapToGlobal(QPoint(left, top + height - self.verticalScrollBar().value()))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        self._touched_s = self._clock()
        key = Qt.Key(event.key())
        if self._moves(key, event.modifiers()):
            return
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.current:
            self.opened.emit(self.current)
        elif key == Qt.Key.Key_Space and self.current:
            self.toggle(self.current)
        elif key == Qt.Key.Key_Escape and self.chosen:
            self.chosen = []
            self._announce()
        elif event.text().isprintable() and event.text().strip() and not event.modifiers() & CONTROL:
            self.typed.emit(event.text())
        else:
            super().keyPressEvent(event)

    def _moves(self, key: Qt.Key, modifiers: Qt.KeyboardModifier) -> bool:
        layout = self.layout_
        if not layout.keys or key not in (*_ARROWS, *_FAR):
            return False
        place = layout.place_of(self.current)
        if place is None:
            goal = 0
        elif key in _ARROWS:
            goal = layout.moved(place, *_ARROWS[key])
        elif key in (Qt.Key.Key_Home, Qt.Key.Key_End):
            if key == Qt.Key.Key_Home:
                goal = 0
            else:
                goal = len(layout.keys) - 1
        else:
            rows = max(1, self.viewport().height() // layout.row_height - 1)
            goal = layout.moved(place, 0, rows if key == Qt.Key.Key_PageDown else -rows)
        self.make_current(layout.keys[goal], alone=not modifiers & CONTROL)
        return True

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.viewport().update()

    def viewportEvent(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            key = self.key_at(event.pos())
            text = ""
            if key:
                text = self.tip(key)
            if text:
                QToolTip.showText(event.globalPos(), plain_tip(text), self)
            else:
                QToolTip.hideText()
            return True
        return super().viewportEvent(event)


_FAR = (Qt.Key.Key_Home, Qt.Key.Key_End, Qt.Key.Key_PageUp, Qt.Key.Key_PageDown)
