"""A form made from a workload's spec: one control per field, checked as it is typed."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QCheckBox, QComboBox, QFormLayout, QLabel, QLineEdit, QVBoxLayout, QWidget

from gpudash.specs import Spec, invalid_fields
from gpudash.units import GIB, KIB, MIB, format_bytes

LABEL_WIDTH = 118
"""Logical pixels of the label column, the same in every form so that nothing moves when the workload changes."""

Control = QLineEdit | QComboBox | QCheckBox


class SpecForm(QWidget):
    """The fields of one spec class, for one device.

    Signals:
        changed: any value changed.
    """

    changed = Signal()

    def __init__(self, spec: type[Spec], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.spec_type = spec
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
        for name, field in _in_order(spec):
            self._add(name, field)
        self.set_values({})

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Fill the form with defaults and the values that differ from them."""
        for name, field in self.spec_type.model_fields.items():
            _write(self._controls[name], values.get(name, field.default), _is_bytes(field))
        self._check()

    def set_device(self, device: str) -> None:
        """Disable what ``device`` cannot do, with the reason as tooltip."""
        self._device = device
        refused = self.spec_type.refusals(device)
        for name, control in self._controls.items():
            if isinstance(control, QComboBox):
                _disable(control, {value: why for (field, value), why in refused.items() if field == name})
        self._check()

    def set_locked(self, locked: bool) -> None:
        """Keep the values readable but not editable, while they are being run."""
        for control in self._controls.values():
            control.setEnabled(not locked)

    def values(self) -> dict[str, Any]:
        """What is in the form, not validated; empty text is ``None``."""
        return {name: _read(control) for name, control in self._controls.items()}

    def spec(self) -> Spec | None:
        """The spec, or ``None`` while a value is not allowed."""
        try:
            spec = self.spec_type.model_validate(self.values())
        except ValidationError:
            return None
        return None if spec.problems(self._device) else spec

    def errors(self) -> dict[str, str]:
        """Field → what is wrong with it; "" for the whole."""
        try:
            spec = self.spec_type.model_validate(self.values())
        except ValidationError as error:
            return invalid_fields(error)
        problems = spec.problems(self._device)
        return {"": "; ".join(problems)} if problems else {}

    def control(self, name: str) -> Control:
        """The control of a field."""
        return self._controls[name]

    def _add(self, name: str, field: FieldInfo) -> None:
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        control = _control(field, extra)
        title = _title(name)
        control.setAccessibleName(title)
        control.setToolTip(_tooltip(field, extra))
        error = QLabel()
        error.setProperty("role", "error")
        error.setWordWrap(True)
        error.hide()
        row = QWidget()
        box = QVBoxLayout(row)
        box.setContentsMargins(0, 0, 0, 0)
        box.setSpacing(2)
        box.addWidget(control)
        box.addWidget(error)
        label = QLabel(title)
        label.setProperty("role", "muted")
        label.setBuddy(control)
        label.setMinimumWidth(LABEL_WIDTH)
        label.setToolTip(control.toolTip())
        self._layout.addRow(label, row)
        self._controls[name], self._rows[name], self._errors[name] = control, row, error
        _on_change(control, self._check_and_tell)

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
        values = self.values()
        for name, field in self.spec_type.model_fields.items():
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            when = typing.cast("Mapping[str, list[str]]", extra.get("when", {}))
            matters = all(str(values[other]) in allowed for other, allowed in when.items())
            self._layout.setRowVisible(self._rows[name], matters)


def _in_order(spec: type[Spec]) -> list[tuple[str, FieldInfo]]:
    common = Spec.model_fields.keys()
    own = [(name, field) for name, field in spec.model_fields.items() if name not in common]
    return own + [(name, field) for name, field in spec.model_fields.items() if name in common]


def _title(name: str) -> str:
    words = name.replace("_", " ").replace("nan", "NaN")
    return words[0].upper() + words[1:]


def _control(field: FieldInfo, extra: Mapping[str, Any]) -> Control:
    choices = typing.get_args(field.annotation) if typing.get_origin(field.annotation) is typing.Literal else ()
    if choices:
        combo = QComboBox()
        for choice in choices:
            combo.addItem(extra.get("words", {}).get(choice, choice), choice)
        combo.setMinimumContentsLength(8)
        combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        return combo
    if field.annotation is bool:
        return QCheckBox()
    line = QLineEdit()
    if "unit" in extra and not _is_bytes(field):
        unit = QLabel(str(extra["unit"]), line)
        unit.setProperty("role", "muted")
        unit.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        inside = QVBoxLayout(line)
        inside.setContentsMargins(0, 0, 8, 0)
        inside.addWidget(unit, alignment=Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
    if _optional(field):
        line.setPlaceholderText("automatic")
    return line


def _optional(field: FieldInfo) -> bool:
    return typing.get_origin(field.annotation) in (typing.Union, types.UnionType)


def _is_bytes(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("unit") == "bytes"


def _tooltip(field: FieldInfo, extra: Mapping[str, Any]) -> str:
    limits = {type(limit).__name__: limit for limit in field.metadata}
    low = getattr(limits.get("Ge"), "ge", None)
    high = getattr(limits.get("Le"), "le", None)
    lines = [f"{field.description}."]
    if low is not None and high is not None:
        ends = (format_bytes(low), format_bytes(high)) if _is_bytes(field) else (f"{low:,}", f"{high:,}")
        unit = "" if _is_bytes(field) else f" {extra.get('unit', '')}".rstrip()
        lines.append(f"{ends[0]} to {ends[1]}{unit}")
    return "\n".join(lines)


def _on_change(control: Control, tell: Any) -> None:
    if isinstance(control, QComboBox):
        control.currentIndexChanged.connect(tell)
    elif isinstance(control, QCheckBox):
        control.toggled.connect(tell)
    else:
        control.textChanged.connect(tell)


def _read(control: Control) -> Any:
    if isinstance(control, QComboBox):
        return control.currentData()
    if isinstance(control, QCheckBox):
        return control.isChecked()
    return control.text().strip() or None


def _write(control: Control, value: Any, is_bytes: bool) -> None:
    with QSignalBlocker(control):
        if isinstance(control, QComboBox):
            control.setCurrentIndex(control.findData(value))
        elif isinstance(control, QCheckBox):
            control.setChecked(bool(value))
        elif value is None:
            control.clear()
        else:
            control.setText(
                _exact_size(value) if is_bytes else f"{value:g}" if isinstance(value, float) else str(value)
            )


def _exact_size(size: int) -> str:
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return str(size)


def _disable(combo: QComboBox, refused: Mapping[str, str]) -> None:
    model = combo.model()
    assert isinstance(model, QStandardItemModel)
    for row in range(combo.count()):
        why = refused.get(str(combo.itemData(row)))
        item = model.item(row)
        item.setEnabled(why is None)
        item.setToolTip(f"{combo.itemText(row)}: {why}" if why else "")
