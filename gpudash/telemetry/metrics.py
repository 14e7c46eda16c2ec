"""The metrics of each reading table, with everything that the program knows about one: its title, unit and names.

Recording columns follow the order of this table. A metric added here, and read by a source, is recorded, exported,
listed and served; a GPU sensor also appears on its card, in the fleet and in the plots of a GPU's history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpudash.telemetry.records import Table
from gpudash.units import MIB, format_bytes, format_duration, format_percent, format_rate, format_scaled

Exporter = Literal["gpudash", "dcgm", "nvidia_gpu_exporter"]

SPOKEN = {
    "gpudash": "gpudash",
    "dcgm": "dcgm-exporter",
    "nvidia_gpu_exporter": "nvidia_gpu_exporter",
    "ssh": "the machine itself, over ssh",
}
"""Names of the devices in a sentence."""

Type = Literal["INTEGER", "REAL", "TEXT"]


Scale = Literal["bytes", "rate", "ratio", "number"]
"""What a plot's axis shows: sizes, bytes per second, per cent, or numbers with a unit."""


class ExporterName(NamedTuple):
    """Another Prometheus exporter's name for a metric; its value times `scale` is ours, or one `part` of ours, which
    is the sum of its parts."""

    exporter: Exporter
    name: str
    scale: float = 1.0
    part: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of a reading table.

    Attributes:
        name: column name; its ending says what it counts (`_WRITINGS`), also of a share from 0 to 1.
        type: SQLite type. Bytes and counts are INTEGER, other numbers REAL.
        title: name in words, in lower case.
        served: name in a scrape, by Prometheus's conventions; "" if it is not served.
        help: description in a sentence, for Prometheus.
        kind: Prometheus's type.
        elsewhere: names in other exporters.
        fetched: whether its history is read from a Prometheus server.
        falls: whether it is low when memory is full: its minimum belongs to the others' maximum.
        colour: for a GPU sensor, name of its colour in plots (`Palette.curves`); "" for other metrics.
        before: for a sensor, word in front of its value on a card, to distinguish sensors with the same unit.
        health: whether it is a health metric, not a sensor: the fleet's overview shows it when it is remarkable.
    """

    name: str
    type: Type
    title: str
    served: str = ""
    help: str = ""
    kind: Literal["gauge", "counter"] = "gauge"
    elsewhere: tuple[ExporterName, ...] = ()
    fetched: bool = True
    falls: bool = False
    colour: str = ""
    before: str = ""
    health: bool = False

    @property
    def scale(self) -> Scale:
        """How a plot's axis shows it."""
        return self._writing.scale

    @property
    def unit(self) -> str:
        """The unit of a "number", such as "°C"; "" for other scales."""
        return self._writing.unit

    def label(self, value: float) -> str:
        """A value with its unit."""
        return self._writing.label(value)

    def brief(self, value: float) -> str:
        """A short value for a card, rounded to whole units."""
        writing = self._writing
        if writing.brief is None:
            return writing.label(value)
        return writing.brief(value)

    def distinguished(self, value: float) -> str:
        """A short value after the word that distinguishes it from others with the same unit."""
        return f"{self.before} {self.brief(value)}".lstrip()

    @property
    def _writing(self) -> _Writing:
        return next((writing for ending, writing in _WRITINGS if self.name.endswith(ending)), _COUNT)


class _Writing(NamedTuple):
    """How values are written: on an axis, in words, and in short if that differs."""

    scale: Scale
    unit: str
    label: Callable[[float], str]
    brief: Callable[[float], str] | None = None


_COUNT = _Writing("number", "", lambda value: f"{value:g}")

_WRITINGS = (
    ("_bytes_per_second", _Writing("rate", "", format_rate)),
    ("_bytes", _Writing("bytes", "", format_bytes)),
    ("_utilisation", _Writing("ratio", "", format_percent)),
    ("_hz", _Writing("number", "Hz", lambda value: format_scaled(value, "Hz"))),
    ("_c", _Writing("number", "°C", lambda value: f"{value:.0f} °C")),
    ("_w", _Writing("number", "W", lambda value: f"{value:.1f} W", lambda value: f"{value:.0f} W")),
    ("_j", _Writing("number", "J", lambda value: format_scaled(value, "J"))),
    ("_s", _Writing("number", "s", format_duration)),
)
"""Endings of column names, and how they are written; other columns are counts."""


def _dcgm(name: str, scale: float = 1.0, *, part: bool = False) -> ExporterName:
    return ExporterName("dcgm", name, scale, part)


