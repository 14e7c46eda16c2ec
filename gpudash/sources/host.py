"""The host's memory and processor: from /proc and cgroups on Linux, from psutil elsewhere; and the CPU package's
energy."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

from gpudash.sources.processes import Process, read_process
from gpudash.system.files import KeptFile, text_of
from gpudash.telemetry.records import Sample, Value

KIB = 1024
SLOW_PERIOD_S = 0.5
"""Interval at which swap and CPU are read, and cgroups without a limit are checked for one."""

RAM = "RAM"

# Cgroups: files and fields as in the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
_RECLAIMABLE = {
    2: (b"inactive_file", b"active_file", b"slab_reclaimable"),
    1: (b"total_inactive_file", b"total_active_file"),
}

_FILES = {
    2: ("memory.max", "memory.current"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}

_NODE = re.compile(r"^Node:\s*(\d+)", re.MULTILINE)
"""Finds the NUMA node of a GPU's memory in the ``numa_status`` file of NVIDIA's driver."""

_NODE_AVAILABLE = (b"MemFree:", b"Active(file):", b"Inactive(file):", b"SReclaimable:")
"""What the kernel can free on a node; unlike for the whole machine, it has no single figure."""

POWERCAP = Path("/sys/class/powercap")

NOT_THERE = "this system shows no energy counter of the CPU"

NOT_ALLOWED = "the CPU package's energy counter may be read by root only"

BROKEN = "the CPU package's energy counter cannot be read"


class HostMemory(NamedTuple):
    """Bytes of RAM for the whole machine; `available` includes what the kernel can reclaim."""

    total: int
    free: int
    available: int


class HostReader:
    """Reads the host: memory at every call, swap and CPU twice a second.

    Capacity is the smallest of RAM and the limits of all cgroups above us; available is what the tightest of them has
    left. ``used = total − available`` and ``file_cache = available − free``, the memory that the kernel reclaims on
    demand from the machine or the tightest cgroup. Free, file cache and used therefore add up to the capacity.

    Args:
        root: parent folder of ``proc`` and ``sys``.
        use_proc: whether to read /proc and cgroups (default: on Linux) or use psutil.

    Attributes:
        hosted: PID of the child process of a run, which counts as ours; ``None`` for none.
        program: resident bytes of a watched program's processes, shown instead of ours; ``None`` for none.
    """

    def __init__(self, root: Path = Path("/"), use_proc: bool | None = None) -> None:
        if use_proc is None:
            linux = sys.platform.startswith("linux")
        else:
            linux = use_proc
        if linux:
            self._system: _Proc | _Psutil = _Proc(root)
            self._groups = groups_above_us(root)
        else:
            self._system = _Psutil()
            self._groups = []
        self._limited = self._groups
        self.hosted: int | None = None
        self.program: Callable[[], Mapping[int, int]] | None = None
        self._source = RAM
        self._capacity = 0
        self._slow_due_s: float | None = None
        self._previous_cpu: tuple[float, float] | None = None
        self._previous_process: tuple[int | None, float, float] | None = None
        self._choose(self._system.memory())

    @property
    def capacity_source(self) -> str:
        """What limits our memory: "RAM" or "cgroup limit of /system.slice/x"."""
        return self._source

    @property
    def capacity_bytes(self) -> int:
        """The capacity, by the last reading."""
        return self._capacity

    def read(self, now_s: float) -> list[Sample]:
        """The host's row for this tick.

        Raises:
            OSError: if the system call fails.
        """
        slow = self._slow_due_s is None or now_s >= self._slow_due_s
        if slow:
            # In between, cgroups without a limit are not read; each may get a limit at any time.
            self._limited = self._groups
        values: dict[str, Value] = dict(self._choose(self._system.memory()))
        # Read once a tick, so that memory and CPU time are of the same moment.
        hosted = None if (pid := self.hosted) is None else read_process(pid)
        if self.program is not None:
            values["process_bytes"] = sum(self.program().values())
        else:
            values["process_bytes"] = self._system.process_bytes() + (0 if hosted is None else hosted.resident)
        if slow:
            self._slow_due_s = now_s + SLOW_PERIOD_S
            self._read_slow(values, hosted)
        return [Sample(now_s, "host", None, values)]

    def close(self) -> None:
        self._system.close()
        for group in self._groups:
            group.close()

    def _choose(self, host: HostMemory) -> dict[str, int]:
        """The memory metrics, by the tightest of machine and cgroups."""
        total, source = host.total, RAM
        available = min(host.available, total)
        free = host.free
        limited: list[ControlGroup] = []
        for group in self._limited:
            memory = _read_group(group, host.total)
            if memory is None:
                continue
            limited.append(group)
            # Capacity and available memory may come from different cgroups: the smallest limit, and the least left.
            if memory.limit < total:
                total, source = memory.limit, f"cgroup limit of {group.name}"
            if memory.available < available:
                available, free = memory.available, memory.free
        self._limited = limited
        # Another process of a cgroup above us may use what its limit leaves.
        available = min(available, total)
        free = min(free, available)
        self._capacity, self._source = total, source
        return {
            "total_bytes": total,
            "available_bytes": available,
            "used_bytes": total - available,
            "free_bytes": free,
            "file_cache_bytes": available - free,
        }

    def _read_slow(self, values: dict[str, Value], hosted: Process | None) -> None:
        values["swap_used_bytes"], values["swap_total_bytes"] = self._system.swap()
        busy, whole = self._system.cpu_seconds()
        # Two readings in quick succession may have the same counters.
        if self._previous_cpu is not None and whole > self._previous_cpu[1]:
            share = (busy - self._previous_cpu[0]) / (whole - self._previous_cpu[1])
            values["cpu_utilisation"] = min(1.0, max(0.0, share))
        self._previous_cpu = busy, whole
        ours, clock, pid = time.process_time(), time.monotonic(), None
        if hosted is not None:
            ours, pid = ours + hosted.cpu_s, hosted.pid
        # A different process started at another time, so the difference would mean nothing.
        if self._previous_process is not None and self._previous_process[0] == pid:
            _, before, since = self._previous_process
            if clock > since:
                values["process_cpu_utilisation"] = max(0.0, ours - before) / (clock - since)
        self._previous_process = pid, ours, clock


def _read_group(group: ControlGroup, below: int) -> GroupMemory | None:
    # A cgroup can disappear at any time, as when a container moves; it then limits nothing.
    try:
        return group.read(below)
    except (OSError, ValueError):
        return None


class _Proc:
    """Linux, through files that are kept open."""

    def __init__(self, root: Path) -> None:
        self._meminfo = KeptFile(root / "proc/meminfo")
        self._statm = KeptFile(root / "proc/self/statm")
        self._stat = KeptFile(root / "proc/stat", size=1024)
        self._gpu_nodes = [KeptFile(node / "meminfo") for node in nodes_of_gpus(root)]
        self._page = os.sysconf("SC_PAGE_SIZE")

    def memory(self) -> HostMemory:
        # MemTotal, MemFree and MemAvailable are the first three lines since Linux 3.14.
        # Only split the first words: the file has fifty more lines and is read at every tick.
        fields = self._meminfo.read().split(None, 9)
        total, free, available = (int(fields[at]) * KIB for at in (1, 4, 7))
        for node in self._gpu_nodes:
            text = node.read()
            # This node is a GPU's memory, which is read there; counted here too, it would look like RAM.
            total -= _kib(text, b"MemTotal:")
            free -= _kib(text, b"MemFree:")
            available -= sum(_kib(text, field) for field in _NODE_AVAILABLE)
        return HostMemory(total, max(0, free), max(0, available))

    def process_bytes(self) -> int:
        return int(self._statm.read().split(None, 2)[1]) * self._page

    def swap(self) -> tuple[int, int]:
        text = self._meminfo.read()
        total, free = (_kib(text, field) for field in (b"SwapTotal:", b"SwapFree:"))
        return total - free, total

    def cpu_seconds(self) -> tuple[float, float]:
        """(busy, whole) time of all cores in ticks: user, nice, system, idle, iowait, irq, softirq, steal (proc(5))."""
        # guest and guest_nice, the last two, are included in user and nice (proc(5)).
        ticks = list(map(int, self._stat.read().split(b"\n", 1)[0].split()[1:9]))
        whole = sum(ticks)
        return whole - ticks[3] - ticks[4], whole

    def close(self) -> None:
        for file in (self._meminfo, self._statm, self._stat, *self._gpu_nodes):
            file.close()


def nodes_of_gpus(root: Path = Path("/")) -> list[Path]:
    """Folders of NUMA nodes that are GPU memory, which the kernel counts as RAM (Grace Hopper, Grace Blackwell).

    NVIDIA's driver names the node of each GPU; a node with processors is host memory all the same.
    """
    matches = (_NODE.search(text_of(file)) for file in sorted(root.glob("proc/driver/nvidia/gpus/*/numa_status")))
    nodes = {root / f"sys/devices/system/node/node{match[1]}" for match in matches if match}
    return sorted(node for node in nodes if (node / "meminfo").exists() and not text_of(node / "cpulist").strip())


class _Psutil:
    """Any other system."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def memory(self) -> HostMemory:
        memory = psutil.virtual_memory()
        return HostMemory(int(memory.total), int(memory.free), int(memory.available))

    def process_bytes(self) -> int:
        return int(self._process.memory_info().rss)

    def swap(self) -> tuple[int, int]:
        swap = psutil.swap_memory()
        return int(swap.used), int(swap.total)

    def cpu_seconds(self) -> tuple[float, float]:
        times = psutil.cpu_times()
        # Like the kernel, psutil includes guest time in user time.
        whole = float(sum(times)) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return whole - times.idle - getattr(times, "iowait", 0.0), whole

    def close(self) -> None:
        """Nothing to close with psutil."""


