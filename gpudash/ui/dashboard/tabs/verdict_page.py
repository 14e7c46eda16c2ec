"""The verdict screen of a comparison: one sentence, one number, one interval, and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QScrollArea, QVBoxLayout, QWidget

from gpudash.telemetry.outcome import (
    comparison_rows,
    energy_words,
    is_comparison,
    memory_words,
    ratio_words,
    shares_words,
    trust_words,
)
from gpudash.ui.widgets.labels import worded_button, worded_label
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.verdict_bars import ShareBar, SizesGraph, SpreadBar
from gpudash.units import format_duration

COLUMNS = (
    ("", ""),
    ("compute only", "A step without its copies"),
    ("with transfers", "A whole step, the headline's figure"),
    ("spread", "From the least to the most over the repetitions; the middle half is thicker, the median marked"),
    ("where the time goes", "Computing, copying between memories, and waiting"),
    ("", ""),
    ("peak memory", "Of the process on the CPU, of PyTorch's allocator on a GPU"),
    ("energy", "From the GPU's own counter and the CPU package's"),
)

ABOUT = 0.952
"""Ratios from it to its reciprocal are no difference: 5 %."""

ROLES = {"faster": "good", "slower": "warn", "close": "figure-small"}
"""Outcome → look of its word; the sentence says it too."""

WORDS = {"faster": "FASTER", "slower": "NOT WORTH IT", "close": "TOO CLOSE TO CALL"}


class VerdictPage(QScrollArea):
    """Shows a comparison's result, live or of a recording.

    Signals:
        again: the same comparison is to be run again.
    """

    again = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setAccessibleName("Verdict of the comparison")
        self.result: Mapping[str, Any] = {}
        self._word = worded_label("good", wraps=False)
        self.headline = worded_label("figure")
        self.trust = worded_label("muted", wraps=False)
        self.because = worded_label("figure-small")
        self.what = worded_label("muted")
        self.notes = worded_label("muted")
        self.graph = SizesGraph()
        self._cells: list[dict[str, QLabel]] = [{}, {}]
        self._bars = [(SpreadBar(), ShareBar()), (SpreadBar(), ShareBar())]
        self._ratios = {name: worded_label("figure-small", wraps=False) for name in ("", "compute", "whole", "of")}
        self.copy_button = worded_button("Copy", "Copy the verdict and its figures as text", self.copy)
        self.again_button = worded_button("Run again", "Run the same comparison again", self.again.emit)
        self._build()

    def _build(self) -> None:
        panel = QWidget()
        panel.setProperty("role", "scrolled")
        rows = QVBoxLayout(panel)
        rows.setContentsMargins(14, 10, 14, 10)
        rows.setSpacing(6)
        top = QHBoxLayout()
        top.setSpacing(12)
        top.addWidget(self._word)
        top.addWidget(self.trust, 1)
        for button in (self.copy_button, self.again_button):
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            top.addWidget(button)
        rows.addLayout(top)
        rows.addWidget(self.headline)
        rows.addWidget(self.because)
        rows.addWidget(self.what)
        rows.addLayout(self._table())
        rows.addWidget(self.graph)
        rows.addWidget(self.notes)
        rows.addStretch(1)
        self.setWidget(panel)

    def _table(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(14)
        grid.setVerticalSpacing(4)
        for column, (title, tip) in enumerate(COLUMNS):
            label = PlainLabel(title)
            label.setProperty("role", "title")
            label.setToolTip(plain_tip(tip))
            grid.addWidget(label, 0, column)
        for row, (cells, bars) in enumerate(zip(self._cells, self._bars, strict=True), 1):
            for column, name in (
                (0, "label"),
                (1, "compute"),
                (2, "whole"),
                (5, "shares"),
                (6, "memory"),
                (7, "energy"),
            ):
                cells[name] = worded_label("figure-small" if column in (0, 2) else "", wraps=False)
                grid.addWidget(cells[name], row, column)
            for column, bar in zip((3, 4), bars, strict=True):
                grid.addWidget(bar, row, column)
        grid.addWidget(self._ratios["of"], 3, 0)
        grid.addWidget(self._ratios["compute"], 3, 1)
        grid.addWidget(self._ratios["whole"], 3, 2)
        for column in (3, 4):
            grid.setColumnStretch(column, 1)
            grid.setColumnMinimumWidth(column, 70)
        return grid

    def show_result(self, result: Mapping[str, Any]) -> bool:
        """Show the result of a comparison; false when it is not that of one."""
        if not is_comparison(result):
            return False
        if result == self.result:
            return True
        self.result = result
        outcome = str(result["outcome"])
        self._word.setText(WORDS.get(outcome, ""))
        if self._word.property("role") != ROLES.get(outcome):
            self._word.setProperty("role", ROLES.get(outcome))
            self._word.style().unpolish(self._word)
            self._word.style().polish(self._word)
        self.headline.setText(str(result["headline"]))
        self.because.setText(str(result["because"]))
        self.because.setVisible(bool(result["because"]))
        self.trust.setText(f"{result['number']['interval']}  ·  {trust_words(result)}")
        products = dict.fromkeys(side["product"] for side in result["sides"] if side["product"])
        self.what.setText(" · ".join([str(result["what"]), " and ".join(products)]))
        self._show_sides(result)
        notes = [str(result["agreement"]["words"]), *map(str, result.get("notes", ()))]
        if result.get("resident"):
            notes.insert(0, f"With the data kept on the device: {ratio_words(result['resident'])} times as fast.")
        self.notes.setText("\n".join(notes))
        first, second = result["sides"]
        labels = (first["label"], second["label"])
        swapped = second["device"] == "cpu" and first["device"] != "cpu"
        self.graph.show_sweep(result.get("sweep"), labels[::-1] if swapped else labels)
        return True

    def _show_sides(self, result: Mapping[str, Any]) -> None:
        sides = result["sides"]
        longest = max(side["step_seconds"] for side in sides)
        # a single disturbed repetition must not press all the others together
        widest = max(min(max(side["step_seconds_quartiles"] or [0]), 2 * side["step_seconds"]) for side in sides)
        for side, cells, (spread, share) in zip(sides, self._cells, self._bars, strict=True):
            cells["label"].setText(side["label"])
            cells["compute"].setText(format_duration(side["compute_only_seconds"]))
            cells["whole"].setText(format_duration(side["step_seconds"]))
            cells["shares"].setText(shares_words(side).replace(" + ", "\n"))
            cells["memory"].setText(memory_words(side).replace(", ", "\n").replace(" of the", "\nof the"))
            short = energy_words(side).partition(":" if side["energy_j"] is None else ",")[0]
            cells["energy"].setText(short.replace(" here", "\nhere"))
            cells["energy"].setToolTip(plain_tip(energy_words(side)))
            spread.show_side(side, max(widest, longest))
            share.show_side(side, longest)
        self._ratios["of"].setText(f"{sides[1]['label']} is")
        self._ratios["compute"].setText(_times(result["compute_only"]))
        self._ratios["whole"].setText(_times(result))

    def text(self) -> str:
        """The verdict and its figures as text."""
        return "\n".join(": ".join(row) for row in comparison_rows(self.result))

    def copy(self) -> None:
        """Put `text` on the clipboard."""
        QGuiApplication.clipboard().setText(self.text())


def _times(found: Mapping[str, Any]) -> str:
    ratio, (low, high) = found["ratio"], found["interval"]
    if low is None or high is None or (low <= 1 <= high and not ABOUT <= low <= high <= 1 / ABOUT):
        return "undecided"
    if ABOUT <= ratio <= 1 / ABOUT:
        return "about as fast"
    if ratio >= 1:
        return f"{ratio:.0f}× as fast" if ratio >= 9.95 else f"{ratio:.1f}× as fast"
    return f"{1 / ratio:.0f}× slower" if ratio <= 1 / 9.95 else f"{1 / ratio:.1f}× slower"
