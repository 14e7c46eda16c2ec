"""The row of controls above a comparison: what its runs are aligned by, and which run is B."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QDoubleSpinBox, QHBoxLayout, QLabel, QWidget

from gpudash.telemetry.comparing import ComparedRun
from gpudash.telemetry.comparing.comparison import LETTERS
from gpudash.telemetry.comparing.curves import Alignment, common_marks
from gpudash.ui.recordings.compare.overlay import Laying
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel

FARTHEST = 1e7
"""The maximum offset of a run in seconds or steps, longer than any run."""

_ALIGNMENTS: tuple[tuple[str, Alignment], ...] = (("their start", "start"), ("steps", "step"), ("a mark", "mark"))


class Controls(QWidget):
    """Controls the overlay.

    Signals:
        changed: the alignment or the offset changed.
        swapped: A and B should change places.
        chosen: the run at this index should become B.
    """

    changed = Signal()
    swapped = Signal()
    chosen = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.alignment = ChoiceField(tip="What the runs are aligned by", entries=_ALIGNMENTS)
        self.mark = ChoiceField("Mark by which the runs are aligned", "A mark that every run has")
        self.offset = QDoubleSpinBox()
        self.offset.setRange(-FARTHEST, FARTHEST)
        self.offset.setDecimals(2)
        self.offset.setStyleSheet("QAbstractSpinBox::up-button, QAbstractSpinBox::down-button { width: 0px; }")
        self.offset.lineEdit().setTextMargins(6, 0, 0, 0)
        self.offset.setToolTip("How far B is shifted to the right; dragging a plot does the same")
        self.compared = ChoiceField("Run to compare with A", "Choose which run is B, compared with A")
        self.swap = worded_button("Swap A and B", "Reverse the sign of every difference", self.swapped.emit)
        row = in_row(parent=self, margins=(0, 0, 0, 0), spacing=8)
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

    def _labelled(self, row: QHBoxLayout, text: str, widget: QWidget) -> QLabel:
        label = PlainLabel(text)
        label.setBuddy(widget)
        row.addWidget(label)
        row.addWidget(widget)
        return label

    def set_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Offer the alignments that these runs allow; by step at first, since that makes curves coincide."""
        boxes = (self.alignment, self.mark, self.compared)
        for box in boxes:
            # Filling a box changes its current entry, which would lay everything out again each time.
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
        # Keep the user's choice while it is available.
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
        """The chosen alignment and offset."""
        alignment: Alignment = self.alignment.currentData()
        return Laying(alignment, self.mark.currentText(), self.offset.value())

    def choose(self, alignment: Alignment) -> None:
        """Align by ``alignment``, if these runs allow it."""
        row = self.alignment.findData(alignment)
        if self._choice(row).isEnabled():
            self.alignment.setCurrentIndex(row)

    def move_by(self, by: float) -> None:
        """Move B by a further ``by``."""
        self.offset.setValue(self.offset.value() + by)

    def _alignment_changed(self) -> None:
        self._show_unit()
        # Blocked: resetting the offset is part of the same change.
        self.offset.blockSignals(True)
        self.offset.setValue(0.0)
        self.offset.blockSignals(False)
        self.changed.emit()

    def _show_unit(self) -> None:
        steps = self.alignment.currentData() == "step"
        self.offset.setSuffix(" steps" if steps else " s")
        self.offset.setSingleStep(1.0 if steps else 0.1)
        self.mark.setVisible(self.alignment.currentData() == "mark")