def _kib(text: bytes, field: bytes) -> int:
    at = text.find(field)
    # A missing field, as on a kernel built without it, adds nothing.
    if at >= 0:
        return int(text[at + len(field) :].split(None, 1)[0]) * KIB
    return 0


class GroupMemory(NamedTuple):
    """Memory of one cgroup in bytes: its limit, its usage, and how much of that the kernel can reclaim."""

    limit: int
    usage: int
    reclaimable: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.usage)

    @property
    def available(self) -> int:
        return min(self.limit, self.free + self.reclaimable)


class ControlGroup:
    """A cgroup with a memory limit. Its files are kept open: a reading is three `pread` calls."""

    def __init__(self, folder: Path, name: str, version: int) -> None:
        limit, usage = _FILES[version]
        self.name = name
        self._fields = _RECLAIMABLE[version]
        self._limit = KeptFile(folder / limit)
        self._usage = KeptFile(folder / usage)
        self._stat = KeptFile(folder / "memory.stat")

    def read(self, below: int) -> GroupMemory | None:
        """The cgroup's memory; ``None`` if it has no limit below ``below`` bytes.

        Raises:
            OSError: if the cgroup is gone.
        """
        text = self._limit.read()
        if text.startswith(b"max"):
            limit = below
        else:
            # "No limit" is a huge number in version 1 and "max" in version 2.
            limit = int(text)
        if limit >= below:
            return None
        usage = int(self._usage.read())
        # The statistics lag behind the usage: no more than the usage can be reclaimed.
        return GroupMemory(limit, usage, min(usage, self._reclaimable()))

    def close(self) -> None:
        for file in (self._limit, self._usage, self._stat):
            file.close()

    def _reclaimable(self) -> int:
        # The newline makes the first field like the others, and keeps inactive_file from matching total_inactive_file.
        text = b"\n" + self._stat.read()
        total = 0
        for field in self._fields:
            at = text.find(b"\n" + field + b" ")
            if at >= 0:
                begin = at + len(field) + 2
                end = text.find(b"\n", begin)
                total += int(text[begin : end if end >= 0 else len(text)])
        return total


