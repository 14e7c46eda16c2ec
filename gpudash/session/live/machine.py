"""Which devices there are and what they are called: what NVML lists, joined with what torch can use; their
energy counters; and a run on them as the plain PyTorch program it amounts to.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from gpudash.devices.names import (
    OFFERED_BYTES,
    SIMULATED,
    CudaOrder,
    Device,
    Gpu,
    Simulation,
    cuda_order,
    default_device,
    gpus_by_torch,
    kind_of,
    shown_name,
    simulated_card,
    torch_devices,
    unread_gpus,
    why_torch_has_no_gpu,
)
from gpudash.devices.simulated_cards import is_program_card
from gpudash.memory.watching.levels import HOST, pool_of
from gpudash.session.live.simulated_gpus import SimulatedGpus
from gpudash.specs import Spec, build, workloads
from gpudash.system.files import make_private_folder, written_whole
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular
from gpudash.system.foreign_text import json_object
from gpudash.telemetry.readings import NEVER_READ
from gpudash.telemetry.records import Note, State, Topic, size_in
from gpudash.telemetry.store import Store
from gpudash.units import GIB, MIB

if TYPE_CHECKING:
    from gpudash.memory.explaining.memory_state import Surroundings
    from gpudash.sources.discovery import HostSurvey
    from gpudash.sources.host import PackageEnergy
    from gpudash.sources.monitor import Monitor
    from gpudash.workloads.running.context import MemoryLevel

CONTEXT_READINGS = 2000
"""Newest readings of a context that are looked at: some minutes of them."""

GPU_PATIENCE_S = 5.0
"""Session time after which a driver that has not said which GPUs there are is no longer waited for."""

NOT_REPORTED = "the driver reports no energy counter of this GPU"

NOT_READ_YET = "the GPU's energy counter has not been read"

PLAUSIBLE_BYTES = range(32 * MIB, 8 * GIB)
"""A context outside of this was not measured but mixed up with a reading of another instant."""

MOST_CONTEXTS_BYTES = 2**20
"""Of the file that keeps how large contexts are: a line for each GPU."""

NOT_KEPT = (
    "# From a recording, which keeps neither a cap on memory (--memory-cap) nor what simulated others held: where",
    "# the run had either, this program has more room than it.",
)
"""Remark in the program of a recorded run on a GPU."""


P = ParamSpec("P")
T = TypeVar("T")


class Machine:
    """The devices of a live session. Any thread may ask; the session's thread alone tells it of torch.

    Args:
        host: the processor and its memory.
        monitor: knows the GPUs that NVML lists, which may come later.
        store: holds the newest readings.
        simulated: the simulated GPUs.

    Attributes:
        torch: what torch is and sees (`torch_report`); ``None`` until that is known.
        expects_torch: whether that will be known: it is not while a session only watches.
    """

    def __init__(self, host: HostSurvey, monitor: Monitor, store: Store, simulated: SimulatedGpus) -> None:
        self.torch: Mapping[str, Any] | None = None
        self.expects_torch = True
        self.simulated = simulated
        self._host = host
        self._monitor = monitor
        self._store = store
        # These are asked for with every record, or some twenty times a frame.
        self._torch_gpus = _Kept(gpus_by_torch)
        self._torch_devices = _Kept(torch_devices)
        self._order = _Kept(cuda_order)
        self._seen: tuple[tuple[Gpu, ...], bool] = ((), False)
        self._linked: tuple[tuple[Gpu, ...], dict[str, str]] = ((), {})
        self._energy = EnergyCounters(store)
        self._released_s = -math.inf

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU NVML lists, also those torch does not see, then those torch alone knows and the simulated ones."""
        by_torch: tuple[Gpu, ...] = ()
        if self.torch is not None and self.torch.get("devices"):
            by_torch = self._torch_gpus(self.cuda_order(), self.torch)
        return *self._monitor.gpus, *by_torch, *self.simulated.gpus

    def gpu(self, uuid: str | None) -> Gpu | None:
        """The GPU with a UUID; ``None`` where there is none."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    @property
    def host_capacity_source(self) -> str:
        """What limits host memory: "RAM", or the name of a container's limit."""
        return self._monitor.host_capacity_source

    @property
    def host(self) -> Device:
        """The CPU."""
        return Device("cpu", f"{self._host.product}, {self._host.cores} cores", self._host.total_bytes)

    def devices(self) -> list[Device]:
        """The CPU, torch's devices in torch's order, the simulated ones: what a run can use, or says why none can."""
        problem = self.simulated.problem
        if not problem and self.torch is not None:
            problem = self.torch.get("simulator_problem")
        by_torch = self._torch_devices(self.cuda_order(), self.torch)
        return [self.host, *by_torch, *self.simulated.devices(problem)]

    def cuda_order(self) -> CudaOrder:
        """torch's numbering of the GPUs NVML lists."""
        visible, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
        return self._order(self._monitor.gpus, visible, order)

    def default_device(self) -> str:
        """Where a run of the session takes place unless told otherwise: on the first simulated card that was asked for
        and can be used, else as of `program_device`.
        """
        if self.simulated.given:
            for device in self.devices():
                if device.simulated and device.problem is None:
                    return device.name
        return self.program_device()

    def program_device(self) -> str:
        """Where a program that runs by itself is likely to compute: on the usable CUDA device with most free memory,
        else on the CPU.
        """
        devices = self.devices()
        free = {d.uuid: size for d in devices if d.uuid and (size := self.latest(d.uuid, "free_bytes")) is not None}
        return default_device(devices, free)

    @property
    def problem(self) -> str | None:
        """One line saying why no GPU can be used, or why some are missing; ``None`` when all is well."""
        if self._monitor.problem is not None:
            return unread_gpus(self.torch or {}, self._monitor.problem)
        order = self.cuda_order()
        why = None
        if self.torch is not None:
            why = why_torch_has_no_gpu(self.torch, order)
        return why or order.reason or None

    def gpu_facts(self) -> list[tuple[str, str]]:
        """What driver, library, torch and environment say of GPUs: (what, answer) pairs for a bug report."""
        torch = self.torch or {}
        hip = torch.get("hip_version")
        without = "none: a CPU build"
        if hip:
            without = f"none: a build for ROCm {hip}"
        if self.torch is None:
            cuda = "not known yet"
        else:
            cuda = str(torch.get("cuda_version") or without)
        simulated = ", ".join(f"{found.name}" for found in self.devices() if found.simulated)
        names = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
        return [
            ("NVML", self._monitor.nvml_text),
            ("NVIDIA driver", self._monitor.driver_version or "none answered"),
            ("torch", self.torch_text or "loading"),
            ("CUDA of torch", cuda),
            *((name, os.environ.get(name, "not set") or "empty") for name in names),
            ("simulated GPU", self.simulated.problem or simulated or "none"),
        ]

    def check_gpus(self) -> None:
        """Look for GPUs at once where there were none."""
        self._monitor.retry_now()

    @property
    def torch_text(self) -> str | None:
        """What torch this is, or that there is none; ``None`` while it loads."""
        if self.torch is None:
            return None
        if self.torch.get("version") is None:
            return "no torch"
        return f"torch {self.torch['version']}"

    def memory_name(self, memory: str) -> str:
        """How a memory (a GPU's UUID or "host") is called at the beginning of a sentence."""
        names = {found.uuid: shown_name(found.name) for found in self.devices()}
        if memory == HOST:
            sharing = " and ".join(names.get(gpu.uuid, f"GPU {gpu.number}") for gpu in self.gpus if gpu.shared_memory)
            if sharing:
                return f"This computer's memory, shared with {sharing},"
            return "This computer's memory"
        number = next((f"GPU {gpu.number}" for gpu in self.gpus if gpu.uuid == memory), None)
        return names.get(memory) or number or shown_name(self._store.torch_name(memory) or memory)

    def memory_of(self, device: str) -> str | None:
        """The memory of a device as torch names it (see `Device.memory`); ``None`` when there is no such device."""
        return next((found.memory for found in self.devices() if found.name == device), None)

    def pool_of(self, memory: str) -> str:
        """The memory that is watched for ``memory``, as of `pool_of`."""
        return pool_of(memory, self.gpus)

    def remember_contexts(self) -> None:
        """Keep what the contexts that this process has made took, where the driver tells."""
        for device in self.devices():
            if device.kind != "cuda" or device.uuid is None:
                continue
            taken = self.context_bytes(device.uuid)
            with self._store.lock:
                # Where nothing is reserved any more, a run's own process has taken its context with it.
                opened = bool(self._store.latest("allocator", "reserved_bytes", device.name).value)
            if opened and taken is not None:
                remember_context(device.uuid, taken)

    def surroundings(self, memory: str) -> Surroundings:
        """What else holds memory of a GPU, by the newest readings; a context too young for them is as it usually is."""
        from gpudash.memory.explaining.memory_state import Surroundings, other_process

        with self._store.lock:
            rows = self._store.processes(memory) if memory != HOST else ()
        others = []
        for row in rows:
            size, pid = size_in(row.get("memory_bytes")), size_in(row.get("pid"))
            if size is not None and pid is not None and pid != os.getpid():
                others.append(other_process(size, pid, str(row.get("name") or ""), str(row.get("user") or "")))
        context = None
        if memory != HOST:
            context = self.context_bytes(memory) or measured_context(memory)
        return Surroundings(tuple(others), context)

    def listed(self, uuid: str, pid: int) -> tuple[float, int] | None:
        """When the driver last listed the processes of a GPU, and the bytes of one; ``None`` when it was not there."""
        with self._store.lock:
            time_s, rows = self._store.process_list(uuid)
        sizes = (size_in(row.get("memory_bytes")) for row in rows if row.get("pid") == pid)
        return next(((time_s, size) for size in sizes if size is not None), None)

    def lists_any(self, pids: Container[int]) -> bool:
        """Whether a driver's newest list of a GPU's processes has one of these."""
        with self._store.lock:
            return any(row.get("pid") in pids for gpu in self._monitor.gpus for row in self._store.processes(gpu.uuid))

    def own_bytes(self, uuid: str | None) -> int | None:
        """What this process has of a GPU; ``None`` while the driver has not told since a run's own process was ours."""
        with self._store.lock:
            found = self._store.latest("gpu", "process_bytes", uuid)
        is_old = found.time_s is None or found.time_s <= self._released_s
        if is_old:
            return None
        return found.size

    def context_bytes(self, uuid: str) -> int | None:
        """What our CUDA context takes of a GPU; ``None`` where the driver does not tell, or nothing of ours is there.

        It is what most of the newest readings say: each takes what is reserved from what the driver told a little
        earlier, which is wrong while that changes, and wrong by something else each time.
        """
        with self._store.lock:
            series = self._store.series("gpu", "context_bytes", uuid)
            newest = () if series is None else series.newest(CONTEXT_READINGS)[1].tolist()
        there = Counter(size for size in newest if size > 0)  # a gap is NaN, which is not
        if there:
            return int(there.most_common(1)[0][0])
        return None

    def host_run(self, uuid: str | None, pid: int | None) -> None:
        """Count a run's own process as ours, or with ``None`` none any more; called by the worker's thread.

        Args:
            uuid: of the GPU that it makes a context on; what that took is kept for later predictions.
        """
        if pid is None:
            with self._store.lock:
                # Readings up to now still have that process in them; `own_bytes` leaves them out.
                self._released_s = self._store.newest_s
        taken = None
        if pid is None and uuid is not None:
            taken = self.context_bytes(uuid)
        if uuid is not None and taken is not None:
            remember_context(uuid, taken)
        self._monitor.adopt(pid)

    def follow_ranks(self, ranks: Callable[[], Mapping[int, int]] | None) -> None:
        """Count the ranks of a run as ours in place of this process, or with ``None`` no longer.

        Args:
            ranks: gives their resident bytes by PID.
        """
        self._monitor.follow(ranks)

    def product_of(self, name: str) -> str | None:
        """What the device called ``name`` is; ``None`` when there is none of that name."""
        return next((device.product for device in self.devices() if device.name == name), None)

    def program_of(self, spec: Spec, device: str) -> str:
        """The plain PyTorch program that a run of ``spec`` on ``device`` amounts to.

        Raises:
            ValueError: one sentence, for a workload that is not built in.
        """
        return program_of(spec, device, self.devices(), self.simulated.others_bytes)

    def find(self, name: str) -> Device:
        """The device called ``name``.

        Raises:
            ValueError: one sentence saying which devices there are and why this one is not or cannot be used.
        """
        devices = {device.name: device for device in self.devices()}
        if name in devices:
            if devices[name].problem is not None:
                raise ValueError(f"No run can use {name}: {devices[name].problem}")
            return devices[name]
        there = ", ".join(devices)
        if kind_of(name) == "sim":
            raise ValueError(f"There is no device {name!r}; there is: {there}. --simulate 8GiB adds a simulated GPU.")
        if name.partition(":")[0] not in ("cuda", "xpu", "mps"):
            raise ValueError(f"{name!r} is not a device; there is: {there}.")
        reason = ""
        if self.problem:
            reason = f" ({self.problem.rstrip('.')})"
        raise ValueError(f"There is no device {name!r}{reason}; there is: {there}.")

    def latest(self, memory: str | None, metric: str) -> int | None:
        """The newest reading of the host or of a GPU; ``None`` when there is none, or for no memory."""
        if memory is None:
            return None
        if memory == HOST:
            table, device = ("host", None)
        else:
            table, device = ("gpu", memory)
        with self._store.lock:
            return self._store.latest(table, metric, device).size

    def knows_enough(self, now_s: float) -> bool:
        """Whether a run can be started: torch, if expected, and the machine are known, or the latter had its time."""
        return (self.torch is not None or not self.expects_torch) and (self._read or now_s >= GPU_PATIENCE_S)

    @property
    def _read(self) -> bool:
        """Whether the memories were read, and it is known which GPUs there are or why there is none.

        A GPU whose driver has said that its memory cannot be read has been read, too.
        """
        listed = bool(self._monitor.gpus) or self._monitor.problem is not None
        memories = [HOST, *(gpu.uuid for gpu in self.simulated.gpus)]
        with self._store.lock:
            readings = [self._store.latest("gpu", "used_bytes", gpu.uuid) for gpu in self._monitor.gpus]
        was_read = all(reading is not NEVER_READ for reading in readings)
        return listed and was_read and all(self.latest(memory, "used_bytes") is not None for memory in memories)

    @property
    def _has_no_gpu(self) -> bool:
        """Whether neither NVML nor torch has a GPU, once both have had their say."""
        if self._monitor.gpus or self._monitor.problem is None:
            return False
        if self.torch is None:
            return not self.expects_torch
        return not self.torch["cuda_available"]

    def level(self, memory: str) -> MemoryLevel | None:
        """How full a memory is; ``None`` without a reading."""
        from gpudash.workloads.running.context import MemoryLevel

        used, total = self.latest(memory, "used_bytes"), self.latest(memory, "total_bytes")
        free = self.latest(memory, "available_bytes" if memory == HOST else "free_bytes")
        if used is None or total is None or free is None:
            return None
        return MemoryLevel(used_bytes=used, free_bytes=free, total_bytes=total)

    def energy(self, name: str) -> tuple[float, float] | str:
        """The energy counter of a device: when it was read (s) and what it said (J), or in words why there is none."""
        found = next((device for device in self.devices() if device.name == name), None)
        if found is None or found.simulated:
            return f"{name} has no energy counter"
        return self._energy.read(found.uuid)

    def link_rate(self, uuid: str | None) -> float | None:
        """Theoretical bytes a second of the link to a GPU; ``None`` where it is not known, and for the CPU."""
        return next((gpu.link_bytes_per_second for gpu in self.gpus if gpu.uuid == uuid), None)

    def link(self, time_s: float) -> Note | None:
        """Tell the store which GPU is which; a note for the recording when that has changed, else ``None``."""
        if self._has_no_gpu:
            self.simulated.offer()
        gpus, known = self.gpus, self.torch is not None
        # Cheap comparison first: devices are listed only when NVML's GPUs, or what is known of torch, have changed.
        if (gpus, known) == self._seen:
            return None
        self._seen = gpus, known
        names = {device.name: device.uuid for device in self.devices() if device.uuid is not None}
        if (gpus, names) == self._linked:
            return None
        self._linked = (gpus, names)
        for name, uuid in names.items():
            self._store.link(name, uuid)
        text = ", ".join(map(_listed, gpus)) or "no GPU"
        details = {"gpus": list(map(asdict, gpus)), "torch_names": names}
        return Note(time_s=time_s, topic=Topic.GPUS, text=text, details=details)


