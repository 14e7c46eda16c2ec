"""The state of a run, collected from its events: figures for the window's tabs and for ``run --json``."""

from __future__ import annotations

import array
import json
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from gpudash.devices.names import kind_of
from gpudash.telemetry.records import (
    LARGEST,
    OF_LOSS,
    EpochFinished,
    Event,
    Note,
    RemediesFound,
    RunEnd,
    RunStarted,
    StageFinished,
    StepFinished,
    Topic,
    Warning,
    event_from_json,
    plain,
)
from gpudash.telemetry.results.step_parts import Loader, StepParts, step_parts

MAX_NOTES = 10_000
"""Most notes, epochs and warnings kept for a run: the first ones, which later ones seldom outweigh."""

PACE_S = 20.0
"""Time constant of a run's average pace in seconds: older steps count less and less."""

EXACT_VALUES = 100_000
"""Number of a metric's values up to which its median is exact; beyond, it is that of a uniform sample of this size."""

DIGEST_VALUES = 256
"""Most values of a metric in a digest: enough for the median of a current run."""

E = TypeVar("E", bound=Event)

MOST_LOSSES = 6
"""Most losses kept for a run with several: as many as a plot can distinguish."""

WATCH = "watch"
"""The workload of a user's own program."""

RATES = ("items/s", "steps/s")
"""Units of throughput; see `item_of`."""

Status = Literal["running", "finished", "cancelled", "failed", "out_of_memory"]

ENDINGS: Mapping[str, str] = {
    "finished": "finished",
    "cancelled": "stopped",
    "failed": "failed",
    "out_of_memory": "out of memory",
}
"""How a run ended, in the words of every place that shows it."""

PEAK_STEPS = 2
"""Whole steps until a run has reached its peak: the optimizer makes its state in the first, and the second needs it."""

GROWN_RATIO = 1.01
"""How much higher than half-way through its steps the peak of a run is that was still growing."""

NO_LONGER_WATCHED = "no longer watched"
"""How the watching of a program ended that had been running before: it runs on."""

NEWEST_STAGES = 200
"""How many of the newest executions of stages a digest lists; its sums cover all."""


def ending_text(status: str, spec: Mapping[str, Any]) -> str:
    """How a run with this status and spec ended, in a word or two; the status itself while it runs."""
    if status == "cancelled" and "pid" in spec:
        return NO_LONGER_WATCHED
    return ENDINGS.get(status, status)


def has_grown(peak: float | None, half_way: float | None) -> bool:
    """Whether the peak of a run was still rising, by its peak half-way through its steps."""
    return peak is not None and half_way is not None and peak > GROWN_RATIO * half_way


def cut_short_text(status: str, spec: Mapping[str, Any], steps: int, *, grew: bool = False) -> str:
    """How a run ended before its peak, as "stopped after 1 step"; "" if its peak is known.

    Args:
        status, spec, steps: of the run.
        grew: whether its memory was still growing; see `has_grown`.
    """
    if status == "finished" or (steps >= PEAK_STEPS and not grew):
        return ""
    ending = ending_text(status, spec)
    if status == "running":
        ending = "unfinished"  # it was killed with its session, or another session runs it
    text = f"{ending} after {steps} {'step' if steps == 1 else 'steps'}"
    if grew and steps >= PEAK_STEPS:
        return f"{text}, still growing"
    return text


def item_of(workload: str) -> str:
    """The plural of what a run's throughput counts; for a watched program only steps are known."""
    if workload == WATCH:
        return "steps"
    return "items"


def whose_peak(device: str) -> str:
    """Whose peak memory it is, if PyTorch's allocator does not report it: more than the run's own.

    Args:
        device: torch's name for the device.
    """
    if kind_of(device) == "cpu":
        return "of the process"
    return "of the whole GPU"


