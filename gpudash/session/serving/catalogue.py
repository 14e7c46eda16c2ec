"""Every metric that is served: its name by Prometheus' conventions, its type, its words and its labels.

Names end in their base unit (https://prometheus.io/docs/practices/naming/); sizes are bytes, shares are 0 to 1. How
they relate to dcgm-exporter's is in ``resources/prometheus/dcgm-exporter.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Table

Kind = Literal["gauge", "counter", "info"]

GPU = ("uuid", "gpu")
"""Labels of a GPU: the identity that survives a restart, and its short name on this machine ("0", "sim:0", and
"sim:0@24GiB" of the simulated card of a program that is watched)."""

MEMORY = ("device",)
"""Label of a memory: a GPU's UUID, or "host"."""

RUN = ("run", "workload", "device")
RANK = ("rank",)
ALLOCATOR = ("device",)


@dataclass(frozen=True, slots=True)
class ServedMetric:
    """One metric.

    Attributes:
        name: as it stands in a scrape, with the ending of its kind (``_total``, ``_info``).
        kind: its type.
        help_text: what it is, for ``# HELP``.
        labels: in the order of their values.
        reading: (reading table, metric) that it is the newest value of; ``None`` where it is worked out.
    """

    name: str
    kind: Kind
    help_text: str
    labels: tuple[str, ...] = ()
    reading: tuple[Table, str] | None = None


_worked_out: list[ServedMetric] = []
"""Those that are no reading, in order."""


def _metric(name: str, kind: Kind, help_text: str, labels: tuple[str, ...] = ()) -> ServedMetric:
    """One that is worked out."""
    _worked_out.append(ServedMetric(name, kind, help_text, labels))
    return _worked_out[-1]


def _of_run(name: str, help_text: str, labels: tuple[str, ...] = ()) -> ServedMetric:
    return _metric(f"gpudash_run_{name}", "gauge", help_text, (*RUN, *labels))


_LABELS: dict[Table, tuple[str, ...]] = {"gpu": GPU, "host": (), "allocator": ALLOCATOR, "rank": RANK}

READINGS: tuple[ServedMetric, ...] = tuple(
    ServedMetric(metric.served, metric.kind, metric.help, labels, (table, metric.name))
    for table, labels in _LABELS.items()
    for metric in METRICS[table]
    if metric.served
)
"""The newest value of a reading each. One that could not be taken is left out: it is never 0, and never an old one."""

BUILD = _metric("gpudash_build_info", "info", "Version of gpudash.", ("version",))
HOST_INFO = _metric("gpudash_host_info", "info", "The machine.", ("host", "product", "capacity_source"))
GPU_INFO = _metric(
    "gpudash_gpu_info",
    "info",
    "The GPU: its product, what torch calls it, whether it is SIMULATED, and whether its memory is the host's.",
    (*GPU, "index", "product", "torch_name", "simulated", "host", "shared_memory"),
)
GPU_STATE = _metric(
    "gpudash_gpu_state",
    "gauge",
    "1 for what came of the newest attempt to read the GPU's memory, 0 for every other state.",
    (*GPU, "state"),
)
GPU_PROCESS = _metric(
    "gpudash_gpu_process_memory_bytes",
    "gauge",
    "GPU memory of a process: the 5 largest of each GPU.",
    (*GPU, "pid", "name"),
)
READING_AGE = _metric(
    "gpudash_reading_age_seconds",
    "gauge",
    "Time since memory was last read, or was tried to be read.",
    MEMORY,
)
GPU_FORECAST = _metric(
    "gpudash_gpu_memory_forecast_seconds",
    "gauge",
    "Time until the GPU's memory runs out if it goes on growing as it does; absent when it does not grow.",
    GPU,
)
HOST_FORECAST = _metric(
    "gpudash_host_memory_forecast_seconds",
    "gauge",
    "Time until host memory runs out if it goes on growing as it does; absent when it does not grow.",
)
WARNING = _metric("gpudash_warning", "gauge", "1 for every warning that stands.", ("level", *MEMORY))
WARNINGS = _metric("gpudash_warnings_total", "counter", "Warnings that were raised.", ("level",))

RUN_INFO = _metric("gpudash_run_info", "info", "The newest run.", (*RUN, "simulated", "host"))
RUN_STATUS = _of_run("status", "1 for how the newest run stands or ended, 0 for every other status.", ("status",))
RUN_STEP = _of_run("step", "Newest step.")
RUN_STEPS = _of_run("steps", "Steps of the whole run, where they are known.")
RUN_STEP_AGE = _of_run("step_age_seconds", "Time since the newest step, during the run.")
RUN_DURATION = _of_run("duration_seconds", "Time that the run has been on, or took.")
RUN_LOSS = _of_run("loss", "Loss of the newest step, in nats, during the run.")
RUN_ACCURACY = _of_run("accuracy_ratio", "Accuracy of the newest step, during the run.")
RUN_THROUGHPUT = _of_run(
    "throughput_items_per_second",
    "Items (of a watched program steps) a second, during the run.",
)
RUN_PREDICTED = _of_run("predicted_peak_bytes", "Peak that was predicted for the run.", ("kind",))
RUN_PEAK = _of_run("peak_bytes", "Highest reading of the run so far.", ("kind",))
RUN_FORECAST = _of_run(
    "forecast_seconds", "Time until the memory of the run's device runs out; absent when it does not grow."
)
RUN_RANKS = _of_run("world_size_ranks", "Ranks of a run on several devices.")

RANK_WAITING = _metric(
    "gpudash_rank_waiting_ratio", "gauge", "Share of the rank's newest step spent waiting for other ranks.", RANK
)

MISSED = _metric("gpudash_readings_missed_total", "counter", "Readings that could not be taken in time.")
OWN_CPU = _metric("gpudash_monitor_cpu_cores", "gauge", "Cores' worth of time that reading and recording use.")
ANSWERS = _metric("gpudash_serve_answers_total", "counter", "Requests answered, by status.", ("code",))
DROPPED = _metric("gpudash_serve_dropped_connections_total", "counter", "Connections ended without an answer.")

CATALOGUE: tuple[ServedMetric, ...] = (*READINGS, *_worked_out)
"""Every metric there is, in the order of a scrape."""
