"""torch's own memory history of this process, or that of its simulated cards."""

from __future__ import annotations

from typing import Any

from . import simulating, snapshots
from .history import record_cuda


def start(torch: Any, entries: int) -> None:
    """Record every allocation from now on, unless that is done already.

    Args:
        torch: the module.
        entries: events that are kept per device, the newest.
    """
    backend = simulating.backend()
    if backend is not None:
        memory = backend.module.memory
        if not memory.history.recording:
            memory._record_memory_history("all", context="alloc", stacks="python", max_entries=entries)
        return
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is None or not enabled():
        record_cuda(torch.cuda.memory._record_memory_history, entries)


def is_on(torch: Any) -> bool:
    """Whether this process's history is being recorded, by whomever."""
    backend = simulating.backend()
    if backend is not None:
        return bool(backend.module.memory.history.recording)
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return enabled is not None and bool(enabled())


def stop(torch: Any) -> None:
    """Record no longer."""
    backend = simulating.backend()
    if backend is not None:
        backend.module.memory._record_memory_history(None)
        return
    torch.cuda.memory._record_memory_history(None)


def take(torch: Any) -> Any:
    """What there is, in the form of torch's snapshots."""
    backend = simulating.backend()
    if backend is not None:
        return backend.module.memory.history.snapshot()
    return snapshots.take(torch)
