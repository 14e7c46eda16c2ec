"""Reads one machine from inside: this file is sent over ssh and run by that machine's Python, 3.8 or newer.

It is a single file, uses only the standard library and writes nothing to disk. It writes a line of JSON for every
reading to standard output, and exits when its standard input, the connection, ends. The first line describes the
machine: ``{"gpudash": 1, "product": ..., "cores": ..., "capacity_source": ...}``. A line with ``gpus`` lists the GPUs,
or ``problem`` says why there are none (an NVML code, -1 without NVML's library, -2 while a card is asleep). All other
lines are readings with gpudash's metric names.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import pwd
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

VERSION = 1

SLOW_S = 1.0
"""Interval of the process lists, in seconds."""

AGAIN_S = 5.0
"""Interval of attempts to open a missing driver, in seconds."""

STUCK_S = 2.0
"""Time limit for one round of driver calls; beyond it, its GPUs have gaps."""

LARGEST = 5
"""Number of host processes listed, the largest."""

KIB = 1024
PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")

NO_LIBRARY, ASLEEP = -1, -2

TIMEOUT = 10

NOT_SUPPORTED, NO_PERMISSION, LOST, STALE = "not supported", "no permission", "lost", "stale"

_STATES = {
    4: NO_PERMISSION,
    **dict.fromkeys((3, 13, 25, 26), NOT_SUPPORTED),
    **dict.fromkeys((1, 8, 9, 11, 12, 15, 16, 17, 18, 28), LOST),
}
"""nvmlReturn_t codes → why there is no value; any other code costs only this reading."""

HEAT, BRAKE, POWER = 0x20 | 0x40, 0x8, 0x4 | 0x80
"""Bits of nvmlClocksEventReasons (nvml.h): thermal slowdown by software and hardware; the hardware's brake, which
reacts to heat or power; the software's power cap and the hardware's power brake."""

PCIE = "pcie_rx_bytes_per_second", "pcie_tx_bytes_per_second"
XIDS = "xid_errors", "last_xid"
NVLINK = "nvlink_rx_bytes_per_second", "nvlink_tx_bytes_per_second", "nvlink_errors", "nvlink_links"

XID_CRITICAL, XID_WAIT_MS, MOST_XIDS = 0x8, 1, 16
"""Bit of nvmlEventTypes; how long the driver may wait for an event; how many are taken together."""

LINKS_S = 10.0
"""Interval at which a GPU's links are counted, in seconds."""

MOST_LINKS = 36
NVLINK_KIB = 139, 138
NVLINK_ERRORS = (38, 45, 52, 59), (163, 161, 162), (208, 215)
"""NVML fields: KiB received and sent; errors of all links up to Ampere, and of each link on Hopper and from Blackwell
on. As in `sources.nvml.nvlink`."""

NOT_AVAILABLE = 2**64 - 1

NOT_YET = -1
"""Marks a rate that needs a second reading: the first one, or after a counter's reset."""

INTEGRATED = r"\b(?:GB10|Thor|Orin|Xavier|Tegra)\b|\(nvgpu\)"
"""Names of GPUs that use the machine's memory, whatever their driver reports."""

_FIRST_PID_NAMESPACE = "pid:[4026531836]"

_writing = threading.Lock()


def emit(record: Mapping[str, Any]) -> None:
    """Write one line; exits if the connection is gone."""
    data = json.dumps(record).encode() + b"\n"
    with _writing:
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            os._exit(0)


