"""The metric names of three exporters, and what each means here: one quantity in bytes, SI units or a ratio.

gpudash's own names are those of ``gpudash monitor --serve``; dcgm-exporter's are those of its default counters
(https://github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv), memory in MiB; nvidia_gpu_exporter's are those of
its METRICS.md (https://github.com/utkuozdemir/nvidia_gpu_exporter).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from gpudash.telemetry.metrics import HEALTH, METRICS, SENSORS, Exporter

EXPORTERS: tuple[Exporter, ...] = ("gpudash", "dcgm", "nvidia_gpu_exporter")
"""Best first: gpudash's own exporter reports most, and in base units."""

Kind = Literal["gpu", "host", "allocator", "run", "fact"]


class Name(NamedTuple):
    """Meaning of a metric.

    Attributes:
        exporter: exporter that has the metric.
        kind: "gpu", "host" or "allocator" for a column of that reading table; "run" for the current run; "fact" for
            something read from labels, or reported beside the readings.
        metric: name of the column or the fact.
        scale: factor for its values.
        part: whether it is one of several that add up to the metric.
    """

    exporter: Exporter
    kind: Kind
    metric: str
    scale: float = 1.0
    part: bool = False


_TABLES: tuple[Literal["gpu", "host", "allocator"], ...] = ("gpu", "host", "allocator")

NAMES: dict[str, Name] = {
    **{
        metric.served: Name("gpudash", table, metric.name)
        for table in _TABLES
        for metric in METRICS[table]
        if metric.served and (metric.fetched or metric.health)
    },
    "gpudash_gpu_info": Name("gpudash", "fact", "info"),
    "gpudash_run_info": Name("gpudash", "fact", "run"),
    "gpudash_run_status": Name("gpudash", "fact", "status"),
    "gpudash_warning": Name("gpudash", "fact", "warning"),
    "gpudash_gpu_memory_forecast_seconds": Name("gpudash", "fact", "forecast"),
    "gpudash_run_loss": Name("gpudash", "run", "loss"),
    "gpudash_run_accuracy_ratio": Name("gpudash", "run", "accuracy"),
    "gpudash_run_throughput_items_per_second": Name("gpudash", "run", "throughput"),
    **{
        foreign.name: Name(foreign.exporter, "gpu", metric.name, foreign.scale, foreign.part)
        for metric in METRICS["gpu"]
        for foreign in metric.elsewhere
    },
    "nvidia_smi_index": Name("nvidia_gpu_exporter", "fact", "index"),
    "nvidia_smi_gpu_info": Name("nvidia_gpu_exporter", "fact", "info"),
}

DCGM_BLANK = float(0x7FFFFFF0)
"""Values from here on are dcgm-exporter's blanks: DCGM's marks for "not supported" and the like (dcgm_structs.h)."""

_DCGM_BLANK_64 = 2.0**47
"""The same for energy, rates and error counts, which exceed 32 bits: the smallest of the 64-bit marks."""

_OF_64_BITS = ("_j", "_bytes_per_second", "_errors")

FULL = 1.01
"""Largest credible share of time: exporters round, and average over their own interval."""

INVERSE = frozenset(metric.name for table in _TABLES for metric in METRICS[table] if metric.falls)
"""Columns that are low when memory is full: their minimum belongs to the others' maximum."""

OVERVIEW = (
    "used_bytes",
    "total_bytes",
    "free_bytes",
    "driver_reserved_bytes",
    "gpu_utilisation",
    *(metric.name for metric in (*SENSORS, *HEALTH)),
)
"""What an overview shows of a GPU."""

PAST = tuple(metric.name for metric in METRICS["gpu"] if metric.fetched)
"""What the history of a GPU consists of."""


def names(exporter: Exporter | None, *kinds: Kind, metrics: Iterable[str] | None = None) -> list[str]:
    """The metrics of an exporter, or of all, with one of ``kinds``; only those in ``metrics`` if given."""
    wanted = None
    if metrics is not None:
        wanted = set(metrics)
    return [
        text
        for text, name in NAMES.items()
        if (exporter is None or name.exporter == exporter)
        and name.kind in kinds
        and (wanted is None or name.metric in wanted)
    ]


def any_of(chosen: Iterable[str], labels: str = "") -> str:
    """A PromQL selector for all of ``chosen``, restricted by ``labels`` such as ``uuid="GPU-1"``.

    Common prefixes are written once: a query is part of an address, whose length is limited.
    """
    # Match names by a regular expression; Prometheus anchors it at both ends.
    shared: dict[str, list[str]] = {}
    for text in chosen:
        beginning = next((known for known in _BEGINNINGS if text.startswith(known)), "")
        shared.setdefault(beginning, []).append(text.removeprefix(beginning))
    each = (f"{beginning}({'|'.join(ends)})" if beginning else "|".join(ends) for beginning, ends in shared.items())
    return "{" + f'__name__=~"{"|".join(each)}"' + (f",{labels}" if labels else "") + "}"


_BEGINNINGS = ("gpudash_gpu_", "gpudash_", "DCGM_FI_DEV_", "nvidia_smi_")


def quoted(text: str) -> str:
    """``text`` as a PromQL string."""
    # PromQL quotes by Go's rules.
    return '"' + re.sub(r'["\\\n]', lambda found: {"\n": "\\n"}.get(found[0], "\\" + found[0]), text) + '"'


def is_blank(name: Name, value: float) -> bool:
    """Whether a sample means that there is no value: NaN, infinite, or one of DCGM's blanks."""
    blank = DCGM_BLANK
    # Metrics that exceed 32 bits have 64-bit marks, and true values may be above the 32-bit ones.
    if name.metric.endswith(_OF_64_BITS):
        blank = _DCGM_BLANK_64
    return not -1e308 < value < 1e308 or (name.exporter == "dcgm" and value >= blank)


def impossibility(name: Name, value: float) -> str:
    """Why a sample that is not a blank must be wrong, in words; "" if it is credible."""
    if name.metric.endswith("_bytes") and value < 0:
        return f"{value:g} is less than no memory"
    share = value * name.scale
    if name.metric.endswith("_utilisation") and not 0 <= share <= FULL:
        return f"{100 * share:g} % is no share of the time"
    return ""


def value_of(name: Name, text: object) -> float | None:
    """A sample's value in gpudash's unit; ``None`` if it is blank or impossible.

    Raises:
        ValueError, TypeError: if it is not a number.
    """
    value = float(text)  # type: ignore[arg-type]  # a server's string; anything else raises
    if is_blank(name, value) or impossibility(name, value):
        return None
    return value * name.scale
