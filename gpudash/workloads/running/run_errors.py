"""How a run ends other than well: the exceptions and their texts, and how to report a run whose own process ended
without a message, from what the system says about it.
"""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from gpudash.devices.names import kind_of, shown_name
from gpudash.memory.allocator.refusal import REFUSED, AllocationRefused
from gpudash.memory.watching.levels import REMEDY as GUARD_REMEDY
from gpudash.system.files import text_of
from gpudash.system.foreign_text import error_text
from gpudash.telemetry.records import Event, RunEnd
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

KILLED_REMEDY = "Start the run again; if nobody ended the process, check what else runs on this computer."
CRASHED_REMEDY = "Start the run again; the details hold the place, and a crash at the same one is a defect of its code."
EXITED_REMEDY = "Find out what calls exit in the workload, or in what it uses."
SILENT_REMEDY = "Start the run again; the workload, or what it uses, has closed files that are not its own."

UNHEARD = 70
"""Exit code of a run's own process that can no longer report anything (EX_SOFTWARE in sysexits.h)."""

CLOSED = "its process closed its connection and was ended"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is known about a refused request, in bytes; ``None`` if unknown.

    Attributes:
        memory: which memory is full.
        requested: from the device.
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
    """The run was asked to stop. `because` holds the guard's sentence if it was not the user."""

    def __init__(self, because: str | None = None) -> None:
        super().__init__(because or "the run was stopped")
        self.because = because


class GuardRefused(Exception):  # noqa: N818 - named for what happened
    """An announced allocation would have crossed the guard's level."""

    def __init__(self, sentence: str, requested_bytes: int) -> None:
        super().__init__(sentence)
        self.requested_bytes = requested_bytes


