"""The choice of devices, the form of a comparison, which has two of them, and the form of every workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic.fields import FieldInfo
from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QComboBox, QInputDialog, QLabel, QLineEdit, QSizePolicy, QVBoxLayout, QWidget

from gpudash.devices.known_gpus import find
from gpudash.devices.names import SIMULATED, Device, known_product, short_product
from gpudash.specs import ModelSpec, Spec, TrainingSpec, workloads
from gpudash.specs.comparison import COMMON, PREDICTED_CARD, PREDICTED_CARDS, SIMULATED_SPEED, ComparisonSpec, compared
from gpudash.ui.forms.model_form import ModelForm
from gpudash.ui.forms.parallel_form import RANK_FIELDS, ParallelForm
from gpudash.ui.forms.spec_form import SpecForm
from gpudash.ui.widgets.fields import ChoiceField, Control
from gpudash.ui.widgets.labels import fitting_text
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

WORDS_WIDTH = 116
"""Logical pixels for a device's name and product in a choice."""


def _set_up(choice: QComboBox, title: str, characters: int) -> None:
    """Set up an empty choice of devices, at least ``characters`` wide."""
    choice.setAccessibleName(title)
    choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    choice.setMinimumContentsLength(characters)


def device_text(device: Device, choice: QComboBox) -> str:
    """A device's name and product, elided to fit ``choice``."""
    text = f"{device.name} · {product_text(device)}"
    return fitting_text(text, choice.fontMetrics(), WORDS_WIDTH)


def product_text(device: Device) -> str:
    """A device's product in short form: "RTX 4090", "SIMULATED", "H100 80GB, SIMULATED"."""
    if device.simulated:
        return ", ".join(filter(None, (known_product(device.product), SIMULATED)))
    return short_product(device.product)


def offer(choice: QComboBox, text: str, device: Device, problem: str | None) -> None:
    """Add ``device`` to ``choice``; with a ``problem``, shown as its tooltip, it is disabled."""
    choice.addItem(text, device.name)
    row = choice.count() - 1
    text = problem or "\n".join(filter(None, (device.product, device.remark)))
    choice.setItemData(row, plain_tip(text), Qt.ItemDataRole.ToolTipRole)
    model = choice.model()
    assert isinstance(model, QStandardItemModel)
    model.item(row).setEnabled(problem is None)


CPU_RANKS = (2, 3, 4, 8)
"""Numbers of ranks on the CPU to offer."""

OTHERS = "…"
"""Entry in the choice of a device for typing other devices."""

DEVICES_PROMPT = "Devices of the ranks, or of a split model's halves, such as cuda:0,cuda:2 or cpu,cpu,cpu:"


class DeviceChoice(ChoiceField):
    """Where a run takes place: on one device, or with one rank on each of several, named with commas.

    Signals:
        picked: the user's choice.
    """

    picked = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        _set_up(self, "Device", 12)
        self._shown = ""
        self.activated.connect(self._activated)

    def offer(self, devices: Sequence[Device], *, ranks: bool) -> None:
        """List ``devices``, and several of them if ``ranks`` can run on each; the current choice stays."""
        with QSignalBlocker(self):
            self.clear()
            for device in devices:
                offer(self, device_text(device, self), device, device.problem)
            if ranks:
                usable = [device for device in devices if device.problem is None]
                gpus = [device.name for device in usable if device.kind == "cuda"]
                simulated = [device.name for device in usable if device.simulated]
                several = [gpus[:count] for count in range(2, len(gpus) + 1)] + [["cpu"] * n for n in CPU_RANKS]
                several += [simulated[:count] for count in range(2, len(simulated) + 1)]
                self.insertSeparator(self.count())
                for names in several:
                    self._add(",".join(names))
                self.addItem("Other devices…", OTHERS)
        self.show_choice(self._shown)

    def show_choice(self, value: str) -> None:
        """Show ``value`` as chosen, even if it is not in the list; this is not the user's choice."""
        self._shown = value
        with QSignalBlocker(self):
            if self.findData(value) < 0 and value:
                self._add(value)  # it was typed, or is from a recording
            self.setCurrentIndex(self.findData(value))

    def _add(self, value: str) -> None:
        names = value.split(",")
        first, last = names[0], names[-1]
        if len(names) > 2:
            text = f"{first} to {last}"
        else:
            text = ", ".join(names)
        if len(names) > 1 and {*names} == {"cpu"}:
            text = f"{len(names)} ranks on cpu"
        self.addItem(text, value)
        self.setItemData(
            self.count() - 1,
            plain_tip(f"{len(names)} ranks, or the halves of a model: {value}"),
            Qt.ItemDataRole.ToolTipRole,
        )

    def _activated(self, _row: int) -> None:
        value = str(self.currentData())
        if value == OTHERS:
            text = ""
            if "," in self._shown:
                text = self._shown
            typed, given = QInputDialog.getText(self.window(), "Other Devices", DEVICES_PROMPT, text=text)
            value = ""
            if given:
                value = ",".join(name.strip() for name in typed.split(",") if name.strip())
            value = value or self._shown
        self.show_choice(value)
        self.picked.emit(value)


