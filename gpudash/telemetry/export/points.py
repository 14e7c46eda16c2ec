"""A recording in the form that experiment trackers use: named runs of scalars, each at a step and a time.

Every run has its losses, accuracies and throughput by step, and the peak memory of each step. The machine has all
readings; its steps are milliseconds since the session began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpudash.telemetry.export.tables import Passing
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.ranks.ranks import ENVELOPE
from gpudash.telemetry.recording.facts import wall_clock_s
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.records import Record, RunEnd, RunStarted, Sample, StepFinished, number_in

MACHINE = "machine"

_TABLES = ("host", "gpu", "allocator", "rank")

_OF_STEPS = frozenset(("used_bytes", "process_bytes", "allocated_bytes", "reserved_bytes"))
"""Readings for which a run has the peak of each step."""

LONGEST_NAME = 60
"""Characters of a workload's name within a folder's name."""

_UNNAMEABLE = re.compile(r"[^\w.:-]+")


@dataclass(frozen=True, slots=True)
class ScalarPoint:
    """A single value.

    Attributes:
        run: name of its run: "machine", or one such as "run-2-training" that is valid for a folder.
        tag: its name, such as "loss" or "memory/cuda:0/allocated_bytes".
        step: step of the run, from 1; for the machine, milliseconds since the session began.
        wall_s: seconds since 1970.
        value: a number, NaN and infinities too.
    """

    run: str
    tag: str
    step: int
    wall_s: float
    value: float


def scalar_points(recording: Recording, passing: Passing) -> Iterator[ScalarPoint]:
    """The points of a recording, in order of time."""
    began_wall_s = wall_clock_s(str(recording.meta.get("wall_clock_origin", "")))
    if began_wall_s is None:
        began_wall_s = recording.path.stat().st_mtime
    runs: dict[int | None, _Run] = {}
    for record in passing(recording.records()):
        yield from _of(record, runs, began_wall_s)
    for run in runs.values():
        yield from run.rest()


def _of(record: Record, runs: dict[int | None, _Run], began_wall_s: float) -> Iterator[ScalarPoint]:
    wall_s = began_wall_s + record.time_s
    match record:
        case Sample() if record.table in _TABLES and not (record.table == "rank" and record.device in ENVELOPE):
            for tag, name, value in _values(record):
                yield ScalarPoint(MACHINE, tag, round(record.time_s * 1e3), wall_s, value)
                if name in _OF_STEPS:
                    for run in runs.values():
                        run.take(tag, wall_s, value)
        case RunStarted():
            runs[record.run_id] = _Run(_name(record.run_id, record.workload))
        case StepFinished() if record.run_id in runs:
            yield from runs[record.run_id].step(record, wall_s)
        case RunEnd() if record.run_id in runs:
            yield from runs.pop(record.run_id).rest()


def _values(sample: Sample) -> Iterator[tuple[str, str, float]]:
    """Tag, name and value of each number in a sample; gaps are skipped."""
    owner = sample.device or "host"
    if sample.table == "rank":
        owner = f"rank {sample.device}"
    for metric in METRICS[sample.table]:
        value = number_in(sample.values.get(metric.name))
        if value is not None:
            yield f"{_group(metric.name)}/{owner}/{metric.name}", metric.name, float(value)


def _name(run_id: int | None, workload: str) -> str:
    return f"run-{run_id}-{_UNNAMEABLE.sub('_', workload)[:LONGEST_NAME]}"


def _group(name: str) -> str:
    if name.endswith("_bytes"):
        return "memory"
    return "readings"


@dataclass(slots=True)
class _Run:
    """A current run: the peak memory of its current step."""

    name: str
    at_step: int = 0
    highest: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, tag: str, wall_s: float, value: float) -> None:
        known = self.highest.get(tag)
        if known is None or value > known[1]:
            self.highest[tag] = wall_s, value

    def step(self, event: StepFinished, wall_s: float) -> Iterator[ScalarPoint]:
        self.at_step = max(self.at_step, event.step)
        for tag, value in event.metrics():
            yield ScalarPoint(self.name, tag, event.step, wall_s, float(value))
        yield from self._memory(event.step)

    def rest(self) -> Iterator[ScalarPoint]:
        """The memory of an incomplete step, such as one that ran out of memory."""
        yield from self._memory(self.at_step + 1)

    def _memory(self, step: int) -> Iterator[ScalarPoint]:
        for tag, (wall_s, value) in self.highest.items():
            yield ScalarPoint(self.name, tag, step, wall_s, value)
        self.highest.clear()


def run_facts(recording: Recording) -> dict[str, dict[str, Any]]:
    """The settings of each run by its name: a tracker's configuration."""
    found = {}
    for run in recording.runs:
        found[_name(run.id, run.workload)] = {"workload": run.workload, **run.spec}
    return found
