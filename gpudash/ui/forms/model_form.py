"""The form of the user's model: its folder is chosen, typed, or dropped on the window."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic.fields import FieldInfo
from PySide6.QtWidgets import QComboBox, QLineEdit, QPushButton, QWidget

from gpudash.specs import Spec
from gpudash.specs.model import RECIPES, SERVE, USUAL_FIELDS
from gpudash.ui.forms.parallel_form import ParallelForm
from gpudash.ui.widgets.fields import WORKING_FOLDER, Control, write_control
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

SHORT_TITLES = {
    "optimizer_in_backward": "Step in backward",
    "lora_rank": "LoRA rank",
    "lora_targets": "LoRA targets",
}
"""Field → its title, if its name would leave no room for the choices or is not written so."""

UNITS = {"sequence": "tokens", "users": "requests"}

OF_ZERO = {"sequence": "2048 unless set", "users": "as many as fit"}
"""Field → what stands in it while it is empty, which is its 0."""

OF_ZERO_SERVED = {**OF_ZERO, "sequence": "the model's own"}


class ModelForm(ParallelForm):
    """The fields of a model.

    Attributes:
        choose: opens a dialog to choose a folder.
    """

    kept_by_presets: ClassVar[Collection[str]] = ("path", "trust_remote_code")

    def __init__(self, spec: type[Spec], parent: QWidget | None = None) -> None:
        self.choose = QPushButton("Choose a folder…")
        super().__init__(spec, parent)
        self.choose.setToolTip(plain_tip("Choose the folder with the model's config.json; or drop it on the window"))
        self.choose.clicked.connect(self._choose)
        recipe = self.control("recipe")
        assert isinstance(recipe, QComboBox)
        recipe.activated.connect(self._take_recipe)
        task = self.control("task")
        assert isinstance(task, QComboBox)
        self._task = task.currentData()
        task.activated.connect(lambda _row: self._take_task(task.currentData()))
        self._essentials.insertRow(2, "", self.choose)

    def set_values(self, values: Mapping[str, Any]) -> None:
        super().set_values(values)
        self._task = self.values()["task"]
        path = self.control("path")
        assert isinstance(path, QLineEdit)
        path.end(False)  # show the end of a long path: it has the name of the model

    def values(self) -> dict[str, Any]:
        found = super().values()
        texts = {name: found[name] or "" for name in ("path", "lora_targets", "engine")}
        return {**found, **texts, **{name: found[name] or 0 for name in UNITS}}

    def _write(self, values: Mapping[str, Any]) -> None:
        super()._write(values)
        for name in UNITS:
            if not values.get(name):  # its default is 0
                write_control(self.control(name), None, is_bytes=False)

    def _make(self, name: str, field: FieldInfo, extra: Mapping[str, Any]) -> Control:
        if name in UNITS:
            extra = {**extra, "unit": UNITS[name]}
        return super()._make(name, field, extra)

    def _check(self) -> None:
        super()._check()
        self._say_zeros()

    def _say_zeros(self) -> None:
        """Say in an empty field what its 0 stands for, and how weights are packed unless that is chosen."""
        values = self.values()
        quantisation = self.control("quantisation")
        assert isinstance(quantisation, QComboBox)
        usual = "auto (nf4)" if values["task"] == "qlora" else "as stored"
        quantisation.setItemText(quantisation.findData("auto"), usual)
        meanings = OF_ZERO_SERVED if values["task"] == SERVE else OF_ZERO
        for name, unit in UNITS.items():
            line = self.control(name)
            assert isinstance(line, QLineEdit)
            line.setPlaceholderText(meanings[name])
            label = line.findChild(PlainLabel)
            if label is not None:
                label.setText(unit if values[name] else "")

    def title(self, name: str) -> str:
        return SHORT_TITLES.get(name) or super().title(name)

    def set_locked(self, locked: bool) -> None:
        super().set_locked(locked)
        self.choose.setEnabled(not locked)

    def take_folder(self, path: Path, *, task: str | None = None) -> None:
        """Fill in the folder or the config of a model, and choose a task for it unless it is ``None``."""
        changes: dict[str, Any] = {"path": str(path)}
        if task is not None:
            changes |= self._task_fields(task)
        self.set_values({**self.values(), **changes})
        self.changed.emit()

    def _take_task(self, task: str) -> None:
        """Choose a task."""
        self.set_values({**self.values(), **self._task_fields(task)})
        self.changed.emit()

    def _task_fields(self, task: str) -> dict[str, Any]:
        """A task, with what is usual for it; what was usual for the task before goes back to its default."""
        if task == self._task:
            return {"task": task}
        before = {name: self.spec_type.model_fields[name].default for name in USUAL_FIELDS.get(self._task, {})}
        return {"task": task, **before, **USUAL_FIELDS.get(task, {})}

    def _take_recipe(self) -> None:
        """Fill in what the chosen recipe sets; the fields can be changed afterwards."""
        values = self.values()
        self.set_values({**values, **RECIPES.get(values["recipe"], {})})
        self.changed.emit()

    def _problems(self, spec: Spec) -> list[str]:
        return spec.problems(spec.own_device or self._device)  # values that can only be predicted are allowed

    def _choose(self) -> None:
        begin = str(self.values()["path"] or WORKING_FOLDER)
        found = FileDialog.ask_for_folder(self, "The folder of a model", begin)
        if found:
            self.take_folder(Path(found))
