"""A run as the plain PyTorch program it amounts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpudash.devices.names import OFFERED_BYTES, Device, Simulation, kind_of, simulated_card
from gpudash.specs import Spec, build, workloads

NOT_KEPT = (
    "# From a recording, which keeps neither a cap on memory (--memory-cap) nor what simulated others held: where",
    "# the run had either, this program has more room than it.",
)
"""Remark in the program of a recorded run on a GPU."""


def program_of(
    spec: Spec, device: str, devices: Sequence[Device] = (), others_bytes: int = 0, remark: Sequence[str] = ()
) -> str:
    """A program of at most 60 lines that does with torch alone what ``spec`` does on ``device``.

    Args:
        devices: what there is; of simulated GPUs the program makes as many of the same kind.
        others_bytes: what simulated other processes hold of ``sim:0``.
        remark: comments that it begins with.

    Raises:
        ValueError: one sentence, for a workload that is not built in.
    """
    from gpudash.workloads.program_code import code

    cards = [simulated_card(found) for found in devices if found.simulated]
    if kind_of(device) == "sim":
        cards += [OFFERED_BYTES] * (int(device.partition(":")[2]) + 1 - len(cards))
    return code(spec, device, Simulation(tuple(cards), others_bytes), remark=remark)


def program_of_run(workload: str, fields: Mapping[str, Any], device: str, devices: Sequence[Device] = ()) -> str:
    """The program of a run that was recorded.

    Args:
        workload, fields, device: as `RunStarted` tells them.

    Raises:
        ValueError: one sentence, when the workload is not here, not built in, or does not take these fields any more.
    """
    found = workloads().get(workload)
    if found is None:
        own = workload == "watch"
        what = "your own program, which is one already" if own else f"the workload {workload}, which is not here"
        raise ValueError(f"This was {what}; there is no program to copy.")
    remark = () if kind_of(device) == "cpu" else NOT_KEPT
    return program_of(build(found, dict(fields)), device, devices, remark=remark)
