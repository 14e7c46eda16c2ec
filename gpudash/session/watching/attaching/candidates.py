"""Running processes that are worth watching: the user's Python programs, and what holds a GPU's memory."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpudash.telemetry.store import Store


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that could be watched.

    Attributes:
        command: its command line, as it would be typed.
        memory_bytes: resident.
        gpu_bytes: held on all GPUs together; ``None`` where it holds none, or the driver does not tell.
    """

    pid: int
    command: str
    memory_bytes: int
    gpu_bytes: int | None


def gpu_holders(store: Store) -> dict[int, int | None]:
    """PID → bytes it holds on all GPUs together, by the newest readings."""
    held: dict[int, int | None] = {}
    with store.lock:
        rows = [row for device in store.process_devices() if device is not None for row in store.processes(device)]
    for row in rows:
        pid, size = row.get("pid"), row.get("memory_bytes")
        if isinstance(pid, int):
            known = [part for part in (held.get(pid), size) if isinstance(part, (int, float))]
            if known:
                held[pid] = int(sum(known))
            else:
                held[pid] = None
    return held


def candidates(store: Store) -> list[Candidate]:
    """Processes that can be watched: those that hold a GPU's memory first, then the newest.

    Takes some tenths of a second where thousands of processes run.
    """
    held = gpu_holders(store)
    # What this gpudash has started, such as runs of its own, is watched already.
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    found: list[tuple[float, Candidate]] = []
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        try:
            with process.oneshot():
                arguments = [argument for argument in process.cmdline() if argument]
                wanted = process.pid in held or is_python(arguments)
                if wanted and process.uids().real == os.getuid():
                    memory, gpu = int(process.memory_info().rss), held.get(process.pid)
                    found.append((process.create_time(), Candidate(process.pid, shlex.join(arguments), memory, gpu)))
        except (psutil.Error, OSError):
            continue  # it has ended, or is not ours to ask
    found.sort(key=lambda entry: (-(entry[1].gpu_bytes or 0), -entry[0]))
    return [candidate for _began, candidate in found]


def is_python(command: Sequence[str]) -> bool:
    """Whether a command line is run by Python."""
    return bool(command) and Path(command[0]).name.startswith(("python", "pypy"))


def ranks_of(process: psutil.Process) -> dict[int, int]:
    """Rank → process number of the ranks that a launcher has started; empty of what is no launcher, or is a rank.

    A rank's own children, such as workers of a DataLoader, have its environment; it is older than they are.
    """
    found: dict[int, psutil.Process] = {}
    try:
        if "RANK" in process.environ():
            return {}
        # Newest first, so that a rank itself, which is older than its workers, is what remains under its number.
        for child in sorted(process.children(recursive=True), key=lambda child: -child.create_time()):
            rank = child.environ().get("RANK", "")
            if rank.isdecimal():
                found[int(rank)] = child
    except (psutil.Error, OSError):
        return {}  # one of them has ended, or is not ours to ask
    return {rank: found[rank].pid for rank in sorted(found)}