class _Kept(Generic[P, T]):
    """A function that is called again only when its arguments differ from those of the last call."""

    def __init__(self, function: Callable[P, T]) -> None:
        self._function = function
        self._last: tuple[object, T] | None = None

    def __call__(self, *args: P.args, **options: P.kwargs) -> T:
        given = (args, options)
        if self._last is None or self._last[0] != given:
            self._last = (given, self._function(*args, **options))
        return self._last[1]


def _listed(gpu: Gpu) -> str:
    if gpu.simulated:
        return f"{gpu.product} ({SIMULATED})"
    return f"GPU {gpu.number} {gpu.product}"


class EnergyCounters:
    """Reads a counter: the CPU package's now, a GPU's as it was read last.

    Args:
        store: holds the newest readings.
        package: the CPU's; this system's by default.
    """

    def __init__(self, store: Store, package: PackageEnergy | None = None) -> None:
        from gpudash.sources.host import PackageEnergy as Counters

        self._store = store
        self._package = package or Counters()

    def read(self, uuid: str | None) -> tuple[float, float] | str:
        """When the counter was read (seconds) and what it said (joules), or in words why there is none.

        Args:
            uuid: of the GPU; ``None`` for the CPU.
        """
        if uuid is None:
            joules = self._package.joules()
            if isinstance(joules, str):
                return joules
            return (time.monotonic(), joules)
        with self._store.lock:
            reading = self._store.latest("gpu", "energy_j", uuid)
        if reading.time_s is None:
            return NOT_READ_YET
        if reading.state is State.OK and reading.number is not None:
            return reading.time_s, float(reading.number)
        return NOT_REPORTED


