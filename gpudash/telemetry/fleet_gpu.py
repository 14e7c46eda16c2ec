"""One GPU of a fleet, whoever reports it: an exporter to a Prometheus server, or its machine over ssh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpudash.telemetry.metrics import SPOKEN, Exporter

Reporter = Exporter | Literal["ssh"]
"""Who tells of a GPU: an exporter, or the machine itself over ssh."""

HOLDERS = ("pod", "namespace", "container", "hpc_job")
"""Labels by which dcgm-exporter says who holds a GPU, of Kubernetes and of a batch system
(https://github.com/NVIDIA/dcgm-exporter)."""


@dataclass(slots=True)
class FleetGpu:
    """One GPU. Nothing of it changes once its reader has handed it out.

    Attributes:
        key: what identifies it in the fleet: its UUID, with the MIG part; machine and index where there is no UUID, or
            one that every machine has (a simulated GPU's).
        host: the machine, as its exporter or the server calls it.
        index: the driver's index on that machine.
        uuid: "GPU-…"; empty where it is not told.
        product: marketing name; empty where it is not told.
        exporter: whose names the figures have; of several exporters for one GPU, the one that is shown.
        seen_s: when its memory was read last, in seconds since the epoch; 0 where that is not known.
        values: its newest readings by the names of `metrics.METRICS`; what is not told is not there, and never 0.
        stale: whether they are too old to go on with.
        simulated: whether nothing of it is there but its memory's bookkeeping.
        shared_memory: whether its memory is its machine's.
        run: the workload that runs on it; empty for none, or where that is not told.
        labels: the server's labels of its series ("job", "instance", "namespace", "pod" ...), to group by.
        where: where the server has it from: what is scraped, and its identity there.
        also: other exporters that tell of the same GPU, and are not shown.
        torch_name: what torch calls it on its machine, where gpudash tells.
        drawn_j: energy that it has drawn since the fleet was opened; ``None`` where it does not tell.
        is_host: whether it is no GPU but the memory of a machine without one.
        instance: number of a MIG instance on its GPU; ``None`` of a whole one.
        profile: size of a MIG instance, such as "1g.10gb"; "" of a whole GPU, or where its product says it.
        impossible: figures that cannot be, which are left out: what is wrong with each, in words.
        warnings: levels of the warnings of a gpudash there that stand.
        forecast_s: time until its memory is full, as a gpudash there foretells it.
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
        """Who holds it by its labels: "pod train-0", "namespace ml", "container main"; none where they do not say.

        Where the server has labels of its own by these names, those of the exporter begin with "exported_".
        """
        named = ((name, self.labels.get(f"exported_{name}") or self.labels.get(name)) for name in HOLDERS)
        return tuple(f"{name.removeprefix('hpc_')} {value}" for name, value in named if value)

    @property
    def number(self) -> str:
        """The driver's numbering on its machine: "0", of a MIG instance "0:1"; "" where that is not told."""
        parts = (self.index, self.instance)
        return ":".join(str(part) for part in parts if part is not None)

    @property
    def used_bytes(self) -> float | None:
        """As its exporter counts it, without the driver's own share where that is told apart."""
        return self.values.get("used_bytes")

    @property
    def total_bytes(self) -> float | None:
        """All of its memory."""
        return self.values.get("total_bytes")

    @property
    def utilisation(self) -> float | None:
        """Share of time in which a kernel ran, or a machine's processor, 0 to 1."""
        return self.values.get("cpu_utilisation" if self.is_host else "gpu_utilisation")

    @property
    def taken_bytes(self) -> float | None:
        """Bytes that are not free, the driver's own share with them; ``None`` where they are not known."""
        if self.used_bytes is None:
            return None
        return self.used_bytes + self.values.get("driver_reserved_bytes", 0)

    @property
    def fullness(self) -> float | None:
        """How full its memory is, 0 to 1; ``None`` where it is not known."""
        taken = self.taken_bytes
        if taken is None or not self.total_bytes:
            return None
        return taken / self.total_bytes

    @property
    def reported_by(self) -> str:
        """Whose figures are shown, and who else knows the GPU: "gpudash (dcgm-exporter knows it too)"."""
        others = " and ".join(SPOKEN[exporter] for exporter in self.also)
        if not others:
            return SPOKEN[self.exporter]
        verb = "know"
        if len(self.also) == 1:
            verb = "knows"
        return f"{SPOKEN[self.exporter]} ({others} {verb} it too)"

    @property
    def name(self) -> str:
        """Machine and index, as a person speaks of it."""
        if self.is_host:
            return f"{self.host}'s memory"
        number = f"{self.number} {self.profile}".rstrip()
        if self.index is not None:
            return f"{self.host} GPU {number}"
        return f"{self.host} {self.uuid[:12]}".rstrip()