def text_of(path: str) -> str:
    """Text of a file; "" if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class HostByProc:
    """Memory, swap and CPU, from /proc and the cgroups above this process."""

    def __init__(self) -> None:
        self.source = "RAM"
        self._cpu: tuple[int, int] | None = None
        self._groups = list(_groups())

    def read(self) -> dict[str, float]:
        """The current metrics."""
        facts = {}
        for line in text_of("/proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            facts[name] = int(rest.split()[0]) * KIB
        total, free, available = facts["MemTotal"], facts["MemFree"], facts["MemAvailable"]
        self.source = "RAM"
        for group in self._groups:
            found = _limited(group, total)
            if found is not None:
                limit, usage, reclaimable = found
                left = max(0, limit - usage)
                if limit < total:
                    total, self.source = limit, "cgroup limit of " + group[2]
                if min(limit, left + reclaimable) < available:
                    available, free = min(limit, left + reclaimable), left
        available = min(available, total)
        free = min(free, available)
        values: dict[str, float] = {
            "total_bytes": total,
            "available_bytes": available,
            "used_bytes": total - available,
            "free_bytes": free,
            "file_cache_bytes": available - free,
            "swap_used_bytes": facts.get("SwapTotal", 0) - facts.get("SwapFree", 0),
            "swap_total_bytes": facts.get("SwapTotal", 0),
        }
        ticks = list(map(int, text_of("/proc/stat").split("\n", 1)[0].split()[1:9]))
        whole, idle = sum(ticks), ticks[3] + ticks[4]
        if self._cpu is not None and whole > self._cpu[0]:
            share = 1 - (idle - self._cpu[1]) / (whole - self._cpu[0])
            values["cpu_utilisation"] = min(1.0, max(0.0, share))
        self._cpu = whole, idle
        return values


def _groups() -> Iterator[tuple[str, int, str]]:
    """(folder, version, name) of every memory cgroup above this process, innermost first."""
    ours: dict[int, str] = {}
    for line in text_of("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0" and not controllers:
            ours[2] = name
        elif "memory" in controllers.split(","):
            ours[1] = name
    for version, name in ours.items():
        mount = "/sys/fs/cgroup/memory"
        if version == 2:
            mount = "/sys/fs/cgroup"
        parts = [part for part in name.split("/") if part and part != ".."]
        while True:
            folder = "/".join([mount, *parts])
            if os.path.exists(folder + "/memory.stat"):
                yield folder, version, "/" + "/".join(parts)
            if not parts:
                break
            parts.pop()


def _limited(group: tuple[str, int, str], most: int) -> tuple[int, int, int] | None:
    """(limit, usage, reclaimable part of it) in bytes; None without a limit below ``most``."""
    folder, version, _name = group
    limit = text_of(folder + ("/memory.max" if version == 2 else "/memory.limit_in_bytes")).strip()
    usage = text_of(folder + ("/memory.current" if version == 2 else "/memory.usage_in_bytes")).strip()
    if not limit.isdigit() or not usage.isdigit() or int(limit) >= most:
        return None
    wanted = ("inactive_file", "active_file", "slab_reclaimable") if version == 2 else _RECLAIMABLE_1
    back = 0
    for line in text_of(folder + "/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in wanted:
            back += int(value)
    return int(limit), int(usage), min(back, int(usage))


_RECLAIMABLE_1 = ("total_inactive_file", "total_active_file")


class Processes:
    """The largest processes of the host."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}

    def read(self) -> list[dict[str, Any]]:
        """A row for each, with its share of a core since the previous reading."""
        found = []
        for name in os.listdir("/proc"):
            process = None
            if name.isdigit():
                process = read_process(int(name))
            if process is not None:
                found.append(process)
        found.sort(key=lambda process: -process["memory_bytes"])
        now, rows, seen = time.monotonic(), [], {}
        for process in found[:LARGEST]:
            pid, cpu_s = process["pid"], process.pop("cpu_s")
            before = self._before.get(pid)
            if before is not None and now > before[0] and cpu_s >= before[1]:
                process["cpu_utilisation"] = (cpu_s - before[1]) / (now - before[0])
            seen[pid] = now, cpu_s
            process.update(owners(pid))
            rows.append(process)
        self._before = seen
        return rows


def read_process(pid: int) -> dict[str, Any] | None:
    """Name, resident bytes and CPU seconds of a process; None if it is gone."""
    text = text_of("/proc/%d/stat" % pid)
    begin, end = text.find("("), text.rfind(")")
    fields = text[end + 2 :].split()
    if len(fields) < 22:
        return None
    return {
        "pid": pid,
        "name": text[begin + 1 : end],
        "memory_bytes": int(fields[21]) * PAGE,
        "cpu_s": (int(fields[11]) + int(fields[12])) / TICK,
    }


