"""How a run ends other than well: the exceptions, and what they are called in words."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Any, Literal

from gpudash.devices.names import kind_of, shown_name
from gpudash.memory.allocator.refusal import REFUSED, AllocationRefused
from gpudash.memory.watching.levels import REMEDY as GUARD_REMEDY
from gpudash.telemetry.records import Event, OutOfMemory, RunFailed, RunFinished
from gpudash.units import MAX_SIZE, format_bytes, format_pair, parse_size

HOST_REMEDY = "Choose a smaller size, batch or width, or close other programs."
GPU_REMEDY = "Choose a smaller size, batch or width, or end other programs that use the GPU."
POISONED_REMEDY = "Restart gpudash: CUDA does not recover from this within a process."
OTHER_REMEDY = "The details hold the traceback: change what it points to, and start again."

_TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)")
_CAPACITY = re.compile(r"total capacity of ([\d.]+ ?\w+) of which ([\d.]+ ?\w+) is free")
_INDEX = re.compile(r"GPU (\d+) has a total capacity")
_ALLOWED = re.compile(r"([\d.]+ ?\w+) allowed;")
_CPU_ALLOCATOR = "DefaultCPUAllocator"
_SIMULATED_FULL = "SIM out of memory"
_CUDA_FULL = (
    "CUDA error: out of memory",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_CUDA_BROKEN = ("CUDA error:", "device-side assert", "CUBLAS_STATUS", "CUDNN_STATUS")


Memory = Literal["cuda", "sim", "host"]


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is known of a request that was refused; bytes, ``None`` where nobody told.

    Attributes:
        memory: which is full.
        requested: of the device.
        capacity, free: of the device.
        allowed: what the process may reserve.
        index: of the GPU.
    """

    memory: Memory
    requested: int | None = None
    capacity: int | None = None
    free: int | None = None
    allowed: int | None = None
    index: int | None = None


class Cancelled(Exception):  # noqa: N818 - nothing went wrong: the user asked
    """The run was asked to stop. `because` holds the guard's sentence when it was not the user."""

    def __init__(self, because: str | None = None) -> None:
        super().__init__(because or "the run was stopped")
        self.because = because


class GuardRefused(Exception):  # noqa: N818 - named for what happened
    """An announced allocation would have crossed the guard's level."""

    def __init__(self, sentence: str, requested_bytes: int) -> None:
        super().__init__(sentence)
        self.requested_bytes = requested_bytes


class WorkloadError(Exception):
    """A run cannot go on for a reason it can put into words.

    Attributes:
        kind: one word for programs ("nan", "device").
        remedy: one sentence saying what to do.
    """

    def __init__(self, kind: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.remedy = remedy


@dataclass(frozen=True)
class Progress:
    """How far a run had come when it ended: what every ending event carries."""

    time_s: float
    run_id: int
    seconds: float
    steps: int
    result: dict[str, Any]

    def fields(self) -> dict[str, Any]:
        return dict(vars(self))


def ending_of(error: BaseException, progress: Progress, workload: str, device: str) -> Event:
    """The event that tells how ``error`` ended a run, in plain words, with the traceback apart."""
    if isinstance(error, Cancelled):
        if error.because is None:
            return RunFinished(status="cancelled", **progress.fields())
        return _guarded(error.because, None, progress)
    if isinstance(error, GuardRefused):
        return _guarded(str(error), error.requested_bytes, progress)
    details = "".join(traceback.format_exception(error))
    short = shortage_of(error)
    if short is not None:
        return OutOfMemory(
            error=short.memory,
            message=_shortage_words(short, device),
            remedy=HOST_REMEDY if short.memory == "host" else GPU_REMEDY,
            requested_bytes=short.requested,
            details=details,
            **progress.fields(),
        )
    kind, message, remedy = _failure_words(error, workload, progress.steps)
    return RunFailed(error=kind, message=message, remedy=remedy, details=details, **progress.fields())


def shortage_of(error: BaseException) -> Shortage | None:
    """What ``error`` tells of memory that ran out; ``None`` when it is about something else.

    The simulator's error holds the refusal itself. CUDA's and the host's are known by torch's words alone.
    """
    memory = memory_ran_out(error)
    if memory is None:
        return None
    refused = getattr(error, REFUSED, None)
    if isinstance(refused, AllocationRefused):
        room = refused.capacity, refused.device_free, refused.allowed
        return Shortage(memory, refused.requested, *room, refused.device)
    text = str(error)
    tried, capacity, allowed = _TRIED.search(text), _CAPACITY.search(text), _ALLOWED.search(text)
    index = _INDEX.search(text)
    return Shortage(
        memory,
        requested=None if tried is None else _bytes(tried[1]),
        capacity=None if capacity is None else _bytes(capacity[1]),
        free=None if capacity is None else _bytes(capacity[2]),
        allowed=None if allowed is None else _bytes(allowed[1]),
        index=None if index is None else int(index[1]),
    )


def memory_ran_out(error: BaseException) -> Memory | None:
    """Which memory ``error`` says is full; ``None`` when it is about something else."""
    text = str(error)
    if isinstance(error, MemoryError) or _CPU_ALLOCATOR in text:
        return "host"
    if text.startswith(_SIMULATED_FULL):
        return "sim"
    if type(error).__name__ == "OutOfMemoryError" or any(words in text for words in _CUDA_FULL):
        return "cuda"
    return None


def _guarded(sentence: str, requested: int | None, progress: Progress) -> Event:
    message = sentence.removesuffix(GUARD_REMEDY).strip()
    return OutOfMemory(
        error="guard", message=message, remedy=GUARD_REMEDY, requested_bytes=requested, **progress.fields()
    )


def _shortage_words(short: Shortage, device: str) -> str:
    if short.index is not None and kind_of(device) == short.memory:  # of a split model it may be the second
        device = f"{short.memory}:{short.index}"
    where = "This computer's memory" if short.memory == "host" else f"The memory of {shown_name(device)}"
    parts = [f"{where} ran out"]
    asked, free, limit = short.requested, short.free, short.allowed
    if asked is not None:
        parts.append(f"the last request was {format_bytes(asked)}")
    if short.capacity is not None and free is not None:
        parts.append(f"{format_pair(free, short.capacity)} were free")
    if limit is not None and limit != short.capacity:
        if asked is not None and free is not None and asked <= free:
            parts[0] = f"The memory cap of {format_bytes(limit)} on {shown_name(device)} was reached"
        else:
            parts.append(f"the memory cap allowed {format_bytes(limit)}")
    return f"{parts[0]}: {', '.join(parts[1:])}." if parts[1:] else f"{parts[0]}."


def _failure_words(error: BaseException, workload: str, steps: int) -> tuple[str, str, str]:
    if isinstance(error, WorkloadError):
        return error.kind, str(error), error.remedy
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    name = type(error).__name__
    told = f"{name}: {first}" if first else name
    message = f"The {workload} workload ended after {steps} steps by {told.rstrip('.')}."
    if any(words in str(error) for words in _CUDA_BROKEN):
        return "cuda_error", message, POISONED_REMEDY
    return name, message, OTHER_REMEDY


def _bytes(text: str) -> int | None:
    try:
        return parse_size(text.removesuffix(" bytes").removesuffix("bytes"))
    except ValueError:
        number = re.match(r"\d+", text)
        return int(number[0]) if number is not None and int(number[0]) > MAX_SIZE else None
