"""Putting what a recorded run was asked into the workload panel, ready to start."""

from __future__ import annotations

from collections.abc import Sequence

from gpudash.devices.names import Device
from gpudash.telemetry.runs import RunView
from gpudash.ui.forms.device_forms import ParallelForm
from gpudash.ui.forms.run_progress import PID, WATCH
from gpudash.ui.forms.script_form import Script
from gpudash.ui.forms.workload_panel import WorkloadPanel


def put_into_panel(run: RunView, panel: WorkloadPanel, devices: Sequence[Device], preferred: str) -> str:
    """Fill the panel with a run.

    Args:
        run: as it was recorded.
        panel: of the live session.
        devices: those of today.
        preferred: the device that is chosen where there is none like that of the run.

    Returns:
        What could not be taken as it was, in a sentence each; "" when everything could.
    """
    if run.workload == WATCH and PID in run.spec:
        return "That recording is of a process that was watched from outside; it cannot be started again from here."
    row = panel.workload.findData(run.workload)
    if row < 0:
        return f"The workload {run.workload} is not installed here; nothing was changed."
    panel.workload.setCurrentIndex(row)
    if run.workload == WATCH:
        panel.script.set_script(Script.from_spec(run.spec))
        return ""
    known = {name: value for name, value in run.spec.items() if name in panel.form.spec_type.model_fields}
    left_out = sorted(set(run.spec) - set(known))
    ranks = [name.strip() for name in str(known.get("devices") or "").split(",") if name.strip()]
    several = bool(ranks) and isinstance(panel.form, ParallelForm)
    said = _missing_ranks(ranks, devices) if several else _choose_device(run, panel, devices, preferred)
    panel.form.set_values(known)
    panel.change_fields(known)
    if left_out:
        said.append(f"This version does not know {', '.join(left_out)}; the rest was taken.")
    return " ".join(said)


def _missing_ranks(ranks: Sequence[str], devices: Sequence[Device]) -> list[str]:
    """Say which devices of the run's ranks are not here; which to take instead is the user's choice."""
    there = {device.name for device in devices}
    missing = list(dict.fromkeys(name for name in ranks if name not in there))
    if not missing:
        return []
    are = "is" if len(missing) == 1 else "are"
    return [f"This run had ranks on {', '.join(missing)}, which {are} not here today; choose others under Device."]


def _choose_device(run: RunView, panel: WorkloadPanel, devices: Sequence[Device], preferred: str) -> list[str]:
    """Choose the device of the run, or one like it; says so where it is another."""
    there = {device.name: device for device in devices}
    found = there.get(run.device)
    if found is not None and found.problem is None:
        panel.take_device(found.name)
        return []
    like = next((d.name for d in devices if run.simulated and d.simulated and d.problem is None), preferred)
    panel.take_device(like)
    why = f"cannot be used today: {found.problem.rstrip('.')}" if found and found.problem else "is not here today"
    return [f"This run was on {run.device}, which {why}; the values are kept, and the device is {like}."]
