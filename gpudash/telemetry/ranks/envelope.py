"""The envelope over many ranks: lowest, median and highest of each metric, drawn in place of a curve for each rank."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpudash.telemetry.records import Sample, Value

LEAST_RANKS = 5
"""Ranks from which on curves of single ranks can no longer be told apart by their line style."""

ENVELOPE = ("lowest", "median", "highest")
"""Devices of the table ``rank`` that are no ranks."""


def envelope(time_s: float, rows: Sequence[Mapping[str, Value]]) -> Iterator[Sample]:
    """Lowest, median and highest over the ranks' ``rows``; nothing of fewer than `LEAST_RANKS`."""
    if len(rows) < LEAST_RANKS:
        return
    metrics = dict.fromkeys(metric for row in rows for metric in row)
    columns = {metric: sorted(_numbers(rows, metric)) for metric in metrics}
    known = {metric: numbers for metric, numbers in columns.items() if numbers}
    chosen: tuple[Callable[[list[float]], float], ...] = (lambda of: of[0], statistics.median, lambda of: of[-1])
    for device, choose in zip(ENVELOPE, chosen, strict=True):
        values = {metric: _typed(metric, choose(numbers)) for metric, numbers in known.items()}
        yield Sample(time_s, "rank", device, values)


def _typed(metric: str, value: float) -> Value:
    """Bytes and counts are whole, also where a median lies between two of them."""
    return int(value) if metric == "step" or metric.endswith("_bytes") else value


def _numbers(rows: Sequence[Mapping[str, Value]], metric: str) -> list[float]:
    found = (row.get(metric) for row in rows)
    return [value for value in found if isinstance(value, int | float) and math.isfinite(value)]
