"""What a device has room for now, as a prediction needs to know it."""

from __future__ import annotations

from gpudash.devices.names import Device, Gpu
from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.settings import allocator_text
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Target
from gpudash.memory.watching.levels import HOST
from gpudash.session.live.machine import Machine
from gpudash.session.predicting.contexts import measured_context
from gpudash.simulator.device.simulated_gpu import A100, CONTEXT_BYTES
from gpudash.telemetry.store import Store
from gpudash.units import MIB, format_bytes

ASSUMED_CONTEXT_BYTES = 500 * MIB
"""What a CUDA context takes, where none has been made yet: 100 to 850 MiB have been seen, by card and driver."""

CUDA_MARGIN_RATIO = 0.01
"""How far a peak on CUDA may lie from the dry run's: kernels ask for workspaces that only they know."""

CPU_MARGIN_RATIO = 0.2
"""How far a peak on the CPU may lie from the sum of the tensors: its heap rounds, keeps and is not ours alone."""


def room_on(device: Device, machine: Machine, store: Store) -> Target:
    """Where a run on ``device`` is to fit, by the newest readings.

    What torch's cache holds idle is free for the next run.

    Raises:
        ValueError: one sentence, when torch would refuse the allocator settings of this environment.
    """
    if device.simulated:
        return _simulated(device, machine)
    if device.kind == "cpu":
        free = machine.latest(HOST, "available_bytes")
        return Target("cpu", device.total_bytes, free, 0, "no context", CPU_MARGIN_RATIO, product=device.product)
    settings = AllocatorSettings.parse(allocator_text())
    free = None if device.uuid is None else machine.latest(device.uuid, "free_bytes")
    reserved, allocated = (_allocator(store, name, device.name) for name in ("reserved_bytes", "allocated_bytes"))
    idle = reserved - allocated if reserved is not None and allocated is not None else 0
    own = None if device.uuid is None else machine.own_bytes(device.uuid)
    opened = bool(own) or bool(reserved)  # a run's own process has taken its context with it, and reserves nothing
    overhead, words = (0, "the CUDA context is there already") if opened else _context(device)
    return Target(
        device.name,
        device.total_bytes,
        None if free is None else free + idle,
        overhead,
        words,
        CUDA_MARGIN_RATIO,
        settings,
        _architecture(next((gpu for gpu in machine.gpus if gpu.uuid == device.uuid), None)),
        product=device.product,
    )


def _context(device: Device) -> tuple[int, str]:
    """Bytes of a CUDA context that is still to be made, and how they are known."""
    measured = None if device.uuid is None else measured_context(device.uuid)
    if measured is not None:
        return measured, f"a CUDA context of {format_bytes(measured)} as measured on this card"
    return ASSUMED_CONTEXT_BYTES, f"a CUDA context of {format_bytes(ASSUMED_CONTEXT_BYTES)} assumed"


def _architecture(gpu: Gpu | None) -> Architecture:
    """A GPU's design, as far as its driver tells it."""
    capability = gpu.cuda_capability if gpu is not None else None
    multiprocessors = gpu.multiprocessors if gpu is not None else None
    return Architecture(capability or A100.capability, multiprocessors or A100.multiprocessors)


def _simulated(device: Device, machine: Machine) -> Target:
    """A simulated GPU is asked itself: its memory is the model's own, so there is no margin."""
    card = next(card for card in machine.simulated.cards if card.uuid == device.uuid)
    free, capacity = card.free_and_total()
    idle = card.reserved_bytes() - card.statistics()["allocated_bytes.all.current"]
    overhead = 0 if card.opened else CONTEXT_BYTES
    words = "the context is there already" if card.opened else f"a simulated context of {format_bytes(overhead)}"
    return Target(
        device.name,
        capacity,
        free + idle,
        overhead,
        words,
        settings=card.settings,
        architecture=card.architecture,
        product=card.product,
    )


def _allocator(store: Store, metric: str, device: str) -> int | None:
    with store.lock:
        value = store.latest("allocator", metric, device).value
    return int(value) if isinstance(value, (int, float)) else None
