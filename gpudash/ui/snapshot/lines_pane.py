"""The tab of a snapshot with the source of its program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from gpudash.memory.explaining.annotated_source import AnnotatedSource, change_of, read_source, source_files
from gpudash.memory.growth_rate import HeldLine
from gpudash.session.recordings.run_with_change import run_with_change
from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.source_view.held_source import HeldSource
from gpudash.ui.snapshot.study import Study
from gpudash.ui.widgets.labels import worded_button, wrapping_label
from gpudash.ui.widgets.layouts import in_column, in_row

HELD_AT = "Bytes that each line held at {}, and kept of every step."


class LinesPane(HeldSource):
    """The program's source, with the bytes that each line held at the selected moment, the change that helps, and how
    the program is run with it.

    Attributes:
        how_to_run: the sentence on that, above the command.
        command: the command for a shell.
        copy_button: copies the command.
    """

    def __init__(self, snapshot: Path, palette: Palette) -> None:
        super().__init__(palette)
        self._snapshot = snapshot
        self._study: Study | None = None
        self.how_to_run = wrapping_label("")
        self.command = wrapping_label("legend")
        self.command.setAccessibleName("Command that runs the program with the change")
        self.copy_button = worded_button("Copy", "Copy the command", self._copy)
        self._below = QWidget()
        texts = in_column(self.how_to_run, self.command, spacing=2)
        in_row((texts, 1), self.copy_button, parent=self._below, margins=(0, 2, 0, 0), spacing=8)
        self._below.hide()
        self.column.addWidget(self._below)

    def show_moment(self, study: Study, moment: int) -> None:
        """Show the bytes per line at a moment of a device, and what lines keep per step."""
        if study is not self._study:
            self._show_how_to_run(study)
        self._study = study
        grows = {(line.file, line.line): line for line in study.growth}
        with_growth = {}
        for place, one in study.requests.held_by_line(moment).items():
            if place in grows:
                one = replace(one, growth=grows[place].bytes_per_step, stride=grows[place].stride)
            with_growth[place] = one
        without_owners = replace(study.explanation, owners=())
        changed = source_files(without_owners, change_of(study.explanation), study.known.command.folder)
        self.show_held(with_growth, HELD_AT.format(study.label(moment)), changed)

    def read_file(self, file: str, held: Mapping[int, HeldLine]) -> AnnotatedSource:
        """A file with the change in it; of one that cannot be read, the lines that a report kept."""
        source = None
        if self._study is not None:
            known, found = self._study.known, self._study.explanation
            stored = known.explanations.get(self._study.device.index, found)
            source = read_source(stored, file, change_of(found), known.command.folder, held)
        if source is not None and any(row.kind != "gap" and row.text.strip() for row in source.rows):
            return source
        return super().read_file(file, held)

    def _show_how_to_run(self, study: Study) -> None:
        change = change_to_show(study.explanation)
        self._below.setVisible(change is not None)
        if change is None:
            return
        found = run_with_change(self._snapshot, change)
        self.how_to_run.setText(found.sentence)
        self.command.setText(found.command)
        self.command.setVisible(bool(found.command))
        self.copy_button.setVisible(bool(found.command))

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.command.full_text)


def change_to_show(found: Explanation) -> Remedy | None:
    """The change that the source shows, with how the program is run with it."""
    return change_of(found) or next((remedy for remedy in found.remedies if remedy.rewrites), None)