def groups_above_us(root: Path = Path("/")) -> list[ControlGroup]:
    """Every memory cgroup from ours up to the visible root, innermost first.

    Args:
        root: parent folder of ``proc`` and ``sys``.
    """
    found: list[ControlGroup] = []
    for version, mount, inside, name in _placements(root):
        # From our own cgroup outwards: each may have a limit of its own.
        for steps in range(len(inside.parts) + 1):
            parts = inside.parts[: len(inside.parts) - steps]
            folder = mount.joinpath(*parts)
            if all(os.access(folder / file, os.R_OK) for file in (*_FILES[version], "memory.stat")):
                # In a namespace the mount hides the parents; only those in the name can be named.
                ended = PurePosixPath(name)
                if 0 < steps <= len(ended.parents):
                    shown = ended.parents[steps - 1]
                else:
                    shown = ended
                found.append(ControlGroup(folder, str(shown), version))
    return found


def _placements(root: Path) -> Iterator[tuple[int, Path, PurePosixPath, str]]:
    """(version, mount point, path below it, full name) of our cgroup in each hierarchy with a memory controller."""
    ours: dict[int, str] = {}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        # Version 2 is the line with number 0 and no controller (cgroups(7)); both versions may be mounted.
        if number == "0" and not controllers:
            ours[2] = name
        elif "memory" in controllers.split(","):
            ours[1] = name
    # Fields by proc(5): mount id, parent, device, root, mount point; after the hyphen type, source and options.
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            version = 2
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            version = 1
        else:
            version = 0
        if version in ours:
            mount = root / fields[4].lstrip("/")
            yield version, mount, _below(ours[version], fields[3]), ours[version]


