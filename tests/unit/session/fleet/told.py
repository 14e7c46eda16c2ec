"""GPUs as exporters tell of them, for tests of a fleet."""

from __future__ import annotations

from typing import Any

from gpudash.session.fleet.overview import FleetGpu
from gpudash.sources.prometheus.gpus import ReportedGpu, ReportedGpus
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
) -> ReportedGpu:
    """One GPU of 80 GiB."""
    instance = f"{host}:{port}"
    values = {"total_bytes": 80.0 * GIB}
    if used_gib is not None:
        values["used_bytes"] = used_gib * GIB
    labels = {"uuid": uuid, "instance": instance}
    key = uuid.lower().removeprefix("gpu-")
    return ReportedGpu(key, exporter, uuid, (instance, uuid), labels, host, values=values, **beside)


def reported(*gpus: ReportedGpu) -> ReportedGpus:
    return ReportedGpus(list(gpus))


def seen(*gpus: ReportedGpu, at: float = NOW) -> dict[tuple[str, str], float]:
    """When each was scraped."""
    return {gpu.where: at for gpu in gpus}


def fleet_gpu(key: str, fullness: float | None, **beside: Any) -> FleetGpu:
    """A GPU of 100 GiB on machine "n1"."""
    used = None if fullness is None else round(fullness * 100 * GIB)
    facts: dict[str, Any] = {"host": "n1", "index": 0, "product": "GPU", "exporter": "gpudash", "seen_s": NOW, **beside}
    return FleetGpu(
        key=key,
        uuid=f"GPU-{key}",
        used_bytes=used,
        total_bytes=100 * GIB,
        utilisation=None,
        **facts,
    )
