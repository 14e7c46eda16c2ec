"""Every warning of the fleet above its overview: one line with the count and the worst, or all of them in a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QListWidget,
    QListWidgetItem,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gpudash.ui.fleet.words import SHAPES, WORSE
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics

if TYPE_CHECKING:
    from gpudash.session.fleet import FleetWarning

ROWS = 6
"""Rows of the list that are seen without scrolling."""

KEY = int(Qt.ItemDataRole.UserRole)


class WarningsStrip(QFrame):
    """Hidden while there is no warning; a click, or Enter, on one goes to its GPU.

    Signals:
        chosen: key of the GPU.
    """

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "banner")
        self._warnings: Sequence[FleetWarning] = ()
        self.count = PlainLabel()
        self.count.setProperty("role", "figure-small")
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
        row = QHBoxLayout()
        row.setSpacing(10)
        row.addWidget(self.count)
        row.addWidget(self.worst)
        row.addStretch(1)
        row.addWidget(self.all)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 4, 8, 4)
        column.setSpacing(4)
        column.addLayout(row)
        column.addWidget(self.list)
        self._fold(shown=False)
        self.hide()

    def show_warnings(self, warnings: Sequence[FleetWarning]) -> None:
        """Tell these, the worst first; what is the same as before is left alone."""
        ordered = sorted(warnings, key=lambda warning: -WORSE[warning.level])
        if ordered == list(self._warnings):
            return
        self._warnings = ordered
        self.setVisible(bool(ordered))
        if not ordered:
            return
        first = ordered[0]
        words = count_words(ordered)
        self.count.setText(words)
        self.worst.setText(without_mnemonics(first.text))
        self.worst.setToolTip(plain_tip(f"{first.text}\nA click goes to the GPU." if first.key else first.text))
        self.all.setVisible(len(ordered) > 1)
        self.setAccessibleName(f"{words}. {first.text}")
        if self.property("level") != first.level:
            self.setProperty("level", first.level)
            for part in (self, *self.findChildren(QWidget)):
                part.style().unpolish(part)
                part.style().polish(part)
        self._fill()

    def _fill(self) -> None:
        """The list: rows are reused, so that the row in focus and the scrolled place stay."""
        while self.list.count() > len(self._warnings):
            self.list.takeItem(self.list.count() - 1)
        for row, warning in enumerate(self._warnings):
            item = self.list.item(row)
            if item is None:
                item = QListWidgetItem()
                item.setSizeHint(QSize(0, self._row_height))
                self.list.addItem(item)
            words = f"{SHAPES[warning.level]}  {warning.text}"
            if item.text() != words:
                item.setText(words)
                item.setToolTip(plain_tip(warning.text))
            item.setData(KEY, warning.key)
        self._fold(self.all.isChecked())

    def _fold(self, shown: bool) -> None:
        self.all.setText("Show less" if shown else f"Show all {len(self._warnings)}")
        self.all.setToolTip("Show the worst warning alone" if shown else "List every warning, the worst first")
        self.list.setVisible(shown and len(self._warnings) > 1)
        self.list.setFixedHeight(max(1, min(self.list.count(), ROWS)) * self._row_height + 4)

    @property
    def _row_height(self) -> int:
        return self.list.fontMetrics().height() + 6

    def _item_chosen(self, item: QListWidgetItem) -> None:
        self._go(str(item.data(KEY)))

    def go_to_worst(self) -> None:
        """Go to the GPU of the worst warning."""
        for warning in self._warnings[:1]:
            self._go(warning.key)

    def _go(self, key: str) -> None:
        if key:
            self.chosen.emit(key)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())


def count_words(warnings: Sequence[FleetWarning]) -> str:
    """How many there are of each level: "◆ 3 critical  ▲ 12 warnings"."""
    critical = sum(warning.level == "critical" for warning in warnings)
    rest = len(warnings) - critical
    parts = [f"{SHAPES['critical']} {critical} critical"] if critical else []
    if rest:
        parts.append(f"{SHAPES['warning']} {rest} {'warning' if rest == 1 else 'warnings'}")
    return "   ".join(parts)