def _below(name: str, mounted: str) -> PurePosixPath:
    """The cgroup's path below the mount; the mount itself if a namespace hides the path."""
    try:
        inside = PurePosixPath(name).relative_to(mounted)
    except ValueError:
        return PurePosixPath()
    if ".." in inside.parts:
        return PurePosixPath()
    return inside


class PackageEnergy:
    """Adds up the energy counters of the CPU packages, which wrap around.

    Each zone ``intel-rapl:N`` (on AMD too) has ``energy_uj``, microjoules since an unknown time, and
    ``max_energy_range_uj``, at which it wraps (Linux, Documentation/power/powercap/powercap.rst). Since CVE-2020-8694
    most systems let only root read the former.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._last: dict[Path, int] = {}
        self._joules = 0.0

    def joules(self) -> float | str:
        """Joules used by all packages since the first reading, or why that is unknown, in words."""
        with self._lock:
            try:
                zones = list(filter(_is_package, sorted(self._root.glob("*-rapl:*"))))
                if not zones:
                    return NOT_THERE
                self._joules += sum(map(self._since_last, zones))
            except PermissionError:
                return NOT_ALLOWED
            except (OSError, ValueError):
                return BROKEN
            return self._joules

    def _since_last(self, zone: Path) -> float:
        now = int((zone / "energy_uj").read_text())
        # A new zone adds nothing: its earlier energy is not ours.
        before = self._last.get(zone, now)
        self._last[zone] = now
        if now >= before:
            return (now - before) / 1e6
        # Assume a single wrap: several between two readings would look the same.
        return (now - before + int((zone / "max_energy_range_uj").read_text())) / 1e6


def _is_package(zone: Path) -> bool:
    """Whether a zone is a whole package: its subzones (``intel-rapl:0:1``) are included in it."""
    return zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package")
