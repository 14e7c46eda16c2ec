"""GPUs as exporters tell of them, for tests of a fleet."""

from __future__ import annotations

from typing import Any

from gpudash.sources.prometheus.gpus import ReportedGpus
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.metrics import Exporter
from gpudash.units import GIB
from tests.prometheus_server.fake import NOW


def told_gpu(
    uuid: str,
    used_gib: float | None = 10,
    *,
    exporter: Exporter = "gpudash",
    host: str = "n1",
    port: int = 1,
    **beside: Any,
) -> FleetGpu:
    """One GPU of 80 GiB."""
    instance = f"{host}:{port}"
    values = {"total_bytes": 80.0 * GIB}
    if used_gib is not None:
        values["used_bytes"] = used_gib * GIB
    facts: dict[str, Any] = {"index": None, "labels": {"uuid": uuid, "instance": instance}, **beside}
    key, where = uuid.lower().removeprefix("gpu-"), (instance, uuid)
    return FleetGpu(key, host, uuid=uuid, product="", exporter=exporter, where=where, values=values, **facts)


def reported(*gpus: FleetGpu) -> ReportedGpus:
    return ReportedGpus(list(gpus))


def seen(*gpus: FleetGpu, at: float = NOW) -> dict[tuple[str, str], float]:
    """When each was scraped."""
    return {gpu.where: at for gpu in gpus}


def fleet_gpu(key: str, fullness: float | None, **beside: Any) -> FleetGpu:
    """A GPU of 100 GiB on machine "n1"."""
    values: dict[str, float] = {"total_bytes": 100 * GIB, **beside.pop("values", {})}
    if fullness is not None:
        values["used_bytes"] = round(fullness * 100 * GIB)
    facts: dict[str, Any] = {"host": "n1", "index": 0, "product": "GPU", "exporter": "gpudash", "seen_s": NOW, **beside}
    return FleetGpu(key=key, uuid=f"GPU-{key}", values=values, **facts)
