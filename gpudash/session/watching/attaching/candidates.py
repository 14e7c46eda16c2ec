"""Running processes worth watching: the user's Python programs, and processes with GPU memory."""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpudash.session.watching.request import program_name
from gpudash.system.newest_request import NewestRequest
from gpudash.telemetry.store import Store

logger = logging.getLogger(__name__)

_VERSION = re.compile(r"python(\d+)\.(\d+)")

KERNEL = "jupyter kernel"

_MODULES = {"ipykernel_launcher": KERNEL, "ipykernel": KERNEL, "jupyterlab": "jupyter"}
"""Module that Python runs → the usual name for such a program."""

_SESSION = "JPY_SESSION_NAME"
"""Environment variable of a kernel with the path of its notebook, or the name of a console (jupyter_server,
sessionmanager.py). A renamed notebook keeps its first name there."""

_OWN_PROGRAMS = ("gpudash.workloads.running.hosted", "gpudash/simulator/dry_run/own_code_process")
"""Strings in the commands of gpudash's own child processes, which are started by code or a file."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that could be watched.

    Attributes:
        command: its command line, as typed in a shell.
        memory_bytes: resident memory.
        gpu_bytes: memory on all GPUs together; ``None`` if it has none, or the driver does not report it.
        name: name of the program; of a kernel, its notebook.
        seconds: time since its start.
        inside: whether it can be entered, which shows its steps and lines; otherwise it is watched from outside.
    """

    pid: int
    command: str
    memory_bytes: int
    gpu_bytes: int | None
    name: str = ""
    seconds: float = 0.0
    inside: bool = False


def gpu_holders(store: Store) -> dict[int, int | None]:
    """Memory in bytes on all GPUs together by PID, by the newest readings."""
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
    """Processes that can be watched: those with GPU memory first, then the newest.

    Takes some tenths of a second if there are thousands of processes.
    """
    held = gpu_holders(store)
    # Processes started by this gpudash, such as its runs, are watched already.
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    found: list[tuple[float, Candidate]] = []
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        try:
            with process.oneshot():
                arguments = list(filter(None, process.cmdline()))
                wanted = process.pid in held or (is_python(arguments) and not is_gpudash(arguments))
                if wanted and process.uids().real == os.getuid():
                    memory, gpu = int(process.memory_info().rss), held.get(process.pid)
                    began = process.create_time()
                    candidate = Candidate(
                        process.pid,
                        shlex.join(arguments),
                        memory,
                        gpu,
                        _name(process, arguments),
                        max(0.0, time.time() - began),
                        _lets_in(process),
                    )
                    found.append((began, candidate))
        except (psutil.Error, OSError):
            continue  # it has ended, or access is denied
    found.sort(key=lambda entry: (-(entry[1].gpu_bytes or 0), -entry[0]))
    return [candidate for _began, candidate in found]


def is_gpudash(arguments: Sequence[str]) -> bool:
    """Whether a Python process runs gpudash, or one of gpudash's child processes."""
    if "-m" in arguments[:-1]:
        return arguments[arguments.index("-m") + 1].partition(".")[0] == "gpudash"
    program = arguments[1:2]
    if program == ["-c"]:
        program = arguments[2:3]
    return any(Path(word).name == "gpudash" or any(part in word for part in _OWN_PROGRAMS) for word in program)


def _name(process: psutil.Process, arguments: Sequence[str]) -> str:
    if not arguments:
        return str(process.name())
    module = ""
    if "-m" in arguments[:-1]:
        module = arguments[arguments.index("-m") + 1]
    called = _MODULES.get(module)
    if called == KERNEL:
        return _notebook(process) or KERNEL
    return called or module or program_name(arguments)


def _notebook(process: psutil.Process) -> str:
    """The notebook that a kernel was started for, as Jupyter's server tells the kernel by its environment; "" where it
    does not, as the editors that start kernels themselves."""
    try:
        session = process.environ().get(_SESSION, "")
    except (psutil.Error, OSError):
        return ""
    return Path(session).name


def _lets_in(process: psutil.Process) -> bool:
    """Whether a program can be entered: it was prepared, or its Python supports it; uses only cheap checks."""
    from gpudash.session.watching.attaching.entry_methods import REMOTE_EXEC

    try:
        if process.environ().get("GPUDASH_AGENT"):
            return True
        named = _VERSION.search(Path(process.exe()).name)
    except (psutil.Error, OSError):
        return False
    return named is not None and (int(named[1]), int(named[2])) >= REMOTE_EXEC


class CandidatePoll:
    """The processes that can be watched, listed on a thread of its own, so that nobody waits.

    Args:
        find: lists the processes.
    """

    def __init__(self, find: Callable[[], Sequence[Candidate]]) -> None:
        self._find = find
        self._requests: NewestRequest[object] = NewestRequest("gpudash-processes", self._answer)
        self.newest: Sequence[Candidate] | None = None
        self.problem = ""

    def request(self) -> None:
        """Update the list, unless that is in progress; the result is in `newest`, or an error in `problem`."""
        if not self._requests.busy:
            self._requests.submit(object())

    def close(self, timeout_s: float) -> bool:
        """Stop listing; false if the thread has not ended in time."""
        self._requests.close()
        return self._requests.wait(timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the requested update; false on timeout."""
        return self._requests.wait(timeout_s)

    def _answer(self, _request: object) -> bool:
        try:
            self.newest = list(self._find())
            self.problem = ""
        except Exception as error:
            logger.exception("the processes could not be listed")
            self.problem = f"The processes could not be listed ({type(error).__name__}: {error})."
        return True


def is_python(command: Sequence[str]) -> bool:
    """Whether a command line is run by Python."""
    return bool(command) and Path(command[0]).name.startswith(("python", "pypy"))


def ranks_of(process: psutil.Process) -> dict[int, int]:
    """PIDs of the ranks that a launcher has started, by rank; empty if it is no launcher, or itself a rank.

    A rank's own children, such as DataLoader workers, have the same environment; the rank is the oldest.
    """
    found: dict[int, psutil.Process] = {}
    try:
        if "RANK" in process.environ():
            return {}
        # Newest first, so that the rank itself, which is older than its workers, is kept for its number.
        for child in sorted(process.children(recursive=True), key=lambda child: -child.create_time()):
            rank = child.environ().get("RANK", "")
            if rank.isdecimal():
                found[int(rank)] = child
    except (psutil.Error, OSError):
        return {}  # one of them has ended, or access is denied
    return {rank: found[rank].pid for rank in sorted(found)}
