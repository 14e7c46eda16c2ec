"""The history of one GPU from a Prometheus server: every sample if they are few, else the extremes of each step.

Few means no more than there are pixels. The samples then come with their own scrape times. Otherwise the server is
asked for the minimum and maximum of each step, with half as many steps as pixels, so that it sends no more points than
pixels and no peak is averaged away.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from gpudash.sources.prometheus.client import Client
from gpudash.sources.prometheus.names import INVERSE, NAMES, PAST, any_of, names, quoted, value_of
from gpudash.telemetry.metrics import Exporter
from gpudash.telemetry.records import Sample, State, Table

MOST_POINTS = 4096
"""Most points of a curve that are requested; Prometheus returns no more than 11 000."""

FEWEST_POINTS = 16

LATE = 2.5
"""Usual sample intervals after which a missing sample counts as a gap."""

CONSTANT = frozenset({"total_bytes"})
"""Columns for which the maximum of a step is enough."""

MARK = "gpudash_of"
"""Label that a joined query gives each series to identify its metric and extreme."""

LOW, HIGH = "min", "max"

RUN = "run"
"""Key, beside the reading tables, for the curves of a run."""

Place = tuple[str, str | None]
"""Reading table, or `RUN`, and the device."""

Moments = dict[float, dict[str, float | None]]
"""Time → column → value."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The GPU whose history is queried.

    Attributes:
        exporter: the exporter whose names are used.
        device: device of the resulting readings: a UUID.
        labels: labels of its memory's series.
        torch_name: torch's name for it on its machine; "" if unknown.
    """

    exporter: Exporter
    device: str
    labels: Mapping[str, str]
    torch_name: str = ""

    @property
    def matchers(self) -> str:
        """The PromQL matchers for its own series, whatever scraped them: the identity outlives addresses."""
        # By UUID alone, since the machine's address may have changed; without one, and for a simulated one, by place.
        found = [f"{name}={quoted(self.labels[name])}" for name in ("uuid", "UUID", "GPU_I_ID") if name in self.labels]
        alone = not found or self.labels.get("uuid", "").startswith("SIM-")
        if alone:
            found += [f"{name}={quoted(self.labels[name])}" for name in ("gpu", "instance") if name in self.labels]
        return ",".join(found)

    @property
    def machine(self) -> str:
        """The PromQL matchers for its machine's series."""
        return ",".join(f"{name}={quoted(self.labels[name])}" for name in ("instance", "job") if name in self.labels)


