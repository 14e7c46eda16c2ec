"""Every metric that is served: its name by Prometheus' conventions, its type, its words and its labels.

Names end in their base unit (https://prometheus.io/docs/practices/naming/); sizes are bytes, shares are 0 to 1. How
they relate to dcgm-exporter's is in ``resources/prometheus/dcgm-exporter.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpudash.telemetry.records import Table

Kind = Literal["gauge", "counter", "info"]

GPU = ("uuid", "gpu")
"""Labels of a GPU: the identity that survives a restart, and its short name on this machine ("0", "sim:0")."""

MEMORY = ("device",)
"""Label of a memory: a GPU's UUID, or "host"."""

RUN = ("run", "workload", "device")
RANK = ("rank",)
ALLOCATOR = ("device",)


@dataclass(frozen=True, slots=True)
class Served:
    """One metric.

    Attributes:
        name: as it stands in a scrape, with the ending of its kind (``_total``, ``_info``).
        kind: its type.
        words: what it is, for ``# HELP``.
        labels: in the order of their values.
        reading: (reading table, metric) that it is the newest value of; ``None`` where it is worked out.
    """

    name: str
    kind: Kind
    words: str
    labels: tuple[str, ...] = ()
    reading: tuple[Table, str] | None = None


def _of_gpu(name: str, metric: str, words: str, kind: Kind = "gauge") -> Served:
    return Served(f"gpudash_gpu_{name}", kind, words, GPU, ("gpu", metric))


def _of_host(name: str, metric: str, words: str) -> Served:
    return Served(f"gpudash_{name}", "gauge", words, (), ("host", metric))


def _of_allocator(name: str, metric: str, words: str, kind: Kind = "gauge") -> Served:
    return Served(f"gpudash_allocator_{name}", kind, words, ALLOCATOR, ("allocator", metric))


def _of_rank(name: str, metric: str, words: str) -> Served:
    return Served(f"gpudash_rank_{name}", "gauge", words, RANK, ("rank", metric))


def _of_run(name: str, words: str, labels: tuple[str, ...] = ()) -> Served:
    return Served(f"gpudash_run_{name}", "gauge", words, (*RUN, *labels))


READINGS: tuple[Served, ...] = (
    _of_gpu("memory_used_bytes", "used_bytes", "Memory in use, without the driver's own share where that is known."),
    _of_gpu("memory_free_bytes", "free_bytes", "Memory that can still be allocated."),
    _of_gpu("memory_total_bytes", "total_bytes", "Capacity."),
    _of_gpu("memory_reserved_bytes", "driver_reserved_bytes", "Memory that the driver keeps for itself."),
    _of_gpu("utilisation_ratio", "gpu_utilisation", "Share of time in which a kernel was running."),
    _of_gpu("memory_utilisation_ratio", "memory_utilisation", "Share of time in which memory was read or written."),
    _of_gpu("temperature_celsius", "temperature_c", "Temperature of the chip."),
    _of_gpu("power_watts", "power_w", "Power drawn."),
    _of_gpu("energy_joules_total", "energy_j", "Energy drawn since the driver was loaded.", "counter"),
    _of_gpu("sm_clock_hertz", "sm_clock_hz", "Clock of the multiprocessors."),
    _of_gpu("memory_clock_hertz", "memory_clock_hz", "Clock of the memory."),
    _of_gpu("pcie_receive_bytes_per_second", "pcie_rx_bytes_per_second", "Rate of copies to the GPU."),
    _of_gpu("pcie_transmit_bytes_per_second", "pcie_tx_bytes_per_second", "Rate of copies from the GPU."),
    _of_gpu("pcie_link_generation", "pcie_generation", "Generation that the PCIe link runs at now."),
    _of_gpu("pcie_link_lanes", "pcie_width", "Lanes that the PCIe link uses now."),
    Served(
        "gpudash_process_gpu_memory_bytes",
        "gauge",
        "GPU memory that gpudash and its run hold, their contexts included.",
        GPU,
        ("gpu", "process_bytes"),
    ),
    _of_host("host_memory_used_bytes", "used_bytes", "Host memory in use: capacity less what is available."),
    _of_host("host_memory_available_bytes", "available_bytes", "Host memory that can still be allocated."),
    _of_host("host_memory_free_bytes", "free_bytes", "Host memory that holds nothing at all."),
    _of_host("host_memory_file_cache_bytes", "file_cache_bytes", "Host memory that caches files."),
    _of_host("host_memory_total_bytes", "total_bytes", "Host memory's capacity: RAM, or a container's lower limit."),
    _of_host("host_swap_used_bytes", "swap_used_bytes", "Swap in use."),
    _of_host("host_swap_total_bytes", "swap_total_bytes", "Swap's capacity."),
    _of_host("host_cpu_utilisation_ratio", "cpu_utilisation", "Share of all cores' time in use."),
    _of_host(
        "process_memory_bytes", "process_bytes", "Host memory of gpudash with its run, or of the watched program."
    ),
    _of_host("process_cpu_cores", "process_cpu_utilisation", "Cores' worth of time that the same processes use."),
    _of_allocator("allocated_bytes", "allocated_bytes", "Memory of tensors in torch's caching allocator."),
    _of_allocator("reserved_bytes", "reserved_bytes", "Memory that torch's caching allocator holds, idle or not."),
    _of_allocator(
        "retries_total", "allocation_retries", "Allocations that first had to release idle memory.", "counter"
    ),
    _of_rank("step", "step", "Newest step that every rank has reported."),
    _of_rank("step_seconds", "step_s", "Time of that step."),
    _of_rank("compute_seconds", "compute_s", "Time of that step spent computing."),
    _of_rank("communication_seconds", "communication_s", "Time of that step spent communicating."),
    _of_rank("waiting_seconds", "waiting_s", "Time of that step spent waiting for other ranks."),
    _of_rank("loss", "loss", "Loss of that step on the rank's own share of the batch."),
    _of_rank("memory_used_bytes", "used_bytes", "Memory of the rank's process."),
    _of_rank("allocated_bytes", "allocated_bytes", "Memory of tensors in the rank's caching allocator."),
    _of_rank("reserved_bytes", "reserved_bytes", "Memory that the rank's caching allocator holds."),
)
"""The newest value of a reading each. One that could not be taken is left out: it is never 0, and never an old one."""

