"""The form for the user's own program: the script and how it is started, checked as it is typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFileDialog,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QToolButton,
    QWidget,
)

from gpudash.devices.known_gpus import KNOWN_GPUS
from gpudash.session.watching.request import WatchRequest, found_python
from gpudash.ui.forms.script import Script, python_words
from gpudash.ui.forms.spec_form import LABEL_WIDTH
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.remembered import recall, remember

TITLE = "My script"
SUMMARY = "Your own program, unchanged, under the dashboard: its memory, its loss, its output."

NOT_PREDICTED = (
    "The memory of your own program is not predicted here; gpudash estimate --callable does that for a function."
)

TIPS: Mapping[str, str] = {
    "file": "The Python script to run; it needs no change",
    "arguments": "Arguments of the script, as they would be typed in a shell",
    "folder": "Folder the script runs in; the script's own unless another is named",
    "environment": "Environment variables that are added: NAME=value, one a line or between spaces",
    "python": "Interpreter that runs the script: the one of the script's own virtual environment where there is one",
    "simulate": "Run on a GPU that is not there, by its size (8 GiB) or name (h100): the script finds it as sim:0,\n"
    "or by asking torch.accelerator.\n"
    "Results are real, speed is not a GPU's.",
    "memory_history": "Write down every allocation with its call stack, so that what grows is named and an\n"
    "out-of-memory is explained. Costs the script up to 10 % of its speed.",
}
LABELS: Mapping[str, str] = {
    "file": "Script",
    "arguments": "Arguments",
    "folder": "Folder",
    "environment": "Environment",
    "python": "Python",
    "simulate": "Simulated GPU",
    "memory_history": "Memory history",
}
OFF = "Off"
SIZES = ("4 GiB", "8 GiB", "16 GiB", "24 GiB", "80 GiB")

_REMEMBERED = "script"

ENVIRONMENT_ROWS = 3
LINE_MARGIN_PX = 14
LABEL_PX = LABEL_WIDTH - 22
"""The labels are shorter than those of other forms, and paths are long."""


class ScriptForm(QWidget):
    """Every value of a `Script`.

    Signals:
        changed: any value changed.
    """

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._recorded = False
        self._errors: dict[str, QLabel] = {}
        self._browse: list[QToolButton] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(2)
        self._grid.setColumnMinimumWidth(0, LABEL_PX)
        self._grid.setColumnStretch(1, 1)
        self.file, self.arguments = QLineEdit(), QLineEdit()
        self.folder, self.python = QLineEdit(), QLineEdit()
        self.environment = QPlainTextEdit()
        self.environment.setTabChangesFocus(True)
        self.environment.document().setDocumentMargin(1)
        self.environment.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        line = self.environment.fontMetrics().lineSpacing()
        self.environment.setFixedHeight(ENVIRONMENT_ROWS * line + LINE_MARGIN_PX)
        self.simulate = ChoiceField()
        line_edit = QLineEdit()
        line_edit.setAcceptDrops(False)
        self.simulate.setLineEdit(line_edit)
        self.simulate.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.simulate.addItems([OFF, *SIZES, *(gpu.key for gpu in KNOWN_GPUS)])
        self.memory_history = QCheckBox("up to 10 % slower")
        self._add("file", self.file, self._ask_file)
        self._add("arguments", self.arguments)
        self._add("folder", self.folder, self._ask_folder)
        self._add("environment", self.environment)
        self._add("python", self.python, self._ask_python)
        self._add("simulate", self.simulate)
        self._add("memory_history", self.memory_history)
        self._grid.setRowStretch(self._grid.rowCount(), 1)
        self.set_script(Script.from_json(recall(_REMEMBERED)))

    def _add(self, name: str, control: QWidget, ask: Callable[[], None] | None = None) -> None:
        control.setAccessibleName(LABELS[name])
        control.setToolTip(TIPS[name])
        control.setAcceptDrops(False)  # a file dropped here would become a text beginning with file://
        label = PlainLabel(LABELS[name])
        label.setProperty("role", "muted")
        label.setBuddy(control)
        label.setToolTip(TIPS[name])
        box = QHBoxLayout()
        box.setContentsMargins(0, 2, 0, 0)
        box.setSpacing(4)
        box.addWidget(control, 1)
        if ask is not None:
            box.addWidget(self._browse_button(name, ask))
        error = PlainLabel()
        error.setProperty("role", "error")
        error.setWordWrap(True)
        error.hide()
        row = self._grid.rowCount()
        tall = isinstance(control, QPlainTextEdit)
        label.setContentsMargins(0, 7 if tall else 2, 0, 0)
        self._grid.addWidget(label, row, 0, Qt.AlignmentFlag.AlignTop if tall else Qt.AlignmentFlag.AlignVCenter)
        self._grid.addLayout(box, row, 1)
        self._grid.addWidget(error, row + 1, 1)
        self._errors[name] = error
        if isinstance(control, (QLineEdit, QPlainTextEdit)):
            control.textChanged.connect(self._changed)
        elif isinstance(control, QComboBox):
            control.editTextChanged.connect(self._changed)
        elif isinstance(control, QCheckBox):
            control.toggled.connect(self._changed)

    def _browse_button(self, name: str, ask: Callable[[], None]) -> QToolButton:
        button = QToolButton()
        button.setText("…")
        button.setProperty("role", "browse")
        button.setAccessibleName(f"Browse for {LABELS[name].lower()}")
        button.setToolTip(plain_tip(f"Browse for {'a folder' if name == 'folder' else 'a file'}"))
        button.clicked.connect(ask)
        self._browse.append(button)
        return button

    def script(self) -> Script:
        """What the form holds, checked or not."""
        simulate = self.simulate.currentText().strip()
        return Script(
            file=self.file.text().strip(),
            arguments=self.arguments.text().strip(),
            folder=self.folder.text().strip(),
            environment=self.environment.toPlainText().strip(),
            python=self.python.text().strip(),
            simulate="" if simulate.lower() == OFF.lower() else simulate,
            memory_history=self.memory_history.isChecked(),
        )

    def set_script(self, script: Script) -> None:
        """Fill the form."""
        with QSignalBlocker(self):
            self.file.setText(script.file)
            self.arguments.setText(script.arguments)
            self.folder.setText(script.folder)
            self.environment.setPlainText(script.environment)
            self.python.setText(script.python)
            self.simulate.setEditText(script.simulate or OFF)
            self.memory_history.setChecked(script.memory_history)
        self._changed()

    def take_file(self, path: Path) -> None:
        """Fill in another script; what belonged to the one before goes."""
        self.set_script(replace(self.script(), file=str(path), arguments="", folder="", python=""))

    def show_recorded(self, spec: Mapping[str, Any]) -> None:
        """Show what a recorded run was asked."""
        self._recorded = True
        self.set_script(Script.from_spec(spec))
        self.set_locked(True)

    def request(self) -> WatchRequest:
        """What is to be watched; the values must have no problems."""
        script = self.script()
        card = script.simulated_card
        return WatchRequest(
            script.command,
            folder=script.working_folder,
            environment=script.variables,
            simulate=() if card is None else (card,),
            memory_history=script.memory_history,
        )

    def remember(self) -> None:
        """Keep the values for the next start."""
        remember(_REMEMBERED, self.script().to_json())

    @property
    def ready(self) -> bool:
        """Whether the script can be run."""
        return not self.script().problems()

    def set_locked(self, locked: bool) -> None:
        """Keep the values readable but not editable, while the script runs."""
        fields = (self.file, self.arguments, self.folder, self.python, self.simulate, self.memory_history)
        for control in (*fields, self.environment, *self._browse):
            control.setEnabled(not locked)

    def _changed(self) -> None:
        script = self.script()
        problems = {} if self._recorded else script.problems()  # what was run may be on another computer
        if not script.file:
            problems.pop("file", None)  # an empty form is no mistake; the button says what is missing
        for name, error in self._errors.items():
            error.setText(problems.get(name, ""))
            error.setVisible(name in problems)
            control = getattr(self, name)
            if control.property("invalid") != (name in problems):
                control.setProperty("invalid", name in problems)
                control.style().unpolish(control)
                control.style().polish(control)
        self.file.setPlaceholderText("train.py")
        self.folder.setPlaceholderText("the script's folder")
        self.environment.setPlaceholderText("NAME=value")
        python = found_python(script.file)
        self.python.setPlaceholderText(python_words(python, script))
        self.python.setToolTip(plain_tip(f"{TIPS['python']}\n{script.python or f'Found: {python}'}"))
        self.file.setToolTip(plain_tip(f"{TIPS['file']}\n{script.file}".strip()))  # a long path shows its end alone
        self.folder.setToolTip(plain_tip(f"{TIPS['folder']}\n{script.folder}".strip()))
        self.changed.emit()

    def _ask_file(self) -> None:
        start = self.file.text() or str(Path.home())
        chosen, _kind = QFileDialog.getOpenFileName(self, "Script", start, "Python (*.py);;All files (*)")
        if chosen:
            self.file.setText(chosen)

    def _ask_folder(self) -> None:
        chosen = QFileDialog.getExistingDirectory(self, "Folder", self.folder.text() or str(Path.home()))
        if chosen:
            self.folder.setText(chosen)

    def _ask_python(self) -> None:
        chosen, _kind = QFileDialog.getOpenFileName(self, "Python interpreter", self.python.text() or "/usr/bin")
        if chosen:
            self.python.setText(chosen)
