"""The names of three exporters' metrics, and what each means here: one quantity in bytes, SI units or a ratio.

gpudash's own are those of ``gpudash monitor --serve``; dcgm-exporter's those of its default counters
(https://github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv), memory in MiB; nvidia_gpu_exporter's those of its
METRICS.md (https://github.com/utkuozdemir/nvidia_gpu_exporter).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from gpudash.units import MIB

Exporter = Literal["gpudash", "dcgm", "nvidia_gpu_exporter"]

EXPORTERS: tuple[Exporter, ...] = ("gpudash", "dcgm", "nvidia_gpu_exporter")
"""Best first: gpudash's own tell most, and in base units."""

SPOKEN: dict[Exporter, str] = {
    "gpudash": "gpudash",
    "dcgm": "dcgm-exporter",
    "nvidia_gpu_exporter": "nvidia_gpu_exporter",
}
"""What they are called in a sentence."""

Kind = Literal["gpu", "host", "allocator", "run", "fact"]


class Name(NamedTuple):
    """What a metric is.

    Attributes:
        exporter: whose it is.
        kind: "gpu", "host" and "allocator": a column of that reading table; "run": of the run that is on; "fact": read
            from its labels, or told beside the readings.
        metric: the column, or what the fact is.
        scale: what its values are multiplied with.
    """

    exporter: Exporter
    kind: Kind
    metric: str
    scale: float = 1.0


NAMES: dict[str, Name] = {
    "gpudash_gpu_memory_used_bytes": Name("gpudash", "gpu", "used_bytes"),
    "gpudash_gpu_memory_free_bytes": Name("gpudash", "gpu", "free_bytes"),
    "gpudash_gpu_memory_total_bytes": Name("gpudash", "gpu", "total_bytes"),
    "gpudash_gpu_memory_reserved_bytes": Name("gpudash", "gpu", "driver_reserved_bytes"),
    "gpudash_gpu_utilisation_ratio": Name("gpudash", "gpu", "gpu_utilisation"),
    "gpudash_gpu_memory_utilisation_ratio": Name("gpudash", "gpu", "memory_utilisation"),
    "gpudash_gpu_temperature_celsius": Name("gpudash", "gpu", "temperature_c"),
    "gpudash_gpu_power_watts": Name("gpudash", "gpu", "power_w"),
    "gpudash_gpu_pcie_receive_bytes_per_second": Name("gpudash", "gpu", "pcie_rx_bytes_per_second"),
    "gpudash_gpu_pcie_transmit_bytes_per_second": Name("gpudash", "gpu", "pcie_tx_bytes_per_second"),
    "gpudash_process_gpu_memory_bytes": Name("gpudash", "gpu", "process_bytes"),
    "gpudash_gpu_info": Name("gpudash", "fact", "info"),
    "gpudash_run_info": Name("gpudash", "fact", "run"),
    "gpudash_run_status": Name("gpudash", "fact", "status"),
    "gpudash_warning": Name("gpudash", "fact", "warning"),
    "gpudash_gpu_memory_forecast_seconds": Name("gpudash", "fact", "forecast"),
    "gpudash_host_memory_used_bytes": Name("gpudash", "host", "used_bytes"),
    "gpudash_host_memory_available_bytes": Name("gpudash", "host", "available_bytes"),
    "gpudash_host_memory_free_bytes": Name("gpudash", "host", "free_bytes"),
    "gpudash_host_memory_file_cache_bytes": Name("gpudash", "host", "file_cache_bytes"),
    "gpudash_host_memory_total_bytes": Name("gpudash", "host", "total_bytes"),
    "gpudash_host_cpu_utilisation_ratio": Name("gpudash", "host", "cpu_utilisation"),
    "gpudash_process_memory_bytes": Name("gpudash", "host", "process_bytes"),
    "gpudash_process_cpu_cores": Name("gpudash", "host", "process_cpu_utilisation"),
    "gpudash_allocator_allocated_bytes": Name("gpudash", "allocator", "allocated_bytes"),
    "gpudash_allocator_reserved_bytes": Name("gpudash", "allocator", "reserved_bytes"),
    "gpudash_run_loss": Name("gpudash", "run", "loss"),
    "gpudash_run_accuracy_ratio": Name("gpudash", "run", "accuracy"),
    "gpudash_run_throughput_items_per_second": Name("gpudash", "run", "throughput"),
    "DCGM_FI_DEV_FB_USED": Name("dcgm", "gpu", "used_bytes", MIB),
    "DCGM_FI_DEV_FB_FREE": Name("dcgm", "gpu", "free_bytes", MIB),
    "DCGM_FI_DEV_FB_TOTAL": Name("dcgm", "gpu", "total_bytes", MIB),
    "DCGM_FI_DEV_FB_RESERVED": Name("dcgm", "gpu", "driver_reserved_bytes", MIB),
    "DCGM_FI_DEV_GPU_UTIL": Name("dcgm", "gpu", "gpu_utilisation", 0.01),
    "DCGM_FI_DEV_MEM_COPY_UTIL": Name("dcgm", "gpu", "memory_utilisation", 0.01),
    "DCGM_FI_DEV_GPU_TEMP": Name("dcgm", "gpu", "temperature_c"),
    "DCGM_FI_DEV_POWER_USAGE": Name("dcgm", "gpu", "power_w"),
    "nvidia_smi_memory_used_bytes": Name("nvidia_gpu_exporter", "gpu", "used_bytes"),
    "nvidia_smi_memory_free_bytes": Name("nvidia_gpu_exporter", "gpu", "free_bytes"),
    "nvidia_smi_memory_total_bytes": Name("nvidia_gpu_exporter", "gpu", "total_bytes"),
    "nvidia_smi_memory_reserved_bytes": Name("nvidia_gpu_exporter", "gpu", "driver_reserved_bytes"),
    "nvidia_smi_utilization_gpu_ratio": Name("nvidia_gpu_exporter", "gpu", "gpu_utilisation"),
    "nvidia_smi_utilization_memory_ratio": Name("nvidia_gpu_exporter", "gpu", "memory_utilisation"),
    "nvidia_smi_temperature_gpu": Name("nvidia_gpu_exporter", "gpu", "temperature_c"),
    "nvidia_smi_power_draw_watts": Name("nvidia_gpu_exporter", "gpu", "power_w"),
    "nvidia_smi_index": Name("nvidia_gpu_exporter", "fact", "index"),
    "nvidia_smi_gpu_info": Name("nvidia_gpu_exporter", "fact", "info"),
}

