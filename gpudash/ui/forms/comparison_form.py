"""The form of a comparison: which workload, on which two devices, and that workload's own fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic.fields import FieldInfo
from PySide6.QtCore import QSignalBlocker
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QLineEdit, QSizePolicy, QWidget

from gpudash.devices.names import SIMULATED, Device
from gpudash.specs import Spec, TrainingSpec, workloads
from gpudash.specs.comparison import COMMON, SIMULATED_SPEED, ComparisonSpec, compared
from gpudash.ui.forms.device_choice import device_choice, offer
from gpudash.ui.forms.parallel_form import FIRST, ParallelForm
from gpudash.ui.forms.spec_form import SpecForm
from gpudash.ui.widgets.fields import ChoiceField, Control
from gpudash.ui.widgets.plain_text import PlainLabel


class ComparisonForm(SpecForm):
    """A comparison's fields, and among them those of the workload that is compared."""

    hidden = ("devices",)

    def __init__(self, spec: type[Spec], parent: QWidget | None = None) -> None:
        self._offered: list[tuple[str, str]] = []
        self._nested: dict[str, SpecForm] = {}
        self.first, self.second = (
            device_choice(title, f"{title} of the comparison", 4) for title in ("First device", "Second device")
        )
        super().__init__(spec, parent)
        self._layout.insertRow(1, *_device_row(self.first, self.second))
        for choice in (self.first, self.second):
            choice.currentIndexChanged.connect(self._take_devices)
        self._show_nested()

    @property
    def _pair(self) -> QLineEdit:
        """The two devices as text; hidden behind the choices that fill it."""
        return cast(QLineEdit, self.control("devices"))

    @property
    def nested(self) -> SpecForm:
        """The form of the chosen workload's fields."""
        name = str(self._controls["workload"].currentData())  # type: ignore[union-attr]  # made a choice below
        if name not in self._nested:
            spec = workloads().get(name, Spec)  # one that is not installed has no fields here
            form = SpecForm(spec, without=(*COMMON, *FIRST) if issubclass(spec, TrainingSpec) else COMMON)
            form.changed.connect(self._check_and_tell)
            self._nested[name] = form
            self._layout.insertRow(2, form)
        return self._nested[name]

    def set_devices(self, devices: Sequence[Device], preferred: str) -> None:
        """Offer ``devices``: the CPU first and ``preferred`` second, until the user chooses; no simulated ones."""
        offered = [(device.name, device.problem or "") for device in devices]
        if offered == self._offered:
            return
        self._offered = offered
        before = self.first.currentData(), self.second.currentData()
        for choice, kept, wanted in zip((self.first, self.second), before, ("cpu", preferred), strict=True):
            with QSignalBlocker(choice):
                choice.clear()
                for device in devices:
                    refused = SIMULATED_SPEED.format(device=device.name) if device.simulated else device.problem
                    words = f"{device.name} ({SIMULATED})" if device.simulated else device.name
                    offer(choice, words, device, refused)
                row = choice.findData(kept)
                choice.setCurrentIndex(row if row >= 0 else max(0, choice.findData(wanted)))
        self._take_devices()

    def set_values(self, values: Mapping[str, Any]) -> None:
        kept = {} if "devices" in values else {"devices": self._pair.text()}
        workload, fields = values.get("workload"), values.get("fields")
        choice = self.control("workload")
        if isinstance(choice, QComboBox) and isinstance(workload, str) and choice.findData(workload) < 0:
            choice.addItem(workload, workload)  # a recording's may not be installed here; the check says so
        super().set_values({**values, **{name: text for name, text in kept.items() if text}})
        self._show_devices()
        self._show_nested()
        self.nested.set_values(fields if isinstance(fields, Mapping) else {})
        self._check()

    def change_fields(self, fields: Mapping[str, Any]) -> None:
        own = {name: value for name, value in fields.items() if name in self.spec_type.model_fields}
        other = {name: value for name, value in fields.items() if name not in own}
        nested = {**self.nested.values(), **own.pop("fields", {}), **other}
        self.set_values({**self.values(), **own, "fields": nested})

    @property
    def own_device(self) -> str | None:
        spec = self.spec()
        return None if spec is None else spec.own_device

    def set_locked(self, locked: bool) -> None:
        super().set_locked(locked)
        for control in (self.first, self.second):
            control.setEnabled(not locked)
        self.nested.set_locked(locked)

    def values(self) -> dict[str, Any]:
        nested = self.nested
        fields = nested.spec_type.model_fields
        spec = nested.spec()
        given = nested.values() if spec is None else spec.model_dump(mode="json", exclude=set(COMMON))
        changed = {name: value for name, value in given.items() if value != fields[name].default}
        return {**super().values(), "fields": changed}

    def errors(self) -> dict[str, str]:
        return {} if self.nested.errors() else super().errors()

    def _names(self) -> list[str]:
        return [name for name in super()._names() if name != "fields"]

    def _make(self, name: str, field: FieldInfo, extra: Mapping[str, Any]) -> Control:
        if name != "workload":
            return super()._make(name, field, extra)
        choice = ChoiceField()
        there = workloads()
        for workload in compared(there):
            choice.addItem(there[workload].title, workload)
        choice.currentIndexChanged.connect(lambda _row: self._show_nested())
        return choice

    def _show_nested(self) -> None:
        chosen = self.nested
        for form in self._nested.values():
            self._layout.setRowVisible(form, form is chosen)

    def _take_devices(self) -> None:
        pair = f"{self.first.currentData()},{self.second.currentData()}"
        self._pair.setText(pair)

    def _show_devices(self) -> None:
        names = self._pair.text().split(",")
        for choice, name in zip((self.first, self.second), names, strict=False):
            with QSignalBlocker(choice):
                if choice.findData(name.strip()) < 0:
                    choice.addItem(name.strip(), name.strip())  # a recording's device may not be here
                choice.setCurrentIndex(choice.findData(name.strip()))


def _device_row(first: QComboBox, second: QComboBox) -> tuple[QLabel, QWidget]:
    label = PlainLabel("Devices")
    label.setProperty("role", "muted")
    label.setBuddy(first)
    row = QWidget()
    box = QHBoxLayout(row)
    box.setContentsMargins(0, 0, 0, 0)
    box.setSpacing(6)
    for choice in (first, second):
        choice.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        box.addWidget(choice, 1)
    return label, row


def form_of(spec: type[Spec]) -> SpecForm:
    """The form of a workload."""
    if issubclass(spec, ComparisonSpec):
        return ComparisonForm(spec)
    return ParallelForm(spec) if issubclass(spec, TrainingSpec) else SpecForm(spec)
