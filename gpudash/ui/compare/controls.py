"""The row above a comparison: which runs, what is laid over what, and by how much B is moved."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QComboBox, QDoubleSpinBox, QHBoxLayout, QLabel, QPushButton, QWidget

from gpudash.telemetry.comparing import ComparedRun
from gpudash.telemetry.comparing.alignment import Alignment, common_marks
from gpudash.ui.compare.legend import LETTERS
from gpudash.ui.compare.overlay import Laying
from gpudash.ui.widgets.plain_text import PlainLabel

FARTHEST = 1e7
"""Seconds or steps by which a run can be moved: further than any is long."""

_ALIGNMENTS: tuple[tuple[str, Alignment], ...] = (("their start", "start"), ("steps", "step"), ("a mark", "mark"))


class Controls(QWidget):
    """What the overlay obeys.

    Signals:
        changed: runs are to be laid over one another in another way.
        swapped: A and B are to change places.
        chosen: the run at this place is to be B.
    """

    changed = Signal()
    swapped = Signal()
    chosen = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.alignment = QComboBox()
        self.alignment.setToolTip("What of the runs is laid over one another")
        for words, alignment in _ALIGNMENTS:
            self.alignment.addItem(words, alignment)
        self.mark = QComboBox()
        self.mark.setAccessibleName("Mark by which the runs are aligned")
        self.mark.setToolTip("A mark that every run has")
        self.offset = QDoubleSpinBox()
        self.offset.setRange(-FARTHEST, FARTHEST)
        self.offset.setDecimals(2)
        self.offset.setStyleSheet("QAbstractSpinBox::up-button, QAbstractSpinBox::down-button { width: 0px; }")
        self.offset.lineEdit().setTextMargins(6, 0, 0, 0)
        self.offset.setToolTip("How far B is moved to the right; dragging a plot does the same")
        self.compared = QComboBox()
        self.compared.setAccessibleName("Run that is compared with A")
        self.compared.setToolTip("Choose the run that is B, to compare with A")
        self.swap = QPushButton("Swap A and B")
        self.swap.setToolTip("Turn every sign round")
        self.swap.clicked.connect(lambda _checked=False: self.swapped.emit())
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        self._labelled(row, "&Align by", self.alignment)
        row.addWidget(self.mark)
        self._labelled(row, "&Move B by", self.offset)
        self._other = self._labelled(row, "&Compare A with", self.compared)
        row.addStretch(1)
        row.addWidget(self.swap)
        self.alignment.currentIndexChanged.connect(self._alignment_changed)
        self.mark.currentIndexChanged.connect(lambda _row: self.changed.emit())
        self.offset.valueChanged.connect(lambda _value: self.changed.emit())
        self.compared.activated.connect(lambda row: self.chosen.emit(row + 1))

    def _labelled(self, row: QHBoxLayout, words: str, widget: QWidget) -> QLabel:
        label = PlainLabel(words)
        label.setBuddy(widget)
        row.addWidget(label)
        row.addWidget(widget)
        return label

    def set_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Offer what these runs can be aligned by; steps at first, since they lie over one another."""
        boxes = (self.alignment, self.mark, self.compared)
        for box in boxes:
            box.blockSignals(True)
        mark, fresh = self.mark.currentText(), self.compared.count() == 0
        self.mark.clear()
        self.mark.addItems(common_marks(runs))
        self.mark.setCurrentIndex(max(0, self.mark.findText(mark)))
        stepped = all(len(run.steps.number) for run in runs)
        for place, available in ((1, stepped), (2, self.mark.count() > 0)):
            self._choice(place).setEnabled(available)
        self.compared.clear()
        self.compared.addItems([f"{letter}: {run.label}" for letter, run in zip(LETTERS[1:], runs[1:], strict=False)])
        if fresh or not self._choice(self.alignment.currentIndex()).isEnabled():
            self.alignment.setCurrentIndex(1 if stepped else 0)
        for box in boxes:
            box.blockSignals(False)
        self._other.setVisible(len(runs) > 2)
        self.compared.setVisible(len(runs) > 2)
        self._show_unit()

    def _choice(self, place: int) -> QStandardItem:
        model = self.alignment.model()
        assert isinstance(model, QStandardItemModel)
        return model.item(place)

    @property
    def laying(self) -> Laying:
        """What is chosen."""
        alignment: Alignment = self.alignment.currentData()
        return Laying(alignment, self.mark.currentText(), self.offset.value())

    def choose(self, alignment: Alignment) -> None:
        """Align by ``alignment``, where these runs can be."""
        row = self.alignment.findData(alignment)
        if self._choice(row).isEnabled():
            self.alignment.setCurrentIndex(row)

    def move_by(self, by: float) -> None:
        """Move B further by ``by``."""
        self.offset.setValue(self.offset.value() + by)

    def _alignment_changed(self) -> None:
        self._show_unit()
        self.offset.blockSignals(True)
        self.offset.setValue(0.0)
        self.offset.blockSignals(False)
        self.changed.emit()

    def _show_unit(self) -> None:
        steps = self.alignment.currentData() == "step"
        self.offset.setSuffix(" steps" if steps else " s")
        self.offset.setSingleStep(1.0 if steps else 0.1)
        self.mark.setVisible(self.alignment.currentData() == "mark")
