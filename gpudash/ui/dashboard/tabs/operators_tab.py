"""The tab that shows what the profiler found: operators, the stack of the selected one, and when each ran."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import (
    QComboBox,
    QFileDialog,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QScrollArea,
    QSizePolicy,
    QSplitter,
    QStackedLayout,
    QVBoxLayout,
    QWidget,
)

from gpudash.session.live.profiles import trace_of
from gpudash.telemetry.recording.naming import TRACE_SUFFIX
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import OPERATORS, Note
from gpudash.telemetry.runs import RunView
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.tabs.operators_table import OperatorsTable
from gpudash.ui.dashboard.tabs.operators_timeline import OperatorsTimeline
from gpudash.ui.widgets.labels import worded_button, worded_label
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_duration

EMPTY = (
    "The operators of profiled steps appear here, by time and by memory, with their stacks and a timeline. "
    "During a run, Run > Profile Next Steps… (Shift+F5) profiles some."
)
EMPTY_RECORDING = "No steps were profiled while this was recorded."

PROFILE_TIP = "Profile steps of the current run (Shift+F5)"
EXPORT_TIP = "Write the trace for Perfetto or chrome://tracing"
FOLDER_TIP = "Show where the trace lies"
GONE = "The trace is not there any more."

TIMELINE_HEIGHT = 118
"""Logical pixels of the timeline: seven rows, and the rest by scrolling."""


LEAST_TIMELINE_HEIGHT = 70


class OperatorsTab(QWidget):
    """What the profiles of a run found, the newest first.

    Signals:
        profile_requested: steps are to be profiled.
        told: a passing message for the status line.

    Attributes:
        recording: tells which recording the shown run lies in, beside which its traces lie.
    """

    profile_requested = Signal()
    told = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.recording: Callable[[], Path | None] = lambda: None
        self._profiles: Sequence[Note] = ()
        self._seen: object = None
        self._details: Mapping[str, Any] = {}
        self._build()

    def _build(self) -> None:
        self.choice = QComboBox()
        self.choice.setAccessibleName("Profile")
        self.choice.setToolTip("Which profiled steps are shown")
        self.choice.currentIndexChanged.connect(self._show_chosen)
        self.search = QLineEdit()
        self.search.setPlaceholderText("Find")
        self.search.setAccessibleName("Find an operator")
        self.search.setClearButtonEnabled(True)
        self.search.setMinimumWidth(140)
        self.search.setMaximumWidth(220)
        self.search.setToolTip("Words of an operator's name, its shapes or its stack")
        self.words = worded_label("muted", wraps=False)
        self.words.setMinimumWidth(60)
        self.words.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.profile = worded_button("Profile next steps…", PROFILE_TIP, self._profile)
        self.export = worded_button("Export trace…", EXPORT_TIP, self._export)
        self.folder = worded_button("Open folder", FOLDER_TIP, self._open_folder)
        head = QHBoxLayout()
        head.setContentsMargins(8, 3, 8, 3)
        head.setSpacing(8)
        for widget in (self.choice, self.search):
            head.addWidget(widget)
        head.addWidget(self.words, 1)
        for button in (self.profile, self.export, self.folder):
            head.addWidget(button)
        self.table = OperatorsTable()
        self.stack = QPlainTextEdit()
        self.stack.setReadOnly(True)
        self.stack.setAccessibleName("Stack of the selected operator")
        self.stack.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.timeline = OperatorsTimeline()
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setMaximumHeight(TIMELINE_HEIGHT)
        scroll.setMinimumHeight(LEAST_TIMELINE_HEIGHT)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        scroll.setWidget(self.timeline)
        beside = QSplitter(Qt.Orientation.Horizontal)
        beside.setChildrenCollapsible(False)
        beside.addWidget(self.table)
        beside.addWidget(self.stack)
        beside.setStretchFactor(0, 3)
        beside.setStretchFactor(1, 1)
        beside.setSizes([720, 280])
        shown = QWidget()
        rows = QVBoxLayout(shown)
        rows.setContentsMargins(0, 0, 0, 0)
        rows.setSpacing(2)
        rows.addLayout(head)
        rows.addWidget(scroll)
        rows.addWidget(beside, 1)
        self._layers = QStackedLayout(self)
        self._layers.addWidget(self._empty())
        self._layers.addWidget(shown)
        self.search.textChanged.connect(self.table.operators.search)
        self.table.chosen.connect(self._show_stack)
        self.timeline.chosen.connect(self.table.select)

    def _empty(self) -> QWidget:
        page = QWidget()
        self.empty_words = PlainLabel(EMPTY)
        self.empty_words.setProperty("role", "muted")
        self.empty_words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty_words.setWordWrap(True)
        self.first = worded_button("Profile next steps…", PROFILE_TIP, self._profile)
        column = QVBoxLayout(page)
        column.addStretch(1)
        column.addWidget(self.empty_words)
        column.addWidget(self.first, 0, Qt.AlignmentFlag.AlignHCenter)
        column.addStretch(1)
        return page

    def set_commanding(self, commanding: bool) -> None:
        """Whether steps can be profiled here; a recording is only looked at."""
        self.profile.setVisible(commanding)
        self.first.setVisible(commanding)
        self.empty_words.setText(EMPTY if commanding else EMPTY_RECORDING)

    def refuse(self, why: str) -> None:
        """Offer no profile now, because of ``why``; "" offers it."""
        for button in (self.profile, self.first):
            button.setEnabled(not why)
            button.setToolTip(plain_tip(f"{PROFILE_TIP}{f'. {why}' if why else ''}"))

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self.timeline.set_palette(palette)

    def refresh(self, run: RunView | None) -> None:
        """Show the newest profile of ``run`` when there is a new one."""
        profiles = (
            [note for note in run.notes if note.topic == OPERATORS and note.details.get("operators")] if run else []
        )
        seen = (run.run_id if run else None, len(profiles))
        if seen == self._seen:
            return
        self._seen, self._profiles = seen, profiles[::-1]
        with QSignalBlocker(self.choice):
            self.choice.clear()
            self.choice.addItems([_steps_words(note.details) for note in self._profiles])
        self.choice.setVisible(len(profiles) > 1)
        self._show_chosen()

    def _show_chosen(self) -> None:
        place = max(0, self.choice.currentIndex())
        self._details = self._profiles[place].details if self._profiles else {}
        self._layers.setCurrentIndex(1 if self._details else 0)
        if not self._details:
            return
        self.timeline.show_timeline(self._details["timeline"])
        self.table.show_rows(self._details["operators"])
        self.words.setText(_cost_words(self._details))
        self.words.setToolTip(plain_tip(self._profiles[place].text))
        there = trace_of(self._details, self.recording()) is not None
        missing = str(self._details.get("trace_problem") or GONE)
        for button, tip in ((self.export, EXPORT_TIP), (self.folder, FOLDER_TIP)):
            button.setEnabled(there)
            button.setToolTip(plain_tip(tip if there else missing))

    def _show_stack(self, row: Mapping[str, Any] | None) -> None:
        self.timeline.select(None if row is None else str(row["name"]))
        if row is None:
            self.stack.setPlainText("")
            return
        stack = "\n".join(f"{'  ' * depth}{frame}" for depth, frame in enumerate(row["stack"]))
        self.stack.setPlainText(f"{row['name']}\ncalled most often from\n{stack or 'no Python function'}")

    def _profile(self) -> None:
        self.profile_requested.emit()

    def _export(self) -> None:
        trace = trace_of(self._details, self.recording())
        if trace is None:
            self.told.emit(GONE)
            return
        chosen, _kind = QFileDialog.getSaveFileName(
            self, "Export Trace", str(Path.home() / trace.name), f"Traces (*{TRACE_SUFFIX})"
        )
        if chosen:
            self.export_to(trace, Path(chosen))

    def export_to(self, trace: Path, target: Path) -> None:
        """Copy the trace; what goes wrong is told in a sentence."""
        from gpudash.telemetry.export.writing import atomically

        try:
            if not (target.exists() and target.samefile(trace)):
                with atomically(target, trace, force=True) as part:
                    shutil.copyfile(trace, part)
        except (OSError, RecordingError) as error:
            self.told.emit(f"{error}.")
        else:
            self.told.emit(f"The trace is in {target}; open it at ui.perfetto.dev.")

    def _open_folder(self) -> None:
        trace = trace_of(self._details, self.recording())
        if trace is None:
            self.told.emit(GONE)
        else:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(trace.parent)))


def _steps_words(details: Mapping[str, Any]) -> str:
    first, steps = details["first_step"], details["steps"]
    return f"Step {first}" if steps <= 1 else f"Steps {first} to {first + steps - 1}"


def _cost_words(details: Mapping[str, Any]) -> str:
    wanted = details.get("wanted_steps", 0)
    parts = [_steps_words(details) + (f" ({wanted} were asked for)" if wanted > details["steps"] else "")]
    step_s, plain_s = details["step_seconds"], details["plain_step_seconds"]
    if step_s is not None:
        parts.append(f"{format_duration(step_s)} each")
    if step_s is not None and plain_s is not None and plain_s < step_s:
        parts.append(f"{format_duration(plain_s)} without the profiler")
    return " · ".join(parts)
