"""A run as it is compared: its figures, its steps one by one, its curves and the machine it ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpudash.telemetry.comparing.curves import Curve
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.thinning import Floats

_NONE = np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """The steps of a run, one array a column, all of shape (steps,); NaN where a step did not tell.

    Attributes:
        number: which step, from 1.
        time_s: session time at its end, ascending.
        seconds: how long it took.
        loss: nats, or whatever a watched program counts.
        accuracy: ratio, 0 to 1.
        throughput: items a second.
    """

    number: Floats = field(default_factory=lambda: _NONE)
    time_s: Floats = field(default_factory=lambda: _NONE)
    seconds: Floats = field(default_factory=lambda: _NONE)
    loss: Floats = field(default_factory=lambda: _NONE)
    accuracy: Floats = field(default_factory=lambda: _NONE)
    throughput: Floats = field(default_factory=lambda: _NONE)

    def metric(self, name: str) -> Floats:
        """The column ``name``: loss, accuracy or throughput."""
        column: Floats = getattr(self, name)
        return column


@dataclass(frozen=True, slots=True)
class RunMark:
    """A named moment of a run, in session time."""

    label: str
    time_s: float


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """One run and what is known of it.

    Attributes:
        label: short name of the recording, with the number of the run where one was picked.
        recording: path of the recording.
        view: figures of the run, as ``gpudash run --json`` tells them.
        steps: the steps one by one.
        stages: stage → seconds an execution, one value for each time the stage was told, in order.
        memory: curve of each quantity of memory over session time, by name ("allocated", "reserved", "used").
        marks: named moments within the run.
        machine: fact → words: processor, GPU, torch and so on.
        crowding: share of the processor, 0 to 1, that other programs took from the run (see `noise.crowding`).
        notes: sentences on what limits the comparison.
    """

    label: str
    recording: str
    view: RunView
    steps: StepColumns = field(default_factory=StepColumns)
    stages: Mapping[str, Floats] = field(default_factory=dict)
    memory: Mapping[str, Curve] = field(default_factory=dict)
    marks: Sequence[RunMark] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    crowding: float = 0.0
    notes: Sequence[str] = ()

    @property
    def began_s(self) -> float:
        """Session time at which the run began."""
        return self.view.began_s
