"""The tabs that draw live memory: treemap, icicle (click to zoom in, Backspace to zoom out) and memory map, each with
its controls.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFontMetrics,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QCheckBox, QSizePolicy, QToolTip, QWidget

from gpudash.memory.frames import Frame, is_library
from gpudash.memory.snapshot.history.phases import NO_STACK
from gpudash.telemetry.explanation import short
from gpudash.ui.colours import Palette, category_curve, mixed, text_on
from gpudash.ui.explanation.memory_map import IDLE, Map, MemoryMap, ScrolledMap, idle_colour
from gpudash.ui.snapshot.drawing.call_tree import Box, Branch, beneath, branch_text, icicle, stackless, treemap
from gpudash.ui.snapshot.selection import Path, Selection
from gpudash.ui.snapshot.study import Study
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_row, scrolled
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.theme import PaintedWidget
from gpudash.units import format_bytes, format_count, format_like, format_percent

ROW = 20
"""Height in logical pixels of a frame in the icicle."""

SHADES = (0.0, 0.12)
"""How much darker even and odd depths are drawn."""


LEAST_EDGED = 3
"""Minimum width in logical pixels for a box to have an outline."""

EDGE = 0.55
"""Share of the background in the colour of a box's outline."""


class TreeView(PaintedWidget):
    """Draws a call tree as boxes.

    Signals:
        zoomed: this path now fills the view.
    """

    zoomed = Signal(object)

    def __init__(self, name: str, palette: Palette) -> None:
        super().__init__(palette)
        self._root: Branch | None = None
        self._path: Path = ()
        self._search = ""
        self._curve_of: Callable[[Branch], str] = lambda _branch: ""
        self._boxes: list[Box] | None = None
        self._at = 0
        self._mixtures: dict[tuple[str, bool, int, bool], QColor] = {}
        self._libraries: dict[str, bool] = {}
        self.setAccessibleName(name)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def show_tree(self, root: Branch, curve_of: Callable[[Branch], str], path: Path = (), search: str = "") -> None:
        """Draw the part of the tree below ``path``.

        Args:
            root: the whole tree.
            curve_of: the name of the curve whose colour a branch has; "" for the background.
            path: fills the view.
            search: branches without this text in their name are drawn fainter.
        """
        self._root, self._search, self._curve_of = root, search.lower(), curve_of
        self._path = path if beneath(root, path) is not None else ()
        self._boxes = None
        self._at = 0
        largest = ", ".join(f"{branch_text(b)} {format_bytes(b.bytes)}" for b in root.children[:3])
        self.setAccessibleDescription(f"{format_bytes(root.bytes)} in {format_count(root.count)} blocks: {largest}")
        self.updateGeometry()
        self.update()

    def set_palette(self, palette: Palette) -> None:
        self._mixtures = {}
        super().set_palette(palette)

    def boxes(self) -> list[Box]:
        """The boxes drawn, the outermost first."""
        if self._boxes is None:
            branch = None
            if self._root is not None:
                branch = beneath(self._root, self._path)
            if branch is None or not branch.bytes:
                self._boxes = []
            else:
                self._boxes = self._laid_out(branch)
        return self._boxes

    def _laid_out(self, branch: Branch) -> list[Box]:
        raise NotImplementedError

    def zoom(self, path: Path) -> None:
        """Let the branch at ``path`` fill the view."""
        if path != self._path:
            self._path = path
            self._boxes = None
            self.updateGeometry()
            self.update()
            self.zoomed.emit(path)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._boxes = None
        super().resizeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(event.rect(), QColor(self._palette.panel))
        seen = QRectF(event.rect())
        for number, box in enumerate(self.boxes()):
            place = QRectF(box.left, box.top, box.width, box.height)
            if place.intersects(seen):
                self._draw_box(painter, box, place, focused=self.hasFocus() and number == self._at)
        if not self.boxes():
            painter.setPen(QColor(self._palette.muted))
            painter.drawText(
                self.rect(), Qt.AlignmentFlag.AlignCenter, "Nothing is live here. Esc removes the last filter."
            )
        painter.end()

    def _draw_box(self, painter: QPainter, box: Box, place: QRectF, *, focused: bool) -> None:
        colour = self._colour(box)
        painter.fillRect(place, colour)
        if place.width() > LEAST_EDGED:
            painter.setPen(mixed(colour, QColor(self._palette.panel), EDGE))
            painter.drawRect(place.adjusted(0, 0, -1, -1))
        if focused:
            painter.setPen(QPen(QColor(self._palette.text), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(place.adjusted(1, 1, -2, -2))
        if place.width() < 34 or place.height() < painter.fontMetrics().height():
            return
        painter.setPen(text_on(colour))
        inside = QRectF(place.left() + 4, place.top(), place.width() - 8, min(place.height(), ROW))
        for number, text in enumerate(self._text_in(box, painter.fontMetrics(), place)):
            painter.drawText(
                inside.translated(0, number * painter.fontMetrics().lineSpacing()),
                Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft,
                painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, int(inside.width())),
            )

    @staticmethod
    def _text_in(box: Box, metrics: QFontMetrics, place: QRectF) -> list[str]:
        """Position, function and size on one line; if too long, the size on a second line, or without the function."""
        name, size = branch_text(box.branch) if box.path else box.branch.name or "all", format_bytes(box.branch.bytes)
        where = name
        if box.path and box.branch.file:
            where = f"{short(box.branch.file)}:{box.branch.line}"
        room = place.width() - 8
        whole = f"{name}  {size}"
        if metrics.horizontalAdvance(whole) <= room:
            return [whole]
        if not box.branch.children and place.height() >= ROW + metrics.lineSpacing():
            return [name if metrics.horizontalAdvance(name) <= room else where, size]
        brief = f"{where}  {size}"
        return [brief if metrics.horizontalAdvance(brief) <= room else where]

    def _colour(self, box: Box) -> QColor:
        """The colour of what it allocated most; darker at every other depth, fainter if the search does not match."""
        branch = box.branch
        left_out = bool(self._search) and self._search not in branch_text(branch).lower()
        key = self._curve_of(branch), self._in_library(branch.file), box.depth % len(SHADES), left_out
        if key not in self._mixtures:
            self._mixtures[key] = self._mixture(*key)
        return self._mixtures[key]

    def _in_library(self, file: str) -> bool:
        if file not in self._libraries:
            self._libraries[file] = bool(file) and is_library(Frame(file, 0, ""))
        return self._libraries[file]

    def _mixture(self, curve: str, library: bool, shade: int, left_out: bool) -> QColor:
        palette = self._palette
        ground = QColor(palette.panel)
        colour = QColor(palette.curves[curve] if curve else palette.button_hover)
        if library:
            colour = mixed(colour, ground, 0.35)
        colour = mixed(colour, QColor(palette.window if palette.dark else palette.text), SHADES[shade])
        if left_out:
            return mixed(colour, ground, 0.75)
        return colour

    def mousePressEvent(self, event: QMouseEvent) -> None:
        box = self._innermost(event.position())
        if box is not None and event.button() is Qt.MouseButton.LeftButton:
            self.zoom(box.path if box.path != self._path else self._path[:-1])

    def _innermost(self, place: QPointF) -> Box | None:
        found = [box for box in self.boxes() if box.holds(place.x(), place.y())]
        return max(found, key=lambda box: box.depth, default=None)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = Qt.Key(event.key())
        boxes = self.boxes()
        if key in (Qt.Key.Key_Right, Qt.Key.Key_Down, Qt.Key.Key_Left, Qt.Key.Key_Up) and boxes:
            step = -1
            if key in (Qt.Key.Key_Right, Qt.Key.Key_Down):
                step = 1
            self._at = (self._at + step) % len(boxes)
            self.update()
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and boxes:
            self.zoom(boxes[self._at].path)
        elif key == Qt.Key.Key_Backspace:
            self.zoom(self._path[:-1])
        else:
            super().keyPressEvent(event)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            box = self._innermost(QPointF(event.pos()))
            if box is None:
                QToolTip.hideText()
            else:
                QToolTip.showText(event.globalPos(), plain_tip(self.tip(box)), self)
            return True
        return super().event(event)

    def tip(self, box: Box) -> str:
        """The tooltip of a box."""
        branch = box.branch
        whole = 1
        if self._root is not None:
            whole = max(1, self._root.bytes)
        share = format_percent(branch.bytes / whole)
        place = ""
        if branch.file:
            place = f"{branch.file}:{branch.line}\n"
        blocks = "blocks"
        if branch.count == 1:
            blocks = "block"
        return f"{branch.name}\n{place}{format_bytes(branch.bytes)}, {share}, {format_count(branch.count)} {blocks}"


class Icicle(TreeView):
    """Frames in rows, the outermost at the top."""

    def _laid_out(self, branch: Branch) -> list[Box]:
        return icicle(branch, self.width(), ROW, above=self._path)

    def sizeHint(self) -> QSize:
        return QSize(400, ROW * (1 + max((box.depth for box in self.boxes()), default=0)))

    def minimumSizeHint(self) -> QSize:
        return QSize(120, self.sizeHint().height())


class Treemap(TreeView):
    """Nested squares."""

    def _laid_out(self, branch: Branch) -> list[Box]:
        return treemap(branch, self.width(), self.height(), above=self._path, head=float(ROW))


SHOWN_CRUMBS = 3
"""The number of innermost frames of the path that are named."""


class TreePane(QWidget):
    """A call tree with its path and an option for library lines.

    Signals:
        library_toggled: whether to include library lines.
        narrowed: all panes should be narrowed to this path.
    """

    library_toggled = Signal(bool)
    narrowed = Signal(object)

    def __init__(self, view: TreeView, palette: Palette) -> None:
        super().__init__()
        self.view = view
        self.palette_ = palette
        self.path: Path = ()
        self._crumbs = PlainLabel("all", role="muted")
        self.out = worded_button("Out", "Zoom out to the caller (Backspace)", lambda: self.view.zoom(self.path[:-1]))
        self.only = worded_button(
            "Only this",
            "Narrow every pane to what was allocated beneath this line",
            lambda: self.narrowed.emit(self.path),
        )
        self.library = QCheckBox("library lines")
        self.library.setToolTip("Show the lines of torch and of the standard library too")
        self.library.toggled.connect(self.library_toggled)
        self.view.zoomed.connect(self._zoomed)
        row = in_row((self._crumbs, 1), self.only, self.out, self.library, spacing=6)
        shown: QWidget = view
        if isinstance(view, Icicle):
            shown = scrolled(view)
        self.legend = CategoryLegend(palette)
        in_column(row, (shown, 1), self.legend, parent=self, margins=(4, 6, 4, 2), spacing=4)
        self._zoomed(())

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.palette_ = palette
        self.view.set_palette(palette)
        self.legend.set_palette(palette)

    def show_selection(self, study: Study, selection: Selection) -> None:
        """Draw what is live, or what was allocated between two moments."""
        if selection.compared is None:
            lives = study.alive(selection)
        else:
            lives = study.came(selection)
        root, most = study.tree(lives, library=self.library.isChecked())
        curves = [category_curve(name, self.palette_) for name in study.history.categories]
        of_stackless = dict(zip(map(stackless, study.history.categories), curves, strict=True))

        def curve_of(branch: Branch) -> str:
            if branch.number >= 0:
                return curves[int(most[branch.number])]
            return of_stackless.get(branch.name, "")

        self.view.show_tree(root, curve_of, self.path, selection.search)
        codes = np.unique(study.history.lives.category[lives]).tolist()
        self.legend.show_entries([(study.history.categories[code], curves[code]) for code in codes])

    def _zoomed(self, path: Path) -> None:
        self.path = path
        names = [f"{short(file)}:{line} {name}" if file else name for file, line, name in path]
        if len(names) > SHOWN_CRUMBS:
            before = "… › "
        elif names:
            before = "all › "
        else:
            before = "all"
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


class CategoryLegend(PaintedWidget):
    """Colour swatches with names, in one row, as many as fit."""

    def __init__(self, palette: Palette) -> None:
        super().__init__(palette)
        self._entries: list[tuple[str, str]] = []
        self.setMinimumHeight(self.fontMetrics().height() + 2)

    def show_entries(self, entries: list[tuple[str, str]]) -> None:
        """Show (text, curve) pairs."""
        self._entries = entries
        self.setAccessibleName("Legend: " + ", ".join(text for text, _curve in entries))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(120, self.fontMetrics().height() + 2)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        metrics, x = painter.fontMetrics(), 0
        for text, curve in self._entries:
            wide = 14 + metrics.horizontalAdvance(text) + 12
            if x + wide - 12 > self.width():
                break
            colour = QColor(self._palette.curves[curve]) if curve else idle_colour(self._palette)
            painter.fillRect(x, (self.height() - 9) // 2, 9, 9, colour)
            painter.setPen(QColor(self._palette.text))
            painter.drawText(x + 14, (self.height() + metrics.ascent() - metrics.descent()) // 2, text)
            x += wide
        painter.end()


class BlocksPane(QWidget):
    """The memory map and its legend.

    Signals:
        chosen: the index of the allocation whose block was clicked.
    """

    chosen = Signal(int)

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._study: Study | None = None
        self._map: Map | None = None
        self.view = MemoryMap(palette)
        self.view.chosen.connect(self._choose)
        self.legend = CategoryLegend(palette)
        self.sums = PlainLabel(role="muted")
        in_column(self.sums, self.legend, (ScrolledMap(self.view), 1), parent=self, margins=(4, 6, 4, 2), spacing=4)

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self._palette = palette
        self.view.set_palette(palette)
        self.legend.set_palette(palette)

    def show_selection(self, study: Study, selection: Selection) -> None:
        """Draw the segments and blocks at the selected moment."""
        found = study.map(selection)
        self._study, self._map = study, found
        history = study.history
        category = history.lives.category[found.life].astype(np.int64)
        curves = [category_curve(name, self._palette) for name in history.categories]
        self.view.show_map(found, category, study.kept(selection, found.life), curves, self._describe_block)
        entries = [(history.categories[code], curves[code]) for code in np.unique(category).tolist()]
        waits = []
        if bool(found.waits.any()):
            waits = [("freed, in use by another stream", "forecast")]
        self.legend.show_entries([*entries, *waits, ("idle", "")])
        small = sum(1 for segment in found.segments if segment.is_small)
        held = format_like(int((found.end - found.begin).sum()), found.total)
        self.sums.setText(
            f"{format_count(len(found.segments))} segments of {format_bytes(found.total)} "
            f"({format_count(small)} small), {format_count(len(found.begin))} blocks of {held}"
        )
        self.sums.setToolTip("Ctrl+wheel zooms; hover over a block for details")

    def _describe_block(self, block: int, place: int) -> str:
        assert self._study is not None and self._map is not None
        found = self._map
        segment = found.segments[found.segment_at(place)]
        kind = "small" if segment.is_small else "large"
        pool = ""
        if segment.pool != (0, 0):
            pool = f", private pool {segment.pool}"
        of = f"segment of {format_bytes(segment.size)} at {segment.address:#x}, {kind}, stream {segment.stream}{pool}"
        if block == IDLE:
            low, high = found.idle_at(place)
            amount = f"{format_bytes(high - low)} ({format_count(high - low)} bytes)"
            return f"idle, {amount}\nat {found.address(low):#x}\n{of}"
        lives = self._study.history.lives
        life = int(found.life[block])
        size, requested, stack = int(lives.bytes[life]), int(lives.requested[life]), int(lives.stack[life])
        name = self._study.history.categories[int(lives.category[life])]
        category = ""
        if name != NO_STACK:
            category = f"{name}, "
        state = ""
        if bool(found.waits[block]):
            state = "freed, in use by another stream, "
        requested_for = ""
        if requested and requested != size:
            requested_for = f", {format_count(requested)} requested"
        return (
            f"{state}{category}{format_bytes(size)} ({format_count(size)} bytes{requested_for})\n"
            f"at {int(lives.address[life]):#x}, stream {int(lives.stream[life])}\n"
            f"{self._study.places.labels[stack]}\n{of}"
        )

    def _choose(self, block: int) -> None:
        if self._map is not None:
            self.chosen.emit(int(self._map.life[block]))
