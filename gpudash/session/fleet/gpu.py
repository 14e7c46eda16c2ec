"""A GPU of a fleet as a metrics server last told of it, and a warning over the fleet; both frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpudash.sources.prometheus.gpus import identity
from gpudash.sources.prometheus.names import SPOKEN
from gpudash.telemetry.metrics import Exporter

Level = Literal["warning", "critical"]


@dataclass(frozen=True, slots=True)
class FleetGpu:
    """One GPU. What its exporter does not tell is ``None``, never 0.

    Attributes:
        key: what identifies it in the fleet: its UUID, or machine and index where no UUID is told.
        host: the machine, as its exporter or the server calls it.
        index: the driver's index on that machine.
        uuid: "GPU-…"; empty where it is not told.
        product: marketing name; empty where it is not told.
        used_bytes: as the exporter counts it, without the driver's own share where that is told apart.
        total_bytes: all of its memory.
        utilisation: share of time in which a kernel ran, 0 to 1.
        exporter: whose names the figures have; of several exporters for one GPU, the one that is shown.
        seen_s: when its memory was scraped last, in seconds since the epoch.
        stale: whether that is too long ago to go on with.
        simulated: whether nothing of it is there but its memory's bookkeeping.
        run: the workload that runs on it; empty for none, or where that is not told.
        labels: the server's labels of its series ("job", "instance", "namespace", "pod" ...), to group by.
        also: other exporters that tell of the same GPU, and are not shown.
        reserved_bytes: the driver's own share, where it is told apart.
        torch_name: what torch calls it on its machine, where gpudash tells.
        sensors: what else it tells of itself, such as its temperature: values by the names of `metrics.SENSORS`.
    """

    key: str
    host: str
    index: int | None
    uuid: str
    product: str
    used_bytes: int | None
    total_bytes: int | None
    utilisation: float | None
    exporter: Exporter
    seen_s: float
    stale: bool = False
    simulated: bool = False
    run: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    also: tuple[Exporter, ...] = ()
    reserved_bytes: int | None = None
    torch_name: str = ""
    sensors: Mapping[str, float] = field(default_factory=dict)

    @property
    def fullness(self) -> float | None:
        """How full its memory is, 0 to 1, the driver's own share counted as used; ``None`` where it is not known."""
        if self.used_bytes is None or not self.total_bytes:
            return None
        return (self.used_bytes + (self.reserved_bytes or 0)) / self.total_bytes

    @property
    def where(self) -> tuple[str, str]:
        """Where the server has it from: what is scraped, and its identity there."""
        return identity(self.labels)

    @property
    def told_by(self) -> str:
        """Whose figures are shown, and who else knows the GPU: "gpudash (dcgm-exporter knows it too)"."""
        others = " and ".join(SPOKEN[exporter] for exporter in self.also)
        verb = "knows" if len(self.also) == 1 else "know"
        return f"{SPOKEN[self.exporter]} ({others} {verb} it too)" if others else SPOKEN[self.exporter]

    @property
    def name(self) -> str:
        """Machine and index, as a person speaks of it."""
        return f"{self.host} GPU {self.index}" if self.index is not None else f"{self.host} {self.uuid[:12]}".rstrip()


@dataclass(frozen=True, slots=True)
class FleetWarning:
    """Something to look at.

    Attributes:
        key: of the GPU; empty where it concerns a whole machine, or the server.
        level: how grave it is.
        text: one sentence that begins with the machine's name.
        kind: what it is about.
    """

    key: str
    level: Level
    text: str
    kind: Literal["memory", "forecast", "host", "stale", "server"] = "memory"
