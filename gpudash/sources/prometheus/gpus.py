"""Every GPU in one answer of a Prometheus server, from any of the three exporters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpudash.sources.prometheus.names import EXPORTERS, NAMES, OVERVIEW, any_of, impossibility, is_blank, names
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.metrics import METRICS, Exporter
from gpudash.units import format_pair

Labels = Mapping[str, str]

FACTS = ("info", "index", "run", "status", "warning", "forecast")

QUERY = any_of([*names(None, "gpu", metrics=OVERVIEW), *names(None, "fact", metrics=FACTS)])
"""Query for everything an overview shows, of all GPUs together."""

TIMES_QUERY = " or ".join(f"timestamp({name})" for name in names(None, "gpu", metrics=["used_bytes"]))
"""Query for the time at which each GPU's memory was last scraped; the answer to `QUERY` has its own time instead."""

INTERVAL_S = 300
"""Seconds that `COUNT_QUERY` looks back."""

COUNT_QUERY = " or ".join(
    f"count_over_time({name}[{INTERVAL_S}s])" for name in names(None, "gpu", metrics=["used_bytes"])
)
"""Query for the number of times each GPU's memory was scraped in the last `INTERVAL_S`."""

_USED = frozenset(names(None, "gpu", metrics=["used_bytes"]))
_WHOLE = frozenset(metric.name for metric in METRICS["gpu"] if metric.type == "INTEGER")
_TRUE = frozenset({"true", "yes", "1"})
_KINDS = ("GPU-", "MIG-", "SIM-")
_MIG, _MIG_PROFILE = "GPU_I_ID", "GPU_I_PROFILE"
"""dcgm-exporter's labels for a MIG instance: its number, and its size."""

UNNAMED = "unnamed machine"
"""Name of a machine whose series have no label that identifies it."""

_LEVELS = ("critical", "warning", "forecast")


@dataclass(slots=True)
class ReportedGpus:
    """The content of an answer.

    Attributes:
        gpus: one entry for each GPU and exporter.
        machines: for each instance, the levels of gpudash's current warnings about its host memory; without machines
            whose GPU shares that memory.
        odd: malformed entries, which were ignored.
        unread: names of the GPUs that an exporter lists without readings, which were left out.
    """

    gpus: list[FleetGpu] = field(default_factory=list)
    machines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    odd: int = 0
    unread: list[str] = field(default_factory=list)


def read_gpus(result: Iterable[Mapping[str, Any]]) -> ReportedGpus:
    """The GPUs in the answer to `QUERY`."""
    reader = _Reader()
    for entry in result:
        try:
            reader.take(entry)
        # A malformed entry is skipped alone: exporters of all versions answer here.
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            reader.found.odd += 1
    return reader.finished()


