"""The figures of GPUs as tab-separated text, with units in the header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudash.session.fleet import FleetGpu

COLUMNS = (
    "machine",
    "index",
    "uuid",
    "product",
    "used_bytes",
    "total_bytes",
    "utilisation",
    "temperature_c",
    "power_w",
    "run",
    "exporter",
    "simulated",
    "stale",
)


def table_text(gpus: Sequence[FleetGpu]) -> str:
    """A header and one line a GPU; what is not known is an empty field."""
    lines = ["\t".join(COLUMNS)]
    for gpu in gpus:
        values = (
            gpu.host,
            gpu.index,
            gpu.uuid,
            gpu.product,
            gpu.used_bytes,
            gpu.total_bytes,
            gpu.utilisation,
            gpu.temperature_c,
            gpu.power_w,
            gpu.run,
            gpu.exporter,
            "yes" if gpu.simulated else "no",
            "yes" if gpu.stale else "no",
        )
        lines.append("\t".join("" if value is None else str(value).replace("\t", " ") for value in values))
    return "\n".join(lines)
