"""The metrics of each reading table: name (with its unit), type and words. Recording columns follow this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpudash.telemetry.records import Table


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of a reading table.

    Attributes:
        name: column name; the unit is its ending, or it is a ratio from 0 to 1.
        type: SQLite type. Bytes and counts are INTEGER, other numbers REAL.
        title: what a person reads, in lower case.
    """

    name: str
    type: Literal["INTEGER", "REAL", "TEXT"]
    title: str


def _metrics(*rows: tuple[str, Literal["INTEGER", "REAL", "TEXT"], str]) -> tuple[Metric, ...]:
    return tuple(Metric(*row) for row in rows)


METRICS: dict[Table, tuple[Metric, ...]] = {
    "host": _metrics(
        ("total_bytes", "INTEGER", "capacity"),
        ("available_bytes", "INTEGER", "available"),
        ("used_bytes", "INTEGER", "used"),
        ("free_bytes", "INTEGER", "free"),
        ("file_cache_bytes", "INTEGER", "file cache"),
        ("process_bytes", "INTEGER", "this process"),
        ("swap_used_bytes", "INTEGER", "swap used"),
        ("swap_total_bytes", "INTEGER", "swap"),
        ("cpu_utilisation", "REAL", "CPU"),
        ("process_cpu_utilisation", "REAL", "this process, share of one core"),
    ),
    "gpu": _metrics(
        ("used_bytes", "INTEGER", "used"),
        ("free_bytes", "INTEGER", "free"),
        ("total_bytes", "INTEGER", "capacity"),
        ("driver_reserved_bytes", "INTEGER", "driver reserved"),
        ("gpu_utilisation", "REAL", "GPU"),
        ("memory_utilisation", "REAL", "memory controller"),
        ("temperature_c", "REAL", "temperature"),
        ("power_w", "REAL", "power"),
        ("energy_j", "REAL", "energy"),
        ("sm_clock_hz", "REAL", "SM clock"),
        ("memory_clock_hz", "REAL", "memory clock"),
        ("pcie_rx_bytes_per_second", "REAL", "PCIe to the GPU"),
        ("pcie_tx_bytes_per_second", "REAL", "PCIe from the GPU"),
        ("pcie_generation", "INTEGER", "PCIe generation"),
        ("pcie_width", "INTEGER", "PCIe lanes"),
        ("process_bytes", "INTEGER", "this process"),
    ),
    "process": _metrics(
        ("pid", "INTEGER", "PID"),
        ("name", "TEXT", "name"),
        ("user", "TEXT", "user"),
        ("memory_bytes", "INTEGER", "memory"),
        ("cpu_utilisation", "REAL", "CPU, share of one core"),
    ),
    "allocator": _metrics(
        ("allocated_bytes", "INTEGER", "allocated"),
        ("reserved_bytes", "INTEGER", "reserved"),
        ("peak_allocated_bytes", "INTEGER", "peak allocated since the last reading"),
        ("peak_reserved_bytes", "INTEGER", "peak reserved since the last reading"),
        ("allocation_retries", "INTEGER", "allocation retries"),
    ),
    "rank": _metrics(
        ("step", "INTEGER", "step"),
        ("step_s", "REAL", "step time"),
        ("compute_s", "REAL", "computing"),
        ("communication_s", "REAL", "communicating"),
        ("waiting_s", "REAL", "waiting for other ranks"),
        ("loss", "REAL", "loss"),
        ("accuracy", "REAL", "accuracy"),
        ("used_bytes", "INTEGER", "memory of the process"),
        ("allocated_bytes", "INTEGER", "allocated"),
        ("reserved_bytes", "INTEGER", "reserved"),
    ),
}
"""Host `used_bytes` is capacity − available; capacity is the smallest of RAM and every cgroup limit."""
