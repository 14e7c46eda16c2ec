"""Memory as bands that add up to what is used, worked out from readings of different sources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuBands:
    """The parts of a GPU's used memory, in bytes; ``None`` is a gap. Those that are had add up to `used`.

    Attributes:
        allocated: tensors.
        idle: idle inside PyTorch: reserved − allocated.
        context: CUDA context: the driver's figure for our process − reserved; part of `other` where there is none.
        other: other processes.
    """

    allocated: float | None
    idle: float | None
    context: float | None
    other: float | None


def gpu_bands(
    used: float | None, process: float | None, allocated: float | None, reserved: float | None, *, linked: bool
) -> GpuBands:
    """The bands of one tick.

    Args:
        used: the driver's figure for the whole GPU.
        process: the driver's figure for our own process; ``None`` where it gives none.
        allocated: of torch's allocator.
        reserved: of torch's allocator.
        linked: whether an allocator of ours is known on this GPU; when none is, it holds nothing.
    """
    if used is None:
        return GpuBands(None, None, None, None)
    if not linked:
        allocated = reserved = 0
    if allocated is None or reserved is None:
        return GpuBands(None, None, None, None if process is None else max(used - process, 0))
    # The driver and the allocator are read at different instants; the newer allocator must not make a band negative.
    reserved = min(reserved, used)
    allocated = min(allocated, reserved)
    if process is None:
        return GpuBands(allocated, reserved - allocated, None, used - reserved)
    own = min(max(process, reserved), used)
    return GpuBands(allocated, reserved - allocated, own - reserved, used - own)


def host_others(used: float | None, process: float | None) -> float | None:
    """Host memory used by other processes; ``None`` when either figure is missing."""
    return None if used is None or process is None else max(used - process, 0)
