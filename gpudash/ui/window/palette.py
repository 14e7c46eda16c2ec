"""The command palette: finds anything the window can do or show by a few letters of its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QBrush, QColor, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QAbstractItemView, QDialog, QHeaderView, QLineEdit, QTreeWidget, QTreeWidgetItem, QWidget

from gpudash.ui.colours import Palette
from gpudash.ui.widgets.fuzzy import rank
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.window.menus import Command

WIDTH_PX, ROWS = 720, 12
"""Width in logical pixels at the default text size, and number of visible rows."""

BETWEEN = " ▸ "
"""Separates a menu from its submenu."""

_STEPS = {
    Qt.Key.Key_Down: 1,
    Qt.Key.Key_Up: -1,
    Qt.Key.Key_PageDown: ROWS - 1,
    Qt.Key.Key_PageUp: 1 - ROWS,
}


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """One thing that the palette can do.

    Attributes:
        name: the text of the command.
        place: its location in the menus: "View ▸ Window".
        run: runs it.
        keys: its shortcut, or "".
        tip: one sentence on what it does.
        why_not: why it is unavailable, or "".
        keywords: other words by which it is found.
    """

    name: str
    place: str
    run: Callable[[], object]
    keys: str = ""
    tip: str = ""
    why_not: str = ""
    keywords: str = ""

    def is_as(self, other: PaletteEntry) -> bool:
        """Whether another entry, created at another time, is for the same thing."""
        return (self.name, self.place, self.tip) == (other.name, other.place, other.tip)


class Further(Protocol):
    """More entries, which are still being read while the palette is open."""

    def take(self) -> bool:
        """Process a small part of what was read since the last call; returns whether the results changed."""

    def found(self, query: str) -> Sequence[PaletteEntry]:
        """The entries that contain every word of ``query``, up to a sensible number."""

    def leave(self) -> None:
        """Called when the palette closes."""


POLL_MS = 50
"""Interval of polling for what was read."""


def command_entries(commands: Sequence[Command]) -> list[PaletteEntry]:
    """The palette's entries for ``commands`` in their current state."""
    return list(map(_entry, commands))


def _entry(command: Command) -> PaletteEntry:
    chosen = ""
    if command.checked is not None and command.checked():
        chosen = "  ✓"
    keys = command.key_texts()
    return PaletteEntry(
        f"{command.label().replace('&&', '&')}{chosen}",
        command.menu.replace("/", BETWEEN),
        command.use,
        keys[0] if keys else "",
        command.tip,
        command.why_not(),
        command.keywords,
    )


