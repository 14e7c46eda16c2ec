"""torch's own memory history of this process, or that of its simulated cards."""

from __future__ import annotations

from typing import Any

from . import simulating, snapshots
from .history import record_cuda


def start(torch: Any, entries: int) -> None:
    """Record all allocations from now on, or from CUDA's initialisation on; unless that is done already.

    Args:
        torch: the torch module.
        entries: number of events kept for each device, the newest.
    """
    backend = simulating.backend()
    if backend is not None:
        memory = backend.module.memory
        if not memory.history.recording:
            memory._record_memory_history("all", context="alloc", stacks="python", max_entries=entries)
        return
    _requested[0] = True
    # Asking torch for a history would initialise CUDA, which costs memory even if the program never uses it.
    if torch.cuda.is_initialized():
        _record(torch, entries)
    else:
        torch.cuda._lazy_call(lambda: _record(torch, entries))


_requested = [False]
"""Whether CUDA's history should be recorded once torch initialises it."""


def _record(torch: Any, entries: int) -> None:
    if _requested[0] and not _is_recorded(torch):
        record_cuda(torch.cuda.memory._record_memory_history, entries)


def _is_recorded(torch: Any) -> bool:
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return enabled is not None and bool(enabled())


def is_on(torch: Any) -> bool:
    """Whether this process's history is being recorded, by anyone."""
    backend = simulating.backend()
    if backend is not None:
        return bool(backend.module.memory.history.recording)
    if torch.cuda.is_initialized():
        return _is_recorded(torch)
    return _requested[0]


def stop(torch: Any) -> None:
    """Stop recording."""
    backend = simulating.backend()
    if backend is not None:
        backend.module.memory._record_memory_history(None)
        return
    _requested[0] = False
    if torch.cuda.is_initialized():
        torch.cuda.memory._record_memory_history(None)


def take(torch: Any) -> Any:
    """The history so far, in the format of torch's snapshots."""
    backend = simulating.backend()
    if backend is not None:
        return backend.module.memory.history.snapshot()
    if not torch.cuda.is_initialized():
        return {"segments": [], "device_traces": []}
    return snapshots.take(torch)
