"""The tabs that draw what is alive: treemap, icicle and memory map, each with the row that steers it."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QPushButton, QScrollArea, QVBoxLayout, QWidget

from gpudash.memory.snapshot.history.categories import NO_STACK
from gpudash.telemetry.explanation import short
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.bar import category_curve
from gpudash.ui.snapshot.drawing.call_tree import Branch
from gpudash.ui.snapshot.drawing.memory_map import IDLE, Map
from gpudash.ui.snapshot.drawing.memory_map_view import MemoryMap
from gpudash.ui.snapshot.drawing.tree_views import Icicle, Treemap, TreeView
from gpudash.ui.snapshot.selection import Path, Selection
from gpudash.ui.snapshot.study import Study
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_bytes, format_count

SHOWN_CRUMBS = 3
"""Innermost frames of the path that are named."""


class TreePane(QWidget):
    """A call tree, its path and whether library lines are in it.

    Signals:
        library_toggled: whether library lines are wanted.
        narrowed: the path that all panes shall be narrowed to.
    """

    library_toggled = Signal(bool)
    narrowed = Signal(object)

    def __init__(self, view: TreeView, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.view = view
        self.palette_ = palette
        self.path: Path = ()
        self._crumbs = PlainLabel("all")
        self._crumbs.setProperty("role", "muted")
        self.out = QPushButton("Out")
        self.out.setToolTip("Show what called it again (Backspace)")
        self.out.clicked.connect(lambda _checked=False: self.view.zoom(self.path[:-1]))
        self.only = QPushButton("Only this")
        self.only.setToolTip("Narrow every pane to what was allocated beneath this line")
        self.only.clicked.connect(lambda _checked=False: self.narrowed.emit(self.path))
        self.library = QCheckBox("library lines")
        self.library.setToolTip("Show the lines of torch and of the standard library too")
        self.library.toggled.connect(self.library_toggled)
        self.view.zoomed.connect(self._zoomed)
        row = QHBoxLayout()
        row.setSpacing(6)
        row.addWidget(self._crumbs, 1)
        for control in (self.only, self.out, self.library):
            row.addWidget(control)
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 6, 4, 2)
        column.setSpacing(4)
        column.addLayout(row)
        if isinstance(view, Icicle):
            scroll = QScrollArea()
            scroll.setWidgetResizable(True)
            scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
            scroll.setWidget(view)
            column.addWidget(scroll, 1)
        else:
            column.addWidget(view, 1)
        self._zoomed(())

    def show_selection(self, study: Study, selection: Selection) -> None:
        """Draw what is alive, or what came between two moments."""
        lives = study.alive(selection) if selection.compared is None else study.came(selection)
        root, most = study.tree(lives, library=self.library.isChecked())
        curves = [category_curve(name, self.palette_) for name in study.history.categories]

        def curve_of(branch: Branch) -> str:
            if branch.number >= 0:
                return curves[int(most[branch.number])]
            return category_curve(branch.name, self.palette_) if branch.name == NO_STACK else ""

        self.view.show_tree(root, curve_of, self.path, selection.search)

    def _zoomed(self, path: Path) -> None:
        self.path = path
        names = [f"{short(file)}:{line} {name}" if file else name for file, line, name in path]
        before = "… › " if len(names) > SHOWN_CRUMBS else "all › " if names else "all"
        self._crumbs.setText(before + " › ".join(names[-SHOWN_CRUMBS:]))
        self._crumbs.setToolTip(plain_tip("\n".join(names)))
        self.out.setEnabled(bool(path))
        self.only.setEnabled(bool(path))


def treemap_pane(palette: Palette) -> TreePane:
    """The treemap."""
    return TreePane(Treemap("Treemap of live bytes by call stack", palette), palette)


def icicle_pane(palette: Palette) -> TreePane:
    """The icicle."""
    return TreePane(Icicle("Icicle of live bytes by call stack", palette), palette)


class CategoryLegend(QWidget):
    """Swatches with names, in one row as far as they fit."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._entries: list[tuple[str, str]] = []
        self.setMinimumHeight(self.fontMetrics().height() + 2)

    def show_entries(self, entries: list[tuple[str, str]]) -> None:
        """Show (words, curve) pairs."""
        self._entries = entries
        self.setAccessibleName("Legend: " + ", ".join(words for words, _curve in entries))
        self.update()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(120, self.fontMetrics().height() + 2)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        metrics, x = painter.fontMetrics(), 0
        for words, curve in self._entries:
            wide = 14 + metrics.horizontalAdvance(words) + 12
            if x + wide - 12 > self.width():
                break
            colour = QColor(self._palette.curves[curve] if curve else self._palette.grid)
            painter.fillRect(x, (self.height() - 9) // 2, 9, 9, colour)
            painter.setPen(QColor(self._palette.text))
            painter.drawText(x + 14, (self.height() + metrics.ascent() - metrics.descent()) // 2, words)
            x += wide
        painter.end()


class BlocksPane(QWidget):
    """The memory map with its legend.

    Signals:
        chosen: the index of a life whose block was clicked.
    """

    chosen = Signal(int)

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._study: Study | None = None
        self._map: Map | None = None
        self.view = MemoryMap(palette)
        self.view.chosen.connect(self._choose)
        self.legend = CategoryLegend(palette)
        self.sums = PlainLabel()
        self.sums.setProperty("role", "muted")
        self._scroll = QScrollArea()
        self._scroll.setWidgetResizable(True)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setWidget(self.view)
        self._scroll.viewport().installEventFilter(self)
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 6, 4, 2)
        column.setSpacing(4)
        column.addWidget(self.sums)
        column.addWidget(self.legend)
        column.addWidget(self._scroll, 1)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self.view.set_room(self._scroll.viewport().size())
        return False

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self.view.set_palette(palette)
        self.legend.set_palette(palette)

    def show_selection(self, study: Study, selection: Selection) -> None:
        """Draw the segments and blocks of the selection's moment."""
        found = study.map(selection)
        self._study, self._map = study, found
        history = study.history
        category = history.lives.category[found.life].astype(np.int64)
        curves = [category_curve(name, self._palette) for name in history.categories]
        self.view.show_map(found, category, study.kept(selection, found.life), curves, self._words)
        entries = [(history.categories[code], curves[code]) for code in np.unique(category).tolist()]
        waits = [("freed, in use by another stream", "forecast")] if bool(found.waits.any()) else []
        self.legend.show_entries([*entries, *waits, ("idle", "")])
        small = sum(1 for segment in found.segments if segment.is_small)
        held = int((found.end - found.begin).sum())
        self.sums.setText(
            f"{format_count(len(found.segments))} segments of {format_bytes(found.total)} "
            f"({format_count(small)} small), {format_count(len(found.begin))} blocks of {format_bytes(held)}"
        )
        self.sums.setToolTip("Ctrl and the wheel zoom; the pointer says what a block is")

    def _words(self, block: int, place: int) -> str:
        assert self._study is not None and self._map is not None
        found = self._map
        segment = found.segments[found.segment_at(place)]
        kind = "small" if segment.is_small else "large"
        pool = "" if segment.pool == (0, 0) else f", private pool {segment.pool}"
        of = f"segment of {format_bytes(segment.size)} at {segment.address:#x}, {kind}, stream {segment.stream}{pool}"
        if block == IDLE:
            low, high = found.idle_at(place)
            amount = f"{format_bytes(high - low)} ({format_count(high - low)} bytes)"
            return f"idle, {amount}\nat {found.address(low):#x}\n{of}"
        lives = self._study.history.lives
        life = int(found.life[block])
        size, asked, stack = int(lives.bytes[life]), int(lives.requested[life]), int(lives.stack[life])
        name = self._study.history.categories[int(lives.category[life])]
        category = "" if name == NO_STACK else f"{name}, "
        state = "freed, in use by another stream, " if bool(found.waits[block]) else ""
        asked_for = f", {format_count(asked)} asked for" if asked and asked != size else ""
        return (
            f"{state}{category}{format_bytes(size)} ({format_count(size)} bytes{asked_for})\n"
            f"at {int(lives.address[life]):#x}, stream {int(lives.stream[life])}\n"
            f"{self._study.places.words[stack]}\n{of}"
        )

    def _choose(self, block: int) -> None:
        if self._map is not None:
            self.chosen.emit(int(self._map.life[block]))
