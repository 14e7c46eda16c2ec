"""The panel where a model is named, by folder or by its name on Hugging Face, and a task is chosen for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QButtonGroup, QComboBox, QCompleter, QGridLayout, QLineEdit, QPushButton, QToolButton

from gpudash.specs.model import SERVE, TASK_NAMES
from gpudash.specs.model_names import NamedModel, find_model
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.first_screen.panels import StartPanel, heading
from gpudash.ui.dashboard.first_screen.rows import RowCell, RowContent, RowList
from gpudash.ui.dashboard.first_screen.script_panel import left_cell
from gpudash.ui.widgets.fields import WORKING_FOLDER, ChoiceField
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import GIB, format_bytes

TITLE = "Will a model fit?"
SENTENCE = "On this card, or on any card above."
PLACEHOLDER = "A name, a folder, a Hugging Face model"
CACHED, USUAL = "ALREADY ON THIS MACHINE", "USUAL MODELS"

TASKS_APART = 6
"""Logical pixels between the tasks."""

SHOWN = ("gpt2", "Llama-3.2-1B", "Qwen2.5-7B", "Llama-3.1-8B", "Qwen3-14B", "gemma-2-9b", "phi-4", "Qwen2.5-32B")
"""Well-known models to list first if the cache has none; the field knows all."""

LEAST: Mapping[str, str] = {
    "infer": "weights alone",
    "train": "weights, gradients, AdamW",
    "lora": "weights alone",
    "qlora": "weights alone",
    "serve": "weights alone",
}
"""Task → what its figures count: the minimum it needs, known without a prediction."""

LEAST_IN_SHORT: Mapping[str, str] = {"train": "4 × weights"}
"""The same above the list, where it is not "weights"."""

COPIES_OF_TRAINING = 4
"""Weights, gradients, and the two moments of AdamW, which have the dtype of the weights."""


PACKED_BYTES = 0.5 + 4 / 64
"""Bytes of a weight that bitsandbytes packs into nf4: half a byte, and a float32 scale for every 64."""

UNPACKED_BYTES = 4
"""Bytes of any other weight in QLoRA: peft's prepare_model_for_kbit_training makes them float32."""


def least_bytes(model: NamedModel, task: str) -> int | None:
    """The minimum that a task needs for a model, in bytes; ``None`` if unknown."""
    if task == "qlora":
        if model.parameters is None:
            return None
        unpacked = min(model.unpacked, model.parameters)
        return int(PACKED_BYTES * (model.parameters - unpacked)) + UNPACKED_BYTES * unpacked
    if model.weight_bytes is None:
        return None
    if task == "train":
        return COPIES_OF_TRAINING * model.weight_bytes
    return model.weight_bytes