def measured_context(uuid: str | None) -> int | None:
    """Bytes that the context of an earlier run took on a GPU; ``None`` when none was measured, or for no GPU."""
    if uuid is None:
        return None
    return _known_contexts().get(uuid)


def remember_context(uuid: str, size: int) -> None:
    """Keep what a context took; a size that cannot be one is not kept."""
    known = _known_contexts()
    if size not in PLAUSIBLE_BYTES or known.get(uuid) == size:
        return
    with suppress(OSError):  # it only makes later predictions a little better
        make_private_folder(_contexts_file().parent)
        with written_whole(_contexts_file(), private=True) as part:
            part.write_text(json.dumps({**known, uuid: size}, indent=2), encoding="utf-8")


def _contexts_file() -> Path:
    return data_folder() / "contexts.json"


def _known_contexts() -> dict[str, int]:
    try:
        found = json_object(read_regular(_contexts_file(), MOST_CONTEXTS_BYTES)) or {}
    except (OSError, ValueError):
        return {}
    return {uuid: size for uuid, size in found.items() if isinstance(size, int) and size in PLAUSIBLE_BYTES}


def program_of(
    spec: Spec, device: str, devices: Sequence[Device] = (), others_bytes: int = 0, remark: Sequence[str] = ()
) -> str:
    """A program of at most 60 lines that does with torch alone what ``spec`` does on ``device``.

    Args:
        devices: what there is; of simulated GPUs the program makes as many of the same kind.
        others_bytes: what simulated other processes hold of ``sim:0``.
        remark: comments that it begins with.

    Raises:
        ValueError: one sentence, for a workload that is not built in.
    """
    from gpudash.workloads.program_code import code

    cards = [simulated_card(found) for found in devices if found.simulated and not is_program_card(found.name)]
    if kind_of(device) == "sim":
        # As many as it takes for the program's last card to have the name that was asked for.
        cards += [OFFERED_BYTES] * (int(device.partition(":")[2]) + 1 - len(cards))
    return code(spec, device, Simulation(tuple(cards), others_bytes), remark=remark)


def program_of_run(workload: str, fields: Mapping[str, Any], device: str, devices: Sequence[Device] = ()) -> str:
    """The program of a run that was recorded.

    Args:
        workload, fields, device: as `RunStarted` tells them.

    Raises:
        ValueError: one sentence, when the workload is not here, not built in, or does not take these fields any more.
    """
    found = workloads().get(workload)
    if found is None:
        own = workload == "watch"
        if own:
            what = "your own program, which is one already"
        else:
            what = f"the workload {workload}, which is not here"
        raise ValueError(f"This was {what}; there is no program to copy.")
    remark = () if kind_of(device) == "cpu" else NOT_KEPT
    return program_of(build(found, dict(fields)), device, devices, remark=remark)
