"""A run as the plain PyTorch program it amounts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpudash.devices import OFFERED_BYTES, Device, Simulation, kind_of
from gpudash.specs import Spec, build, workloads


def program_of(spec: Spec, device: str, devices: Sequence[Device] = ()) -> str:
    """A program of at most 60 lines that does with torch alone what ``spec`` does on ``device``.

    Args:
        devices: what there is; of simulated GPUs the program makes as many of the same size.

    Raises:
        ValueError: one sentence, for a workload that is not built in.
    """
    from gpudash.workloads.code import code

    sizes = [found.total_bytes or OFFERED_BYTES for found in devices if found.simulated]
    if kind_of(device) == "sim":
        sizes += [OFFERED_BYTES] * (int(device.partition(":")[2]) + 1 - len(sizes))
    return code(spec, device, Simulation(tuple(sizes)))


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
    return program_of(build(found, dict(fields)), device, devices)
