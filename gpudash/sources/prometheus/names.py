"""The names of three exporters' metrics, and what each means here: one quantity in bytes, SI units or a ratio.

gpudash's own are those of ``gpudash monitor --serve``; dcgm-exporter's those of its default counters
(https://github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv), memory in MiB; nvidia_gpu_exporter's those of its
METRICS.md (https://github.com/utkuozdemir/nvidia_gpu_exporter).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from gpudash.telemetry.metrics import HEALTH, METRICS, SENSORS, Exporter

EXPORTERS: tuple[Exporter, ...] = ("gpudash", "dcgm", "nvidia_gpu_exporter")
"""Best first: gpudash's own tell most, and in base units."""

Kind = Literal["gpu", "host", "allocator", "run", "fact"]


class Name(NamedTuple):
    """What a metric is.

    Attributes:
        exporter: whose it is.
        kind: "gpu", "host" and "allocator": a column of that reading table; "run": of the run that is on; "fact": read
            from its labels, or told beside the readings.
        metric: the column, or what the fact is.
        scale: what its values are multiplied with.
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
"""From here on dcgm-exporter's figures are blanks: DCGM's marks for "not supported" and the like (dcgm_structs.h)."""

_DCGM_BLANK_64 = 2.0**47
"""The same of energy, rates and counts of errors, which pass 32 bits: the least of its marks in 64."""

_OF_64_BITS = ("_j", "_bytes_per_second", "_errors")

FULL = 1.01
"""Greatest share of a time that is believed: exporters round, and take an average over their own interval."""

INVERSE = frozenset(metric.name for table in _TABLES for metric in METRICS[table] if metric.falls)
"""Columns that are low when memory is full: their lowest belongs to the highest of the others."""

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
"""What the past of a GPU is made of."""


def names(exporter: Exporter | None, *kinds: Kind, metrics: Iterable[str] | None = None) -> list[str]:
    """The metrics of an exporter, or of all, that have one of ``kinds``; of ``metrics`` only, where they are given."""
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

    What names have in common is written once: a query goes into an address, which has a bound.
    """
    # The name is matched by a regular expression, anchored at both ends by Prometheus itself.
    shared: dict[str, list[str]] = {}
    for text in chosen:
        beginning = next((known for known in _BEGINNINGS if text.startswith(known)), "")
        shared.setdefault(beginning, []).append(text.removeprefix(beginning))
    each = (f"{beginning}({'|'.join(ends)})" if beginning else "|".join(ends) for beginning, ends in shared.items())
    return "{" + f'__name__=~"{"|".join(each)}"' + (f",{labels}" if labels else "") + "}"


_BEGINNINGS = ("gpudash_gpu_", "gpudash_", "DCGM_FI_DEV_", "nvidia_smi_")


def quoted(text: str) -> str:
    """``text`` as a PromQL string."""
    # Go's rules of quoting, as PromQL has them.
    return '"' + re.sub(r'["\\\n]', lambda found: {"\n": "\\n"}.get(found[0], "\\" + found[0]), text) + '"'


def is_blank(name: Name, value: float) -> bool:
    """Whether a sample says that there is no value: not a number, infinite, or a blank of DCGM's."""
    blank = DCGM_BLANK
    # Figures that pass 32 bits have their marks in 64, and their true values may be above the ones of 32.
    if name.metric.endswith(_OF_64_BITS):
        blank = _DCGM_BLANK_64
    return not -1e308 < value < 1e308 or (name.exporter == "dcgm" and value >= blank)


def impossibility(name: Name, value: float) -> str:
    """Why a sample that is none of the blanks cannot be true, in words; "" where it can."""
    if name.metric.endswith("_bytes") and value < 0:
        return f"{value:g} is less than no memory"
    share = value * name.scale
    if name.metric.endswith("_utilisation") and not 0 <= share <= FULL:
        return f"{100 * share:g} % is no share of the time"
    return ""


def value_of(name: Name, text: object) -> float | None:
    """A sample's value in this model's unit; ``None`` for none: a blank, or what cannot be.

    Raises:
        ValueError, TypeError: when it is no number at all.
    """
    value = float(text)  # type: ignore[arg-type]  # what a server sends; anything else raises
    if is_blank(name, value) or impossibility(name, value):
        return None
    return value * name.scale