def user_of(pid: int) -> str | None:
    """User who runs a process; None if unknown."""
    try:
        return pwd.getpwuid(os.stat("/proc/%d" % pid).st_uid).pw_name
    except (OSError, KeyError):
        return None


_POD = r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
_JOB = r"/job_(\d+)(?:/step_(\w+))?"
_ID = r"(?:/|docker-|libpod-|crio-|containerd-)([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?(?=[/\s]|$)"


def container_in(cgroup: str) -> str | None:
    """Container and job of a process in words, from the text of its /proc/PID/cgroup; None for none."""
    found, job = re.findall(_ID, cgroup), re.search(_JOB, cgroup) if "slurm" in cgroup else None
    pod = None
    if "kubepods" in cgroup:
        pod = re.search(_POD, cgroup)
    parts = []
    if job is not None:
        parts.append("slurm job " + job[1] + (" step " + job[2] if job[2] else ""))
    if pod is not None:
        parts.append("kubernetes pod " + pod[1].replace("_", "-") + (" container " + found[-1] if found else ""))
    elif found:
        maker = "container"
        if "docker" in cgroup:
            maker = "docker"
        if "libpod" in cgroup:
            maker = "podman"
        parts.append(maker + " " + found[-1])
    return ", ".join(parts) or None


def owners(pid: int) -> dict[str, str | None]:
    """User and container of a process."""
    return {"user": user_of(pid), "container": container_in(text_of("/proc/%d/cgroup" % pid))}


class NvmlError(Exception):
    """An error of the driver; `code` is its nvmlReturn_t."""

    def __init__(self, code: int) -> None:
        Exception.__init__(self, code)
        self.code = code