BUILD = Served("gpudash_build_info", "info", "Version of gpudash.", ("version",))
HOST_INFO = Served("gpudash_host_info", "info", "The machine.", ("host", "product", "capacity_source"))
GPU_INFO = Served(
    "gpudash_gpu_info",
    "info",
    "The GPU: its product, what torch calls it, and whether it is SIMULATED.",
    (*GPU, "index", "product", "torch_name", "simulated", "host"),
)
GPU_STATE = Served(
    "gpudash_gpu_state",
    "gauge",
    "1 for what came of the newest attempt to read the GPU's memory, 0 for every other state.",
    (*GPU, "state"),
)
GPU_PROCESS = Served(
    "gpudash_gpu_process_memory_bytes",
    "gauge",
    "GPU memory of a process: the 5 largest of each GPU.",
    (*GPU, "pid", "name"),
)
READING_AGE = Served(
    "gpudash_reading_age_seconds",
    "gauge",
    "Time since memory was last read, or was tried to be read.",
    MEMORY,
)
GPU_FORECAST = Served(
    "gpudash_gpu_memory_forecast_seconds",
    "gauge",
    "Time until the GPU's memory runs out if it goes on growing as it does; absent when it does not grow.",
    GPU,
)
HOST_FORECAST = Served(
    "gpudash_host_memory_forecast_seconds",
    "gauge",
    "Time until host memory runs out if it goes on growing as it does; absent when it does not grow.",
)
WARNING = Served("gpudash_warning", "gauge", "1 for every warning that stands.", ("level", *MEMORY))
WARNINGS = Served("gpudash_warnings_total", "counter", "Warnings that were raised.", ("level",))

RUN_INFO = Served("gpudash_run_info", "info", "The newest run.", (*RUN, "simulated", "host"))
RUN_STATUS = _of_run("status", "1 for how the newest run stands or ended, 0 for every other status.", ("status",))
RUN_STEP = _of_run("step", "Newest step.")
RUN_STEPS = _of_run("steps", "Steps of the whole run, where they are known.")
RUN_STEP_AGE = _of_run("step_age_seconds", "Time since the newest step, during the run.")
RUN_DURATION = _of_run("duration_seconds", "Time that the run has been on, or took.")
RUN_LOSS = _of_run("loss", "Loss of the newest step, in nats, during the run.")
RUN_ACCURACY = _of_run("accuracy_ratio", "Accuracy of the newest step, during the run.")
RUN_THROUGHPUT = _of_run("throughput_items_per_second", "Items a second of the newest step, during the run.")
RUN_PREDICTED = _of_run("predicted_peak_bytes", "Peak that was predicted for the run.", ("kind",))
RUN_PEAK = _of_run("peak_bytes", "Highest reading of the run so far.", ("kind",))
RUN_FORECAST = _of_run(
    "forecast_seconds", "Time until the memory of the run's device runs out; absent when it does not grow."
)
RUN_RANKS = _of_run("world_size_ranks", "Ranks of a run on several devices.")

RANK_WAITING = Served(
    "gpudash_rank_waiting_ratio", "gauge", "Share of the rank's newest step spent waiting for other ranks.", RANK
)

MISSED = Served("gpudash_readings_missed_total", "counter", "Readings that could not be taken in time.")
OWN_CPU = Served("gpudash_monitor_cpu_cores", "gauge", "Cores' worth of time that reading and recording use.")
ANSWERS = Served("gpudash_serve_answers_total", "counter", "Requests answered, by status.", ("code",))
DROPPED = Served("gpudash_serve_dropped_connections_total", "counter", "Connections ended without an answer.")

OTHERS: tuple[Served, ...] = (
    BUILD,
    HOST_INFO,
    GPU_INFO,
    GPU_STATE,
    GPU_PROCESS,
    READING_AGE,
    GPU_FORECAST,
    HOST_FORECAST,
    WARNING,
    WARNINGS,
    RUN_INFO,
    RUN_STATUS,
    RUN_STEP,
    RUN_STEPS,
    RUN_STEP_AGE,
    RUN_DURATION,
    RUN_LOSS,
    RUN_ACCURACY,
    RUN_THROUGHPUT,
    RUN_PREDICTED,
    RUN_PEAK,
    RUN_FORECAST,
    RUN_RANKS,
    RANK_WAITING,
    MISSED,
    OWN_CPU,
    ANSWERS,
    DROPPED,
)
"""What is worked out."""

CATALOGUE: tuple[Served, ...] = (*READINGS, *OTHERS)
"""Every metric there is, in the order of a scrape."""
