"""A run as the worker is asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from gpudash.devices import Device, kind_of
from gpudash.session.machine import Machine
from gpudash.session.private_folder import PrivateFolder, runtime_folder
from gpudash.session.run_guards import RunGuards
from gpudash.specs import Spec
from gpudash.specs.memory_cap import MemoryCap

if TYPE_CHECKING:
    from gpudash.workloads.worker import RunRequest


def devices_of(spec: Spec, machine: Machine) -> tuple[Device, ...]:
    """The devices of a run on several, one a rank; none when it takes place on one.

    Raises:
        ValueError: one sentence, when one of them is not there or cannot be used.
    """
    return tuple(machine.find(name) for name in getattr(spec, "device_names", ()))


def check(spec: Spec, device: Device, memory_cap: MemoryCap | None, devices: Sequence[Device] = ()) -> None:
    """Make sure that a run can be asked for.

    Args:
        devices: of a run on several, as `devices_of` has them.

    Raises:
        ValueError: one sentence, when a device cannot run ``spec`` or bear the cap.
    """
    problems = spec.run_problems(device.name)
    if memory_cap is not None:
        for one in devices or (device,):
            problems += [new for new in memory_cap.problems(one.name, one.total_bytes) if new not in problems]
    if problems:
        raise ValueError("; ".join(problems))


def run_request(
    spec: Spec,
    device: Device,
    run_id: int,
    machine: Machine,
    guards: RunGuards,
    warn_ratio: float,
    memory_cap: MemoryCap | None,
    isolate: bool | None = None,
    devices: tuple[Device, ...] = (),
) -> RunRequest:
    """What the worker is given for a run that `check` has passed; CUDA's and comparisons are isolated by themselves."""
    from gpudash.workloads.worker import RunRequest

    memory = device.memory
    return RunRequest(
        spec=spec,
        device=device.name,
        run_id=run_id,
        refuse=guards.refusal(memory),
        memory=partial(machine.level, memory),
        warn_ratio=warn_ratio,
        expected_uuid=device.uuid,
        link_bytes_per_second=machine.link_rate(device.uuid),
        cards=machine.simulated.cards,
        memory_cap=memory_cap,
        surroundings=partial(machine.surroundings, memory),
        energy=machine.energy,
        isolate=spec.undisturbed or kind_of(device.name) == "cuda" if isolate is None else isolate,
        on_host=partial(machine.host_run, device.uuid if device.kind == "cuda" else None),
        on_cards=machine.simulated.hosted,
        devices=devices,
        folder=_folder,
        on_ranks=machine.follow_ranks,
    )


def _folder() -> PrivateFolder:
    """Where the socket of a run on several devices is; one that a killed gpudash has left is swept away."""
    return PrivateFolder(runtime_folder(), "gpudash-ranks-")