class ComparisonForm(SpecForm):
    """A comparison's fields, including those of the workload that is compared."""

    hidden = ("devices",)
    more_title = "More of the comparison"

    def __init__(self, spec: type[Spec], parent: QWidget | None = None) -> None:
        self._offered: list[tuple[str, str]] = []
        self._nested: dict[str, SpecForm] = {}
        self.first, self.second = ChoiceField(), ChoiceField()
        for choice, title in ((self.first, "First device"), (self.second, "Second device")):
            _set_up(choice, title, 4)
            choice.setToolTip(plain_tip(f"{title} of the comparison"))
        super().__init__(spec, parent, without=("fields",))
        self._essentials.insertRow(2, *_device_row(self.first, self.second))
        for choice in (self.first, self.second):
            choice.currentIndexChanged.connect(self._take_devices)
        self._show_nested()

    @property
    def _pair(self) -> QLineEdit:
        """The two devices as text; hidden, and filled by the two choices."""
        return cast(QLineEdit, self.control("devices"))

    @property
    def nested(self) -> SpecForm:
        """The form of the selected workload's fields."""
        name = str(self._controls["workload"].currentData())  # type: ignore[union-attr]  # `_make` creates a choice for it
        if name not in self._nested:
            spec = workloads().get(name, Spec)  # a workload that is not installed has no fields
            form = SpecForm(spec, without=(*COMMON, *RANK_FIELDS) if issubclass(spec, TrainingSpec) else COMMON)
            form.changed.connect(self._check_and_report)
            self._nested[name] = form
            self._essentials.insertRow(3, form)
        return self._nested[name]

    def set_devices(self, devices: Sequence[Device], preferred: str) -> None:
        """Offer ``devices``, the CPU first and ``preferred`` second until the user chooses; simulated ones are
        disabled. They are followed by cards that are not installed, which are predicted.
        """
        offered = [(device.name, device.problem or "") for device in devices]
        if offered == self._offered:
            return
        self._offered = offered
        before = self.first.currentData(), self.second.currentData()
        measured = [d.name for d in devices if not d.simulated and d.kind != "cpu" and d.problem is None]
        if preferred not in measured:
            # Without a GPU there is nothing to measure beside the CPU; a simulated one's times are the CPU's.
            preferred = next(iter(measured), PREDICTED_CARD)
        for choice, kept, wanted in zip((self.first, self.second), before, ("cpu", preferred), strict=True):
            with QSignalBlocker(choice):
                choice.clear()
                for device in devices:
                    refused = SIMULATED_SPEED.format(device=device.name) if device.simulated else device.problem
                    if device.simulated:
                        text = f"{device.name} ({SIMULATED})"
                    else:
                        text = device.name
                    offer(choice, text, device, refused)
                if choice is self.second:
                    _offer_cards(choice)
                row = choice.findData(kept)
                choice.setCurrentIndex(row if row >= 0 else max(0, choice.findData(wanted)))
        self._take_devices()

    def set_values(self, values: Mapping[str, Any]) -> None:
        if "devices" in values:
            kept = {}
        else:
            kept = {"devices": self._pair.text()}
        workload, fields = values.get("workload"), values.get("fields")
        choice = self.control("workload")
        if isinstance(choice, QComboBox) and isinstance(workload, str) and choice.findData(workload) < 0:
            choice.addItem(workload, workload)  # a recording's workload may not be installed; the check says so
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
        if spec is None:
            return None
        return spec.own_device

    def set_locked(self, locked: bool) -> None:
        super().set_locked(locked)
        for control in (self.first, self.second):
            control.setEnabled(not locked)
        self.nested.set_locked(locked)

    def values(self) -> dict[str, Any]:
        nested = self.nested
        fields = nested.spec_type.model_fields
        spec = nested.spec()
        if spec is None:
            given = nested.values()
        else:
            given = spec.model_dump(mode="json", exclude=set(COMMON))
        changed = {name: value for name, value in given.items() if value != fields[name].default}
        return {**super().values(), "fields": changed}

    def errors(self) -> dict[str, str]:
        if self.nested.errors():
            return {}
        return super().errors()

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
            self._essentials.setRowVisible(form, form is chosen)

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


def _offer_cards(choice: QComboBox) -> None:
    """Add cards that are not installed; a comparison predicts them, and measures the CPU."""
    choice.insertSeparator(choice.count())
    for card in filter(None, map(find, PREDICTED_CARDS)):
        choice.addItem(f"{card.name}, predicted", card.key)
        tip = f"{card.name} is not installed: the CPU is measured, and the card's step time is predicted."
        choice.setItemData(choice.count() - 1, plain_tip(tip), Qt.ItemDataRole.ToolTipRole)


def _device_row(first: QComboBox, second: QComboBox) -> tuple[QLabel, QWidget]:
    label = PlainLabel("Devices")
    label.setProperty("role", "muted")
    label.setBuddy(first)
    row = QWidget()
    box = QVBoxLayout(row)  # below each other: card names do not fit in half a row
    box.setContentsMargins(0, 0, 0, 0)
    box.setSpacing(6)
    for choice in (first, second):
        choice.setProperty("role", "narrow")
        choice.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        box.addWidget(choice, 1)
    return label, row


def form_of(spec: type[Spec]) -> SpecForm:
    """The form of a workload."""
    if issubclass(spec, ComparisonSpec):
        return ComparisonForm(spec)
    if issubclass(spec, ModelSpec):
        return ModelForm(spec)
    if issubclass(spec, TrainingSpec):
        return ParallelForm(spec)
    return SpecForm(spec)
