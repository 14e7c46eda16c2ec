"""Who uses a GPU: the driver's list of processes, with names where they can be seen from here."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from gpudash.sources.processes import user_of
from gpudash.telemetry.records import Sample, State, Value

_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The namespace every system starts with (PROC_PID_INIT_INO in the kernel's proc_ns.h)."""


@functools.cache
def pids_are_the_drivers() -> bool:
    """Whether PIDs mean the same to the driver as to us: not in a container with PIDs of its own.

    A process keeps its namespace, so that it is asked for once.
    """
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return not Path("/proc/self/ns").is_dir()


def process_rows(
    found: Mapping[int, int | None],
    device: str,
    now_s: float,
    family: Callable[[], frozenset[int]] | None = None,
    shared: bool | None = None,
) -> tuple[int | None, list[Sample]]:
    """Our own processes' memory in bytes and one row for each process of a GPU.

    Args:
        found: memory by PID, as the driver counts PIDs.
        device: the GPU's UUID.
        now_s: session time.
        family: our own PIDs; the present process by default.
        shared: whether PIDs are the driver's; found out by default. When they are not, no process can be told apart
            and our own share is ``None``.
    """
    shared = pids_are_the_drivers() if shared is None else shared
    rows = [_row(pid, memory, device, now_s, shared) for pid, memory in found.items()]
    if not shared:
        return None, rows
    ours = family() if family is not None else frozenset({os.getpid()})
    mine = [memory for pid, memory in found.items() if pid in ours]
    if any(memory is None for memory in mine):
        return None, rows
    return sum(memory for memory in mine if memory is not None), rows


def _row(pid: int, memory: int | None, device: str, now_s: float, shared: bool) -> Sample:
    name, user = _who(pid) if shared else (None, None)
    values: dict[str, Value] = {
        "pid": pid,
        "name": name or f"host pid {pid} (not visible)",
        "user": user,
        "memory_bytes": memory,
    }
    states = {} if memory is not None else {"memory_bytes": State.NOT_SUPPORTED}
    return Sample(now_s, "process", device, values, states)


def _who(pid: int) -> tuple[str | None, str | None]:
    try:
        process = psutil.Process(pid)
        return str(process.name()), user_of(pid, process.create_time())
    except (psutil.Error, OSError):
        return None, None