def read_times(result: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """The time at which each GPU's memory was last scraped, by (instance, identity), from the answer to
    `TIMES_QUERY`."""
    times: dict[tuple[str, str], float] = {}
    for entry in result:
        try:
            labels = entry["metric"]
            times[identity(labels)] = float(entry["value"][1])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            continue  # a GPU without a time counts as never seen
    return times


def read_intervals(result: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Scrape interval in seconds by (instance, identity), from the answer to `COUNT_QUERY`."""
    return {where: INTERVAL_S / count for where, count in read_times(result).items() if count > 0}


def identity(labels: Labels) -> tuple[str, str]:
    """The instance of a series, and the GPU on it."""
    # gpudash and nvidia_gpu_exporter write uuid, dcgm-exporter UUID; without either, use an index.
    uuid = labels.get("uuid") or labels.get("UUID") or labels.get("gpu") or labels.get("device") or ""
    part = labels.get(_MIG, "")
    return labels.get("instance", ""), f"{uuid}/{part}" if part else uuid


def machine_of(instance: str) -> str:
    """The machine in the server's instance label: "node1" for "node1:9400"."""
    if not instance:
        return UNNAMED
    # A port identifies the exporter, not the machine.
    host, colon, port = instance.rpartition(":")
    if colon and port.isdecimal():
        return host.strip("[]")
    return instance


def same_gpu(uuid: str) -> str:
    """A UUID in a common spelling: nvidia_gpu_exporter omits the "GPU-"."""
    return uuid.lower().removeprefix("gpu-")


class _Reader:
    """Reads one answer."""

    def __init__(self) -> None:
        self.found = ReportedGpus()
        self._gpus: dict[tuple[Exporter, str, str], FleetGpu] = {}
        self._runs: dict[str, dict[str, str]] = defaultdict(dict)
        self._running: dict[str, set[str]] = defaultdict(set)
        self._warned: dict[tuple[str, str], set[str]] = defaultdict(set)

    def take(self, entry: Mapping[str, Any]) -> None:
        labels = entry["metric"]
        text = labels["__name__"]
        name = NAMES.get(text)
        if name is None:
            return
        value = float(entry["value"][1])
        if name.kind == "gpu":
            # Keep the labels of the memory's series: the history is queried by them.
            gpu = self._gpu(name.exporter, labels, known=text in _USED)
            if is_blank(name, value):
                return
            if why := impossibility(name, value):
                gpu.impossible.append(f"{text}: {why}")
            else:
                others = 0.0
                # dcgm-exporter reports some figures in parts, in any order.
                if name.part:
                    others = gpu.values.get(name.metric, 0.0)
                total = others + value * name.scale
                gpu.values[name.metric] = round(total) if name.metric in _WHOLE else total
        elif name.metric in ("info", "index", "forecast"):
            self._describe(self._gpu(name.exporter, labels), name.metric, labels, value)
        elif value == 1 and name.metric == "run":
            self._runs[labels.get("instance", "")][labels.get("device", "")] = labels.get("workload", "")
        # Series that are 1 while something holds: only those count.
        elif value == 1 and name.metric == "status" and labels.get("status") == "running":
            self._running[labels.get("instance", "")].add(labels.get("device", ""))
        elif value == 1 and name.metric == "warning" and labels.get("level") in _LEVELS:
            self._warned[labels.get("instance", ""), labels.get("device", "")].add(labels["level"])

    def _gpu(self, exporter: Exporter, labels: Labels, *, known: bool = False) -> FleetGpu:
        instance, which = identity(labels)
        # One entry for each exporter: two may report the same GPU; a later step decides between them.
        gpu = self._gpus.get((exporter, instance, which))
        if gpu is None:
            uuid = labels.get("uuid") or labels.get("UUID") or ""
            if exporter == "nvidia_gpu_exporter" and uuid and not uuid.startswith(_KINDS):
                uuid = f"GPU-{uuid}"  # nvidia_gpu_exporter omits it
            alone = which
            if instance:
                alone = f"{machine_of(instance)}/{which}"
            key = alone
            # NVIDIA's UUIDs are unique in the world; a simulated one is the same on every machine.
            if uuid.startswith(("GPU-", "MIG-")):
                key = same_gpu(which)
            host = labels.get("Hostname") or machine_of(instance)
            product = labels.get("modelName", "")
            gpu = FleetGpu(key, host, _number(labels, "gpu"), uuid, product, exporter, where=(instance, which))
            gpu.labels = labels
            self._gpus[exporter, instance, which] = gpu
        elif known:
            gpu.labels = labels
        return gpu

    @staticmethod
    def _describe(gpu: FleetGpu, fact: str, labels: Labels, value: float) -> None:
        if fact == "forecast":
            # Infinity means "never".
            if 0 <= value < 1e308:
                gpu.forecast_s = value
            else:
                gpu.forecast_s = None
            return
        if fact == "index":
            gpu.index = int(value)
            return
        index = _number(labels, "index")
        if index is not None:
            gpu.index = index
        gpu.product = labels.get("product") or labels.get("name") or gpu.product
        gpu.host = labels.get("host") or gpu.host
        gpu.torch_name = labels.get("torch_name", "")
        gpu.shared_memory = labels.get("shared_memory", "").lower() in _TRUE
        gpu.simulated = labels.get("simulated", "").lower() in _TRUE or gpu.uuid.startswith("SIM-")

    def finished(self) -> ReportedGpus:
        for (exporter, instance, which), gpu in self._gpus.items():
            _complete(gpu)
            # Labels alone do not mean the GPU is there now: an exporter may list what it does not read.
            if not gpu.values and not gpu.impossible:
                self.found.unread.append(gpu.name)
                continue
            if exporter == "gpudash":
                gpu.run = self._run(instance, gpu.torch_name)
                gpu.warnings = _ordered(self._warned.get((instance, which), ()))
            self.found.gpus.append(gpu)
        # There the GPU's own warning is the host's too.
        sharing = {instance for (_, instance, _), gpu in self._gpus.items() if gpu.shared_memory}
        for (instance, device), levels in self._warned.items():
            if device == "host" and instance not in sharing:
                self.found.machines[instance] = _ordered(levels)
        # The best exporter first: of several, that one is used.
        self.found.gpus.sort(key=lambda gpu: EXPORTERS.index(gpu.exporter))
        return self.found

    def _run(self, instance: str, torch_name: str) -> str:
        """The workload running on a GPU of ``instance``; a run may use several devices."""
        for device, workload in self._runs.get(instance, {}).items():
            if torch_name and torch_name in device.split(",") and device in self._running.get(instance, ()):
                return workload
        return ""


def _complete(gpu: FleetGpu) -> None:
    """Add what follows from an exporter's figures, and remove what contradicts it."""
    values = gpu.values
    used, free = values.get("used_bytes"), values.get("free_bytes")
    if used is not None and free is not None and "total_bytes" not in values:
        values["total_bytes"] = used + free + values.get("driver_reserved_bytes", 0)
    total = values.get("total_bytes")
    if used is not None and total is not None and used > total:
        gpu.impossible.append(f"used {format_pair(used, total)} is more than there is")
        del values["used_bytes"]
    gpu.instance = _number(gpu.labels, _MIG)
    if gpu.labels.get(_MIG):
        gpu.profile = gpu.labels.get(_MIG_PROFILE, "")


def _number(labels: Labels, name: str) -> int | None:
    text = labels.get(name, "")
    if text.isdecimal():
        return int(text)
    return None


def _ordered(levels: Iterable[str]) -> tuple[str, ...]:
    return tuple(level for level in _LEVELS if level in levels)