class ModelPanel(StartPanel):
    """The field, the tasks, and the models available here.

    Signals:
        chosen: name, folder or config of the model, and the task.
    """

    chosen = Signal(str, str)

    def __init__(self, palette: Palette) -> None:
        super().__init__(TITLE, SENTENCE)
        self._models: Sequence[NamedModel] = ()
        self._free: int | None = None
        self._device = ""
        self.field = ChoiceField("Model", "Name of a model, its folder or config.json; Enter predicts what it needs")
        self.field.setEditable(True)
        self.field.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.field.setMinimumContentsLength(12)
        self.field.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        line = self.line
        line.setAccessibleName("Model")
        line.setPlaceholderText(PLACEHOLDER)
        line.setAcceptDrops(False)  # a file dropped anywhere on the window opens
        line.returnPressed.connect(self.choose_typed)
        self.problem = PlainLabel(role="error", wraps=True)
        self.problem.hide()
        line.textEdited.connect(lambda _text: self.problem.hide())
        # The popup emits before it closes; by the next turn of the event loop the field has its final text.
        self.field.activated.connect(lambda _row: QTimer.singleShot(0, self.choose_typed))
        self.browse = QToolButton()
        self.browse.setText("…")
        self.browse.setProperty("role", "browse")
        self.browse.setAccessibleName("Browse for the folder of a model")
        self.browse.setToolTip("Browse for a folder with a config.json")
        self.browse.clicked.connect(self._browse)
        self._title = PlainLabel(USUAL)
        self._what = PlainLabel()
        self.list = RowList("Models", palette)
        self.list.chosen.connect(lambda key: self.chosen.emit(key, self.task))
        self.add(in_row((self.field, 1), self.browse, margins=(0, 4, 0, 0), spacing=6))
        self.add(self.problem)
        self.add(self._task_row())
        self.add(heading(self._title, self._what))
        self.add_list(self.list, 1)

    @property
    def line(self) -> QLineEdit:
        """The field's line edit."""
        line = self.field.lineEdit()
        assert line is not None
        return line

    @property
    def task(self) -> str:
        """The selected task."""
        chosen = self.tasks.checkedButton()
        assert chosen is not None
        return str(chosen.property("task"))

    def show_models(self, cached: Sequence[NamedModel], usual: Sequence[NamedModel]) -> None:
        """Offer the models in the cache, and well-known ones."""
        names = [*(model.hub for model in cached), *(model.name for model in usual)]
        typed = self.line.text()
        self.field.clear()
        self.field.addItems(list(dict.fromkeys(names)))
        self.field.setCurrentIndex(-1)
        self.line.setText(typed)
        completer = QCompleter(self.field.model(), self.field)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self.field.setCompleter(completer)
        first = {name: place for place, name in enumerate(SHOWN)}
        self._models = list(cached) or sorted(usual, key=lambda model: first.get(model.name, len(first)))
        self._title.setText(CACHED if cached else USUAL)
        self._show_rows()

    def show_free(self, free: int | None, device: str = "") -> None:
        """Compare what the models need with the free bytes of a device; ``None`` if unknown."""
        self._free = free
        self._device = device
        self._show_rows()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.list.set_palette(palette)

    def choose_typed(self) -> None:
        """Choose the model that the field names; if there is none, a sentence below says so."""
        text = self.line.text().strip()
        if not text:
            return
        try:
            find_model(text)
        except ValueError as error:
            self.problem.setText(str(error))
            self.problem.show()
            return
        self.problem.hide()
        self.chosen.emit(text, self.task)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange_tasks()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._arrange_tasks()

    def _task_row(self) -> QGridLayout:
        self._tasks = QGridLayout()
        self._tasks.setSpacing(TASKS_APART)
        self.tasks = QButtonGroup(self)
        for task, text in TASK_NAMES.items():
            button = QPushButton(text)
            button.setProperty("role", "chip")
            button.setProperty("task", task)
            button.setCheckable(True)
            button.setChecked(task == "infer")
            self.tasks.addButton(button)
        self._tasks.setColumnStretch(len(TASK_NAMES), 1)
        self._arrange_tasks()
        FocusGroup(self, self.tasks.buttons())
        self.tasks.buttonClicked.connect(lambda _button: self._show_rows())
        return self._tasks

    def _arrange_tasks(self) -> None:
        """Use one row, or two if larger text would be cut off."""
        buttons = self.tasks.buttons()
        columns = len(buttons)
        needed = sum(button.sizeHint().width() + TASKS_APART for button in buttons)
        if needed > self._tasks.geometry().width() > 0:
            columns = ceil(columns / 2)
        for place, button in enumerate(buttons):
            self._tasks.removeWidget(button)
            self._tasks.addWidget(button, place // columns, place % columns)

    def _show_rows(self) -> None:
        left = ""
        if self._free is not None:
            left = f", GiB left on {self._device}"
        self._what.setText(f"{LEAST_IN_SHORT.get(self.task, 'weights')}{left}")
        self._what.setToolTip(plain_tip(f"{LEAST[self.task]}{left}. Click a model to ask whether all of it fits."))
        self.list.show_rows(list(map(self._row, self._models)))

    def _row(self, model: NamedModel) -> RowContent:
        count = ""
        if model.parameters is not None:
            count = _count(model.parameters)
        size = least_bytes(model, self.task)
        least = ""
        left = RowCell("", right=True)
        if size is not None:
            least = format_bytes(size)
            left = _left_cell(self._free, size)
        sentence = ", ".join(filter(None, (model.name, count, f"at least {least}" if least else "", left.text)))
        cells = (RowCell(model.name), RowCell(count, "muted", right=True, spare=True), RowCell(least, right=True), left)
        key = model.hub if model.cached else model.name
        offer = f"Predict {TASK_NAMES[self.task]} to the byte, on every card"
        if self.task == SERVE:
            offer = "Predict how many users it serves, on every card"
        return RowContent(key, cells, sentence, offer)

    def _browse(self) -> None:
        found = FileDialog.ask_for_folder(self, "The folder of a model", WORKING_FOLDER)
        if found:
            self.line.setText(found)
            self.choose_typed()


def _left_cell(free: int | None, least: int) -> RowCell:
    """What a minimum would leave, without a verdict: a minimum that fits does not say that the whole does."""
    if free is None or least > free:
        return left_cell(free, least)
    return RowCell(f"{(free - least) / GIB:.1f} left", "muted", right=True)


def _count(parameters: int) -> str:
    if parameters >= 10**9:
        return f"{parameters / 10**9:.1f} B"
    return f"{parameters / 10**6:.0f} M"
