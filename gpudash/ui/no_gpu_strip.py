"""The strip at the top while no GPU can be used: which cause it is, what works now, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QVBoxLayout, QWidget

WORKS_NOW = "What works now: runs on the CPU, predictions for a card, snapshots and recordings."
WORKS_SIMULATED = (
    "What works now: runs on the CPU and on a simulated GPU, predictions for a card, snapshots and recordings."
)
LOOKING = "Looking for a GPU…"

Facts = Sequence[tuple[str, str]]


class NoGpuStrip(QFrame):
    """Hidden until there is something to say.

    Args:
        facts: what driver, library and torch answered, asked for when the details are opened.

    Signals:
        demo_requested: a demo recording is to be opened.
        prediction_requested: it is to be shown what would fit.
        check_requested: the driver is to be asked again.
        dismissed: the sentence is not to be told again.
    """

    demo_requested = Signal()
    prediction_requested = Signal()
    check_requested = Signal()
    dismissed = Signal(str)

    def __init__(self, facts: Callable[[], Facts], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._facts = facts
        self._problem = ""
        self.setProperty("role", "banner")
        self.setProperty("level", "note")
        self.text = QLabel()
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setWordWrap(True)
        self.text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.text.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.demo = self._button("Open the demo recording", "A training that was recorded", self.demo_requested.emit)
        self.predict = self._button(
            "Predict a run", "What a run would need, and what would fit", self.prediction_requested.emit
        )
        self.check = self._button("Check again", "Ask the driver again, without a restart", self._check)
        self.details = self._button("Details", "What driver, library and torch answered", self._toggle)
        self.details.setCheckable(True)
        self.close_button = self._button("×", "Do not tell this again", self._dismiss)
        self.close_button.setProperty("role", "chip")
        self.close_button.setAccessibleName("Dismiss")
        self._folded = QWidget()
        self._lay_out()
        self._folded.hide()
        self.hide()

    def _button(self, words: str, tip: str, act: Callable[[], None]) -> QPushButton:
        button = QPushButton(words)
        button.setToolTip(tip)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        button.clicked.connect(lambda: act())
        return button

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(6)
        row.addWidget(self.text, 1)
        for button in (self.demo, self.predict, self.check, self.details, self.close_button):
            row.addWidget(button)
        inside = QHBoxLayout(self._folded)
        inside.setContentsMargins(0, 0, 0, 0)
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(18)
        self._grid.setVerticalSpacing(2)
        inside.addLayout(self._grid)
        inside.addStretch(1)
        copy = self._button("Copy details", "Copy what a bug report needs of this", self._copy)
        inside.addWidget(copy, alignment=Qt.AlignmentFlag.AlignTop)
        rows = QVBoxLayout(self)
        rows.setContentsMargins(14, 6, 10, 6)
        rows.setSpacing(4)
        rows.addLayout(row)
        rows.addWidget(self._folded)

    @property
    def problem(self) -> str:
        """What is told; "" while nothing is."""
        return self._problem

    def tell(self, problem: str | None, *, simulated: bool = False) -> None:
        """Say why there is no GPU and what works; with ``None`` nothing.

        Args:
            problem: one sentence.
            simulated: whether there is a simulated GPU to run on.
        """
        self._problem = problem or ""
        self.setVisible(problem is not None)
        if problem is None:
            return
        words = f"{problem} {WORKS_SIMULATED if simulated else WORKS_NOW}"
        if self.text.text() != words:
            self.text.setText(words)
            self.setAccessibleName(words)

    def _check(self) -> None:
        self.text.setText(LOOKING)
        self.check_requested.emit()

    def _toggle(self) -> None:
        if self.details.isChecked():
            self._fill()
        self._folded.setVisible(self.details.isChecked())

    def _fill(self) -> None:
        while self._grid.count():
            item = self._grid.takeAt(0)
            widget = item.widget() if item is not None else None
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        for row, (name, answer) in enumerate(self._facts()):
            for column, words in enumerate((name, answer)):
                label = QLabel(words)
                label.setTextFormat(Qt.TextFormat.PlainText)
                label.setProperty("role", "muted" if column == 0 else "")
                label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
                label.setFocusPolicy(Qt.FocusPolicy.NoFocus)
                self._grid.addWidget(label, row, column)

    def _copy(self) -> None:
        lines = [("problem", self._problem), *self._facts()]
        QGuiApplication.clipboard().setText("\n".join(f"{name}\t{answer}" for name, answer in lines))

    def _dismiss(self) -> None:
        told = self._problem
        self.tell(None)
        self.dismissed.emit(told)
