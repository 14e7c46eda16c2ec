"""Which devices there are and what they are called: what NVML lists, joined with what torch can use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpudash.devices import (
    CudaOrder,
    Device,
    Gpu,
    cuda_devices,
    cuda_order,
    default_device,
    why_torch_has_no_gpu,
)
from gpudash.memory.levels import HOST
from gpudash.telemetry.records import Note
from gpudash.telemetry.store import Store

if TYPE_CHECKING:
    from gpudash.sources.discovery import Host
    from gpudash.sources.monitor import Monitor
    from gpudash.workloads.worker import MemoryLevel


class Machine:
    """The devices of a live session. Any thread may ask; the session's thread alone tells it of torch.

    Args:
        host: the processor and its memory.
        monitor: knows the GPUs that NVML lists, which may come later.
        store: holds the newest readings.

    Attributes:
        torch: what torch is and sees (`torch_report`); ``None`` until that is known.
    """

    def __init__(self, host: Host, monitor: Monitor, store: Store) -> None:
        self.torch: Mapping[str, Any] | None = None
        self._host = host
        self._monitor = monitor
        self._store = store
        self._seen: tuple[tuple[Gpu, ...], bool] = ((), False)
        self._linked: tuple[tuple[Gpu, ...], dict[str, str]] = ((), {})

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU NVML lists, also those torch does not see."""
        return self._monitor.gpus

    @property
    def host(self) -> Device:
        """The CPU."""
        return Device("cpu", f"{self._host.product}, {self._host.cores} cores", self._host.total_bytes)

    def devices(self) -> list[Device]:
        """The devices a run can use: the CPU first, then torch's CUDA devices in torch's order."""
        return [self.host, *cuda_devices(self.cuda_order(), self.torch)]

    def cuda_order(self) -> CudaOrder:
        """torch's numbering of the GPUs NVML lists."""
        return cuda_order(self.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))

    def default_device(self) -> str:
        """The usable CUDA device with most free memory, else the CPU."""
        devices = self.devices()
        free = {d.uuid: size for d in devices if d.uuid and (size := self.latest(d.uuid, "free_bytes")) is not None}
        return default_device(devices, free)

    @property
    def problem(self) -> str | None:
        """One line saying why no GPU can be used, or why some are missing; ``None`` when all is well."""
        if self._monitor.problem is not None:
            return self._monitor.problem
        order = self.cuda_order()
        why = None if self.torch is None else why_torch_has_no_gpu(self.torch, order)
        return why or order.reason or None

    @property
    def torch_words(self) -> str | None:
        """What torch this is, or that there is none; ``None`` while it loads."""
        if self.torch is None:
            return None
        return "no torch" if self.torch.get("version") is None else f"torch {self.torch['version']}"

    def words(self, memory: str) -> str:
        """How a memory (a GPU's UUID or "host") is called at the beginning of a sentence."""
        if memory == HOST:
            return "This computer's memory"
        names = {found.uuid: found.name for found in self.devices()}
        return names.get(memory) or next((f"GPU {gpu.nvml_index}" for gpu in self.gpus if gpu.uuid == memory), memory)

    def find(self, name: str) -> Device:
        """The device called ``name``.

        Raises:
            ValueError: one sentence saying which devices there are and why this one is not.
        """
        devices = {device.name: device for device in self.devices()}
        if name in devices:
            return devices[name]
        there = ", ".join(devices)
        if not name.startswith("cuda"):
            raise ValueError(f"{name!r} is not a device; there is: {there}.")
        reason = f" ({self.problem.rstrip('.')})" if self.problem else ""
        raise ValueError(f"There is no device {name!r}{reason}; there is: {there}.")

    def latest(self, memory: str, metric: str) -> int | None:
        """The newest reading of the host or of a GPU; ``None`` when there is none."""
        table, device = ("host", None) if memory == HOST else ("gpu", memory)
        with self._store.lock:
            value = self._store.latest(table, metric, device).value
        return int(value) if isinstance(value, (int, float)) else None

    @property
    def read(self) -> bool:
        """Whether the host's memory was read, and it is known which GPUs there are or why there is none."""
        listed = bool(self.gpus) or self._monitor.problem is not None
        return listed and self.latest(HOST, "used_bytes") is not None

    def level(self, memory: str) -> MemoryLevel | None:
        """How full a memory is; ``None`` without a reading."""
        from gpudash.workloads.worker import MemoryLevel

        used, total = self.latest(memory, "used_bytes"), self.latest(memory, "total_bytes")
        free = self.latest(memory, "available_bytes" if memory == HOST else "free_bytes")
        if used is None or total is None or free is None:
            return None
        return MemoryLevel(used_bytes=used, free_bytes=free, total_bytes=total)

    def link_rate(self, uuid: str | None) -> float | None:
        """Theoretical bytes a second of the link to a GPU; ``None`` where it is not known, and for the CPU."""
        return next((gpu.link_bytes_per_second for gpu in self.gpus if gpu.uuid == uuid), None)

    def link(self, time_s: float) -> Note | None:
        """Tell the store which GPU is which; a note for the recording when that has changed, else ``None``."""
        gpus, known = self.gpus, self.torch is not None
        if (gpus, known) == self._seen:
            return None
        self._seen = gpus, known
        names = {device.name: device.uuid for device in self.devices() if device.uuid is not None}
        if (gpus, names) == self._linked:
            return None
        self._linked = (gpus, names)
        for name, uuid in names.items():
            self._store.link(name, uuid)
        words = ", ".join(gpu.product for gpu in gpus) or "no GPU"
        details = {"gpus": [asdict(gpu) for gpu in gpus], "torch_names": names}
        return Note(time_s=time_s, topic="gpus", text=words, details=details)