DCGM_BLANK = float(0x7FFFFFF0)
"""From here on dcgm-exporter's figures are blanks: DCGM's marks for "not supported" and the like (dcgm_structs.h)."""

INVERSE = frozenset({"free_bytes", "available_bytes"})
"""Columns that are low when memory is full: their lowest belongs to the highest of the others."""

OVERVIEW = (
    "used_bytes",
    "total_bytes",
    "free_bytes",
    "driver_reserved_bytes",
    "gpu_utilisation",
    "temperature_c",
    "power_w",
)
"""What an overview shows of a GPU."""


def names(exporter: Exporter | None, *kinds: Kind, metrics: Iterable[str] | None = None) -> list[str]:
    """The metrics of an exporter, or of all, that have one of ``kinds``; of ``metrics`` only, where they are given."""
    wanted = None if metrics is None else set(metrics)
    return [
        text
        for text, name in NAMES.items()
        if (exporter is None or name.exporter == exporter)
        and name.kind in kinds
        and (wanted is None or name.metric in wanted)
    ]


def any_of(chosen: Iterable[str], labels: str = "") -> str:
    """A PromQL selector for all of ``chosen``, restricted by ``labels`` such as ``uuid="GPU-1"``."""
    return "{" + f'__name__=~"{"|".join(chosen)}"' + (f",{labels}" if labels else "") + "}"


def quoted(text: str) -> str:
    """``text`` as a PromQL string."""
    return '"' + re.sub(r'["\\\n]', lambda found: {"\n": "\\n"}.get(found[0], "\\" + found[0]), text) + '"'


def value_of(name: Name, text: object) -> float | None:
    """A sample's value in this model's unit; ``None`` for none: not a number, infinite, or a blank of DCGM's.

    Raises:
        ValueError, TypeError: when it is no number at all.
    """
    value = float(text)  # type: ignore[arg-type]  # what a server sends; anything else raises
    if not -1e308 < value < 1e308 or (name.exporter == "dcgm" and value >= DCGM_BLANK):
        return None
    return value * name.scale
