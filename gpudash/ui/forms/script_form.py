"""The form of the user's own program: the script and how it is started, validated as it is typed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QCheckBox, QGridLayout, QLineEdit, QPlainTextEdit, QToolButton, QWidget

from gpudash.devices.names import SimulatedCard, card_name, parse_simulated, read_card
from gpudash.devices.simulated_cards import exact_text
from gpudash.session.recordings.file_kinds import HEAD_BYTES
from gpudash.session.watching.output.printed_metrics import check_pattern
from gpudash.session.watching.request import WatchRequest, found_python, script_of
from gpudash.system.foreign_files import open_regular
from gpudash.ui.forms.spec_form import LABEL_WIDTH
from gpudash.ui.widgets.fields import WORKING_FOLDER, FieldErrors
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.remembered import recall, recall_of, remember, remember_of

TITLE = "My script"
SUMMARY = "Your own program, unchanged, under the dashboard: its memory, its loss, its output."

TIPS: Mapping[str, str] = {
    "file": "The Python script to run; it needs no change",
    "arguments": "Arguments of the script, as they would be typed in a shell",
    "folder": "Folder the script runs in; the script's own unless another is named",
    "environment": "Environment variables to add: NAME=value, separated by spaces or new lines",
    "python": "Interpreter that runs the script: that of the script's own virtual environment, if there is one",
    "simulate": "Where the script runs. A click on a card above simulates that one: the script finds it as sim:0,\n"
    "by asking torch.accelerator, or as cuda where that is ticked below.\n"
    "Results are real, speed is not a GPU's.",
    "as_cuda": "For a script that says cuda: the simulated GPU answers to torch.cuda, .cuda() and device='cuda'.\n"
    "What only a real GPU can do is refused, with the reason.",
    "metric_pattern": "Losses are read from what the script prints, by the names of their fields. What is printed\n"
    "otherwise is found by a regular expression with groups named loss, accuracy, step or epoch:\n"
    "it (?P<step>[0-9]+) L=(?P<loss>[-+.e0-9]+)",
    "memory_history": "Write down every allocation with its call stack, so that what grows is named and an\n"
    "out-of-memory is explained. Costs the script up to 10 % of its speed.",
}
LABELS: Mapping[str, str] = {
    "file": "Script",
    "arguments": "Arguments",
    "folder": "Folder",
    "environment": "Environment",
    "python": "Python",
    "simulate": "Runs on",
    "as_cuda": "Answer as",
    "metric_pattern": "Loss pattern",
    "memory_history": "Allocations",
}
FOLDED = ("folder", "environment", "python", "metric_pattern", "memory_history")
"""Fields under More: they are usually detected, or left as they are."""

PYTHON_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz")
"""How files end that Python runs: https://docs.python.org/3/using/cmdline.html, *script*, and zipapp's."""

HERE = "this machine"
"""Where a script runs without a simulated card."""

_REMEMBERED = "script"
_PYTHONS = "pythons"
_OPENED = "more_script"

ENVIRONMENT_ROWS = 3
LINE_MARGIN_PX = 14
LABEL_PX = LABEL_WIDTH - 22
"""Labels are narrower than in other forms, because paths are long."""


class CardField(QWidget):
    """Shows which card is simulated, as set by the chooser above, with a button back to this machine.

    Attributes:
        card: in the format of `parse_simulated`; "" for none.

    Signals:
        changed: another card was set, or none.
    """

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.card = ""
        self._label = PlainLabel(HERE)
        self.none = QToolButton()
        self.none.setText("×")
        self.none.setProperty("role", "browse")
        self.none.setAccessibleName("Simulate no card")
        self.none.setToolTip("Run on this machine, without a simulated card")
        self.none.clicked.connect(lambda: self.set_card(""))
        in_row((self._label, 1), self.none, parent=self, margins=(0, 0, 0, 0), spacing=4)
        self.none.hide()

    @property
    def text(self) -> str:
        """The text shown."""
        return self._label.text()

    def set_card(self, card: str) -> None:
        """Simulate a card, by size or name; "" for none."""
        if card == self.card:
            return
        self.card = card
        self._label.setText(_card_shown(card))
        self.none.setVisible(bool(card))
        self.changed.emit()


