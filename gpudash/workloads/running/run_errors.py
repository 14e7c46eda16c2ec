"""How a run ends other than well: the exceptions, and what they are called in words."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Any, Literal

from gpudash.devices.names import shown_name
from gpudash.memory.watching.guard import REMEDY as GUARD_REMEDY
from gpudash.telemetry.records import Event, OutOfMemory, RunFailed, RunFinished
from gpudash.units import MAX_SIZE, format_bytes, parse_size

HOST_REMEDY = "Choose a smaller size, batch or width, or close other programs."
GPU_REMEDY = "Choose a smaller size, batch or width, or end other programs that use the GPU."
POISONED_REMEDY = "Start gpudash anew: CUDA does not recover from this within a process."
OTHER_REMEDY = "The details hold the traceback: change what it points to, and start again."

_TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)")
_CAPACITY = re.compile(r"total capacity of ([\d.]+ ?\w+) of which ([\d.]+ ?\w+) is free")
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
    full = memory_ran_out(error)
    if full is not None:
        message = _full_words(full, error, device)
        remedy = HOST_REMEDY if full == "host" else GPU_REMEDY
        return OutOfMemory(
            error=full,
            message=message,
            remedy=remedy,
            requested_bytes=requested_bytes(str(error)),
            details=details,
            **progress.fields(),
        )
    kind, message, remedy = _failure_words(error, workload, progress.steps)
    return RunFailed(error=kind, message=message, remedy=remedy, details=details, **progress.fields())


def memory_ran_out(error: BaseException) -> Literal["cuda", "sim", "host"] | None:
    """Which memory ``error`` says is full; ``None`` when it is about something else."""
    text = str(error)
    if isinstance(error, MemoryError) or _CPU_ALLOCATOR in text:
        return "host"
    if text.startswith(_SIMULATED_FULL):
        return "sim"
    if type(error).__name__ == "OutOfMemoryError" or any(words in text for words in _CUDA_FULL):
        return "cuda"
    return None


def requested_bytes(text: str) -> int | None:
    """The size of the allocation an out-of-memory message names: torch's "20.00 MiB" or "4096 bytes"."""
    match = _TRIED.search(text)
    return None if match is None else _bytes(match[1])


def _guarded(sentence: str, requested: int | None, progress: Progress) -> Event:
    message = sentence.removesuffix(GUARD_REMEDY).strip()
    return OutOfMemory(
        error="guard", message=message, remedy=GUARD_REMEDY, requested_bytes=requested, **progress.fields()
    )


def _full_words(full: str, error: BaseException, device: str) -> str:
    asked = requested_bytes(str(error))
    where = "This computer's memory" if full == "host" else f"The memory of {shown_name(device)}"
    parts = [f"{where} ran out"]
    if asked is not None:
        parts.append(f"the last request was {format_bytes(asked)}")
    capacity = _CAPACITY.search(str(error))
    total, free = (_bytes(capacity[1]), _bytes(capacity[2])) if capacity else (None, None)
    if total is not None and free is not None:
        parts.append(f"{format_bytes(free)} of {format_bytes(total)} were free")
    allowed = _ALLOWED.search(str(error))
    limit = _bytes(allowed[1]) if allowed else None
    if limit is not None and limit != total:
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
