"""What is served of a run: how far it is, what it takes, and what was predicted; and of its ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from gpudash.session.serving import catalogue as names
from gpudash.session.serving.catalogue import ServedMetric
from gpudash.telemetry.records import Note
from gpudash.telemetry.runs import RunView, Status
from gpudash.telemetry.store import Store

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import Estimate

Rows = list[tuple[tuple[str, ...], float]]
"""Label values and number of each sample of a metric."""

MOST_RANKS = 64
"""Ranks with series of their own; of more, the lowest, the median and the highest are served."""

ENVELOPE = ("lowest", "median", "highest")

STATUSES: tuple[Status, ...] = get_args(Status)


def run_rows(
    run: RunView,
    store: Store,
    now_s: float,
    forecast_s: float | None,
    predicted: Estimate | None,
    host: str,
    rows: defaultdict[ServedMetric, Rows],
) -> None:
    """Put the newest run's figures into ``rows``; the caller holds the store's lock.

    Args:
        forecast_s: seconds until the memory of its device is full, if it grows.
        predicted: its prediction, if there is one.
        host: name of this machine.
    """
    labels = ("" if run.run_id is None else str(run.run_id), run.workload, run.device)
    rows[names.RUN_INFO].append(((*labels, "true" if run.simulated else "false", host), 1.0))
    rows[names.RUN_STATUS] += [((*labels, status), float(status == run.status)) for status in STATUSES]
    seconds = now_s - run.began_s if run.seconds is None else run.seconds
    told: list[tuple[ServedMetric, float | None]] = [
        (names.RUN_STEP, run.step if run.stepped_s is not None or not run.running else None),
        (names.RUN_STEPS, run.steps or None),
        (names.RUN_DURATION, max(0.0, seconds)),
    ]
    if run.running:
        told += [
            (names.RUN_STEP_AGE, None if run.stepped_s is None else max(0.0, now_s - run.stepped_s)),
            (names.RUN_LOSS, _newest(store, run, "loss")),
            (names.RUN_ACCURACY, _newest(store, run, "accuracy")),
            (names.RUN_THROUGHPUT, _newest(store, run, "throughput")),
            (names.RUN_FORECAST, forecast_s),
        ]
    for served, value in told:
        if value is not None:
            rows[served].append((labels, float(value)))
    peaks = [("allocated", run.memory.allocated_bytes), ("reserved", run.memory.reserved_bytes)]
    _by_kind(rows, names.RUN_PEAK, labels, [*peaks, ("used", run.memory.used_bytes)])
    if predicted is not None:
        expected = [("allocated", predicted.peak_allocated_bytes), ("reserved", predicted.peak_reserved_bytes)]
        _by_kind(rows, names.RUN_PREDICTED, labels, expected)
    _ranks(run, store, labels, rows)


def rank_names(run: RunView | None) -> Sequence[str]:
    """What the ranks of a run that is on are called in the readings; empty for a run on one device."""
    if run is None or not run.running:
        return ()
    size = _world_size(run)
    return ENVELOPE if size > MOST_RANKS else [str(rank) for rank in range(size)]


def _world_size(run: RunView) -> int:
    ranks = next((note for note in reversed(run.notes) if isinstance(note, Note) and note.topic == "ranks"), None)
    size = None if ranks is None else ranks.details.get("world_size")
    return size if isinstance(size, int) else 0


def _ranks(run: RunView, store: Store, labels: tuple[str, ...], rows: defaultdict[ServedMetric, Rows]) -> None:
    size = _world_size(run)
    if not size:
        return
    rows[names.RUN_RANKS].append((labels, float(size)))
    for rank in rank_names(run):
        step, waiting = store.latest("rank", "step_s", rank), store.latest("rank", "waiting_s", rank)
        if step.time_s is None or step.time_s < run.began_s or step.time_s != waiting.time_s:
            continue
        if isinstance(step.value, int | float) and isinstance(waiting.value, int | float) and step.value > 0:
            rows[names.RANK_WAITING].append(((rank,), waiting.value / step.value))


def _newest(store: Store, run: RunView, name: str) -> float | None:
    """The metric of the newest step that told it; of a loss, what is no number is told as such."""
    metric = run.metrics.get(name)
    if metric is None:
        return None
    series = store.series("run", name)
    last = None if series is None else series.last()
    return None if last is None or last[0] < run.began_s or (math.isnan(last[1]) and name != "loss") else last[1]


def _by_kind(
    rows: defaultdict[ServedMetric, Rows],
    served: ServedMetric,
    labels: tuple[str, ...],
    values: Sequence[tuple[str, int | None]],
) -> None:
    rows[served] += [((*labels, kind), float(value)) for kind, value in values if value is not None]
