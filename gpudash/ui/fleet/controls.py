"""The row of controls above a fleet: search, order, groups and size of the cells, and what to do with chosen GPUs."""

from __future__ import annotations

from typing import get_args

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QCheckBox, QLineEdit, QPushButton, QWidget

from gpudash.ui.fleet.layout import GROUPS, SORTS, Arrangement, Density
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

SORT_TEXT = {
    "fullness": "fullest first",
    "host": "machine",
    "utilisation": "busiest first",
    "temperature": "hottest first",
    "power": "most power first",
}
GROUP_TEXT = {"none": "no groups", "machine": "by machine", "product": "by product", "exporter": "by exporter"}

LONGEST_SEARCH = 300
"""Maximum width in logical pixels."""


class SearchField(QLineEdit):
    """A search field that passes on the keys of the grid: Down and Enter go there; Esc clears the text first.

    Signals:
        left: move the focus to the grid.
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
    """The controls for what is shown, and how.

    Signals:
        changed: a different arrangement was chosen.
        density_changed: a different cell size was chosen.
        sort_now: sort again now.
        open_wanted: open the current GPU.
        compare_wanted: compare the selected GPUs, or a single one with another of its days.
        save_wanted: save what every machine reported.

    Attributes:
        days: whether a GPU can be compared with another of its days.
    """

    days = True

    changed = Signal()
    density_changed = Signal()
    sort_now = Signal()
    open_wanted = Signal()
    compare_wanted = Signal()
    save_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.search = SearchField()
        self.search.setPlaceholderText("Search machine, product, UUID, run, pod…")
        self.search.setAccessibleName("Search the GPUs")
        self.search.setToolTip("Type anywhere in the overview to search; Esc clears the field")
        self.search.setClearButtonEnabled(True)
        self.search.setMaximumWidth(LONGEST_SEARCH)
        self.search.textChanged.connect(lambda _text: self.changed.emit())
        orders = [(SORT_TEXT[name], name) for name in SORTS]
        self.sort = ChoiceField("Order of the GPUs", "Order of the GPUs", orders)
        groups = [(GROUP_TEXT[name], name) for name in GROUPS]
        self.group = ChoiceField("Groups of GPUs", "Groups of GPUs", groups)
        sizes = [(name, name) for name in get_args(Density)]
        sizes_tip = "Large cells with figures, or small ones that show the whole fleet at once"
        self.density = ChoiceField("Size of the cells", sizes_tip, sizes)
        for box in (self.sort, self.group):
            box.currentIndexChanged.connect(lambda _row: self.changed.emit())
        self.density.currentIndexChanged.connect(lambda _row: self.density_changed.emit())
        self.only_warnings = QCheckBox("only warnings")
        self.only_warnings.setToolTip("Hide GPUs without a warning")
        self.only_warnings.toggled.connect(lambda _on: self.changed.emit())
        self.found = PlainLabel(role="muted")
        kept = "The order is kept while you point or type here, so that no cell moves away"
        self.old = worded_button("Sort now", kept, self.sort_now.emit, role="chip")
        self.reconnect = QPushButton("Reconnect")
        self.open = worded_button("Open", "", self.open_wanted.emit, role="primary")
        self.compare = worded_button("Compare", "", self.compare_wanted.emit)
        saved = "Save what every machine reported so far to a folder, one recording each (Ctrl+Shift+S)"
        self.save = worded_button("Save recordings…", saved, self.save_wanted.emit)
        for part in (self.old, self.reconnect, self.save):
            part.hide()
        shown = (self.sort, self.group, self.density, self.only_warnings, self.found, self.old)
        acting = (self.reconnect, self.save, self.compare, self.open)
        in_row((self.search, 1), *shown, 1, *acting, parent=self, margins=(0, 0, 0, 0), spacing=8)
        self.show_choice(0)

    @property
    def comparable(self) -> tuple[int, ...]:
        """How many GPUs can be selected for a comparison."""
        if self.days:
            return (1, 2)
        return (2,)

    @property
    def arrangement(self) -> Arrangement:
        """The search, order, grouping and filter that are set."""
        return Arrangement(
            self.search.text().strip(),
            self.sort.currentData(),
            self.group.currentData(),
            self.only_warnings.isChecked(),
        )

    @property
    def density_wanted(self) -> Density:
        """The chosen cell size."""
        density: Density = self.density.currentData()
        return density

    def show_choice(self, count: int) -> None:
        """Enable what can be done with this many selected GPUs; tooltips say why something cannot."""
        self.open.setEnabled(count == 1)
        self.open.setToolTip("Show the selected GPU's history in a tab (Enter)" if count == 1 else "Select one GPU")
        self.compare.setEnabled(count in self.comparable)
        self.compare.setText("Compare with another day" if count == 1 and self.days else "Compare")
        if count == 2:
            tip = "Overlay the two selected GPUs on one axis"
        elif not self.days:
            tip = "Select two GPUs with Ctrl+click"
        elif count == 1:
            tip = "Compare the selected GPU's last hour with the same hour of another day"
        else:
            tip = "Select one GPU to compare two of its days, or two GPUs with Ctrl+click"
        self.compare.setToolTip(plain_tip(tip))

    def show_found(self, shown: int, all_: int) -> None:
        """Show how many GPUs are shown, if some are filtered out."""
        self.found.setText("" if shown == all_ else f"{shown} of {all_}")
        self.found.setVisible(shown != all_)

    def show_old(self, since: str) -> None:
        """Say that the order dates from ``since``, a clock time, and offer to sort again; "" if it is current."""
        self.old.setVisible(bool(since))
        if since:
            self.old.setText(f"Order of {since} · Sort now")

    def clear(self) -> None:
        """Clear the search and the filter."""
        with QSignalBlocker(self.search), QSignalBlocker(self.only_warnings):
            self.search.clear()
            self.only_warnings.setChecked(False)
        self.changed.emit()