@dataclass(slots=True)
class Past:
    """A range of a GPU's history.

    Attributes:
        samples: readings in order of time, in seconds since the beginning of the range.
        curves: curves of a run, by column: (time, value or ``None`` for a gap), in order of time.
        step_s: distance of the points: the scrape interval if `exact`, else the length of a step.
        exact: whether it contains every sample, at its own time.
        requested_points: points of one curve that were requested from the server.
        warnings: the server's warnings about an incomplete answer.
    """

    step_s: float
    exact: bool
    requested_points: int
    samples: list[Sample] = field(default_factory=list)
    curves: dict[str, list[tuple[float, float | None]]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_past(client: Client, subject: Subject, began_s: float, ended_s: float, points: int) -> Past:
    """The history of ``subject`` between two times in seconds since the epoch, at most ``points`` points a curve.

    Raises:
        PrometheusError: one sentence.
    """
    points = min(max(points, FEWEST_POINTS), MOST_POINTS)
    length_s = ended_s - began_s
    window = f"[{_milliseconds(length_s)}]"
    series = names(subject.exporter, "gpu", metrics=["used_bytes", "gpu_utilisation"])
    counted = " or ".join(f"count_over_time({name}{{{subject.matchers}}}{window})" for name in series)
    # Count first: this cheapest query decides whether to fetch the samples themselves.
    found = client.query(f"max({counted})", ended_s)
    count = max((float(entry["value"][1]) for entry in found.result), default=0.0)
    if count <= points:
        moments, warnings = _exact(client, subject, ended_s, length_s)
        step_s = _spacing(moments)
        past = Past(step_s, exact=True, requested_points=int(count), warnings=warnings)
    else:
        # PromQL durations are in milliseconds. Round up: otherwise the last step would end before the range does.
        step_s = math.ceil(length_s / (points // 2) * 1000) / 1000
        moments, warnings = _extremes(client, subject, began_s, ended_s, step_s)
        past = Past(step_s, exact=False, requested_points=2 * math.floor(length_s / step_s + 1e-9), warnings=warnings)
    past.samples = sorted(_samples(moments, began_s, past), key=_order)
    for (table, _device), rows in moments.items():
        if table == RUN:
            _add_curves(past, rows, began_s)
    return past


def _exact(
    client: Client, subject: Subject, ended_s: float, length_s: float
) -> tuple[dict[Place, Moments], tuple[str, ...]]:
    """Every sample, at its scrape time."""
    moments: dict[Place, Moments] = defaultdict(lambda: defaultdict(dict))
    warnings: dict[str, None] = {}
    for chosen, matchers in _queried(subject):
        answer = client.query(f"{any_of(chosen, matchers)}[{_milliseconds(length_s)}]", ended_s)
        warnings |= dict.fromkeys(answer.warnings)
        for name, labels, values in _series(answer.result, "__name__"):
            place = _place(subject, name, labels)
            if place is None:
                continue
            for time_s, text in values:
                moments[place][float(time_s)][NAMES[name].metric] = value_of(NAMES[name], text)
    return moments, tuple(warnings)


def _extremes(
    client: Client, subject: Subject, began_s: float, ended_s: float, step_s: float
) -> tuple[dict[Place, Moments], tuple[str, ...]]:
    """The minimum and maximum of each step, in this order; their times within the step are unknown."""
    moments: dict[Place, Moments] = defaultdict(lambda: defaultdict(dict))
    warnings: dict[str, None] = {}
    window = _milliseconds(step_s)
    for chosen, matchers in _queried(subject):
        terms = []
        for name in chosen:
            # *_over_time drops the names, so two would collide in one answer: a label keeps them apart.
            for extreme in (HIGH,) if NAMES[name].metric in CONSTANT else (LOW, HIGH):
                inner = f"{extreme}_over_time({name}{{{matchers}}}[{window}])"
                terms.append(f'label_replace({inner},"{MARK}","{name}/{extreme}","","")')
        # A step covers the time before its end, so the first one ends a step after the beginning.
        answer = client.query_range(" or ".join(terms), began_s + step_s, ended_s, step_s)
        warnings |= dict.fromkeys(answer.warnings)
        for mark, labels, values in _series(answer.result, MARK):
            name, _, extreme = mark.partition("/")
            place = _place(subject, name, labels)
            if place is None:
                continue
            for time_s, text in values:
                _put_extreme(moments[place], float(time_s), step_s, name, extreme, value_of(NAMES[name], text))
    return moments, tuple(warnings)


def _put_extreme(rows: Moments, end_s: float, step_s: float, name: str, extreme: str, value: float | None) -> None:
    metric = NAMES[name].metric
    # A quarter from each end: two points of a step keep their order, and neighbours their distance.
    low_s, high_s = end_s - 0.75 * step_s, end_s - 0.25 * step_s
    if metric in CONSTANT:
        rows[low_s][metric] = rows[high_s][metric] = value
        return
    first = (extreme == LOW) != (metric in INVERSE)  # free memory has its minimum where used memory has its maximum
    rows[low_s if first else high_s][metric] = value


def _queried(subject: Subject) -> Iterator[tuple[list[str], str]]:
    """Metrics, and the matchers for their series."""
    yield names(subject.exporter, "gpu", metrics=PAST), subject.matchers
    machine = names(subject.exporter, "host", "allocator", "run")
    if machine and subject.machine:
        # Readings of the host, the allocator and a run have no UUID: select them by machine, and by device.
        yield machine, subject.machine


def _series(result: Iterable[Mapping[str, Any]], label: str) -> Iterator[tuple[str, Mapping[str, str], Sequence[Any]]]:
    for entry in result:
        labels = entry["metric"]
        yield labels[label], labels, entry["values"]


def _place(subject: Subject, name: str, labels: Mapping[str, str]) -> Place | None:
    """The table and device of a series; ``None`` if it is of another GPU on the same machine."""
    found = NAMES.get(name.partition("/")[0])
    if found is None:
        return None
    if found.kind == "gpu":
        return "gpu", subject.device
    if found.kind == "host":
        return "host", None
    device = labels.get("device", "")
    if not subject.torch_name or subject.torch_name not in device.split(","):
        return None
    if found.kind == "allocator":
        return ("allocator", subject.torch_name)
    return (RUN, None)


def _samples(moments: Mapping[Place, Moments], began_s: float, past: Past) -> Iterator[Sample]:
    """Readings, and an empty one where scrapes are missing, so that lines break."""
    tables: dict[str, Table] = {"host": "host", "allocator": "allocator"}
    for (name, device), rows in moments.items():
        if name == RUN or not rows:
            continue
        table = tables.get(name, "gpu")
        columns = sorted({column for row in rows.values() for column in row})
        for time_s in _gaps(rows, past):
            yield _sample(time_s - began_s, table, device, dict.fromkeys(columns))
        for time_s, row in rows.items():
            if table == "gpu" and "total_bytes" not in columns:
                _add_total(row)
            # Exporters read used and total at different times.
            if (row.get("used_bytes") or 0.0) > (row.get("total_bytes") or math.inf):
                row["used_bytes"] = None  # more than the total is impossible
            yield _sample(time_s - began_s, table, device, dict.fromkeys(columns) | row)


def _add_total(row: dict[str, float | None]) -> None:
    """Add up the capacity, of which dcgm-exporter reports only the parts."""
    used, free = row.get("used_bytes"), row.get("free_bytes")
    if used is not None and free is not None:
        row["total_bytes"] = used + free + (row.get("driver_reserved_bytes") or 0.0)


def _sample(time_s: float, table: Table, device: str | None, row: Mapping[str, float | None]) -> Sample:
    whole = {name: round(value) for name, value in row.items() if value is not None and name.endswith("_bytes")}
    missing = {name: State.STALE for name, value in row.items() if value is None}
    return Sample(max(0.0, time_s), table, device, {**row, **whole}, missing)


def _add_curves(past: Past, rows: Moments, began_s: float) -> None:
    times = sorted({**rows, **dict.fromkeys(_gaps(rows, past))})
    for column in sorted({column for row in rows.values() for column in row}):
        # Every column at every time: a curve breaks where its own value is missing.
        past.curves[column] = [(max(0.0, t - began_s), rows.get(t, {}).get(column)) for t in times]


def _gaps(rows: Moments, past: Past) -> Iterator[float]:
    """Times of missing scrapes: one after each sample that has no successor in time."""
    times = sorted(rows)
    if past.exact:
        step_s = past.step_s
    else:
        # There are two points in each step.
        step_s = past.step_s / 2
    for before, after in pairwise(times):
        # Longer than one late scrape, shorter than two failed ones.
        if after - before > LATE * step_s:
            yield before + step_s


def _spacing(moments: Mapping[Place, Moments]) -> float:
    """The usual scrape interval; 1 s if there are fewer than two samples."""
    for (table, _device), rows in moments.items():
        times = sorted(rows)
        if table == "gpu" and len(times) > 1:
            return median(after - before for before, after in pairwise(times))
    return 1.0


def _order(sample: Sample) -> tuple[float, bool]:
    return sample.time_s, sample.table == "gpu"  # after the allocator's of the same time, with which it forms bands


def _milliseconds(seconds: float) -> str:
    return f"{max(1, math.ceil(seconds * 1000))}ms"
