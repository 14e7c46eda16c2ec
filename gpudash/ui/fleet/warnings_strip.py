"""The strip of a fleet's warnings, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QFrame, QListWidget, QListWidgetItem, QSizePolicy, QToolButton, QWidget

from gpudash.ui.fleet.labels import SHAPES
from gpudash.ui.widgets.labels import polish_again
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics

if TYPE_CHECKING:
    from gpudash.telemetry.records import Warning


ROWS = 6
"""Rows of the list visible without scrolling."""

KEY = int(Qt.ItemDataRole.UserRole)


class WarningsStrip(QFrame):
    """The strip of warnings, hidden while there are none; clicking one, or Enter, goes to its GPU.

    Signals:
        chosen: key of the GPU.
    """

    chosen = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("role", "banner")
        self._warnings: Sequence[Warning] = ()
        self.count = PlainLabel(role="figure-small")
        self.worst = QToolButton()
        self.worst.setProperty("role", "fold")
        self.worst.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self.worst.setMinimumWidth(40)
        self.worst.clicked.connect(lambda _checked=False: self.go_to_worst())
        self.all = QToolButton()
        self.all.setCheckable(True)
        self.all.setProperty("role", "browse")
        self.all.toggled.connect(self._fold)
        self.list = QListWidget()
        self.list.setAccessibleName("Warnings over the whole fleet, the worst first")
        self.list.setUniformItemSizes(True)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.itemClicked.connect(self._item_chosen)
        self.list.itemActivated.connect(self._item_chosen)
        row = in_row(self.count, self.worst, 1, self.all, spacing=10)
        in_column(row, self.list, parent=self, margins=(12, 4, 8, 4), spacing=4)
        self._fold(shown=False)
        self.hide()

    def show_warnings(self, warnings: Sequence[Warning]) -> None:
        """Show these warnings, the worst first; nothing is redrawn if they are unchanged."""
        ordered = sorted(warnings, key=lambda warning: warning.level != "critical")
        if ordered == list(self._warnings):
            return
        self._warnings = ordered
        self.setVisible(bool(ordered))
        if not ordered:
            return
        first = ordered[0]
        text = count_text(ordered)
        self.count.setText(text)
        self.worst.setText(without_mnemonics(first.text))
        self.worst.setToolTip(plain_tip(f"{first.text}\nClick to go to the GPU." if first.device else first.text))
        self.all.setVisible(len(ordered) > 1)
        self.setAccessibleName(f"{text}. {first.text}")
        if self.property("level") != first.level:
            self.setProperty("level", first.level)
            polish_again(self, *self.findChildren(QWidget))
        self._fill()

    def _fill(self) -> None:
        """Fill the list. Its items are reused, so that focus and scroll position stay."""
        while self.list.count() > len(self._warnings):
            self.list.takeItem(self.list.count() - 1)
        for row, warning in enumerate(self._warnings):
            item = self.list.item(row)
            if item is None:
                item = QListWidgetItem()
                item.setSizeHint(QSize(0, self._row_height))
                self.list.addItem(item)
            text = f"{SHAPES[warning.level]}  {warning.text}"
            if item.text() != text:
                item.setText(text)
                item.setToolTip(plain_tip(warning.text))
            item.setData(KEY, warning.device)
        self._fold(self.all.isChecked())

    def _fold(self, shown: bool) -> None:
        self.all.setText("Show less" if shown else f"Show all {len(self._warnings)}")
        self.all.setToolTip("Show only the worst warning" if shown else "List every warning, the worst first")
        self.list.setVisible(shown and len(self._warnings) > 1)
        self.list.setFixedHeight(max(1, min(self.list.count(), ROWS)) * self._row_height + 4)

    @property
    def _row_height(self) -> int:
        return self.list.fontMetrics().height() + 6

    def _item_chosen(self, item: QListWidgetItem) -> None:
        self._go(str(item.data(KEY)))

    def go_to_worst(self) -> None:
        """Go to the GPU with the worst warning."""
        for warning in self._warnings[:1]:
            self._go(warning.device)

    def _go(self, key: str) -> None:
        if key:
            self.chosen.emit(key)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())


def count_text(warnings: Sequence[Warning]) -> str:
    """The number of warnings of each level: "◆ 3 critical  ▲ 12 warnings"."""
    critical = sum(warning.level == "critical" for warning in warnings)
    rest = len(warnings) - critical
    parts = []
    if critical:
        parts = [f"{SHAPES['critical']} {critical} critical"]
    if rest:
        parts.append(f"{SHAPES['warning']} {rest} {'warning' if rest == 1 else 'warnings'}")
    return "   ".join(parts)