def _nvidia_smi(name: str) -> ExporterName:
    return ExporterName("nvidia_gpu_exporter", f"nvidia_smi_{name}")


_GPU = (
    Metric(
        "used_bytes",
        "INTEGER",
        "used",
        "gpudash_gpu_memory_used_bytes",
        "Memory in use, without the driver's own share where that is known.",
        elsewhere=(_dcgm("DCGM_FI_DEV_FB_USED", MIB), _nvidia_smi("memory_used_bytes")),
    ),
    Metric(
        "free_bytes",
        "INTEGER",
        "free",
        "gpudash_gpu_memory_free_bytes",
        "Memory that can still be allocated.",
        elsewhere=(_dcgm("DCGM_FI_DEV_FB_FREE", MIB), _nvidia_smi("memory_free_bytes")),
        falls=True,
    ),
    Metric(
        "total_bytes",
        "INTEGER",
        "capacity",
        "gpudash_gpu_memory_total_bytes",
        "Capacity.",
        elsewhere=(_dcgm("DCGM_FI_DEV_FB_TOTAL", MIB), _nvidia_smi("memory_total_bytes")),
    ),
    Metric(
        "driver_reserved_bytes",
        "INTEGER",
        "driver reserved",
        "gpudash_gpu_memory_reserved_bytes",
        "Memory that the driver keeps for itself.",
        elsewhere=(_dcgm("DCGM_FI_DEV_FB_RESERVED", MIB), _nvidia_smi("memory_reserved_bytes")),
    ),
    Metric(
        "gpu_utilisation",
        "REAL",
        "GPU",
        "gpudash_gpu_utilisation_ratio",
        "Share of time in which a kernel was running.",
        elsewhere=(_dcgm("DCGM_FI_DEV_GPU_UTIL", 0.01), _nvidia_smi("utilization_gpu_ratio")),
    ),
    Metric(
        "memory_utilisation",
        "REAL",
        "memory controller",
        "gpudash_gpu_memory_utilisation_ratio",
        "Share of time in which memory was read or written.",
        elsewhere=(_dcgm("DCGM_FI_DEV_MEM_COPY_UTIL", 0.01), _nvidia_smi("utilization_memory_ratio")),
    ),
    Metric(
        "temperature_c",
        "REAL",
        "temperature",
        "gpudash_gpu_temperature_celsius",
        "Temperature of the chip.",
        elsewhere=(_dcgm("DCGM_FI_DEV_GPU_TEMP"), _nvidia_smi("temperature_gpu")),
        colour="temperature",
    ),
    Metric(
        "power_w",
        "REAL",
        "power",
        "gpudash_gpu_power_watts",
        "Power drawn.",
        elsewhere=(_dcgm("DCGM_FI_DEV_POWER_USAGE"), _nvidia_smi("power_draw_watts")),
        colour="power",
    ),
    Metric(
        "energy_j",
        "REAL",
        "energy",
        "gpudash_gpu_energy_joules_total",
        "Energy drawn since the driver was loaded.",
        "counter",
        elsewhere=(_dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0.001),),
        fetched=False,
        health=True,
    ),
    Metric(
        "sm_clock_hz",
        "REAL",
        "SM clock",
        "gpudash_gpu_sm_clock_hertz",
        "Clock of the multiprocessors.",
        elsewhere=(_dcgm("DCGM_FI_DEV_SM_CLOCK", 1e6), _nvidia_smi("clocks_current_sm_clock_hz")),
        colour="sm_clock",
        before="SM",
    ),
    Metric(
        "memory_clock_hz",
        "REAL",
        "memory clock",
        "gpudash_gpu_memory_clock_hertz",
        "Clock of the memory.",
        elsewhere=(_dcgm("DCGM_FI_DEV_MEM_CLOCK", 1e6), _nvidia_smi("clocks_current_memory_clock_hz")),
        colour="memory_clock",
        before="mem",
    ),
    Metric(
        "pcie_rx_bytes_per_second",
        "REAL",
        "PCIe to the GPU",
        "gpudash_gpu_pcie_receive_bytes_per_second",
        "Rate of copies to the GPU.",
    ),
    Metric(
        "pcie_tx_bytes_per_second",
        "REAL",
        "PCIe from the GPU",
        "gpudash_gpu_pcie_transmit_bytes_per_second",
        "Rate of copies from the GPU.",
    ),
    Metric(
        "pcie_generation",
        "INTEGER",
        "PCIe generation",
        "gpudash_gpu_pcie_link_generation",
        "Generation that the PCIe link runs at now.",
        fetched=False,
    ),
    Metric(
        "pcie_width",
        "INTEGER",
        "PCIe lanes",
        "gpudash_gpu_pcie_link_lanes",
        "Lanes that the PCIe link uses now.",
        fetched=False,
    ),
    Metric(
        "process_bytes",
        "INTEGER",
        "this process",
        "gpudash_process_gpu_memory_bytes",
        "GPU memory that gpudash and its run hold, their contexts included.",
    ),
    Metric(
        "slowed_by_heat",
        "INTEGER",
        "slowed by heat",
        "gpudash_gpu_slowed_by_heat",
        "Whether the GPU clocks lower because it, its memory or its board is too hot: 1, or 0.",
        fetched=False,
    ),
    Metric(
        "slowed_by_power",
        "INTEGER",
        "slowed by power",
        "gpudash_gpu_slowed_by_power",
        "Whether the GPU clocks lower to keep within its power limit, or because power is short: 1, or 0.",
        fetched=False,
    ),
    Metric(
        "ecc_uncorrected_errors",
        "INTEGER",
        "memory errors that were not corrected",
        "gpudash_gpu_ecc_uncorrected_errors_total",
        "Errors of the GPU's memory that its ECC found and could not correct, since the driver was loaded.",
        "counter",
        elsewhere=(_dcgm("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),),
        fetched=False,
        health=True,
    ),
    Metric(
        "clocks_event_reasons",
        "INTEGER",
        "reasons for lower clocks",
        "gpudash_gpu_clocks_event_reasons",
        "Why the clocks are as they are, as the sum of NVML's bits: 1 idle, 4 power cap, 8 slowdown by the hardware, "
        "32 and 64 heat, 128 power brake; the others are settings.",
        elsewhere=(
            _dcgm("DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
            _dcgm("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),  # its name until DCGM 4
            _nvidia_smi("clocks_event_reasons_active"),
        ),
        fetched=False,
        health=True,
    ),
    Metric(
        "xid_errors",
        "INTEGER",
        "XID errors",
        "gpudash_gpu_xid_errors_total",
        "XID errors of the driver since gpudash began to watch.",
        "counter",
        fetched=False,
    ),
    Metric(
        "last_xid",
        "INTEGER",
        "newest XID error",
        "gpudash_gpu_last_xid",
        "Number of the newest XID error of the driver since gpudash began to watch; 0 for none.",
        elsewhere=(_dcgm("DCGM_FI_DEV_XID_ERRORS"),),
        fetched=False,
        health=True,
    ),
    Metric(
        "nvlink_rx_bytes_per_second",
        "REAL",
        "NVLink to the GPU",
        "gpudash_gpu_nvlink_receive_bytes_per_second",
        "Rate of data that came over all NVLinks.",
        elsewhere=(_dcgm("DCGM_FI_PROF_NVLINK_RX_BYTES"),),
        fetched=False,
        health=True,
    ),
    Metric(
        "nvlink_tx_bytes_per_second",
        "REAL",
        "NVLink from the GPU",
        "gpudash_gpu_nvlink_transmit_bytes_per_second",
        "Rate of data that went over all NVLinks.",
        elsewhere=(_dcgm("DCGM_FI_PROF_NVLINK_TX_BYTES"),),
        fetched=False,
        health=True,
    ),
    Metric(
        "nvlink_errors",
        "INTEGER",
        "NVLink errors",
        "gpudash_gpu_nvlink_errors_total",
        "Errors that the NVLinks found: checksums that were wrong, data sent again, links that had to recover.",
        "counter",
        elsewhere=tuple(
            _dcgm(f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL", part=True)
            for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
        ),
        fetched=False,
        health=True,
    ),
    Metric(
        "nvlink_links",
        "INTEGER",
        "active NVLinks",
        "gpudash_gpu_nvlink_active_links",
        "NVLinks that are active.",
        fetched=False,
    ),
)

_HOST = (
    Metric(
        "total_bytes",
        "INTEGER",
        "capacity",
        "gpudash_host_memory_total_bytes",
        "Host memory's capacity: RAM, or a container's lower limit.",
    ),
    Metric(
        "available_bytes",
        "INTEGER",
        "available",
        "gpudash_host_memory_available_bytes",
        "Host memory that can still be allocated.",
        falls=True,
    ),
    Metric(
        "used_bytes",
        "INTEGER",
        "used",
        "gpudash_host_memory_used_bytes",
        "Host memory in use: capacity less what is available.",
    ),
    Metric(
        "free_bytes",
        "INTEGER",
        "free",
        "gpudash_host_memory_free_bytes",
        "Host memory that holds nothing at all.",
        falls=True,
    ),
    Metric(
        "file_cache_bytes",
        "INTEGER",
        "file cache",
        "gpudash_host_memory_file_cache_bytes",
        "Host memory that caches files.",
    ),
    Metric(
        "process_bytes",
        "INTEGER",
        "this process",
        "gpudash_process_memory_bytes",
        "Host memory of gpudash with its run, or of the watched program.",
    ),
    Metric("swap_used_bytes", "INTEGER", "swap used", "gpudash_host_swap_used_bytes", "Swap in use.", fetched=False),
    Metric("swap_total_bytes", "INTEGER", "swap", "gpudash_host_swap_total_bytes", "Swap's capacity.", fetched=False),
    Metric(
        "cpu_utilisation",
        "REAL",
        "CPU",
        "gpudash_host_cpu_utilisation_ratio",
        "Share of all cores' time in use.",
    ),
    Metric(
        "process_cpu_utilisation",
        "REAL",
        "this process, share of one core",
        "gpudash_process_cpu_cores",
        "Cores' worth of time that the same processes use.",
    ),
)
"""`used_bytes` is capacity − available; capacity is the smallest of RAM and every cgroup limit."""

_PROCESS = (
    Metric("pid", "INTEGER", "PID"),
    Metric("name", "TEXT", "name"),
    Metric("user", "TEXT", "user"),
    Metric("memory_bytes", "INTEGER", "memory"),
    Metric("cpu_utilisation", "REAL", "CPU, share of one core"),
    Metric("container", "TEXT", "container"),
)

_ALLOCATOR = (
    Metric(
        "allocated_bytes",
        "INTEGER",
        "allocated",
        "gpudash_allocator_allocated_bytes",
        "Memory of tensors in torch's caching allocator.",
    ),
    Metric(
        "reserved_bytes",
        "INTEGER",
        "reserved",
        "gpudash_allocator_reserved_bytes",
        "Memory that torch's caching allocator holds, idle or not.",
    ),
    Metric("peak_allocated_bytes", "INTEGER", "peak allocated since the last reading"),
    Metric("peak_reserved_bytes", "INTEGER", "peak reserved since the last reading"),
    Metric(
        "allocation_retries",
        "INTEGER",
        "allocation retries",
        "gpudash_allocator_retries_total",
        "Allocations that first had to release idle memory.",
        "counter",
        fetched=False,
    ),
)


def _of_rank(name: str, type_: Type, title: str, served: str = "", sentence: str = "") -> Metric:
    return Metric(name, type_, title, served and f"gpudash_rank_{served}", sentence, fetched=False)


_RANK = (
    _of_rank("step", "INTEGER", "step", "step", "Newest step that every rank has reported."),
    _of_rank("step_s", "REAL", "step time", "step_seconds", "Time of that step."),
    _of_rank("compute_s", "REAL", "computing", "compute_seconds", "Time of that step spent computing."),
    _of_rank(
        "communication_s",
        "REAL",
        "communicating",
        "communication_seconds",
        "Time of that step spent communicating.",
    ),
    _of_rank(
        "waiting_s",
        "REAL",
        "waiting for other ranks",
        "waiting_seconds",
        "Time of that step spent waiting for other ranks.",
    ),
    _of_rank("loss", "REAL", "loss", "loss", "Loss of that step on the rank's own share of the batch."),
    _of_rank("accuracy", "REAL", "accuracy"),
    _of_rank("used_bytes", "INTEGER", "memory of the process", "memory_used_bytes", "Memory of the rank's process."),
    _of_rank(
        "allocated_bytes",
        "INTEGER",
        "allocated",
        "allocated_bytes",
        "Memory of tensors in the rank's caching allocator.",
    ),
    _of_rank(
        "reserved_bytes",
        "INTEGER",
        "reserved",
        "reserved_bytes",
        "Memory that the rank's caching allocator holds.",
    ),
    _of_rank("input_s", "REAL", "waiting for input", "input_seconds", "Time of that step spent waiting for input."),
)

METRICS: dict[Table, tuple[Metric, ...]] = {
    "host": _HOST,
    "gpu": _GPU,
    "process": _PROCESS,
    "allocator": _ALLOCATOR,
    "rank": _RANK,
}

GPU_METRICS = {metric.name: metric for metric in _GPU}

SENSORS = tuple(metric for metric in _GPU if metric.colour)
"""What a GPU reports beside memory and utilisation: for its card, the fleet, and the plots of its history."""

HEALTH = tuple(metric for metric in _GPU if metric.health)
"""What the overview of a fleet also checks, and shows when it is remarkable."""
