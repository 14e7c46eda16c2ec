"""The form of a training: on one device, or on several with a rank on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic.fields import FieldInfo
from PySide6.QtWidgets import QVBoxLayout, QWidget

from gpudash.devices.names import Device, kind_of
from gpudash.specs import Spec
from gpudash.specs.device_list import several
from gpudash.ui.forms.device_choice import DevicesLine
from gpudash.ui.forms.spec_form import SpecForm
from gpudash.ui.widgets.fields import Control
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import format_bytes

ONLY_SEVERAL = ("parallel", "global_batch", "max_restarts", "rank_timeout", "slow_rank")
"""Fields that mean something only with several devices."""

FIRST = ("devices", *ONLY_SEVERAL)
"""Fields above the others: below the choice of one device."""


class ParallelForm(SpecForm):
    """A training's fields, and among them the devices of its ranks."""

    def __init__(self, spec: type[Spec], parent: QWidget | None = None) -> None:
        self._offered: tuple[Device, ...] = ()
        self._note = PlainLabel()
        self._note.setProperty("role", "muted")
        self._note.setWordWrap(True)
        self._note.hide()
        self._words = QWidget()
        super().__init__(spec, parent)
        box = QVBoxLayout(self._words)
        box.setContentsMargins(0, 0, 0, 0)
        box.setSpacing(2)
        box.addWidget(self._errors["devices"])
        box.addWidget(self._note)
        self._layout.insertRow(1, self._words)  # across both columns: sentences on devices are long
        self._show_words()
        self.devices.textChanged.connect(self._devices_changed)

    @property
    def devices(self) -> DevicesLine:
        """The devices of the ranks; empty while there is one device."""
        return cast(DevicesLine, self.control("devices"))

    @property
    def own_device(self) -> str | None:
        names = self._names_of_devices()
        return names[0] if names else None

    def set_devices(self, devices: Sequence[Device]) -> None:
        """Offer ``devices``; those that are not among them are refused from then on."""
        if tuple(devices) != self._offered:
            self._offered = tuple(devices)
            self.devices.offer(devices)
            self._check()

    def set_values(self, values: Mapping[str, Any]) -> None:
        super().set_values(values)
        self._devices_changed()

    def set_device(self, device: str) -> None:
        super().set_device(device)
        self._disable_refused(self.own_device or device)

    def values(self) -> dict[str, Any]:
        values = super().values()
        training = values.get("mode") == "train"
        return {**values, "devices": (values["devices"] or "") if training else ""}

    def spec(self) -> Spec | None:
        return None if self._missing() else super().spec()

    def errors(self) -> dict[str, str]:
        missing = self._missing()
        return {**super().errors(), "devices": missing} if missing else super().errors()

    def is_hidden(self, name: str) -> bool:
        return super().is_hidden(name) or (name in ONLY_SEVERAL and not self.devices.text().strip())

    def _problems(self, spec: Spec) -> list[str]:
        return spec.run_problems(spec.own_device or self._device)

    def _names(self) -> list[str]:
        return [*FIRST, *(name for name in super()._names() if name not in FIRST)]

    def _make(self, name: str, field: FieldInfo, extra: Mapping[str, Any]) -> Control:
        return DevicesLine() if name == "devices" else super()._make(name, field, extra)

    def _names_of_devices(self) -> tuple[str, ...]:
        """The devices of the ranks, as far as they make sense and the form trains."""
        try:
            return several(self.values()["devices"])
        except ValueError:
            return ()

    def _missing(self) -> str:
        """Why a rank can not run on a device that is named; "" when each can, or nobody knows the devices yet."""
        there = {device.name: device for device in self._offered}
        for name in self._names_of_devices() if there else ():
            if name not in there:
                usable = ", ".join(name for name, device in there.items() if not device.simulated)
                return f"{name} is not here; there is {usable}"
            problem = there[name].problem
            if problem is not None:
                return f"{name} cannot be used: {problem.rstrip('.')}"
        return ""

    def _devices_changed(self) -> None:
        self._disable_refused(self.own_device or self._device)
        if not self.devices.hasFocus():
            self.devices.setCursorPosition(0)
        words = self._told()
        self._note.setText(words)
        self._note.setVisible(bool(words))
        self._show_words()

    def _check(self) -> None:
        super()._check()
        self._show_words()

    def _show_words(self) -> None:
        """Have room for what is said of the devices only while something is."""
        if self._layout.indexOf(self._words) < 0:
            return  # the form is still being made
        said = not (self._note.isHidden() and self._errors["devices"].isHidden())
        self._layout.setRowVisible(self._words, said and self.values()["mode"] == "train")

    def _told(self) -> str:
        """What the choice means, where it is one."""
        names = self._names_of_devices()
        if not names or self._missing():
            return ""
        if kind_of(names[0]) == "cpu":
            return f"{len(names)} ranks share the CPU and its memory."
        sizes = {device.name: device.total_bytes for device in self._offered}
        known = {name: size for name in names if (size := sizes.get(name)) is not None}
        if len(known) < 2 or min(known.values()) == max(known.values()):
            return f"{len(names)} ranks, one on each GPU."
        least = min(known, key=lambda name: known[name])
        most = format_bytes(max(known.values()))
        return (
            f"{least} has the least memory ({format_bytes(known[least])}, others up to {most}): it decides what fits."
        )