class MetricView:
    """First, last, extremes and medians of a run's metric. NaN and infinities only count in `first` and `last`."""

    def __init__(self) -> None:
        self.count = 0
        self.first = math.nan
        self.last = math.nan
        self.min = math.inf
        self.max = -math.inf
        self._values = array.array("d")
        self._finite = 0
        self._newest: deque[float] = deque(maxlen=20)
        self._random = random.Random(0)
        self._capacity = EXACT_VALUES
        self._known_median: float | None = None

    def add(self, value: float) -> None:
        """Add the next value."""
        if self.count == 0:
            self.first = value
        self.count += 1
        self.last = value
        if not math.isfinite(value):
            return
        self._finite += 1
        self._known_median = None
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        self._newest.append(value)
        if len(self._values) < self._capacity:
            self._values.append(value)
        elif (place := self._random.randrange(self._finite)) < self._capacity:
            self._values[place] = value  # Vitter 1985, algorithm R: all values have the same probability

    @property
    def median(self) -> float | None:
        """Median of all finite values; ``None`` if there are none."""
        if self._known_median is None and self._values:
            self._known_median = float(np.median(np.frombuffer(self._values)))
        return self._known_median

    @property
    def last_20_median(self) -> float | None:
        """Median of the newest 20 finite values; ``None`` if there are none."""
        if self._newest:
            return float(np.median(self._newest))
        return None

    def summary(self) -> dict[str, float | None]:
        return {
            "first": self.first if self.count else None,
            "last": self.last if self.count else None,
            "min": self.min if self._finite else None,
            "max": self.max if self._finite else None,
            "median": self.median,
            "last_20_median": self.last_20_median,
        }

    def digest(self) -> dict[str, Any]:
        """JSON from which `of` restores an equal view: all figures, and an even selection of the values."""
        step = -(-len(self._values) // DIGEST_VALUES) or 1
        return {
            "count": self.count,
            "finite": self._finite,
            "first": self.first,
            "last": self.last,
            "min": self.min,
            "max": self.max,
            "median": self.median,
            "newest": list(self._newest),
            "values": self._values[::step].tolist(),
        }

    @classmethod
    def of(cls, digest: Mapping[str, Any]) -> MetricView:
        """Restore a digested view: with equal figures; later medians are based on the stored selection of values."""
        view = cls()
        view.count, view._finite = int(digest["count"]), int(digest["finite"])
        view.first, view.last = float(digest["first"]), float(digest["last"])
        view.min, view.max = float(digest["min"]), float(digest["max"])
        view._newest.extend(map(float, digest["newest"]))
        view._values.extend(map(float, digest["values"]))
        if len(view._values) < view._finite:
            view._capacity = len(view._values)
        if digest["median"] is None:
            view._known_median = None
        else:
            view._known_median = float(digest["median"])
        return view


MOST_STEP_TIMES = 4096
"""Most step times kept for a run: beyond that, every other one is dropped, repeatedly."""


class StepTimes:
    """When the steps of a run ended, evenly thinned."""

    def __init__(self) -> None:
        self._times = array.array("d")
        self._steps = array.array("q")
        self._stride = 1

    def add(self, time_s: float, step: int) -> None:
        """Add the end of a step; ignores steps that go back, or fall between those that are kept."""
        if self._steps and (step < self._steps[-1] + self._stride or time_s < self._times[-1]):
            return
        self._times.append(time_s)
        self._steps.append(step)
        if len(self._steps) >= MOST_STEP_TIMES:
            self._times = self._times[::2]
            self._steps = self._steps[::2]
            self._stride *= 2

    def known(self) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
        """Session times, ascending, and the numbers of the steps that ended at those times."""
        return np.array(self._times, np.float64), np.array(self._steps, np.float64)

    def median_s(self) -> float | None:
        """Median time in seconds from one step's end to the next; without the first step, which is warm-up. ``None``
        before the third step.
        """
        times, steps = self.known()
        if len(times) < 3:
            return None
        # Thinned or lost steps leave longer intervals; each counts with its mean.
        return float(np.median(np.diff(times[1:]) / np.diff(steps[1:])))


@dataclass(slots=True)
class StageView:
    """All executions of a stage: `seconds`, `bytes`, `flops` are sums; names come from the newest event."""

    newest: StageFinished
    count: int = 0
    seconds: float = 0.0
    bytes: int | None = None
    flops: float | None = None
    _copied_bytes: int = 0
    _copied_seconds: float = 0.0

    def add(self, stage: StageFinished) -> None:
        """Add another execution."""
        self.newest = stage
        self.count += stage.count
        self.seconds += stage.seconds
        if stage.bytes is not None:
            self.bytes = (self.bytes or 0) + stage.bytes
        if stage.flops is not None:
            self.flops = (self.flops or 0.0) + stage.flops
        if stage.bytes_per_second is not None and stage.bytes is not None:
            self._copied_bytes += stage.bytes
            self._copied_seconds += stage.seconds

    def digest(self) -> dict[str, Any]:
        """JSON from which `of` restores an equal view."""
        return {
            "newest": json.loads(self.newest.to_json()),
            "count": self.count,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "flops": self.flops,
            "copied_bytes": self._copied_bytes,
            "copied_seconds": self._copied_seconds,
        }

    @classmethod
    def of(cls, digest: Mapping[str, Any]) -> StageView:
        """Restore a digested view."""
        newest = event_from_json(json.dumps(digest["newest"]))
        if not isinstance(newest, StageFinished):
            raise ValueError(f"not a stage: {newest.kind}")
        sums = (digest[name] for name in ("count", "seconds", "bytes", "flops", "copied_bytes", "copied_seconds"))
        return cls(newest, *sums)

    @property
    def name(self) -> str:
        return self.newest.name

    @property
    def bytes_per_second(self) -> float | None:
        """Rate over all executions that copied bytes; ``None`` if none did."""
        if self._copied_seconds > 0:
            return self._copied_bytes / self._copied_seconds
        return None

    @property
    def flops_per_second(self) -> float | None:
        """Arithmetic rate over all executions; ``None`` if nothing was counted."""
        if self.flops is None or self.seconds <= 0:
            return None
        return self.flops / self.seconds

    def summary(self) -> dict[str, Any]:
        stage = self.newest
        return {
            "name": stage.name,
            "count": self.count,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "bytes_per_second": self.bytes_per_second,
            "from": stage.from_device,
            "to": stage.to_device,
            "shape": None if stage.shape is None else list(stage.shape),
            "dtype": stage.dtype,
            "copied": stage.copied,
            "device": stage.device,
            "is_cuda": stage.is_cuda,
            "same_object": stage.same_object,
            "is_leaf": stage.is_leaf,
            "first_values": None if stage.first_values is None else list(stage.first_values),
            "remark": stage.remark,
        }


PeakName = Literal["allocated_bytes", "reserved_bytes", "used_bytes"]


@dataclass(slots=True)
class MemoryPeaks:
    """Peak readings during a run, in bytes; ``None`` if nothing was read.

    Attributes:
        doubled_allocated_bytes: the allocated peak when the number of steps last became a power of 2, from
            `PEAK_STEPS` on.
        half_way_allocated_bytes: the one at the power before.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    capacity_bytes: int | None = None
    doubled_allocated_bytes: int | None = None
    half_way_allocated_bytes: int | None = None

    @property
    def grew(self) -> bool:
        """Whether the allocated peak was still rising."""
        return has_grown(self.allocated_bytes, self.half_way_allocated_bytes or self.doubled_allocated_bytes)

    def mark_doubled(self) -> None:
        """Keep the peak at a number of steps that is a power of 2."""
        self.half_way_allocated_bytes = self.doubled_allocated_bytes
        self.doubled_allocated_bytes = self.allocated_bytes

    def raise_to(self, name: PeakName, value: float | None) -> None:
        """Raise the peak called ``name`` to a reading."""
        known = getattr(self, name)
        if value is not None and (known is None or value > known):
            setattr(self, name, int(value))


@dataclass(slots=True)
class RunView:
    """A run. Written by the session's thread under the store's lock; read under the same lock.

    Attributes:
        stepped_s: session time of the newest step.
        step_times: times at which its steps ended.
        pace_s: seconds per step, of the newest ones, including pauses between them; ``None`` before the second step.
        error: how it failed, if it did; the explanation includes remedies found since.
        loader: settings of a watched program's `DataLoader`, if known.
        open_stages: stages reported since the newest step ended: name → executions and seconds. Those of a watched
            program are of ended steps only.
    """

    run_id: int | None
    workload: str
    device: str
    spec: Mapping[str, Any]
    simulated: bool
    began_s: float
    status: Status = "running"
    ended_s: float | None = None
    seconds: float | None = None
    step: int = 0
    steps: int = 0
    stepped_s: float | None = None
    pace_s: float | None = None
    step_times: StepTimes = field(default_factory=StepTimes)
    stages: dict[str, StageView] = field(default_factory=dict)
    stage_events: deque[StageFinished] = field(default_factory=lambda: deque(maxlen=MAX_NOTES))
    metrics: dict[str, MetricView] = field(default_factory=dict)
    epochs: list[EpochFinished] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    warnings: list[Warning] = field(default_factory=list)
    memory: MemoryPeaks = field(default_factory=MemoryPeaks)
    result: Mapping[str, Any] = field(default_factory=dict)
    error: RunEnd | None = None
    loader: Loader | None = None
    open_stages: dict[str, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, event: RunStarted) -> RunView:
        return cls(event.run_id, event.workload, event.device, event.spec, event.simulated, event.time_s)

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def of_demo(self) -> bool:
        """Whether the demo ran it, not the user."""
        return self.note(Topic.DEMO) is not None

    def note(self, topic: Topic) -> Note | None:
        """The newest note on a topic."""
        return next((note for note in reversed(self.notes) if note.topic == topic), None)

    @property
    def peak_allocated_bytes(self) -> int | None:
        return self.memory.allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int | None:
        return self.memory.reserved_bytes

    @property
    def peak_used_bytes(self) -> int | None:
        """Peak use of this process's memory (on the CPU) or of the GPU's memory during the run.

        The highest reading; or, if more was reserved between two readings, that plus the other memory in use at the
        end.
        """
        return self.memory.used_bytes

    @property
    def seconds_left(self) -> float | None:
        """Seconds from the newest step to the last one at the present pace; ``None`` before that is known."""
        if not self.running or self.pace_s is None or self.steps <= self.step:
            return None
        return self.pace_s * (self.steps - self.step)

    @property
    def step_parts(self) -> StepParts | None:
        """Where the time of its ended steps went; ``None`` if its stages do not show it."""
        seconds = {}
        counts = {}
        for name, stage in self.stages.items():
            count, unended_s = self.open_stages.get(name, (0, 0.0))
            if count < stage.count:
                seconds[name] = stage.seconds - unended_s
                counts[name] = stage.count - count
        steps = counts.get("optimizer") or counts.get("forward")
        if steps is None:
            return None
        watched = self.workload == WATCH
        return step_parts(seconds, steps, kind_of(self.device), self.loader, watched=watched)

    def apply(self, event: Event) -> None:
        """Process an event of this run; ignores kinds that a run does not keep."""
        match event:
            case StepFinished():
                self._step(event)
            case StageFinished():
                self.stages.setdefault(event.name, StageView(event)).add(event)
                self.stage_events.append(event)
                if self.workload != WATCH:
                    count, seconds = self.open_stages.get(event.name, (0, 0.0))
                    self.open_stages[event.name] = count + event.count, seconds + event.seconds
            case EpochFinished():
                _keep(self.epochs, event)
            case Note():
                self._note(event)
            case Warning():
                _keep(self.warnings, event)
            case RunEnd():
                self._end(event)

    def summary(self, recording: str | None = None) -> dict[str, Any]:
        """The JSON of ``gpudash run --json``; NaN and infinities become strings.

        Args:
            recording: path of the recording; ``None`` if nothing is recorded.
        """
        error = self.error
        parts = self.step_parts
        return {
            "workload": self.workload,
            "device": self.device,
            "simulated": self.simulated,
            "spec": plain(self.spec),
            "status": self.status,
            "seconds": self.seconds,
            "steps": self.step,
            "stages": [stage.summary() for stage in self.stages.values()],
            "step_parts": None if parts is None else parts.to_json(),
            "metrics": {name: plain(metric.summary()) for name, metric in self.metrics.items()},
            "memory": {
                "peak_allocated_bytes": self.memory.allocated_bytes,
                "peak_reserved_bytes": self.memory.reserved_bytes,
                "peak_used_bytes": self.memory.used_bytes,
                "capacity_bytes": self.memory.capacity_bytes,
            },
            "result": plain(self.result),
            "warnings": [warning.text for warning in self.warnings if warning.level != "passed"],
            "error": None if error is None else _error_facts(error),
            "recording": recording,
        }

    def digest(self) -> str:
        """The figures that come from steps, stages and readings, as JSON; without what other events contain.

        Recordings contain digests, so that runs of long ones are known without reading every step again.
        """
        figures = {
            "step": self.step,
            "steps": self.steps,
            "stepped_s": self.stepped_s,
            "pace_s": self.pace_s,
            "stages": {name: stage.digest() for name, stage in self.stages.items()},
            "open_stages": self.open_stages,
            "metrics": {name: metric.digest() for name, metric in self.metrics.items()},
            "memory": asdict(self.memory),
            "stage_events": [event.to_json() for event in list(self.stage_events)[-NEWEST_STAGES:]],
        }
        return json.dumps(plain(figures), separators=(",", ":"))

    def restore(self, digest: str, *, stages: bool = True) -> None:
        """Restore figures from a digest; together with the run's other events, its `summary` is then equal.

        Args:
            digest: JSON from `digest`.
            stages: whether to restore stages, which are most of it; not needed for loss and memory alone.

        Raises:
            ValueError: if the text is not a digest of a run; this object is then unchanged.
        """
        try:
            data: dict[str, Any] = json.loads(digest)
            if not stages:
                data |= {"stages": {}, "stage_events": []}
            known = {name: StageView.of(stage) for name, stage in data["stages"].items()}
            metrics = {name: MetricView.of(metric) for name, metric in data["metrics"].items()}
            unended = {name: (int(count), float(taken)) for name, (count, taken) in data.get("open_stages", {}).items()}
            names = {field.name for field in fields(MemoryPeaks)}
            memory = MemoryPeaks(**{name: value for name, value in data["memory"].items() if name in names})
            events = [event for event in map(event_from_json, data["stage_events"]) if isinstance(event, StageFinished)]
            step, steps = int(data["step"]), int(data["steps"])
            stepped_s, pace_s = data["stepped_s"], data.get("pace_s")
            if not all(isinstance(value, int | None) for value in astuple(memory)):
                raise ValueError("a peak is no number of bytes")
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a run's digest ({error})") from None
        self.stages, self.metrics, self.memory = known, metrics, memory
        self.open_stages = unended
        self.step, self.steps, self.stepped_s, self.pace_s = step, steps, stepped_s, pace_s
        self.stage_events.clear()
        self.stage_events.extend(events)

    def _note(self, event: Note) -> None:
        """Store a note; remedies of an out-of-memory complete the explanation instead."""
        if event.topic == Topic.DEVICE:
            if event.details.get("device", self.device) != self.device:
                self.memory.used_bytes = None
            self.device = str(event.details.get("device", self.device))
            self.simulated = bool(event.details.get("simulated", self.simulated))
            self.memory.capacity_bytes = None
        if event.topic == Topic.INPUT:
            self.loader = Loader.of(event.details)
        error = self.error
        if isinstance(event, RemediesFound) and error is not None and error.explanation is not None:
            self.error = replace(error, explanation=error.explanation.with_findings(event.found))
        else:
            _keep(self.notes, event)

    def _step(self, event: StepFinished) -> None:
        self._keep_pace(event)
        self.open_stages.clear()
        if self.stepped_s is None or event.step != self.step:  # otherwise another report of the same step
            self.stepped_s = event.time_s
        if event.step > self.step and event.step >= PEAK_STEPS and event.step.bit_count() == 1:
            self.memory.mark_doubled()
        self.step_times.add(event.time_s, event.step)
        self.step, self.steps = event.step, event.steps
        for name, value in event.metrics():
            if name not in self.metrics:
                if sum(known.startswith(OF_LOSS) for known in self.metrics) >= MOST_LOSSES and name.startswith(OF_LOSS):
                    continue
                self.metrics[name] = MetricView()
            self.metrics[name].add(value)

    def _keep_pace(self, event: StepFinished) -> None:
        """Update the pace; excludes starting up, before the first step, and going back to an earlier step."""
        steps = event.step - self.step
        if self.stepped_s is None or steps <= 0 or event.time_s < self.stepped_s:
            return
        seconds = event.time_s - self.stepped_s
        if self.pace_s is None:
            self.pace_s = seconds / steps
            return
        weight = max(1 / max(1, event.step - 1), 1 - math.exp(-seconds / PACE_S))
        self.pace_s += weight * (seconds / steps - self.pace_s)

    def _end(self, event: RunEnd) -> None:
        self.status = event.status
        if event.status == "finished":
            self.open_stages.clear()  # what was summed up last is of the last steps
        if event.ended_badly:
            self.error = event
        self.ended_s = event.time_s
        self.seconds = event.seconds
        self.step = event.steps
        self.steps = max(self.steps, event.steps)
        peaks = _sizes(event.result.get("memory"))
        for name in get_args(PeakName):
            self.memory.raise_to(name, peaks.get(f"peak_{name}"))
        self.memory.capacity_bytes = self.memory.capacity_bytes or peaks.get("capacity_bytes")
        reserved, held_by_others = peaks.get("peak_reserved_bytes"), peaks.get("beside_bytes")
        capacity = self.memory.capacity_bytes
        if reserved is not None and held_by_others is not None:
            used = reserved + held_by_others
            self.memory.raise_to("used_bytes", used if capacity is None else min(used, capacity))
        self.result = {name: value for name, value in event.result.items() if name != "memory"}


def _error_facts(error: RunEnd) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": error.error, "message": error.message, "remedy": error.remedy}
    if error.explanation is None:
        return facts
    return {**facts, "explanation": plain(error.explanation)}


def _sizes(memory: object) -> dict[str, int]:
    """The sizes in a result's memory, which in a recording may be anything."""
    found = memory.items() if isinstance(memory, Mapping) else ()
    return {name: int(value) for name, value in found if isinstance(value, int | float) and 0 <= value <= LARGEST}


def _keep(kept: list[E], event: E) -> None:
    if len(kept) < MAX_NOTES:
        kept.append(event)


def run_of(runs: Sequence[RunView], run_id: int | None) -> RunView | None:
    """The run with the id ``run_id``; for ``None`` the newest one, while it is running."""
    if run_id is None:
        if runs and runs[-1].running:
            return runs[-1]
        return None
    return next((run for run in reversed(runs) if run.run_id == run_id), None)
