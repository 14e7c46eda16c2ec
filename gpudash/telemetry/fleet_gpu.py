"""A GPU of a fleet, reported by an exporter to a Prometheus server, or by its machine over ssh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpudash.telemetry.metrics import SPOKEN, Exporter

Reporter = Exporter | Literal["ssh"]
"""Source of a GPU's readings: an exporter, or the machine itself over ssh."""

HOLDERS = ("pod", "namespace", "container", "hpc_job")
"""dcgm-exporter's labels for the user of a GPU, in Kubernetes and in a batch system
(https://github.com/NVIDIA/dcgm-exporter)."""


@dataclass(slots=True)
class FleetGpu:
    """A GPU of a fleet. Immutable once its reader has published it.

    Attributes:
        key: identity in the fleet: the UUID, with the MIG part; machine and index if there is no UUID, or every
            machine has the same one (a simulated GPU's).
        host: name of the machine, by its exporter or the server.
        index: index in the machine's driver.
        uuid: "GPU-…"; "" if unknown.
        product: marketing name; "" if unknown.
        exporter: exporter whose figures are shown, of several for one GPU.
        seen_s: time of the last reading of its memory, in seconds since the epoch; 0 if unknown.
        values: newest readings by the names of `metrics.METRICS`; unknown ones are absent, never 0.
        stale: whether the readings are too old to use.
        simulated: whether only its memory is modelled, without a real GPU.
        shared_memory: whether it uses its machine's memory.
        run: workload that runs on it; "" for none or unknown.
        labels: the server's labels for its series ("job", "instance", "namespace", "pod" ...), for grouping.
        where: its source on the server: the scraped instance, and its identity there.
        also: other exporters that report the same GPU, and are not shown.
        torch_name: torch's name for it on its machine, if gpudash reports it.
        drawn_j: energy used since the fleet was opened; ``None`` if not reported.
        is_host: whether it is the memory of a machine without a GPU.
        instance: number of a MIG instance; ``None`` for a whole GPU.
        profile: profile of a MIG instance, such as "1g.10gb"; "" for a whole GPU, or if the product includes it.
        impossible: figures that were dropped as impossible, with the reason in words.
        warnings: levels of current warnings from a gpudash on its machine.
        forecast_s: time until its memory is full, by a forecast of that gpudash.
    """

    key: str
    host: str
    index: int | None
    uuid: str
    product: str
    exporter: Reporter
    seen_s: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    stale: bool = False
    simulated: bool = False
    shared_memory: bool = False
    run: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    where: tuple[str, str] = ("", "")
    also: tuple[Reporter, ...] = ()
    torch_name: str = ""
    drawn_j: float | None = None
    is_host: bool = False
    instance: int | None = None
    profile: str = ""
    impossible: list[str] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    forecast_s: float | None = None

    @property
    def holders(self) -> tuple[str, ...]:
        """Its users by the labels: "pod train-0", "namespace ml", "container main"; empty if there are none.

        If the server has its own labels of these names, the exporter's begin with "exported_".
        """
        named = ((name, self.labels.get(f"exported_{name}") or self.labels.get(name)) for name in HOLDERS)
        return tuple(f"{name.removeprefix('hpc_')} {value}" for name, value in named if value)

    @property
    def number(self) -> str:
        """The driver's number on its machine: "0", or "0:1" for a MIG instance; "" if unknown."""
        parts = (self.index, self.instance)
        return ":".join(str(part) for part in parts if part is not None)

    @property
    def used_bytes(self) -> float | None:
        """Used memory by its exporter, without the driver's own part if that is known."""
        return self.values.get("used_bytes")

    @property
    def total_bytes(self) -> float | None:
        """All of its memory."""
        return self.values.get("total_bytes")

    @property
    def utilisation(self) -> float | None:
        """Share of time in which a kernel ran (or a machine's processor was busy), 0 to 1."""
        return self.values.get("cpu_utilisation" if self.is_host else "gpu_utilisation")

    @property
    def taken_bytes(self) -> float | None:
        """Bytes that are not free, including the driver's own; ``None`` if unknown."""
        if self.used_bytes is None:
            return None
        return self.used_bytes + self.values.get("driver_reserved_bytes", 0)

    @property
    def fullness(self) -> float | None:
        """How full its memory is, 0 to 1; ``None`` if unknown."""
        taken = self.taken_bytes
        if taken is None or not self.total_bytes:
            return None
        return taken / self.total_bytes

    @property
    def reported_by(self) -> str:
        """The exporter whose figures are shown, and others that know the GPU: "gpudash (dcgm-exporter knows it
        too)"."""
        others = " and ".join(SPOKEN[exporter] for exporter in self.also)
        if not others:
            return SPOKEN[self.exporter]
        verb = "know"
        if len(self.also) == 1:
            verb = "knows"
        return f"{SPOKEN[self.exporter]} ({others} {verb} it too)"

    @property
    def name(self) -> str:
        """Machine and index, in words."""
        if self.is_host:
            return f"{self.host}'s memory"
        number = f"{self.number} {self.profile}".rstrip()
        if self.index is not None:
            return f"{self.host} GPU {number}"
        return f"{self.host} {self.uuid[:12]}".rstrip()
