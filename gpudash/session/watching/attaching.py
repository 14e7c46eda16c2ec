"""Watches a running process from outside, as far as the operating system and NVML allow; and which ones are worth
it.

Those are the user's Python programs, and what holds a GPU's memory.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gpudash.session.watching.wiring import Wiring
from gpudash.telemetry.records import Note, RunFinished, RunStarted, Topic
from gpudash.telemetry.store import Store

POLL_S = 0.2
"""How soon the end of the process is noticed."""

UNSEEN = (
    "From outside, the process's memory on this computer, its processor time and, by the driver, its memory on each "
    "GPU can be seen; its allocator, steps, losses and stacks cannot: start it with gpudash watch -- COMMAND for those."
)


def process_to_attach(pid: int) -> psutil.Process:
    """The process ``pid``.

    Raises:
        ValueError: one sentence, when it is gone, not ours, or this one.
    """
    if pid == os.getpid():
        raise ValueError(f"Process {pid} is this gpudash itself; name the process of your program.")
    if pid <= 0:
        raise ValueError(f"{pid} is no process number; ps or gpudash monitor lists what runs.")
    try:
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE
        owner = process.uids().real
        name = str(process.username())
    except (psutil.NoSuchProcess, ProcessLookupError):
        raise ValueError(f"There is no process {pid}; it may have ended.") from None
    except (psutil.AccessDenied, PermissionError, KeyError):
        raise ValueError(f"Process {pid} may not be looked at; ask its owner, or watch one of your own.") from None
    if ended:
        raise ValueError(f"There is no process {pid} any more: it has ended, and its parent has not taken note.")
    if owner != os.getuid() and os.getuid() != 0:
        raise ValueError(f"Process {pid} belongs to {name}, not to you; only your own can be watched.")
    return process


class Attached:
    """A process of which only the outside is seen. It is never signalled: to stop is to look away.

    Args:
        pid: of the process.
        run_id: number of the run.
        wiring: the session.

    Raises:
        ValueError: one sentence, when it cannot be watched.
    """

    def __init__(self, pid: int, run_id: int, wiring: Wiring) -> None:
        self._process = process_to_attach(pid)
        self._run_id = run_id
        self._wiring = wiring
        self._stop = threading.Event()
        self._peak = 0
        self._resident: dict[int, int] = {}
        self._runs()
        wiring.follow(lambda: self._resident)
        self._began_s = wiring.clock()
        try:
            command = [str(word) for word in self._process.cmdline()]
        except psutil.Error:
            command = []
        wiring.emit(
            RunStarted(
                time_s=self._began_s,
                run_id=run_id,
                workload="watch",
                device=wiring.machine.default_device(),
                spec={"pid": pid, "command": command},
            )
        )
        self._note(UNSEEN)
        self._thread = threading.Thread(target=self._watch, name="gpudash-attached", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look away; the process runs on."""
        self._stop.set()

    def save_snapshot(self) -> None:
        """It cannot be asked.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "A process that is watched from outside cannot be asked for a snapshot; start it with gpudash watch."
        )

    def close(self, timeout_s: float) -> bool:
        """Look away; false when that took longer than ``timeout_s``."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S) and self._runs():
            pass
        ended = not self._stop.is_set()
        if ended:
            self._note(f"Process {self._process.pid} has ended; its exit code cannot be seen from outside.")
        now_s = self._wiring.clock()
        result: dict[str, Any] = {"exit_code": None, "peak_resident_bytes": self._peak or None}
        self._wiring.follow(None)
        self._wiring.emit(
            RunFinished(
                time_s=now_s,
                run_id=self._run_id,
                status="finished" if ended else "cancelled",
                seconds=now_s - self._began_s,
                steps=0,
                result=result,
            )
        )

    def _runs(self) -> bool:
        try:
            resident = int(self._process.memory_info().rss)
            self._peak, self._resident = max(self._peak, resident), {self._process.pid: resident}
            return bool(self._process.is_running()) and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.Error:
            return True

    def _note(self, text: str) -> None:
        self._wiring.emit(Note(time_s=self._wiring.clock(), run_id=self._run_id, topic=Topic.PROGRAM, text=text))


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
            held[pid] = int(sum(known)) if known else None
    return held


def candidates(store: Store) -> list[Candidate]:
    """Processes that can be watched from outside: those that hold a GPU's memory first, then the newest.

    Takes some tenths of a second where thousands of processes run.
    """
    import psutil

    held = gpu_holders(store)
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    found: list[tuple[float, Candidate]] = []
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        try:
            with process.oneshot():
                words = [word for word in process.cmdline() if word]
                wanted = process.pid in held or is_python(words)
                if wanted and process.uids().real == os.getuid():
                    memory, gpu = int(process.memory_info().rss), held.get(process.pid)
                    found.append((process.create_time(), Candidate(process.pid, shlex.join(words), memory, gpu)))
        except (psutil.Error, OSError):
            continue  # it has ended, or is not ours to ask
    found.sort(key=lambda entry: (-(entry[1].gpu_bytes or 0), -entry[0]))
    return [candidate for _began, candidate in found]


def is_python(command: Sequence[str]) -> bool:
    """Whether a command line is run by Python."""
    return bool(command) and Path(command[0]).name.startswith(("python", "pypy"))
