"""The simulated GPU: a torch device named ``sim`` that computes on the CPU and whose memory is a model.

Real code runs on it and produces real numbers, while allocated and reserved memory, out-of-memory errors and memory
snapshots are those of a GPU with a chosen capacity. It needs only the standard library and torch, from Python 3.9 on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudash.devices.known_gpus import KnownGpu


def simulate(*capacities: int | str, settings: str | None = None, others: int = 0, as_cuda: bool = False) -> None:
    """Add the devices ``sim:0``, ``sim:1`` and so on to torch for the rest of the process.

    Another call replaces them with other GPUs. Processes that this one starts or forks share the GPUs if they simulate
    GPUs with the same memory: what one process holds, another cannot allocate.

    Args:
        capacities: memory of each GPU in bytes, or the name of a GPU to simulate, such as "h100".
        settings: of the allocator, in the format of ``PYTORCH_CUDA_ALLOC_CONF``; by default those of the environment.
        others: bytes that other processes hold on the first GPU.
        as_cuda: whether they stand in for CUDA, in ``torch.cuda`` and wherever a device is called "cuda".

    Raises:
        TypeError: in one sentence, if no capacity is given or one is not a whole number.
        ValueError: in one sentence, if a capacity is not between 1 byte and 2**50 bytes, ``others`` is negative, torch
            does not know a setting, a name is unknown, or a GPU to be replaced still holds memory.
        RuntimeError: in one sentence, if this torch cannot be given a device from Python, or a real GPU is in use as
            CUDA.
    """
    from gpudash.memory.allocator.settings import AllocatorSettings, allocator_text
    from gpudash.simulator.device.backend import register
    from gpudash.simulator.device.process_table import table_of_program
    from gpudash.simulator.device.simulated_gpu import OTHER_PROCESS, card_of

    if not capacities:
        raise TypeError("simulate() needs the memory of at least one GPU in bytes, as in simulate(8 * 2**30).")
    wanted = list(map(_wanted, capacities))
    _wanted(others, named=False)
    if others < 0:
        raise ValueError(f"simulate() takes the bytes that other processes hold, not {others}.")
    read = AllocatorSettings.parse(allocator_text() if settings is None else settings)
    held = None
    if others:
        held = {OTHER_PROCESS: others}
    table = table_of_program()
    cards = [
        card_of(index, one, others=None if index else held, settings=read, table=table)
        for index, one in enumerate(wanted)
    ]
    if not as_cuda:
        register(cards)
        return
    from gpudash.simulator.as_cuda.answering import answer_for_cuda, refuse_with_real_gpu

    refuse_with_real_gpu()
    answer_for_cuda(register(cards))


def _wanted(capacity: object, *, named: bool = True) -> int | KnownGpu:
    """A capacity in bytes, or with ``named`` the GPU of that name."""
    from gpudash.devices.known_gpus import find, nearest

    if named and isinstance(capacity, str):
        known = find(capacity)
        if known is not None:
            return known
        near = nearest(capacity)
        if near:
            raise ValueError(f"simulate() knows no GPU {capacity!r}, but {', '.join(near)}.")
    if isinstance(capacity, bool) or not isinstance(capacity, int):
        raise TypeError(f"simulate() takes whole numbers of bytes, such as 8 * 2**30, not {capacity!r}.")
    return capacity
