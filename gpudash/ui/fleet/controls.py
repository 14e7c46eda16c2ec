"""The row above the overview: search, sorting, grouping, filter, density, and what is done with what is chosen."""

from __future__ import annotations

from typing import get_args

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QHBoxLayout, QLineEdit, QPushButton, QWidget

from gpudash.ui.fleet.arranging import GROUPS, SORTS, Arrangement
from gpudash.ui.fleet.layout import Density
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

SORT_WORDS = {
    "fullness": "fullest first",
    "host": "machine",
    "utilisation": "busiest first",
    "temperature": "hottest first",
    "power": "most power first",
}
GROUP_WORDS = {"none": "no groups", "machine": "by machine", "product": "by product", "exporter": "by exporter"}

LONGEST_SEARCH = 300
"""Logical pixels."""


class SearchField(QLineEdit):
    """A field that hands the keys of the grid on: Down and Enter go there, Esc empties it first.

    Signals:
        left: the grid is wanted.
    """

    left = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.text():
            self.clear()
        elif event.key() in (Qt.Key.Key_Down, Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Escape):
            self.left.emit()
        else:
            super().keyPressEvent(event)


class FleetControls(QWidget):
    """What is shown, and how.

    Signals:
        changed: another arrangement is wanted.
        density_changed: cells of another size are wanted.
        sort_now: the order is to be made anew.
        open_wanted: the current GPU is to be opened.
        compare_wanted: the chosen GPUs are to be compared, or one with another day of its own.
    """

    changed = Signal()
    density_changed = Signal()
    sort_now = Signal()
    open_wanted = Signal()
    compare_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.search = SearchField()
        self.search.setPlaceholderText("Search machine, product, UUID, run…")
        self.search.setAccessibleName("Search the GPUs")
        self.search.setToolTip("Typing anywhere in the overview searches; Esc empties the field")
        self.search.setClearButtonEnabled(True)
        self.search.setMaximumWidth(LONGEST_SEARCH)
        self.search.textChanged.connect(lambda _text: self.changed.emit())
        self.sort = _choice("Order of the GPUs", [(SORT_WORDS[name], name) for name in SORTS])
        self.group = _choice("Groups of GPUs", [(GROUP_WORDS[name], name) for name in GROUPS])
        self.density = _choice("Size of the cells", [(name, name) for name in get_args(Density)])
        self.density.setToolTip("Large cells with figures, or small ones that show the whole fleet at once")
        for box in (self.sort, self.group):
            box.currentIndexChanged.connect(lambda _row: self.changed.emit())
        self.density.currentIndexChanged.connect(lambda _row: self.density_changed.emit())
        self.only_warnings = QCheckBox("only warnings")
        self.only_warnings.setToolTip("Leave out GPUs without a warning")
        self.only_warnings.toggled.connect(lambda _on: self.changed.emit())
        self.found = PlainLabel()
        self.found.setProperty("role", "muted")
        self.old = QPushButton("Sort now")
        self.old.setProperty("role", "chip")
        self.old.setToolTip("The order rests while you point or type here, so that no cell moves away")
        self.old.clicked.connect(lambda _checked=False: self.sort_now.emit())
        self.old.hide()
        self.open = QPushButton("Open")
        self.open.setProperty("role", "primary")
        self.open.clicked.connect(lambda _checked=False: self.open_wanted.emit())
        self.compare = QPushButton("Compare")
        self.compare.clicked.connect(lambda _checked=False: self.compare_wanted.emit())
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        row.addWidget(self.search, 1)
        for part in (self.sort, self.group, self.density, self.only_warnings, self.found, self.old):
            row.addWidget(part)
        row.addStretch(1)
        row.addWidget(self.compare)
        row.addWidget(self.open)
        self.show_choice(0)

    @property
    def arrangement(self) -> Arrangement:
        """What the user asks to see."""
        return Arrangement(
            self.search.text().strip(),
            self.sort.currentData(),
            self.group.currentData(),
            self.only_warnings.isChecked(),
        )

    @property
    def density_wanted(self) -> Density:
        """How large the cells are to be."""
        density: Density = self.density.currentData()
        return density

    def show_choice(self, count: int) -> None:
        """Say what can be done with so many chosen GPUs; what cannot says why."""
        self.open.setEnabled(count == 1)
        self.open.setToolTip("Show the past of the chosen GPU in a tab (Enter)" if count == 1 else "Choose one GPU")
        self.compare.setEnabled(count in (1, 2))
        self.compare.setText("Compare with another day" if count == 1 else "Compare")
        self.compare.setToolTip(
            plain_tip(
                {
                    1: "Lay the chosen GPU's last hour over the same hour of another day",
                    2: "Lay the two chosen GPUs over one another on one axis",
                }.get(count, "Choose one GPU for another day of its own, or two with Ctrl and a click")
            )
        )

    def show_found(self, shown: int, all_: int) -> None:
        """Say how many GPUs are shown where some are left out."""
        self.found.setText("" if shown == all_ else f"{shown} of {all_}")
        self.found.setVisible(shown != all_)

    def show_old(self, since: str) -> None:
        """Say that the order is of ``since``, a clock time, and offer another; "" when it is not old."""
        self.old.setVisible(bool(since))
        if since:
            self.old.setText(f"Order of {since} · Sort now")

    def clear(self) -> None:
        """Leave nothing out."""
        with QSignalBlocker(self.search), QSignalBlocker(self.only_warnings):
            self.search.clear()
            self.only_warnings.setChecked(False)
        self.changed.emit()


def _choice(name: str, entries: list[tuple[str, str]]) -> QComboBox:
    box = QComboBox()
    box.setAccessibleName(name)
    box.setToolTip(plain_tip(name))
    for words, value in entries:
        box.addItem(words, value)
    return box
