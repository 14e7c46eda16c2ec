"""Answers what would have happened on another card or with other allocator settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QLineEdit, QWidget

from gpudash.devices.known_gpus import KNOWN_GPUS
from gpudash.devices.names import parse_card, size_of
from gpudash.memory.allocator.settings import AllocatorSettings
from gpudash.memory.predicting.estimate import CARDS_BYTES
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Column, Table
from gpudash.units import GIB, format_bytes

if TYPE_CHECKING:
    from gpudash.session.recordings.snapshot_opener import OpenedSnapshot

COLUMNS = (
    Column("card"),
    Column("settings"),
    Column("answer", wide=True),
)

EMPTY = (
    "Ask whether the recorded allocations fit a card of another size, or with other settings of the allocator. "
    "They are replayed by a model of PyTorch's allocator."
)

NO_TRACE = "This snapshot has no history of events, so nothing can be replayed."

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8",
)


@dataclass(slots=True)
class _Question:
    card: str
    settings: str
    number: int | None = None
    answer: str = "looking…"


class WhatIfPane(QWidget):
    """A row of input fields and the answers so far, the newest first."""

    def __init__(self, truth_table: OpenedSnapshot) -> None:
        super().__init__()
        self._truth_table = truth_table
        self._device = 0
        self._may_ask = False
        self._questions: list[_Question] = []
        self.capacity = ChoiceField(
            "Memory of the card",
            "Memory of the card for PyTorch, such as 23GiB, or its name, such as l4; empty for an unlimited card",
        )
        self.capacity.setEditable(True)
        self.capacity.addItems([*(f"{size // GIB} GiB" for size in CARDS_BYTES), *(gpu.key for gpu in KNOWN_GPUS)])
        self.capacity.setCurrentText("24 GiB")
        self.settings = ChoiceField(
            "Settings of the allocator", "In the format of PYTORCH_ALLOC_CONF; empty for those of the snapshot"
        )
        self.settings.setEditable(True)
        self.settings.addItems(list(SETTINGS))
        self.button = worded_button("Ask", "Replay the recorded allocations (Enter)", self.ask)
        self.smallest = worded_button(
            "Smallest card",
            "Find the least memory that the recorded allocations need with these settings",
            self.ask_smallest,
        )
        for box in (self.capacity, self.settings):
            line = box.lineEdit()
            assert isinstance(line, QLineEdit)
            line.returnPressed.connect(self.ask)
        line = self.settings.lineEdit()
        assert isinstance(line, QLineEdit)
        line.setPlaceholderText("settings of the snapshot")
        self.problem = PlainLabel(role="error", wraps=True)
        self.problem.hide()
        self.table = Table("What would have happened", COLUMNS, EMPTY)
        self.table.view.setWordWrap(True)
        row = in_row(
            PlainLabel("Card with"),
            self.capacity,
            PlainLabel("and"),
            (self.settings, 1),
            self.button,
            self.smallest,
            spacing=6,
        )
        in_column(row, self.problem, (self.table, 1), parent=self, margins=(4, 6, 4, 2), spacing=4)

    def show_device(self, index: int, has_history: bool) -> None:
        """Ask about this device from now on."""
        self._device = index
        self._questions = []
        self._may_ask = has_history
        for control in (self.capacity, self.settings, self.button, self.smallest):
            control.setEnabled(has_history)
        self._show_problem("" if has_history else NO_TRACE, wrong=has_history)
        self._show()

    def ask_smallest(self) -> None:
        """Ask for the smallest card that fits, which is part of the answer for an unlimited one."""
        if self._may_ask:
            self._ask("")

    def ask(self) -> None:
        """Submit the question in the fields."""
        self._ask(self.capacity.currentText())

    def _ask(self, card_text: str) -> None:
        try:
            capacity = _capacity(card_text)
            settings = self.settings.currentText().strip()
            if settings:
                AllocatorSettings.parse(settings)
        except ValueError as error:
            self._show_problem(f"{str(error)[:1].upper()}{str(error)[1:].rstrip('.')}.")
            return
        self._show_problem("")
        if capacity is None:
            card = "any"
        else:
            card = format_bytes(capacity)
        question = _Question(card, settings or "as recorded")
        question.number = self._truth_table.ask(self._device, capacity, settings or None)
        self._questions.insert(0, question)
        self._show()

    def _show_problem(self, text: str, *, wrong: bool = True) -> None:
        self.problem.setProperty("role", "error" if wrong else "muted")
        self.problem.style().polish(self.problem)
        self.problem.setText(text)
        self.problem.setVisible(bool(text))

    def refresh(self) -> None:
        """Fetch the answers that are ready."""
        came = [question for question in self._questions if question.number is not None and self._take(question)]
        if came:
            newest = self._questions.index(came[0])
            for question in self._questions[newest:]:
                if question.number is not None:  # the process answers only the newest question
                    question.number, question.answer = None, "not answered: replaced by a newer question"
            self._show()

    def _take(self, question: _Question) -> bool:
        assert question.number is not None
        try:
            answer = self._truth_table.answer(question.number)
        except ValueError as error:
            question.answer = str(error)
        else:
            if answer is None:
                return False
            question.answer = answer.sentence
        question.number = None
        return True

    def _show(self) -> None:
        rows: list[Sequence[str]] = [(q.card, q.settings, q.answer) for q in self._questions]
        self.table.show_rows(rows)
        self.table.view.resizeRowsToContents()


def _capacity(text: str) -> int | None:
    """A card's size in bytes; ``None`` for an unlimited card.

    Raises:
        ValueError: the text is neither a size nor a GPU's name; the message is one sentence.
    """
    if not text.strip():
        return None
    size = size_of(parse_card(text))
    if not size:
        raise ValueError("a card needs more than 0 bytes")
    return size