class CommandPalette(QDialog):
    """A text field above a list: Enter runs the selected entry, Esc closes.

    Args:
        entries: what can be done, in the order for an empty query.
        palette: the colours in use.
        parent: the window below it.
        further: more entries, read in the background.
    """

    def __init__(
        self,
        entries: Sequence[PaletteEntry],
        palette: Palette,
        parent: QWidget | None = None,
        *,
        further: Further | None = None,
    ) -> None:
        super().__init__(parent, Qt.WindowType.Dialog | Qt.WindowType.FramelessWindowHint)
        self.setWindowTitle("Command Palette")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._fixed = self._entries = entries
        self._further = further
        self._palette = palette
        self.field = QLineEdit()
        self.field.setPlaceholderText("Type a few letters of a command, tab, plot, workload, device or run…")
        self.field.setAccessibleName("Command")
        self.field.installEventFilter(self)
        self.list = QTreeWidget()
        self._text = PlainLabel(role="muted", wraps=True)
        self._build()
        self.field.textChanged.connect(self._show)
        self.list.itemClicked.connect(self._clicked)
        self.list.currentItemChanged.connect(lambda *_items: self._describe())
        self._show("")
        self.list.setFixedHeight(ROWS * self.list.sizeHintForRow(0) + 2 * self.list.frameWidth())
        self._place()
        if further is not None:
            poll_timer = QTimer(self, interval=POLL_MS)
            poll_timer.timeout.connect(self._poll)
            poll_timer.start()
            self.finished.connect(poll_timer.stop)
            self.finished.connect(further.leave)

    def _build(self) -> None:
        self.list.setAccessibleName("Commands found")
        self.list.setColumnCount(3)
        self.list.setHeaderHidden(True)
        self.list.setRootIsDecorated(False)
        self.list.setUniformRowHeights(True)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        header = self.list.header()
        header.setStretchLastSection(False)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        for section in (1, 2):
            header.setSectionResizeMode(section, QHeaderView.ResizeMode.ResizeToContents)
        self._text.setMinimumHeight(2 * self._text.fontMetrics().height() + 4)
        self._text.setAlignment(Qt.AlignmentFlag.AlignTop)
        in_column(self.field, self.list, self._text, parent=self, margins=(10, 10, 10, 10))
        self.setStyleSheet(
            f"CommandPalette {{ border: 1px solid {self._palette.accent}; }} QTreeWidget::item {{ padding: 3px 6px; }}"
        )

    def _place(self) -> None:
        """Move over the upper part of the window."""
        width, parent = scaled(WIDTH_PX), self.parentWidget()
        if parent is not None:
            width = min(width, parent.width() - 40)
        self.setFixedWidth(width)
        if parent is not None:
            self.adjustSize()
            corner = parent.mapToGlobal(parent.rect().topLeft())
            self.move(corner.x() + (parent.width() - width) // 2, corner.y() + max(20, parent.height() // 10))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.list.doItemsLayout()  # rows were measured before the style sheet applied

    @property
    def shown(self) -> list[PaletteEntry]:
        """The listed entries from top to bottom."""
        return [self._entry(self.list.topLevelItem(row)) for row in range(self.list.topLevelItemCount())]

    @property
    def chosen(self) -> PaletteEntry | None:
        """The entry that Enter runs; ``None`` if nothing was found."""
        item = self.list.currentItem()
        if item is None:
            return None
        return self._entry(item)

    def _entry(self, item: QTreeWidgetItem | None) -> PaletteEntry:
        assert item is not None
        number: int = item.data(0, Qt.ItemDataRole.UserRole)
        return self._entries[number]

    def _poll(self) -> None:
        """List what was read meanwhile; the selected entry stays, since the user may be about to press Enter."""
        assert self._further is not None
        if not self._further.take():
            return
        before = self.chosen
        self._show(self.field.text())
        same = [row for row, entry in enumerate(self.shown) if before is not None and entry.is_as(before)]
        if same:
            self._choose(same[0])

    def _show(self, query: str) -> None:
        self.list.clear()
        if self._further is not None:
            self._entries = [*self._fixed, *self._further.found(query)]
        muted = QBrush(QColor(self._palette.muted))
        for number in rank(query, [(entry.name, entry.place, entry.keywords) for entry in self._entries]):
            entry = self._entries[number]
            item = QTreeWidgetItem([entry.name, entry.place, entry.keys])
            item.setData(0, Qt.ItemDataRole.UserRole, number)
            item.setTextAlignment(2, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            spoken = f"{entry.name}, {entry.place}, {entry.keys or 'no key'}"
            item.setForeground(1, muted)
            item.setForeground(2, muted)
            if entry.why_not:
                spoken += f", not available: {entry.why_not}"
                item.setForeground(0, muted)
                item.setText(1, entry.why_not)
            item.setData(0, Qt.ItemDataRole.AccessibleTextRole, spoken)
            self.list.addTopLevelItem(item)
        self._choose(0)
        self._describe()

    def _choose(self, row: int) -> None:
        item = self.list.topLevelItem(row)
        if item is not None:
            self.list.setCurrentItem(item)

    def _describe(self) -> None:
        entry = self.chosen
        if entry is None:
            self._text.setText("Nothing matches these letters.")
        else:
            sentences = []
            if entry.tip:
                sentences.append(f"{entry.tip.rstrip('.')}.")
            if entry.why_not:
                sentences.append(f"Not available: {entry.why_not}")
            self._text.setText(" ".join(sentences))

    def _clicked(self, item: QTreeWidgetItem) -> None:
        self.list.setCurrentItem(item)
        self.run_chosen()

    def run_chosen(self) -> None:
        """Close and run the selected entry; one that is unavailable stays, with its reason."""
        entry = self.chosen
        if entry is None or entry.why_not:
            return
        self.accept()
        parent = self.parentWidget()
        if parent is not None:
            parent.activateWindow()  # a command may act on the focused widget there
        entry.run()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            key = Qt.Key(event.key())
            if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self.run_chosen()
                return True
            if key in _STEPS:
                self._step(_STEPS[key])
                return True
        return super().eventFilter(watched, event)

    def _step(self, rows: int) -> None:
        count, item = self.list.topLevelItemCount(), self.list.currentItem()
        if item is not None:
            now = self.list.indexOfTopLevelItem(item)
            self._choose((now + rows) % count if abs(rows) == 1 else min(max(now + rows, 0), count - 1))
