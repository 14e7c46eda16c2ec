"""What grew between steps: lines of which every step keeps something, and what each step left behind."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QSplitter, QVBoxLayout, QWidget

from gpudash.telemetry.explanation import Growth
from gpudash.ui.snapshot.rows import signed
from gpudash.ui.snapshot.study import Step, Study
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Column, Table
from gpudash.units import format_bytes, format_count

GROWTH_COLUMNS = (
    Column("per step", right=True, tip="Bytes that stay behind at every step"),
    Column("so far", right=True, tip="Bytes that have stayed"),
    Column("steps", right=True, tip="Steps that left something behind"),
    Column("where", wide=True),
)

STEP_COLUMNS = (
    Column("step", right=True),
    Column("peak", right=True, tip="Most that was allocated in it"),
    Column("at its end", right=True, tip="Allocated at its end"),
    Column("kept", right=True, tip="Allocated at its end less that at its beginning"),
    Column("events", wide=True),
)

NO_GROWTH = "No line keeps something of every step."
NO_STEPS = "No steps were found: neither annotations nor stacks of an optimizer show where one ends."


class StepsPane(QWidget):
    """Two tables.

    Signals:
        compared: the moments (later, earlier) of the step in front.
    """

    compared = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._steps: Sequence[Step] = ()
        self.words = PlainLabel()
        self.words.setProperty("role", "muted")
        self.words.setWordWrap(True)
        self.growth = Table("What every step keeps", GROWTH_COLUMNS, NO_GROWTH)
        self.steps = Table("Steps", STEP_COLUMNS, NO_STEPS)
        self.steps.view.setToolTip("Click a step to compare its end with its beginning")
        self.steps.view.clicked.connect(lambda index: self._compare(index.row()))
        self.steps.view.activated.connect(lambda index: self._compare(index.row()))
        halves = QSplitter(Qt.Orientation.Vertical)
        halves.setChildrenCollapsible(False)
        halves.addWidget(self.growth)
        halves.addWidget(self.steps)
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 6, 4, 2)
        column.setSpacing(4)
        column.addWidget(self.words)
        column.addWidget(halves, 1)

    def show_study(self, study: Study) -> None:
        """Show the steps of a device."""
        self._steps = study.steps()
        self.words.setText(steps_words(self._steps, study.growth))
        self.growth.show_rows([_growth_cells(line) for line in study.growth])
        self.steps.show_rows([_step_cells(step) for step in self._steps])

    @property
    def front(self) -> Table:
        """The table that a copy is taken from."""
        return self.growth if self.growth.view.hasFocus() else self.steps

    def _compare(self, row: int) -> None:
        if 0 <= row < len(self._steps):
            self.compared.emit((self._steps[row].end, self._steps[row].begin))


def steps_words(steps: Sequence[Step], growth: Sequence[Growth]) -> str:
    """What the tables show, in a sentence."""
    if growth:
        first = growth[0]
        more = f", and {len(growth) - 1} more lines grow" if len(growth) > 1 else ""
        return f"{first.place} keeps {format_bytes(first.bytes_per_step)} of every step{more}."
    if not steps:
        return ""
    kept = sum(step.kept for step in steps[1:-1])
    if len(steps) > 2 and kept == 0:
        return f"{format_count(len(steps))} steps; those that were recorded whole end with what they began with."
    if len(steps) == 1:
        return "One step; click it to see what it left behind."
    return f"{format_count(len(steps))} steps; click one to see what it left behind."


def _growth_cells(line: Growth) -> tuple[str, ...]:
    return (
        f"+{format_bytes(line.bytes_per_step)}",
        format_bytes(line.bytes),
        format_count(line.steps),
        line.place,
    )


def _step_cells(step: Step) -> tuple[str, ...]:
    return (
        format_count(step.number),
        format_bytes(step.peak),
        format_bytes(step.allocated),
        signed(step.kept),
        f"{format_count(step.begin + 1)} to {format_count(step.end)}",
    )
