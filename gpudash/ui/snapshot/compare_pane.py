"""This snapshot and another one: what grew and what shrank, in words and row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from gpudash.memory.explaining.call_sites import SourceLine
from gpudash.memory.snapshot.history.difference import compare
from gpudash.memory.snapshot.history.model import SnapshotError
from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
from gpudash.ui.snapshot.call_sites import CHANGE_COLUMNS, MOST_ROWS, change_cells
from gpudash.ui.snapshot.rows import changes
from gpudash.ui.snapshot.selection import NOTHING
from gpudash.ui.snapshot.study import Study, Studying
from gpudash.ui.widgets.opening_page import progress_words
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Table

LEAVING_S = 1.0
"""How long closing waits for the thread that works the second file out."""

EMPTY = "Choose a second snapshot: what is live at its peak (or out-of-memory) is compared with this one's."


class ComparePane(QWidget):
    """A button, a sentence and a table.

    Signals:
        said: a sentence for the status line.
    """

    said = Signal(str)

    def __init__(
        self, opener: Callable[[Path], OpenedSnapshot], source: SourceLine, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._opener = opener
        self._source = source
        self._study: Study | None = None
        self._name = ""
        self._opened: OpenedSnapshot | None = None
        self._studying: Studying | None = None
        self.button = QPushButton("Choose a snapshot")
        self.button.setToolTip("Choose the file that this snapshot is compared with")
        self.button.clicked.connect(lambda _checked=False: self._choose())
        self.words = PlainLabel()
        self.words.setProperty("role", "muted")
        self.words.setWordWrap(True)
        self.table = Table("Difference of two snapshots", CHANGE_COLUMNS, EMPTY)
        row = QHBoxLayout()
        row.addWidget(self.words, 1)
        row.addWidget(self.button)
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 6, 4, 2)
        column.setSpacing(4)
        column.addLayout(row)
        column.addWidget(self.table, 1)

    def show_study(self, study: Study, name: str) -> None:
        """The first of the two."""
        self._study, self._name = study, name

    def _choose(self) -> None:
        path, _kind = QFileDialog.getOpenFileName(
            self, "Compare with", "", "Memory snapshots (*.pickle *.pkl *.json *.gz);;All files (*)"
        )
        if path:
            self.compare_with(Path(path))

    def compare_with(self, path: Path) -> None:
        """Read another snapshot and show the difference once it is read."""
        self.close_other()
        self._opened = self._opener(path)
        self._opened.start()
        self._tell(f"Reading {path.name}…")

    def refresh(self) -> None:
        """Go on with what is being read."""
        if self._opened is None or self._study is None:
            return
        if self._studying is not None:
            if not self._studying.is_alive():
                self._finish(self._studying)
            return
        try:
            snapshot = self._opened.poll()
        except (SnapshotError, OSError) as error:
            self._tell(str(error), wrong=True)
            self.close_other()
            return
        if snapshot is None:
            done, total = self._opened.progress
            if total:
                self._tell(f"Reading {self._opened.path.name}: {progress_words(done, total)}")
            return
        same = [place for place, device in enumerate(snapshot.devices) if device.index == self._study.device.index]
        self._studying = Studying(snapshot, same[0] if same else 0, self._source, self._opened.path)
        self._studying.start()

    def _finish(self, studying: Studying) -> None:
        opened, self._studying = self._opened, None
        assert opened is not None and self._study is not None
        if studying.study is None:
            self._tell(studying.problem, wrong=True)
        else:
            self._show(studying.study, opened.path.name)
        self.close_other()

    def _show(self, other: Study, name: str) -> None:
        assert self._study is not None
        first, second = self._study, other
        found = changes(
            first.holders(first.alive(NOTHING), "call site"), second.holders(second.alive(NOTHING), "call site")
        )
        self.table.show_rows([change_cells(change) for change in found[:MOST_ROWS]])
        words = compare(first.history, first.home, second.history, second.home).words
        self._tell(f"A is {self._name}, B is {name}. {words}")
        self.said.emit(f"Compared with {name}.")

    def _tell(self, words: str, *, wrong: bool = False) -> None:
        self.words.setProperty("role", "error" if wrong else "muted")
        self.words.style().polish(self.words)
        self.words.setText(words)

    def close_other(self) -> None:
        """End the reading of the second file."""
        if self._studying is not None:
            self._studying.join(LEAVING_S)
            self._studying = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None
