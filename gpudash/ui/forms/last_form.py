"""The form's last values, kept from one start of the window to the next."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from PySide6.QtCore import QObject

from gpudash.session.source import DashboardSource
from gpudash.specs import Spec, invalid_fields, workloads
from gpudash.telemetry.runs import WATCH
from gpudash.ui.forms.workload_panel import WorkloadPanel
from gpudash.ui.widgets.remembered import recall, remember

logger = logging.getLogger(__name__)

_REMEMBERED = "form"
"""Key under which the window remembers the form."""

NOT_KEPT = ("devices", "trust_remote_code")
"""Fields that are not kept: consent, and the names of devices, which change (see `RememberedForm.memories`)."""


@dataclass(frozen=True, slots=True)
class RememberedForm:
    """The workload and values that were used last.

    Attributes:
        workload: its name; `WATCH` for the user's own program, whose form keeps its own fields.
        values: the fields that differed from their defaults.
        memories: keys of the devices (`Device.memory`): the one that the user chose, or those of the ranks; empty for
            the session's default.
    """

    workload: str
    values: dict[str, Any]
    memories: list[str]


@cache
def _reader() -> TypeAdapter[RememberedForm]:
    # Built once, and not before it is needed: that takes longer than to read with it.
    return TypeAdapter(RememberedForm)


def remember_form(panel: WorkloadPanel) -> None:
    """Keep the panel's values; while one is invalid, the values kept before stay."""
    if panel.watching:
        panel.script.remember()
        kept = RememberedForm(WATCH, {}, [])
    else:
        spec = panel.spec()
        if spec is None:
            return
        values = spec.model_dump(mode="json", exclude_defaults=True, exclude={*NOT_KEPT})
        kept = RememberedForm(str(panel.workload.currentData()), values, panel.chosen_memories)
    remember(_REMEMBERED, asdict(kept))


class LastForm(QObject):
    """Fills the panel with its last values, and chooses the devices once all of them are present.

    Values that can no longer be used are left out, with a line in the log.

    Args:
        panel: of a live session, not filled in yet.
        session: lists the devices.
    """

    def __init__(self, panel: WorkloadPanel, session: DashboardSource) -> None:
        super().__init__(panel)
        self._panel = panel
        self._session = session
        self._memories: list[str] = []
        self._workload = ""
        kept = _recalled()
        if kept is None:
            return
        if panel.workload.findData(kept.workload) < 0:
            logger.warning("the workload that was used last is not here any more: %s", kept.workload)
            return
        self._workload = kept.workload
        self._memories = kept.memories
        if kept.workload == WATCH:
            panel.workload.setCurrentIndex(panel.workload.findData(WATCH))
        else:
            panel.take_preset(kept.workload, _usable(kept.values, workloads()[kept.workload]))

    def choose_devices(self) -> bool:
        """Choose the last devices once all of them are present, unless the user or a run has chosen one, or the command
        line requested a card to simulate.

        Returns:
            Whether they were chosen by this call.
        """
        if not self._memories:
            return False
        panel, live = self._panel, self._session.live
        is_other = panel.workload.currentData() != self._workload or panel.has_chosen_device
        if live is None or live.running or is_other or live.machine.simulated.given:
            self._memories = []
            return False
        names = {device.memory: device.name for device in self._session.devices() if device.problem is None}
        if not {*self._memories} <= names.keys():
            return False
        found = [names[memory] for memory in self._memories]
        self._memories = []
        if len(found) == 1:
            panel.take_device(found[0])
        else:
            panel.change_fields({"devices": ",".join(found)})
        return True


def _recalled() -> RememberedForm | None:
    kept = recall(_REMEMBERED)
    if kept is None:
        return None
    try:
        return _reader().validate_python(kept)
    except ValidationError as error:
        logger.warning("what the window remembers of its form cannot be read: %s", "; ".join(invalid_fields(error)))
        return None


def _usable(values: Mapping[str, Any], spec: type[Spec]) -> dict[str, Any]:
    """The values that the workload's fields still allow; the log names the others, without their values."""
    usable = {name: value for name, value in values.items() if name in spec.model_fields and name not in NOT_KEPT}
    refused = values.keys() - usable.keys()
    try:
        spec.model_validate(usable)
    except ValidationError as error:
        wrong = invalid_fields(error).keys()
        if "" in wrong:
            wrong = usable.keys()  # they do not go together
        refused |= wrong
        usable = {name: value for name, value in usable.items() if name not in wrong}
    if refused:
        logger.warning("of the form that was used last these are ignored: %s", ", ".join(sorted(refused)))
    return usable
