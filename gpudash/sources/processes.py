"""The host processes that matter: ours, its children and the largest."""

from __future__ import annotations

import functools
import heapq
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpudash.system.files import text_of
from gpudash.telemetry.records import Sample, Value

LARGEST = 5
SCAN_PERIOD_S = 5.0
"""Interval at which all processes are scanned; the selected ones are read at every call."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process: resident memory in bytes, and CPU time in seconds since its start."""

    pid: int
    parent: int
    name: str
    resident: int
    cpu_s: float
    began: float


class ProcessReader:
    """Reads our own process, its descendants and the few largest by resident memory.

    Args:
        pid: PID of the root process; ours by default.
        use_proc: whether to read /proc (default: on Linux) or use psutil.

    Attributes:
        program: resident bytes by PID of a watched program's processes, which are read too; ``None`` for none.
    """

    def __init__(self, pid: int | None = None, use_proc: bool | None = None) -> None:
        if use_proc is None:
            linux = sys.platform.startswith("linux")
        else:
            linux = use_proc
        if pid is None:
            self._pid = os.getpid()
        else:
            self._pid = pid
        if linux:
            self._read_one = _read_proc
        else:
            self._read_one = _read_psutil
        self.program: Callable[[], Mapping[int, int]] | None = None
        self._scan_due_s: float | None = None
        self._chosen: tuple[int, ...] = ()
        self._family = frozenset({self._pid})
        self._before: dict[tuple[int, float], tuple[float, float]] = {}

    @property
    def family(self) -> frozenset[int]:
        """PIDs of our process and its descendants, by the last scan."""
        return self._family

    def read(self, now_s: float) -> list[Sample]:
        """One row for each process that matters."""
        # Between scans, read only the selected processes and a program's own, which come and go.
        if self._scan_due_s is None or now_s >= self._scan_due_s:
            self._scan_due_s = now_s + SCAN_PERIOD_S
            found = self._scan()
        else:
            watched = () if self.program is None else self.program()
            pids = dict.fromkeys([*self._chosen, *watched])
            found = [process for pid in pids if (process := self._read_one(pid)) is not None]
        # A new table drops the processes that have gone.
        before, self._before = self._before, {}
        return [self._sample(now_s, process, before) for process in found]

    def _scan(self) -> list[Process]:
        everything = {pid: process for pid in psutil.pids() if (process := self._read_one(pid)) is not None}
        self._family = _descendants(self._pid, everything.values())
        # All of our family, however small, and the largest of the others.
        largest = heapq.nlargest(LARGEST, everything.values(), key=lambda process: process.resident)
        pids = dict.fromkeys([*sorted(self._family), *(process.pid for process in largest)])
        self._chosen = tuple(pid for pid in pids if pid in everything)
        return [everything[pid] for pid in self._chosen]

    def _sample(self, now_s: float, process: Process, before: dict[tuple[int, float], tuple[float, float]]) -> Sample:
        values: dict[str, Value] = {
            "pid": process.pid,
            "name": process.name,
            "user": user_of(process.pid, process.began),
            "memory_bytes": process.resident,
            "container": container_of(process.pid, process.began),
        }
        # A PID may be reused; together with the start time it identifies the process.
        identity = process.pid, process.began
        previous = before.get(identity)
        if previous is not None and now_s > previous[0]:
            values["cpu_utilisation"] = (process.cpu_s - previous[1]) / (now_s - previous[0])
        self._before[identity] = now_s, process.cpu_s
        return Sample(now_s, "process", None, values)


def read_process(pid: int) -> Process | None:
    """A process's present figures; ``None`` if it is gone."""
    if sys.platform.startswith("linux"):
        return _read_proc(pid)
    return _read_psutil(pid)


@functools.lru_cache(maxsize=256)
def user_of(pid: int, _began: float = 0.0) -> str | None:
    """User who runs process ``pid``; ``None`` if it is gone or access is denied.

    ``_began`` keeps a reused PID from returning its former owner from the cache.
    """
    try:
        return str(psutil.Process(pid).username())
    except (psutil.Error, OSError, KeyError):
        return None


@functools.lru_cache(maxsize=256)
def container_of(pid: int, _began: float = 0.0) -> str | None:
    """`container_in` for process ``pid``; ``None`` if it is gone. ``_began`` as in `user_of`."""
    return container_in(text_of(Path(f"/proc/{pid}/cgroup")))


_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_JOB = re.compile(r"/job_(\d+)(?:/step_(\w+))?")
_ID = re.compile(r"(?:/|docker-|libpod-|crio-|containerd-)([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?(?=[/\s]|$)")


def container_in(cgroup: str) -> str | None:
    """Container and job of a process in words, "docker 3f2a9c1b4d5e" or "slurm job 12 step 0"; ``None`` for none.

    Docker, Podman, Kubernetes and Slurm name their cgroups after a container's id (64 digits, of which the first
    twelve are the short form), a pod's UID, and a job's number.

    Args:
        cgroup: content of ``/proc/PID/cgroup``: a line for each hierarchy, with the path after its second colon.
    """
    # The last id in a path is the innermost container's.
    found, job = _ID.findall(cgroup), _JOB.search(cgroup) if "slurm" in cgroup else None
    pod = None
    if "kubepods" in cgroup:
        pod = _POD.search(cgroup)
    parts = []
    if job is not None:
        parts.append(f"slurm job {job[1]} step {job[2]}" if job[2] else f"slurm job {job[1]}")
    if pod is not None:
        parts.append(f"kubernetes pod {pod[1].replace('_', '-')}" + (f" container {found[-1]}" if found else ""))
    elif found:
        maker = "container"
        if "docker" in cgroup:
            maker = "docker"
        if "libpod" in cgroup:
            maker = "podman"
        parts.append(f"{maker} {found[-1]}")
    return ", ".join(parts) or None


def _descendants(root: int, processes: Iterable[Process]) -> frozenset[int]:
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    family, waiting = {root}, [root]
    # A process may seem its own ancestor, if PIDs were reused while the list was read.
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in family:
                family.add(pid)
                waiting.append(pid)
    return frozenset(family)


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _read_proc(pid: int) -> Process | None:
    """/proc/PID/stat in one read (proc(5)). The name may contain spaces and parentheses: it ends at the last one.

    Without pathlib, which interns every part of a path: Python's table of interned strings is rebuilt after enough new
    ones, however few are alive, and then costs 2 MiB after half an hour.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:  # noqa: PTH123
            text = stat.read()
    except OSError:
        return None
    begin, end = text.find(b"("), text.rfind(b")")
    fields = text[end + 2 :].split()
    if len(fields) < 22:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        name=text[begin + 1 : end].decode(errors="replace"),
        resident=int(fields[21]) * _PAGE,
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICK,
        began=float(fields[19]),
    )


def _read_psutil(pid: int) -> Process | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return Process(
                pid=pid,
                parent=process.ppid(),
                name=process.name(),
                resident=int(process.memory_info().rss),
                cpu_s=float(times.user + times.system),
                began=process.create_time(),
            )
    except (psutil.Error, OSError):
        return None
