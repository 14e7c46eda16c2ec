"""torch's own memory history of this process, or that of its simulated cards."""

from __future__ import annotations

from typing import Any

from . import simulating, snapshots
from .history import record_cuda


def start(torch: Any, entries: int) -> None:
    """Record every allocation from now on, or from the moment that CUDA is initialised; unless that is done already.

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
    _requested[0] = True
    # asking torch for a history would initialise CUDA, which takes memory of a program that may never use it
    if torch.cuda.is_initialized():
        _record(torch, entries)
    else:
        torch.cuda._lazy_call(lambda: _record(torch, entries))


_requested = [False]
"""Whether CUDA's history is still to be recorded by the time that torch initialises it."""


def _record(torch: Any, entries: int) -> None:
    if _requested[0] and not _is_recorded(torch):
        record_cuda(torch.cuda.memory._record_memory_history, entries)


def _is_recorded(torch: Any) -> bool:
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return enabled is not None and bool(enabled())


def is_on(torch: Any) -> bool:
    """Whether this process's history is being recorded, by whomever."""
    backend = simulating.backend()
    if backend is not None:
        return bool(backend.module.memory.history.recording)
    if torch.cuda.is_initialized():
        return _is_recorded(torch)
    return _requested[0]


def stop(torch: Any) -> None:
    """Record no longer."""
    backend = simulating.backend()
    if backend is not None:
        backend.module.memory._record_memory_history(None)
        return
    _requested[0] = False
    if torch.cuda.is_initialized():
        torch.cuda.memory._record_memory_history(None)


def take(torch: Any) -> Any:
    """What there is, in the form of torch's snapshots."""
    backend = simulating.backend()
    if backend is not None:
        return backend.module.memory.history.snapshot()
    if not torch.cuda.is_initialized():
        return {"segments": [], "device_traces": []}
    return snapshots.take(torch)