class Memory1(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Pci(ctypes.Structure):
    """nvmlPciInfo_t as nvmlDeviceGetPciInfo_v3 fills it."""

    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Process2(ctypes.Structure):
    """nvmlProcessInfo_t of the calls that end with _v2 and _v3."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Attributes(ctypes.Structure):
    """nvmlDeviceAttributes_t of a MIG instance."""

    _fields_ = [
        ("multiprocessors", ctypes.c_uint),
        ("shared_engines", ctypes.c_uint * 5),
        ("gpu_slices", ctypes.c_uint),
        ("compute_slices", ctypes.c_uint),
        ("memory_mib", ctypes.c_ulonglong),
    ]


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; `type` 0 is a double."""

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("answer", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    ]


class EventData(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


_MEMORY_2 = ctypes.c_ulonglong * 5
_MEMORY_2_VERSION = 0x02000028


class NvmlByCtypes:
    """The NVIDIA driver, by ctypes. Belongs to one thread."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            raise NvmlError(NO_LIBRARY) from None
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; raises `NvmlError` if it fails."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(13) from None
        code = function(*arguments)
        if code:
            raise NvmlError(code)

    def number(self, name: str, handle: Any, *given: Any, of: Any = ctypes.c_uint) -> int:
        """The number that a call returns through its last argument."""
        found = of()
        self.call(name, handle, *given, ctypes.byref(found))
        return int(found.value)

    def text(self, name: str, *handle: Any) -> str:
        """The string that a call returns, 96 bytes at most."""
        found = ctypes.create_string_buffer(96)
        self.call(name, *handle, found, ctypes.c_uint(96))
        return found.value.decode(errors="replace")

    def optional(self, name: str, handle: Any) -> int | None:
        """Like `number`; None if the card does not support it."""
        try:
            return self.number(name, handle)
        except NvmlError:
            return None

    def instances(self, whole: GpuByCtypes) -> Iterator[GpuByCtypes]:
        """The MIG instances of a divided GPU; numbers of destroyed ones stay unused."""
        for number in range(self.optional("nvmlDeviceGetMaxMigDeviceCount", whole.handle) or 0):
            part = ctypes.c_void_p()
            try:
                self.call(
                    "nvmlDeviceGetMigDeviceHandleByIndex", whole.handle, ctypes.c_uint(number), ctypes.byref(part)
                )
                yield GpuByCtypes(self, whole.facts["nvml_index"], part, whole, number)
            except NvmlError:
                continue

    def gpus(self) -> list[GpuByCtypes]:
        """Every GPU that responds, in the driver's order, each followed by its MIG instances."""
        count = ctypes.c_uint()
        found: list[GpuByCtypes] = []
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            handle = ctypes.c_void_p()
            try:
                self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
                whole = GpuByCtypes(self, index, handle)
            except NvmlError:
                continue  # one that does not respond hides no other
            parts = []
            if whole.divided:
                parts = list(self.instances(whole))
            whole.facts["instances"] = len(parts)
            found += [whole, *parts]
        return found


class NvLinksByCtypes:
    """The NVLinks of one GPU, like `sources.nvml.nvlink.NvLinks`."""

    def __init__(self, nvml: NvmlByCtypes, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._count = self._active = 0
        self._polled_s = -LINKS_S
        self._errors: list[tuple[int, int]] | None = None
        self._before: tuple[float, list[int | None]] | None = None

    def read(self) -> list[Any]:
        """Bytes received and sent per second, errors, and active links; None if not reported, else `NOT_YET`."""
        now = time.monotonic()
        if now - self._polled_s >= LINKS_S:
            self._poll()
            self._polled_s = now
        if self._errors is None:
            self._errors = self._known_errors()
        kib = self._fields([(field, 2**32 - 1) for field in NVLINK_KIB])
        found = [value for value in self._fields(self._errors) if value is not None]
        then, earlier = self._before or (now, kib)
        rates: list[float | None] = []
        for value, before in zip(kib, earlier):
            if value is None:
                rates.append(None)
            elif before is None or value < before or now <= then:
                rates.append(NOT_YET)
            else:
                rates.append((value - before) * KIB / (now - then))
        self._before = now, kib
        return [*rates, sum(found) if found else None, self._active]

    def _poll(self) -> None:
        """Count the links, and the active ones."""
        states = []
        for link in range(MOST_LINKS):
            try:
                states.append(self._nvml.number("nvmlDeviceGetNvLinkState", self._handle, ctypes.c_uint(link)))
            except NvmlError as error:
                if _STATES.get(error.code) == LOST:
                    raise
                break
        if not states:
            raise NvmlError(3)
        if len(states) != self._count:
            self._errors = None
        self._count, self._active = len(states), sum(states)

    def _known_errors(self) -> list[tuple[int, int]]:
        """The first family of counters that this GPU has; empty if it has none of them."""
        of_all, *of_a_link = NVLINK_ERRORS
        families = [[(field, 0) for field in of_all]]
        families += [[(field, link) for link in range(self._count) for field in of] for of in of_a_link]
        for fields in families:
            if any(value is not None for value in self._fields(fields)):
                return fields
        return []

    def _fields(self, wanted: list[tuple[int, int]]) -> list[int | None]:
        if not wanted:
            return []
        values = (FieldValue * len(wanted))(*(FieldValue(field, scope) for field, scope in wanted))
        self._nvml.call("nvmlDeviceGetFieldValues", self._handle, ctypes.c_int(len(wanted)), values)
        return [int(value.value) if value.answer == 0 and value.type != 0 else None for value in values]


class GpuByCtypes:
    """One GPU: its description, and its readings, each a number or the reason why there is none."""

    def __init__(
        self, nvml: NvmlByCtypes, index: int, handle: Any, whole: GpuByCtypes | None = None, number: int = 0
    ) -> None:
        """``whole`` is the GPU whose MIG instance ``number`` this is."""
        self._nvml, self.handle = nvml, handle
        self.uuid = nvml.text("nvmlDeviceGetUUID", handle)
        product = nvml.text("nvmlDeviceGetName", handle)
        if whole is None:
            self.status, self.facts = self._whole(index, product)
        else:
            self.status, size = whole.status, Attributes()
            with contextlib.suppress(NvmlError):
                nvml.call("nvmlDeviceGetAttributes_v2", handle, ctypes.byref(size))
            if "MIG" not in product:  # some drivers only name the whole GPU
                profile = ""
                if size.gpu_slices:
                    profile = "%dg.%dgb" % (size.gpu_slices, round(size.memory_mib / 1024))
                product = ("%s MIG %s" % (product, profile)).rstrip()
            own = {"uuid": self.uuid, "product": product, "multiprocessors": size.multiprocessors or None}
            self.facts = dict(whole.facts, parent=whole.uuid, instance=number, instances=0, **own)
        self.divided = whole is None and self._is_divided()
        self.lost = False
        self._unsupported: set[str] = set()
        self._pool: HostByProc | None = None
        if whole is None:
            self._pool = self._shared_pool(product)
        else:
            self._pool = None
        self.facts["shared_memory"] = self._pool is not None
        self._questions = (
            (("used_bytes", "free_bytes", "total_bytes", "driver_reserved_bytes"), self._memory),
            (("gpu_utilisation", "memory_utilisation"), self._utilisation),
            (("temperature_c",), lambda: [float(self._get("nvmlDeviceGetTemperature", ctypes.c_uint(0)))]),
            (("power_w",), lambda: [self._get("nvmlDeviceGetPowerUsage") / 1000]),
            (("energy_j",), lambda: [self._get("nvmlDeviceGetTotalEnergyConsumption", of=ctypes.c_ulonglong) / 1000]),
            (("sm_clock_hz",), lambda: [self._get("nvmlDeviceGetClockInfo", ctypes.c_uint(1)) * 1e6]),
            (("memory_clock_hz",), lambda: [self._get("nvmlDeviceGetClockInfo", ctypes.c_uint(2)) * 1e6]),
            (("pcie_generation",), lambda: [self._get("nvmlDeviceGetCurrPcieLinkGeneration")]),
            (("pcie_width",), lambda: [self._get("nvmlDeviceGetCurrPcieLinkWidth")]),
            (("slowed_by_heat", "slowed_by_power", "clocks_event_reasons"), self._slowdown),
            (("ecc_uncorrected_errors",), lambda: [self._ecc_errors()]),
            (XIDS, self._xids),
            (NVLINK, self._nvlink),
            (PCIE, self._throughput),
        )
        self._events: ctypes.c_void_p | None = None
        self._xid_count = self._last_xid = 0
        self._links = NvLinksByCtypes(nvml, handle)
        self.metrics = [metric for metrics, _ask in self._questions for metric in metrics]
        if whole is not None:  # for an instance, the driver only reports memory and processes
            self._unsupported.update(metrics[0] for metrics, _ask in self._questions[1:])
        elif self._pool is not None:  # no PCIe link to its memory
            self._unsupported.update(("pcie_generation", "pcie_width", PCIE[0]))

    def _slowdown(self) -> list[Any]:
        """Whether clocks are reduced by heat or power, and NVML's bits, as in `sources.nvml.calls.slowdown`."""
        try:
            reasons = self._get("nvmlDeviceGetCurrentClocksEventReasons", of=ctypes.c_ulonglong)
        except NvmlError:
            reasons = self._get("nvmlDeviceGetCurrentClocksThrottleReasons", of=ctypes.c_ulonglong)
        heat, brake, power = reasons & HEAT, reasons & BRAKE, reasons & POWER
        return [int(bool(heat or (brake and not power))), int(bool(power)), reasons]

    def _xids(self) -> list[Any]:
        """The number of XID errors since this started, and the newest; each earlier one gets its own line."""
        nvml, earlier = self._nvml, 0
        if self._events is None:
            events = ctypes.c_void_p()
            nvml.call("nvmlEventSetCreate", ctypes.byref(events))
            nvml.call("nvmlDeviceRegisterEvents", self.handle, ctypes.c_ulonglong(XID_CRITICAL), events)
            self._events = events
        for _event in range(MOST_XIDS):
            event = EventData()
            try:
                nvml.call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(XID_WAIT_MS))
            except NvmlError as error:
                if error.code != TIMEOUT:
                    raise
                break
            if earlier:
                emit(reading("gpu", self.uuid, dict(zip(XIDS, (self._xid_count, self._last_xid))), {}))
            earlier, self._last_xid = 1, int(event.data)
            self._xid_count += 1
        return [self._xid_count, self._last_xid]

    def _nvlink(self) -> list[Any]:
        return self._links.read()

    def _ecc_errors(self) -> int:
        """Uncorrected (1) memory errors since the driver was loaded (0)."""
        uncorrected, since_loaded = ctypes.c_uint(1), ctypes.c_uint(0)
        return int(self._get("nvmlDeviceGetTotalEccErrors", uncorrected, since_loaded, of=ctypes.c_ulonglong))

    def _whole(self, index: int, product: str) -> tuple[str, dict[str, Any]]:
        """The kernel's file with the suspension state, and the description of a whole GPU."""
        nvml, handle = self._nvml, self.handle
        pci, major, minor = Pci(), ctypes.c_int(), ctypes.c_int()
        nvml.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        capability = None
        with contextlib.suppress(NvmlError):
            nvml.call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
            capability = [major.value, minor.value]
        facts = {
            "nvml_index": index,
            "uuid": self.uuid,
            "pci_bus_id": pci.bus_id.decode(errors="replace"),
            "product": product,
            "cuda_capability": capability,
            "pcie_generation": nvml.optional("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "pcie_width": nvml.optional("nvmlDeviceGetMaxPcieLinkWidth", handle),
        }
        status = "/sys/bus/pci/devices/%04x:%02x:%02x.0/power/runtime_status" % (pci.domain, pci.bus, pci.device)
        return status, facts

    def _is_divided(self) -> bool:
        """Whether MIG is enabled."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        try:
            self._nvml.call("nvmlDeviceGetMigMode", self.handle, ctypes.byref(current), ctypes.byref(pending))
        except NvmlError:
            return False
        return current.value == 1

    @property
    def asleep(self) -> bool:
        """Whether the kernel has suspended it."""
        return text_of(self.status).startswith("suspended")

    def read(self, *, patiently: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """Current (values, states); ``patiently`` includes calls that take 40 ms. A lost handle is not used again."""
        values: dict[str, Any] = {}
        states: dict[str, str] = {}
        asleep = self.asleep
        for metrics, ask in self._questions if patiently else self._questions[:-3]:
            why = "asleep" if asleep else self._why_not(metrics)
            if why is None:
                try:
                    for metric, value in zip(metrics, ask()):
                        if value == NOT_YET:
                            continue
                        values[metric] = value
                        if value is None:
                            states[metric] = NOT_SUPPORTED
                    continue
                except NvmlError as error:
                    why = _STATES.get(error.code, STALE)
                    self.lost = self.lost or why == LOST
                    if why == NOT_SUPPORTED:
                        self._unsupported.add(metrics[0])
            for metric in metrics:
                values[metric], states[metric] = None, why
        return values, states

    def _why_not(self, metrics: tuple[str, ...]) -> str | None:
        """Why a question is not asked of the driver; None if it is."""
        outlives = metrics is XIDS and self._events is not None  # the driver has queued the cause
        if self.lost and not outlives:
            return LOST
        if metrics[0] in self._unsupported:
            return NOT_SUPPORTED
        return None

    def processes(self) -> dict[int, int | None]:
        """Bytes by PID, None if not reported; a process that both computes and draws is in both lists."""
        found: dict[int, int | None] = {}
        if self.lost or self.asleep or self.facts.get("instances"):
            return found  # processes on a divided GPU are listed with its instances
        for kind in ("Compute", "Graphics"):
            for pid, used in self._listed("nvmlDeviceGet%sRunningProcesses" % kind):
                before = found.get(pid)
                if used is None:
                    found[pid] = before
                else:
                    found[pid] = max(used, before or 0)
        return found

    def _get(self, name: str, *given: Any, of: Any = ctypes.c_uint) -> int:
        return self._nvml.number(name, self.handle, *given, of=of)

    def _shared_pool(self, product: str) -> HostByProc | None:
        """The machine's memory, if the GPU has none of its own; else None."""
        try:
            self._memory()
        except NvmlError as error:
            shared = _STATES.get(error.code) == NOT_SUPPORTED and not self.divided
        else:
            shared = re.search(INTEGRATED, product, re.IGNORECASE) is not None
        if shared:
            return HostByProc()
        return None

    def _memory(self) -> Iterable[float | None]:
        if self._pool is not None:
            host = self._pool.read()
            return host["used_bytes"], host["available_bytes"], host["total_bytes"], None
        try:
            info = _MEMORY_2(_MEMORY_2_VERSION)
            self._nvml.call("nvmlDeviceGetMemoryInfo_v2", self.handle, ctypes.byref(info))
            _version, total, reserved, free, used = info
        except NvmlError as error:
            if _STATES.get(error.code) == LOST:
                raise
            memory = Memory1()
            self._nvml.call("nvmlDeviceGetMemoryInfo", self.handle, ctypes.byref(memory))
            total, reserved, free, used = memory.total, None, memory.free, memory.used
        if total == 0:  # some drivers report 0 if the memory is the host's
            raise NvmlError(3)
        return used, free, total, reserved

    def _utilisation(self) -> Iterable[float]:
        rates = Rates()
        self._nvml.call("nvmlDeviceGetUtilizationRates", self.handle, ctypes.byref(rates))
        return float(rates.gpu / 100), float(rates.memory / 100)

    def _throughput(self) -> Iterable[float]:
        """Rates over a window of 20 ms each; the driver's unit is KB/s."""
        return [self._get("nvmlDeviceGetPcieThroughput", ctypes.c_uint(way)) * 1e3 for way in (1, 0)]

    def _listed(self, name: str) -> Iterator[tuple[int, int | None]]:
        for ending in ("_v3", "_v2"):
            count = ctypes.c_uint(0)
            try:
                try:
                    self._nvml.call(name + ending, self.handle, ctypes.byref(count), None)
                    return
                except NvmlError as error:
                    if error.code != 7:  # 7: the buffer is too small for the list
                        raise
                room = (Process2 * (count.value + 16))()
                count = ctypes.c_uint(len(room))
                self._nvml.call(name + ending, self.handle, ctypes.byref(count), room)
            except NvmlError as error:
                if error.code == 13:
                    continue
                return
            for process in room[: count.value]:
                yield process.pid, None if process.used == NOT_AVAILABLE else process.used
            return


def sleeping_card() -> bool:
    """Whether an NVIDIA card is asleep: opening the driver would wake it."""
    folder = "/sys/bus/pci/devices"
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        card = "%s/%s/" % (folder, name)
        nvidia = text_of(card + "vendor").strip() == "0x10de" and text_of(card + "class").startswith("0x03")
        if nvidia and text_of(card + "power/runtime_status").startswith("suspended"):
            return True
    return False


class GpuThread:
    """Reads all GPUs on a separate thread, so that a driver that hangs does not stop the host's readings."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._round_s: float | None = None
        self.found: list[GpuByCtypes] = []
        threading.Thread(target=self._run, daemon=True).start()

    def report_if_stuck(self) -> None:
        """Report gaps while the driver does not return."""
        since = self._round_s
        if since is not None and time.monotonic() - since > STUCK_S:
            for gpu in self.found:
                report_gap(gpu, STALE)

    def _run(self) -> None:
        reported: int | None = None
        while True:
            try:
                if sleeping_card():
                    raise NvmlError(ASLEEP)
                self._round_s = time.monotonic()
                nvml = NvmlByCtypes()
                self.found = nvml.gpus()
                driver = nvml.text("nvmlSystemGetDriverVersion")
                if not self.found:
                    raise NvmlError(6)
            except NvmlError as error:
                self._round_s = None
                self.found = []
                if reported != error.code:
                    reported = error.code
                    emit({"gpus": [], "problem": reported})
                time.sleep(AGAIN_S)
                continue
            reported = None
            emit({"gpus": [gpu.facts for gpu in self.found], "driver": driver})
            self._follow()
            for gpu in self.found:
                report_gap(gpu, LOST)
            self._round_s = None
            time.sleep(AGAIN_S)
            with contextlib.suppress(NvmlError):
                nvml.call("nvmlShutdown")  # invalidates all handles

    def _follow(self) -> None:
        """Read until every GPU is lost."""
        slow_s, turns = 0.0, itertools.cycle(self.found)
        while not all(gpu.lost for gpu in self.found):
            self._round_s = now = time.monotonic()
            turn = next(turns)  # slow readings: one GPU a round
            for gpu in self.found:
                values, states = gpu.read(patiently=gpu is turn)
                emit(reading("gpu", gpu.uuid, values, states))
            if now >= slow_s:
                slow_s = now + SLOW_S
                for gpu in self.found:
                    report_processes(gpu)
            self._round_s = None
            time.sleep(max(0.0, now + self._period_s - time.monotonic()))


def report_gap(gpu: GpuByCtypes, why: str) -> None:
    """Report a gap in a GPU's readings."""
    emit(reading("gpu", gpu.uuid, dict.fromkeys(gpu.metrics), dict.fromkeys(gpu.metrics, why)))


def report_processes(gpu: GpuByCtypes) -> None:
    """Report which processes hold memory of a GPU, with names if our PIDs are the driver's."""
    try:
        shared = os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE
    except OSError:
        shared = False
    rows: list[dict[str, Any]] = [{"pid": None}]
    for pid, used in gpu.processes().items():
        process = None
        if shared:
            process = read_process(pid)
        if process:
            name = process["name"]
        else:
            name = "host pid %d (not visible)" % pid
        rows.append(dict({"pid": pid, "name": name, "memory_bytes": used}, **(owners(pid) if process else {})))
    now = time.monotonic()
    for row in rows:
        emit(reading("process", gpu.uuid, row, {}, now))


def reading(
    table: str, device: str | None, values: Mapping[str, Any], states: Mapping[str, str], now: float | None = None
) -> dict[str, Any]:
    """The JSON object for a line."""
    record: dict[str, Any] = {"time_s": time.monotonic() if now is None else now, "table": table, "device": device}
    record.update(values)
    if states:
        record["states"] = dict(states)
    return record


def product() -> str:
    """The processor's name; "" if /proc does not have it."""
    for line in text_of("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return ""


def end_with_input() -> None:
    """Exit when standard input ends."""
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    os._exit(0)


def main(period_s: float) -> None:
    """Write readings every ``period_s`` seconds until the connection ends."""
    if not os.path.exists("/proc/meminfo"):
        sys.exit("gpudash: no /proc")
    threading.Thread(target=end_with_input, daemon=True).start()
    host, processes = HostByProc(), Processes()
    host.read()
    machine = {"product": product(), "cores": os.cpu_count(), "capacity_source": host.source}
    emit(dict(machine, gpudash=VERSION, python="%d.%d.%d" % sys.version_info[:3]))
    gpus = GpuThread(period_s)
    slow_s = 0.0
    while True:
        now = time.monotonic()
        emit(reading("host", None, host.read(), {}, now))
        if now >= slow_s:
            slow_s = now + SLOW_S
            rows = processes.read()
            listed = time.monotonic()
            for row in rows:
                emit(reading("process", None, row, {}, listed))
            gpus.report_if_stuck()
        time.sleep(max(0.0, now + period_s - time.monotonic()))


if __name__ == "__main__":
    main(float(sys.argv[1]))