class WorkloadError(Exception):
    """A run cannot continue, for a reason that can be stated.

    Attributes:
        kind: one word for programs ("nan", "device").
        remedy: one sentence on what to do.
    """

    def __init__(self, kind: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.remedy = remedy


@dataclass(frozen=True)
class Progress:
    """How far a run had come when it ended; every ending event has it."""

    time_s: float
    run_id: int
    seconds: float
    steps: int
    result: dict[str, Any]

    def fields(self) -> dict[str, Any]:
        return dict(vars(self))


def ending_of(error: BaseException, progress: Progress, workload: str, device: str) -> Event:
    """The event that reports how ``error`` ended a run, in plain language, with the traceback as a separate field."""
    # A requested stop is not an error, and is checked before any text about memory.
    if isinstance(error, Cancelled):
        if error.because is None:
            return RunEnd(status="cancelled", **progress.fields())
        return _guarded(error.because, None, progress)
    if isinstance(error, GuardRefused):
        return _guarded(str(error), error.requested_bytes, progress)
    details = "".join(traceback.format_exception(error))
    short = shortage_of(error)
    if short is not None:
        return RunEnd(
            status="out_of_memory",
            error=short.memory,
            message=_shortage_text(short, device),
            remedy=HOST_REMEDY if short.memory == "host" else GPU_REMEDY,
            requested_bytes=short.requested,
            details=details,
            **progress.fields(),
        )
    kind, message, remedy = _failure_of(error, workload, progress.steps)
    return RunEnd(status="failed", error=kind, message=message, remedy=remedy, details=details, **progress.fields())


def shortage_of(error: BaseException) -> Shortage | None:
    """What ``error`` says about memory that ran out; ``None`` if it is about something else.

    The simulator's error holds the refusal itself. Those of CUDA and the host are recognised only by torch's messages.
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
    """The memory that ``error`` says is full; ``None`` if it is about something else."""
    text = str(error)
    # torch's CPU allocator raises RuntimeError, with its name in the message (c10/core/impl/alloc_cpu.cpp).
    if isinstance(error, MemoryError) or _CPU_ALLOCATOR in text:
        return "host"
    if text.startswith(_SIMULATED_FULL):
        return "sim"
    if type(error).__name__ == "OutOfMemoryError" or any(sign in text for sign in _CUDA_FULL):
        return "cuda"
    return None


def _guarded(sentence: str, requested: int | None, progress: Progress) -> Event:
    message = sentence.removesuffix(GUARD_REMEDY).strip()
    return RunEnd(
        status="out_of_memory",
        error="guard",
        message=message,
        remedy=GUARD_REMEDY,
        requested_bytes=requested,
        **progress.fields(),
    )


def _shortage_text(short: Shortage, device: str) -> str:
    if short.index is not None and kind_of(device) == short.memory:  # for a split model it may be the second GPU
        device = f"{short.memory}:{short.index}"
    if short.memory == "host":
        where = "This computer's memory"
    else:
        where = f"The memory of {shown_name(device)}"
    parts = [f"{where} ran out"]
    requested, free, limit = short.requested, short.free, short.allowed
    if requested is not None:
        parts.append(f"the last request was {format_bytes(requested)}")
    if short.capacity is not None and free is not None:
        parts.append(f"{format_pair(free, short.capacity)} were free")
    if limit is not None and limit != short.capacity:
        # Free memory would have been enough: the limit refused, not the card.
        if requested is not None and free is not None and requested <= free:
            parts[0] = f"The memory cap of {format_bytes(limit)} on {shown_name(device)} was reached"
        else:
            parts.append(f"the memory cap allowed {format_bytes(limit)}")
    if parts[1:]:
        return f"{parts[0]}: {', '.join(parts[1:])}."
    return f"{parts[0]}."


def _failure_of(error: BaseException, workload: str, steps: int) -> tuple[str, str, str]:
    if isinstance(error, WorkloadError):
        return error.kind, str(error), error.remedy
    message = f"The {workload} workload ended after {steps} steps by {error_text(error).rstrip('.')}."
    if any(sign in str(error) for sign in _CUDA_BROKEN):
        return "cuda_error", message, POISONED_REMEDY
    return type(error).__name__, message, OTHER_REMEDY


def _bytes(text: str) -> int | None:
    try:
        return parse_size(text.removesuffix(" bytes").removesuffix("bytes"))
    except ValueError:
        number = re.match(r"\d+", text)
        if number is not None and int(number[0]) > MAX_SIZE:
            return int(number[0])
        return None


class MemoryKills:
    """Counts what the kernel has killed because memory was full: in our control groups, otherwise on the whole system.

    Files and fields are those of the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and
    vmstat's ``oom_kill``.

    Args:
        root: the folder with ``proc`` and ``sys``.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = [file for file in _counters(root) if _kills(file) is not None]
        self._before = self._count()

    def rose(self) -> bool:
        """Whether there are more than when counting started."""
        return self._count() > self._before

    def _count(self) -> int:
        return sum(_kills(file) or 0 for file in self._files)


def died(code: int | None, progress: Progress, workload: str, *, memory_was_full: bool, details: str) -> Event:
    """The event that reports a run's end from the end of its process.

    Args:
        code: exit code as in `subprocess`; ``None`` if it was alive, and was ended because it was silent.
        memory_was_full: whether the kernel killed something for lack of memory meanwhile.
        details: where the process was, as far as it is known.
    """
    # A user may send SIGKILL too: only with the kernel's count was it the system.
    if code == -signal.SIGKILL and memory_was_full:
        message = (
            f"This computer's memory ran out: the system killed the process of the run after {progress.steps} steps."
        )
        return RunEnd(
            status="out_of_memory",
            error="host",
            message=message,
            remedy=HOST_REMEDY,
            details=details,
            **progress.fields(),
        )
    if code is None or code == UNHEARD:
        error, text, remedy = "silent", CLOSED, SILENT_REMEDY
    elif code == -signal.SIGKILL:
        error, text, remedy = "killed", "its process was killed from outside (SIGKILL)", KILLED_REMEDY
    elif code in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP):
        name = signal.Signals(-code).name
        error, text, remedy = "killed", f"its process was ended from outside ({name})", KILLED_REMEDY
    elif code < 0:
        error, text, remedy = "crashed", f"its process crashed ({signal_text(-code)})", CRASHED_REMEDY
    else:
        error, text, remedy = "exited", f"its process ended itself with exit code {code}", EXITED_REMEDY
    message = f"The {workload} workload ended after {progress.steps} steps: {text}."
    return RunEnd(status="failed", error=error, message=message, remedy=remedy, details=details, **progress.fields())


def signal_text(number: int) -> str:
    """A signal's description and name: "Segmentation fault, SIGSEGV"."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    text = signal.strsignal(number)
    if text:
        return f"{text}, {name}"
    return name


def _counters(root: Path) -> Iterator[Path]:
    """The innermost counters of our groups in each hierarchy; if there are none, the system's."""
    found = False
    for line in text_of(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0" and not controllers:
            mounts, file = ["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.events"
        elif "memory" in controllers.split(","):
            mounts, file = ["sys/fs/cgroup/memory"], "memory.oom_control"
        else:
            continue
        inside = PurePosixPath(name.lstrip("/"))
        # In a container the group's own name may not be part of the path: its group is the root of the visible tree.
        folders = [root / mount / place for mount in mounts for place in (inside, PurePosixPath())]
        for folder in folders:
            if _kills(folder / file) is not None:
                found = True
                yield folder / file
                break
    if not found:
        yield root / "proc/vmstat"


def _kills(file: Path) -> int | None:
    for line in text_of(file).splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            with suppress(ValueError):
                return int(number)
    return None
