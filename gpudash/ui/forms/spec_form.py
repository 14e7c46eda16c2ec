"""A form made from a workload's spec: one control per field, checked as it is typed."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QFormLayout, QLabel, QVBoxLayout, QWidget

from gpudash.specs import Spec, invalid_fields
from gpudash.ui.widgets.fields import (
    Control,
    disable_choices,
    is_bytes,
    make_control,
    on_change,
    read_control,
    tooltip,
    write_control,
)
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

LABEL_WIDTH = 118
"""Logical pixels of the label column, the same in every form so that nothing moves when the workload changes."""


class SpecForm(QWidget):
    """The fields of one spec class, for one device.

    Args:
        spec: the class.
        without: fields that are left out, because another form has them.

    Signals:
        changed: any value changed.
    """

    changed = Signal()
    hidden: ClassVar[Collection[str]] = ()
    """Fields whose control is not shown, since others fill it in."""

    def __init__(self, spec: type[Spec], parent: QWidget | None = None, *, without: Collection[str] = ()) -> None:
        super().__init__(parent)
        self.spec_type = spec
        self._without = without
        self._device = "cpu"
        self._controls: dict[str, Control] = {}
        self._rows: dict[str, QWidget] = {}
        self._errors: dict[str, QLabel] = {}
        self._layout = QFormLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setHorizontalSpacing(10)
        self._layout.setVerticalSpacing(6)
        self._layout.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
        self._layout.setRowWrapPolicy(QFormLayout.RowWrapPolicy.DontWrapRows)
        for name in self._names():
            self._add(name, spec.model_fields[name])
        self.set_values({})

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Fill the form with defaults and the values that differ from them."""
        for name, control in self._controls.items():
            field = self.spec_type.model_fields[name]
            write_control(control, values.get(name, field.default), is_bytes(field))
        self._check()

    def change_fields(self, fields: Mapping[str, Any]) -> None:
        """Put new values into some fields, where what is there is allowed."""
        spec = self.spec()
        if spec is not None:
            self.set_values({**spec.model_dump(), **fields})

    def set_device(self, device: str) -> None:
        """Disable what ``device`` cannot do, with the reason as tooltip."""
        self._device = device
        self._disable_refused(device)
        self._check()

    @property
    def own_device(self) -> str | None:
        """The first device that the fields themselves name; ``None`` where the choice of a device decides."""
        return None

    def is_hidden(self, name: str) -> bool:
        """Whether a field is not shown, whatever the others say."""
        return name in self.hidden

    def set_locked(self, locked: bool) -> None:
        """Keep the values readable but not editable, while they are being run."""
        for control in self._controls.values():
            control.setEnabled(not locked)

    def values(self) -> dict[str, Any]:
        """What is in the form, not validated; empty text is ``None``."""
        return {name: read_control(control) for name, control in self._controls.items()}

    def spec(self) -> Spec | None:
        """The spec, or ``None`` while a value is not allowed."""
        try:
            spec = self.spec_type.model_validate(self.values())
        except ValidationError:
            return None
        return None if self._problems(spec) else spec

    def errors(self) -> dict[str, str]:
        """Field → what is wrong with it; "" for the whole."""
        try:
            spec = self.spec_type.model_validate(self.values())
        except ValidationError as error:
            return invalid_fields(error)
        problems = self._problems(spec)
        return {"": "; ".join(problems)} if problems else {}

    def control(self, name: str) -> Control:
        """The control of a field."""
        return self._controls[name]

    def _add(self, name: str, field: FieldInfo) -> None:
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        control = self._make(name, field, extra)
        title = _title(name)
        control.setAccessibleName(title)
        control.setToolTip(plain_tip(tooltip(field, extra)))
        error = PlainLabel()
        error.setProperty("role", "error")
        error.setWordWrap(True)
        error.hide()
        row = QWidget()
        box = QVBoxLayout(row)
        box.setContentsMargins(0, 0, 0, 0)
        box.setSpacing(2)
        box.addWidget(control)
        box.addWidget(error)
        label = PlainLabel(title)
        label.setProperty("role", "muted")
        label.setBuddy(control)
        label.setMinimumWidth(LABEL_WIDTH)
        label.setToolTip(control.toolTip())
        self._layout.addRow(label, row)
        self._controls[name], self._rows[name], self._errors[name] = control, row, error
        on_change(control, self._check_and_tell)

    def _problems(self, spec: Spec) -> list[str]:
        """Why ``spec`` cannot be run where it is to be run."""
        return spec.problems(spec.own_device or self._device)

    def _disable_refused(self, device: str) -> None:
        refused = self.spec_type.refusals(device)
        for name, control in self._controls.items():
            if isinstance(control, QComboBox):
                disable_choices(control, {value: why for (field, value), why in refused.items() if field == name})

    def _names(self) -> list[str]:
        """The fields that are shown, the workload's own first."""
        common = Spec.model_fields.keys()
        own = [name for name in self.spec_type.model_fields if name not in common]
        return [name for name in [*own, *common] if name not in self._without]

    def _make(self, _name: str, field: FieldInfo, extra: Mapping[str, Any]) -> Control:
        """The control of a field."""
        return make_control(field, extra)

    def _check_and_tell(self) -> None:
        self._check()
        self.changed.emit()

    def _check(self) -> None:
        errors = self.errors()
        for name, control in self._controls.items():
            message = errors.get(name, "")
            self._errors[name].setText(message.removeprefix(f"--{name.replace('_', '-')} "))
            self._errors[name].setVisible(bool(message))
            if control.property("invalid") != bool(message):
                control.setProperty("invalid", bool(message))
                control.style().unpolish(control)
                control.style().polish(control)
        values = {name: read_control(control) for name, control in self._controls.items()}
        for name in self._controls:
            field = self.spec_type.model_fields[name]
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            when = typing.cast("Mapping[str, list[str]]", extra.get("when", {}))
            matters = not self.is_hidden(name) and all(str(values[other]) in allowed for other, allowed in when.items())
            self._layout.setRowVisible(self._rows[name], matters)


def _title(name: str) -> str:
    words = name.replace("_", " ").replace("nan", "NaN")
    return words[0].upper() + words[1:]


def preset_words(preset: str, values: Mapping[str, Any]) -> str:
    """What a preset changes."""
    if not values:
        return f"{preset}: the defaults"
    return f"{preset}: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
