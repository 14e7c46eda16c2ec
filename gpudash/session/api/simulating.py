"""A simulated GPU for this process."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from gpudash.devices.known_gpus import KnownGpu
from gpudash.devices.names import SIMULATED, card_name, parse_simulated, size_of
from gpudash.session.api.memory import NothingKnownError, follow_memory, require_torch


class SimulatedCard:
    """A simulated GPU of this process; leaving its block restores the real CUDA.

    Attributes:
        name: the card's name.
        bytes: its memory.
        device: torch's name for it, such as "sim:0" or "cuda:0".
    """

    def __init__(self, name: str, size: int, *, as_cuda: bool) -> None:
        self.name = name
        self.bytes = size
        self._as_cuda = as_cuda
        self.device = "cuda:0" if as_cuda else "sim:0"

    def __repr__(self) -> str:
        return f"{SIMULATED} GPU {self.device}: {self.name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._as_cuda:
            from gpudash.simulator.as_cuda.answering import end

            end()


def simulate(card: str | int = "8GiB", *, as_cuda: bool = False, settings: str | None = None) -> SimulatedCard:
    """Give torch a simulated GPU: real results, computed by the CPU, with the memory of a GPU.

    A second call replaces the GPU with another one.

    Args:
        card: its name ("rtx4090"), or its memory ("24GiB", or bytes).
        as_cuda: whether code sees it as "cuda".
        settings: for the allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``; the environment's by default.

    Returns:
        the card; used as a context manager, it answers as CUDA only within its block.

    Raises:
        ValueError: one sentence, when there is no such card, or the one to be replaced still holds memory.
        RuntimeError: one sentence, when this torch cannot be given a device from Python, a real GPU answers as CUDA,
            or torch is missing.

    >>> import gpudash, torch
    >>> with gpudash.simulate("rtx4090", as_cuda=True) as card:
    ...     torch.ones(2, device="cuda").sum().item(), card
    (2.0, SIMULATED GPU cuda:0: RTX 4090)
    """
    from gpudash.simulator import simulate as give

    require_torch()
    chosen = parse_simulated(str(card))
    if isinstance(chosen, KnownGpu):
        give(chosen.key, as_cuda=as_cuda, settings=settings)
    else:
        give(chosen, as_cuda=as_cuda, settings=settings)
    follow_memory()
    return SimulatedCard(card_name(chosen), size_of(chosen), as_cuda=as_cuda)


def watch_this_process() -> bool:
    """Let ``gpudash watch --attach`` and the window attach to this process, and record its GPUs' memory for `explain`.

    Returns:
        whether others can attach; false if the system has no sockets for it.
    """
    from gpudash.agent import open_attach_socket

    with suppress(NothingKnownError):  # a process without a GPU can be watched all the same
        follow_memory()
    return open_attach_socket()
