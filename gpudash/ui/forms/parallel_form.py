"""The form of a training workload, which can run with one rank on each of several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from PySide6.QtWidgets import QLineEdit, QWidget

from gpudash.devices.names import Device, kind_of
from gpudash.specs import Spec
from gpudash.specs.base import several_devices
from gpudash.ui.forms.spec_form import SpecForm
from gpudash.ui.widgets.fields import read_control
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import format_bytes

ONLY_SEVERAL = ("parallel", "global_batch", "max_restarts", "rank_timeout", "slow_rank")
"""Fields that apply only to several devices."""

ONLY_RANKS = {"global_batch": 0, "max_restarts": 0, "rank_timeout": 60.0, "slow_rank": 0.0}
"""Fields that apply only with ranks, which a split model does not have."""

RANK_FIELDS = ("devices", *ONLY_SEVERAL)
"""All fields of a distributed run."""

ONE_RANK_TEXT = "One process: choose several devices above to change these."


class ParallelForm(SpecForm):
    """The fields of a workload that can train on several devices; these are chosen outside, in a `DeviceChoice`."""

    hidden = ("devices",)

    def __init__(self, spec: type[Spec], parent: QWidget | None = None) -> None:
        self._offered: tuple[Device, ...] = ()
        self._note = PlainLabel()
        self._note.setProperty("role", "muted")
        self._note.setWordWrap(True)
        self._note.setMinimumHeight(2 * self._note.fontMetrics().lineSpacing())
        super().__init__(spec, parent)
        self.devices.textChanged.connect(self._devices_changed)
        self._devices_changed()

    @property
    def devices(self) -> QLineEdit:
        """The devices of the ranks as text; empty for a single device. Hidden."""
        return cast(QLineEdit, self.control("devices"))

    @property
    def ranks_on(self) -> str:
        """The text of `devices` while the form trains; "" for what runs on one device, such as inference."""
        return self._devices_text

    @property
    def own_device(self) -> str | None:
        names = self._names_of_devices()
        if names:
            return names[0]
        return None

    def leave_ranks_without(self, device: str) -> None:
        """Return to a single device unless ``device`` is one of the ranks'."""
        if device not in self._names_of_devices():
            self.devices.clear()

    def set_devices(self, devices: Sequence[Device]) -> None:
        """Offer ``devices``; others are refused from then on."""
        if tuple(devices) != self._offered:
            self._offered = tuple(devices)
            self._check()

    def set_values(self, values: Mapping[str, Any]) -> None:
        super().set_values(values)
        self._devices_changed()

    def set_device(self, device: str) -> None:
        super().set_device(device)
        self._disable_refused(self.own_device or device)

    def values(self) -> dict[str, Any]:
        values = super().values()
        values["devices"] = self._devices_text
        if values["devices"] and values.get("parallel") == "split":
            values |= {name: value for name, value in ONLY_RANKS.items() if name in values}
        return values

    @property
    def _devices_text(self) -> str:
        """The devices of the ranks, as in `values`; needed so often that the other fields are not read for it."""
        if super().why_not("devices"):
            return ""
        return str(read_control(self.devices) or "")

    @property
    def _is_split(self) -> bool:
        parallel = self._controls.get("parallel")
        return parallel is not None and read_control(parallel) == "split"

    def spec(self) -> Spec | None:
        if self._missing():
            return None
        return super().spec()

    def errors(self) -> dict[str, str]:
        missing = self._missing()
        if missing:
            return {**super().errors(), "devices": missing}
        return super().errors()

    def why_not(self, name: str) -> str:
        refused = super().why_not(name)
        if refused:
            return refused
        if name in ONLY_SEVERAL and not self.devices.text().strip():
            return "only with several devices"
        if name in ONLY_RANKS and self._is_split:
            return "only with ranks"
        return ""

    def title(self, name: str) -> str:
        if name == "devices":
            return "Device"
        return super().title(name)

    def _problems(self, spec: Spec) -> list[str]:
        return spec.run_problems(spec.own_device or self._device)

    def _begin_group(self, group: str) -> None:
        if group == "several devices":
            self._others.addRow(self._note)

    def _names_of_devices(self) -> tuple[str, ...]:
        """The devices of the ranks, if they are valid and the form trains."""
        try:
            return several_devices(self._devices_text)
        except ValueError:
            return ()

    def _missing(self) -> str:
        """Why a rank cannot run on a named device; "" if each can, or if the devices are not known yet."""
        there = {device.name: device for device in self._offered}
        for name in self._names_of_devices() if there else ():
            if name not in there:
                simulated = kind_of(name) == "sim"
                usable = ", ".join(other for other, device in there.items() if simulated or not device.simulated)
                return f"{name} is not here; there is {usable}"
            problem = there[name].problem
            if problem is not None:
                return f"{name} cannot be used: {problem.rstrip('.')}"
        return ""

    def _devices_changed(self) -> None:
        self._disable_refused(self.own_device or self._device)
        self._note.setText(self.meaning or ONE_RANK_TEXT)

    def _check(self) -> None:
        super()._check()
        self._note.setText(self.meaning or ONE_RANK_TEXT)

    @property
    def meaning(self) -> str:
        """What the choice of several devices means; "" for a single device."""
        names = self._names_of_devices()
        if not names or self._missing():
            return ""
        if self._is_split:
            if len(names) == 2:
                return "The first half of the layers on {}, the second on {}.".format(*names)
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