def _card_shown(card: str) -> str:
    if not card:
        return HERE
    try:
        found = parse_simulated(card)
    except ValueError:
        return card
    return f"{card_name(found)}, simulated"


class ScriptForm(QWidget):
    """A form for every value of a `Script`.

    Attributes:
        more: opens the fields that are usually left as they are.

    Signals:
        changed: any value changed.
    """

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._recorded = self._locked = False
        self._errors = FieldErrors(self)
        self._browse: list[QToolButton] = []
        self._grid, self._folded_grid = _grid(), _grid()
        self._folded = QWidget()
        self._folded.setLayout(self._folded_grid)
        self.more = QToolButton()
        self.file, self.arguments = QLineEdit(), QLineEdit()
        self.folder, self.python = QLineEdit(), QLineEdit()
        self.metric_pattern = QLineEdit()
        self.environment = QPlainTextEdit()
        self.environment.setTabChangesFocus(True)
        self.environment.document().setDocumentMargin(1)
        self.environment.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        line = self.environment.fontMetrics().lineSpacing()
        self.environment.setFixedHeight(ENVIRONMENT_ROWS * line + LINE_MARGIN_PX)
        self.simulate = CardField()
        self.as_cuda = QCheckBox("CUDA")
        self.memory_history = QCheckBox("record each")
        self._add("file", self.file, self._ask_file)
        self._add("arguments", self.arguments)
        self._add("simulate", self.simulate)
        self._add("as_cuda", self.as_cuda)
        self._add("folder", self.folder, self._ask_folder)
        self._add("environment", self.environment)
        self._add("python", self.python, self._ask_python)
        self._add("metric_pattern", self.metric_pattern)
        self._add("memory_history", self.memory_history)
        in_column(self._grid, self.more, self._folded, 1, parent=self, margins=(0, 0, 0, 0), spacing=4)
        self._make_fold()
        self.set_script(Script.from_json(recall(_REMEMBERED)))

    def _make_fold(self) -> None:
        self.more.setProperty("role", "fold")
        self.more.setCheckable(True)
        self.more.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.more.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.more.setAccessibleName("More")
        self.more.setToolTip(plain_tip(", ".join(LABELS[name] for name in FOLDED)))
        self.more.toggled.connect(self._fold)
        opened = recall(_OPENED) is True
        self.more.setChecked(opened)
        self._fold(opened)
        self.more.toggled.connect(lambda opened: remember(_OPENED, opened))

    def _fold(self, opened: bool) -> None:
        self.more.setArrowType(Qt.ArrowType.DownArrow if opened else Qt.ArrowType.RightArrow)
        self._folded.setVisible(opened)

    def _add(self, name: str, control: QWidget, ask: Callable[[], None] | None = None) -> None:
        control.setAccessibleName(LABELS[name])
        control.setToolTip(TIPS[name])
        control.setAcceptDrops(False)  # a file dropped here would be inserted as a file:// URL
        label = PlainLabel(LABELS[name], role="muted")
        label.setBuddy(control)
        label.setToolTip(TIPS[name])
        box = in_row((control, 1), margins=(0, 2, 0, 0), spacing=4)
        if ask is not None:
            box.addWidget(self._browse_button(name, ask))
        grid = self._folded_grid if name in FOLDED else self._grid
        row = grid.rowCount()
        tall = isinstance(control, QPlainTextEdit)
        label.setContentsMargins(0, 7 if tall else 2, 0, 0)
        grid.addWidget(label, row, 0, Qt.AlignmentFlag.AlignTop if tall else Qt.AlignmentFlag.AlignVCenter)
        grid.addLayout(box, row, 1)
        grid.addWidget(self._errors.add(name, control), row + 1, 1)
        if isinstance(control, (QLineEdit, QPlainTextEdit)):
            control.textChanged.connect(self._changed)
        elif isinstance(control, CardField):
            control.changed.connect(self._changed)
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
        """The values of the form, valid or not."""
        return Script(
            file=self.file.text().strip(),
            arguments=self.arguments.text().strip(),
            folder=self.folder.text().strip(),
            environment=self.environment.toPlainText().strip(),
            python=self.python.text().strip(),
            simulate=self.simulate.card,
            as_cuda=self.as_cuda.isChecked(),
            metric_pattern=self.metric_pattern.text(),
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
            self.simulate.set_card(script.simulate)
            self.as_cuda.setChecked(script.as_cuda)
            self.metric_pattern.setText(script.metric_pattern)
            self.memory_history.setChecked(script.memory_history)
        self._changed()

    def take_file(self, path: Path, arguments: str = "") -> None:
        """Fill in another script, its arguments and the Python used last in its folder, and clear what belonged to the
        previous one."""
        python = recall_of(_PYTHONS, str(path.absolute().parent)).get("python")
        if not isinstance(python, str) or _python_problem(python):
            python = ""
        self.set_script(replace(self.script(), file=str(path), arguments=arguments, folder="", python=python))

    def show_recorded(self, spec: Mapping[str, Any]) -> None:
        """Show the parameters of a recorded run."""
        self._recorded = True
        self.set_script(Script.from_spec(spec))
        self.set_locked(True)

    def request(self) -> WatchRequest:
        """The request to watch the script; the values must be valid."""
        script = self.script()
        card = script.simulated_card
        return WatchRequest(
            script.command,
            folder=script.working_folder,
            environment=script.variables,
            simulate=() if card is None else (card,),
            as_cuda=card is not None and script.as_cuda,
            metric_pattern=script.metric_pattern,
            memory_history=script.memory_history,
        )

    def remember(self) -> None:
        """Save the values for the next start, and the Python for other scripts of the folder."""
        script = self.script()
        remember(_REMEMBERED, script.to_json())
        folder = str(script.path.absolute().parent)
        if script.file and script.python != recall_of(_PYTHONS, folder).get("python", ""):
            remember_of(_PYTHONS, folder, {"python": script.python})

    @property
    def ready(self) -> bool:
        """Whether the script can be run."""
        return not self.script().problems()

    @property
    def correction(self) -> str:
        """The first field to correct, as in "Correct Script first"; "" if all are valid, or no script is named."""
        script = self.script()
        wrong = next(iter(script.problems()), "")
        if not script.file or not wrong:
            return ""
        return f"Correct {LABELS[wrong]} first"

    def error_text(self, name: str) -> str:
        """The error shown at a field; "" if it is valid."""
        return self._errors.error(name)

    def set_locked(self, locked: bool) -> None:
        """Make the values read-only while the script runs."""
        fields = (self.file, self.arguments, self.folder, self.python, self.simulate, self.metric_pattern)
        for control in (*fields, self.memory_history, self.environment, *self._browse):
            control.setEnabled(not locked)
        self._locked = locked
        self._offer_as_cuda()

    def _offer_as_cuda(self) -> None:
        """Enable the field only with a simulated GPU: nothing else can stand in for CUDA."""
        self.as_cuda.setEnabled(not self._locked and bool(self.script().simulate))

    def _changed(self) -> None:
        script = self.script()
        # A recorded script may be on another computer.
        if self._recorded:
            problems = {}
        else:
            problems = script.problems()
        if not script.file:
            problems.pop("file", None)  # an empty form is not an error; the button says what is missing
        self._errors.show_errors(problems)
        self._say_more(problems)
        self._offer_as_cuda()
        self.file.setPlaceholderText("train.py")
        self.folder.setPlaceholderText("the script's folder")
        self.environment.setPlaceholderText("NAME=value")
        self.metric_pattern.setPlaceholderText("found by name")
        python = found_python(script.file)
        self.python.setPlaceholderText(python_name(python, script))
        self.python.setToolTip(plain_tip(f"{TIPS['python']}\n{script.python or f'Found: {python}'}"))
        self.file.setToolTip(plain_tip(f"{TIPS['file']}\n{script.file}".strip()))  # a long path shows only its end
        self.folder.setToolTip(plain_tip(f"{TIPS['folder']}\n{script.folder}".strip()))
        self.changed.emit()

    def _say_more(self, problems: Iterable[str]) -> None:
        """Show on the More button which hidden field is invalid, or how many were changed."""
        usual, script = Script(), self.script()
        wrong = [LABELS[name] for name in problems if name in FOLDED]
        changed = [name for name in FOLDED if getattr(script, name) != getattr(usual, name)]
        text = "More"
        if wrong:
            text = f"More: correct {wrong[0]}"
        elif changed:
            text = f"More, {len(changed)} changed"
        self.more.setText(text)

    def _ask_file(self) -> None:
        start = self.file.text() or WORKING_FOLDER
        chosen = FileDialog.ask_to_open(self, "Script", start, "Python (*.py);;All files (*)")
        if chosen:
            self.file.setText(chosen)

    def _ask_folder(self) -> None:
        chosen = FileDialog.ask_for_folder(self, "Folder", self.folder.text() or WORKING_FOLDER)
        if chosen:
            self.folder.setText(chosen)

    def _ask_python(self) -> None:
        chosen = FileDialog.ask_to_open(self, "Python interpreter", self.python.text() or "/usr/bin")
        if chosen:
            self.python.setText(chosen)


def _grid() -> QGridLayout:
    grid = QGridLayout()
    grid.setContentsMargins(0, 0, 0, 0)
    grid.setHorizontalSpacing(10)
    grid.setVerticalSpacing(2)
    grid.setColumnMinimumWidth(0, LABEL_PX)
    grid.setColumnStretch(1, 1)
    return grid


@dataclass(frozen=True, slots=True)
class Script:
    """The values of the form, as text.

    Attributes:
        file: the script.
        arguments: as typed in a shell.
        folder: working directory; "" for the script's own.
        environment: NAME=value, several separated by spaces or newlines, quoted as in a shell.
        python: the interpreter; "" for `found_python`.
        simulate: size or name of a simulated GPU; "" for none.
        as_cuda: whether that GPU stands in for CUDA.
        memory_history: whether every allocation is recorded with its call stack.
        metric_pattern: as in `WatchRequest`.
    """

    file: str = ""
    arguments: str = ""
    folder: str = ""
    environment: str = ""
    python: str = ""
    simulate: str = ""
    memory_history: bool = True
    metric_pattern: str = ""
    as_cuda: bool = True

    def to_json(self) -> dict[str, Any]:
        """The values for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Any) -> Script:
        """The values from a file; invalid ones are replaced by their defaults."""
        if not isinstance(kept, dict):
            return cls()
        defaults = asdict(cls())
        usable = {name: kept[name] for name in defaults if type(kept.get(name)) is type(defaults[name])}
        return cls(**{**defaults, **usable})

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Script:
        """The values of a recorded run, as far as its command reveals them."""
        command = list(map(str, spec.get("command") or ()))
        file = (script_of(command) if command else None) or ""
        place = 0
        if file:
            place = command.index(file)
        cards = [card for name in spec.get("simulate") or () if (card := read_card(name)) is not None]
        variables = spec.get("environment") or {}
        return cls(
            file=file,
            arguments=shlex.join(command[place + 1 :]) if command else "",
            folder=str(spec.get("folder") or ""),
            environment="\n".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items()),
            python=shlex.join(command[:place] or command[:1]),
            simulate=exact_text(cards[0]) if cards else "",
            as_cuda=bool(spec.get("as_cuda")),
            metric_pattern=str(spec.get("metric_pattern") or ""),
            memory_history=bool(spec.get("memory_history")),
        )

    def problems(self) -> dict[str, str]:
        """Field → what is wrong with it, in one sentence."""
        found = {
            "file": _file_problem(self.file),
            "arguments": _quoting_problem(self.arguments),
            "folder": _folder_problem(self.folder),
            "environment": _environment_problem(self.environment),
            "python": _python_problem(self.python),
            "simulate": _problem(self.simulate, parse_simulated),
            "metric_pattern": _problem(self.metric_pattern, check_pattern),
        }
        return {name: problem for name, problem in found.items() if problem}

    @property
    def path(self) -> Path:
        """The script."""
        return Path(self.file).expanduser()

    @property
    def working_folder(self) -> Path:
        """The working directory."""
        if self.folder:
            return Path(self.folder).expanduser()
        return self.path.absolute().parent

    @property
    def command(self) -> tuple[str, ...]:
        """The command line. The values must be valid."""
        return (self._interpreter, str(self.path.absolute()), *shlex.split(self.arguments))

    @property
    def _interpreter(self) -> str:
        if not self.python:
            return found_python(self.file)
        named = Path(self.python).expanduser()
        # A bare name is looked up on PATH.
        if len(named.parts) > 1:
            return str(named.absolute())
        return self.python

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables to add. The values must be valid."""
        parts = (word.partition("=") for word in shlex.split(self.environment))
        return {name: value for name, _equals, value in parts}

    @property
    def simulated_card(self) -> SimulatedCard | None:
        """The simulated GPU. The values must be valid."""
        if self.simulate:
            return parse_simulated(self.simulate)
        return None


def python_name(python: str, script: Script) -> str:
    """A short name for an interpreter: its path relative to the script's folder if inside it, else its file name."""
    folder = script.path.absolute().parent
    path = Path(python)
    if script.file and path.is_relative_to(folder):
        return str(path.relative_to(folder))
    return path.name


def _file_problem(text: str) -> str:
    if not text:
        return "Choose the script to run."
    path = Path(text).expanduser()
    if not path.exists():
        return f"There is no file {text}."
    if not path.is_file():
        return f"{text} is a folder; name the script in it."
    if _is_script(path):
        return ""
    return f"{path.name} is not a Python script; name one (.py)."


def _is_script(path: Path) -> bool:
    """Whether a file may be run by Python: by its name, else by the program that its first line names."""
    if path.suffix.lower() in PYTHON_SUFFIXES:
        return True
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES) or b""
    except OSError:
        return False
    if head.startswith(b"#!"):
        return b"python" in head.partition(b"\n")[0]
    return not path.suffix and b"\0" not in head


def _quoting_problem(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError:
        return "A quote is opened and not closed."
    return ""


def _folder_problem(text: str) -> str:
    if not text:
        return ""
    path = Path(text).expanduser()
    if not path.exists():
        return f"There is no folder {text}."
    if path.is_dir():
        return ""
    return f"{text} is a file, not a folder."


def _environment_problem(text: str) -> str:
    try:
        assignments = shlex.split(text)
    except ValueError:
        return "A quote is opened and not closed."
    for assignment in assignments:
        name, equals, _value = assignment.partition("=")
        if not equals or not name:
            return f"{assignment!r} is not NAME=value."
        if name.startswith("GPUDASH_"):
            return f"{name} is set by gpudash itself."
    return ""


def _python_problem(text: str) -> str:
    if not text or shutil.which(Path(text).expanduser()):
        return ""
    return f"{text} is not a program that can be run."


def _problem(text: str, check: Callable[[str], object]) -> str:
    """What ``check`` raises for ``text``; "" if it accepts it, or there is none."""
    if not text:
        return ""
    try:
        check(text)
    except ValueError as error:
        return str(error)
    return ""
