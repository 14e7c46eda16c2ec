"""A simulated GPU for this process."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from gpudash.devices.known_gpus import KnownGpu
from gpudash.devices.names import SIMULATED, card_text, parse_simulated, size_of
from gpudash.session.api.memory import NothingKnownError, follow_memory, require_torch


class SimulatedCard:
    """A simulated GPU of this process; leaving its block lets CUDA be CUDA again.

    Attributes:
        name: of the card.
        bytes: of its memory.
        device: torch's name of it, such as "sim:0" or "cuda:0".
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
    """Give torch a simulated GPU: real results, computed by the CPU, and the memory of a GPU.

    Called again, it puts another GPU in its place.

    Args:
        card: its name ("rtx4090"), or its memory ("24GiB", or bytes).
        as_cuda: whether it is what code calls "cuda".
        settings: of the allocator, as ``PYTORCH_CUDA_ALLOC_CONF`` takes them; those of the environment unless given.

    Returns:
        the card; as a context manager it answers for CUDA within its block only.

    Raises:
        ValueError: one sentence, when there is no such card, or one that would be replaced still holds memory.
        RuntimeError: one sentence, when this torch cannot be given a device from Python, a real GPU answers as CUDA, or
            there is no torch.

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
        name = chosen.name
    else:
        give(chosen, as_cuda=as_cuda, settings=settings)
        name = card_text(chosen)
    follow_memory()
    return SimulatedCard(name, size_of(chosen), as_cuda=as_cuda)


def watch_this_process() -> bool:
    """Let ``gpudash watch --attach`` and the window come into this process, and record its GPUs' memory for `explain`.

    Returns:
        whether others can come in; false where the system has no sockets for it.
    """
    from gpudash.agent import open_attach_socket

    with suppress(NothingKnownError):  # a process without a GPU can be watched all the same
        follow_memory()
    return open_attach_socket()
