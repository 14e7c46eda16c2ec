"""Joins the reports of a run's ranks, in any order, into rows of the reading table ``rank``: for each rank, over all
of them, and how their steps spend their time. Also finds what stands out among them."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudash.telemetry.ranks.straggler import Imbalance, Paces, Straggler, compared, imbalance
from gpudash.telemetry.records import Sample, Topic, Value, number_in

MOST_PENDING = 1024
"""Most steps that wait for a rank; beyond it the oldest are dropped, since a rank may never report them."""

MEDIAN_STEPS = 2048
"""Number of newest steps whose medians are in a summary."""

MEMORY = ("used_bytes", "allocated_bytes", "reserved_bytes")

LEAST_RANKS = 5
"""Number of ranks from which line styles no longer distinguish single ranks' curves."""

ENVELOPE = ("lowest", "median", "highest")
"""Devices of the table ``rank`` that are not ranks."""

PARTS = ("compute", "communication", "waiting", "input")
"""Parts of a step; each is a series ``<part>_share``, input only if a rank reports it.

Compute is what the rank reported, else the rest. If ranks exclude the time waiting for a core from their compute time,
it belongs to no part, and the shares add up to less than 1.
"""

MEAN = "mean"
"""Device under which the shares of all ranks together are stored."""

POLL_S = 1.0
"""Interval between two checks; a straggler must be found in two consecutive ones."""

SETTLED_STEPS = 5
"""Number of joined steps before memory is compared: until then, one rank may have loaded more than the others."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step of one rank.

    Attributes:
        rank: number of the rank, from 0.
        step: number of the step, the same in every rank.
        time_s: session time at the step's end.
        step_s: time from the previous step's end to this one's.
        compute_s: the rank's own compute time in the step; ``None`` if unknown. If the rank can measure its time
            waiting for a core, that is excluded; the logger in a watched script cannot, and reports all time that was
            not blocked.
        blocked_s: time in the step that was blocked in collectives: communication, and waiting for ranks that arrived
            later; ``None`` if unknown.
        loss: loss of the rank's part of the batch, in nats.
        accuracy: accuracy of that part, 0 to 1.
        input_s: time in the step that the rank waited for its next batch; ``None`` if unknown.
    """

    rank: int
    step: int
    time_s: float
    step_s: float
    compute_s: float | None = None
    blocked_s: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    input_s: float | None = None

    @property
    def own_s(self) -> float | None:
        """Time that does not depend on the others, which may have to wait for it: compute and input."""
        if self.compute_s is None:
            return None
        return self.compute_s + (self.input_s or 0.0)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank at a session time, in bytes: of its process or device, and of its allocator.

    Peaks are since the process began, if its allocator records them; else those of the readings.
    """

    rank: int
    time_s: float
    used_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class JoinedStep:
    """A step that every rank has reported.

    Attributes:
        step: number of the step.
        time_s: session time at which the last rank finished it.
        seconds: time of the slowest rank.
        loss: mean over the ranks that reported one.
        accuracy: likewise.
        samples: rows of the reading table ``rank``; from five ranks on, with the envelope.
    """

    step: int
    time_s: float
    seconds: float
    loss: float | None
    accuracy: float | None
    samples: tuple[Sample, ...]


@dataclass(slots=True)
class _Rank:
    """The state of one rank."""

    newest: int | None = None
    steps: int = 0
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MEDIAN_STEPS))
    compute_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MEDIAN_STEPS))
    parted_s: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    waiting_s: float = 0.0
    input_s: float | None = None
    peaks: dict[str, int] = field(default_factory=dict)
    memory: dict[str, Value] | None = None


class Ranks:
    """The ranks of a run. Belongs to one thread.

    Args:
        world_size: number of ranks.
        heard: numbers of the ranks that report here, ascending; ``None`` for all. Each of several nodes receives its
            own.

    Raises:
        ValueError: if there are no ranks.

    Attributes:
        joined: number of steps that every rank has reported.
    """

    def __init__(self, world_size: int, heard: Sequence[int] | None = None) -> None:
        if world_size < 1:
            raise ValueError(f"A run has at least one rank, not {world_size}.")
        self.world_size = world_size
        self.joined = 0
        numbers: Iterable[int] = range(world_size)
        if heard is not None:
            numbers = sorted(set(heard))
        self.heard = tuple(numbers)
        if not self.heard or not 0 <= self.heard[0] <= self.heard[-1] < world_size:
            raise ValueError(f"Ranks {list(self.heard)} are not among {world_size}.")
        self._ranks = {number: _Rank() for number in self.heard}
        self._pending: dict[int, dict[int, RankStep]] = {}
        self._paces = Paces(self.heard)
        self._enveloped: set[int] = set()

    def take_step(self, report: RankStep) -> JoinedStep | None:
        """Add a rank's step; returns the joined step if it was the last one missing.

        Raises:
            ValueError: if there is no such rank.
        """
        rank = self._of(report.rank)
        if rank.newest is None:
            rank.newest = report.step
        else:
            rank.newest = max(rank.newest, report.step)
        waiting = self._pending.setdefault(report.step, {})
        waiting[report.rank] = report
        if len(waiting) < len(self.heard):
            # Drop the lowest step number: a rank that is behind may still report the newer ones.
            if len(self._pending) > MOST_PENDING:
                del self._pending[min(self._pending)]
            return None
        del self._pending[report.step]
        return self._joined([waiting[number] for number in self.heard])

    def take_memory(self, report: RankMemory) -> tuple[Sample, ...]:
        """Add a rank's memory; returns its row, and the envelope when every rank has a new reading.

        Raises:
            ValueError: if there is no such rank.
        """
        rank = self._of(report.rank)
        rank.memory = _known({metric: getattr(report, metric) for metric in MEMORY})
        for metric in MEMORY:
            for size in (getattr(report, metric), getattr(report, f"peak_{metric}", None)):
                if size is not None:
                    rank.peaks[metric] = max(rank.peaks.get(metric, 0), size)
        row = Sample(report.time_s, "rank", str(report.rank), rank.memory)
        # An envelope needs one reading of each rank, so wait until all have reported since the last one.
        self._enveloped.add(report.rank)
        if len(self.heard) < LEAST_RANKS or len(self._enveloped) < len(self.heard):
            return (row,)
        self._enveloped.clear()
        return (row, *envelope(report.time_s, [one.memory for one in self._ranks.values() if one.memory is not None]))

    def begin_again(self) -> None:
        """Handle a restart of all ranks: drops incomplete steps, and measures paces from the start."""
        self._pending.clear()
        self._enveloped.clear()
        self._paces = Paces(self.heard)
        for rank in self._ranks.values():
            # Counts and medians continue, as they are of the run.
            rank.newest = rank.memory = None

    def straggler(self) -> Straggler | None:
        """The rank that is clearly slower than the others; ``None`` if there is none or that is unknown."""
        return self._paces.straggler()

    def imbalance(self, wanted: Mapping[int, int] | None = None) -> Imbalance | None:
        """The rank whose memory is well above the others'.

        Args:
            wanted: bytes that ranks would have had including failed requests, by rank.
        """
        peaks = {number: dict(rank.peaks) for number, rank in self._ranks.items()}
        for number, size in (wanted or {}).items():
            peaks[number]["allocated_bytes"] = max(size, peaks[number].get("allocated_bytes", 0))
        return imbalance(peaks)

    @property
    def compared(self) -> str | None:
        """The metric by which the memory of all ranks is known; ``None`` if a rank has not reported any."""
        return compared([rank.peaks for rank in self._ranks.values()])

    def peak(self, number: int, metric: str) -> int | None:
        """A rank's peak of a metric of `MEMORY`, in bytes; ``None`` if not reported."""
        return self._of(number).peaks.get(metric)

    def summary(self) -> list[dict[str, Any]]:
        """One row for each rank: steps, medians in seconds, shares of its time from 0 to 1, peaks in bytes."""
        return [_summary(number, rank) for number, rank in self._ranks.items()]

    def _of(self, number: int) -> _Rank:
        if number not in self._ranks:
            raise ValueError(f"There is no rank {number} among {self.world_size}.")
        return self._ranks[number]

    def _joined(self, reports: Sequence[RankStep]) -> JoinedStep:
        self.joined += 1
        time_s = max(one.time_s for one in reports)
        blocked = [one.blocked_s for one in reports]
        known = [seconds for seconds in blocked if seconds is not None and math.isfinite(seconds)]
        # The last rank to arrive at a collective waits for nobody: its time there is the communication.
        communication_s = None
        if len(known) == len(reports):
            communication_s = min(known)
        rows: list[dict[str, Value]] = []
        waits: dict[int, float] = {}
        for one in reports:
            waiting_s = None
            if communication_s is not None and one.blocked_s is not None:
                waiting_s = waits[one.rank] = one.blocked_s - communication_s
            rows.append(_row(one, communication_s, waiting_s))
            self._count(one, communication_s, waiting_s)
        inputs = {one.rank: one.input_s for one in reports if one.input_s is not None}
        self._paces.take({one.rank: one.own_s for one in reports}, waits, inputs)
        samples = (Sample(time_s, "rank", str(one.rank), row) for one, row in zip(reports, rows, strict=True))
        return JoinedStep(
            step=reports[0].step,
            time_s=time_s,
            seconds=max(one.step_s for one in reports),
            loss=_mean([one.loss for one in reports]),
            accuracy=_mean([one.accuracy for one in reports]),
            samples=(*samples, *envelope(time_s, rows)),
        )

    def _count(self, report: RankStep, communication_s: float | None, waiting_s: float | None) -> None:
        rank = self._ranks[report.rank]
        rank.steps += 1
        rank.step_seconds.append(report.step_s)
        if report.compute_s is not None:
            rank.compute_seconds.append(report.compute_s)
        if communication_s is not None and waiting_s is not None and report.compute_s is not None:
            rank.parted_s += report.step_s
            rank.compute_s += report.compute_s
            rank.communication_s += communication_s
            rank.waiting_s += waiting_s
            if report.input_s is not None:
                rank.input_s = (rank.input_s or 0.0) + report.input_s


def _row(report: RankStep, communication_s: float | None, waiting_s: float | None) -> dict[str, Value]:
    row: dict[str, Value] = {
        "step": report.step,
        "step_s": report.step_s,
        "compute_s": report.compute_s,
        "communication_s": communication_s,
        "waiting_s": waiting_s,
        "input_s": report.input_s,
        "loss": report.loss,
        "accuracy": report.accuracy,
    }
    return _known(row)


def _known(values: dict[str, Value]) -> dict[str, Value]:
    """Without the metrics that the rank did not report: those were not requested, so they are no gaps."""
    return {metric: value for metric, value in values.items() if value is not None}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if known:
        return sum(known) / len(known)
    return None


def _summary(number: int, rank: _Rank) -> dict[str, Any]:
    def share(seconds: float) -> float | None:
        if rank.parted_s > 0:
            return min(1.0, seconds / rank.parted_s)
        return None

    step_s = None
    if rank.step_seconds:
        step_s = statistics.median(rank.step_seconds)
    compute_s = None
    if rank.compute_seconds:
        compute_s = statistics.median(rank.compute_seconds)
    input_share = None
    if rank.input_s is not None:
        input_share = share(rank.input_s)
    return {
        "rank": number,
        "steps": rank.steps,
        "step_seconds_median": step_s,
        "compute_seconds_median": compute_s,
        "compute_share": share(rank.compute_s),
        "communication_share": share(rank.communication_s),
        "waiting_share": share(rank.waiting_s),
        "input_share": input_share,
        **{f"peak_{metric}": rank.peaks.get(metric) for metric in MEMORY},
    }


def envelope(time_s: float, rows: Sequence[Mapping[str, Value]]) -> Iterator[Sample]:
    """Lowest, median and highest over the ranks' ``rows``; empty for fewer than `LEAST_RANKS`."""
    if len(rows) < LEAST_RANKS:
        return
    # A dict as an ordered set: metrics in the order of the first rank.
    metrics: dict[str, None] = {}
    for row in rows:
        metrics.update(dict.fromkeys(row))
    columns = {metric: sorted(_numbers(rows, metric)) for metric in metrics}
    known = {metric: numbers for metric, numbers in columns.items() if numbers}
    chosen: tuple[Callable[[list[float]], float], ...] = (lambda of: of[0], statistics.median, lambda of: of[-1])
    for device, choose in zip(ENVELOPE, chosen, strict=True):
        values = {metric: _typed(metric, choose(numbers)) for metric, numbers in known.items()}
        yield Sample(time_s, "rank", device, values)


def _typed(metric: str, value: float) -> Value:
    """Bytes and counts become integers, even for a median between two of them."""
    if metric == "step" or metric.endswith("_bytes"):
        return int(value)
    return value


def _numbers(rows: Sequence[Mapping[str, Value]], metric: str) -> list[float]:
    found = (row.get(metric) for row in rows)
    return [value for value in found if isinstance(value, int | float) and math.isfinite(value)]


Share = tuple[str, str, float, float]
"""Metric, device, session time and share, 0 to 1."""


class RankShares:
    """Processes the rows of the table ``rank`` in order; the rows of a step follow each other with the same time."""

    def __init__(self) -> None:
        self._time_s: float | None = None
        self._sums: dict[str, float] = {}
        self._whole_s = 0.0
        self._ranks = 0

    def take(self, sample: Sample) -> Iterator[Share]:
        """The shares that ``sample`` completes: of its rank, and of all ranks in the step before it."""
        spent = _seconds(sample.values)
        if spent is None:
            return
        parts, whole_s = spent
        if sample.time_s != self._time_s:
            yield from self.flush()
            self._time_s = sample.time_s
            self._sums = {}
            self._whole_s = 0.0
            self._ranks = 0
        device = sample.device or ""
        if device.isdecimal():
            for part, seconds in parts.items():
                self._sums[part] = self._sums.get(part, 0.0) + seconds
            self._whole_s += whole_s
            self._ranks += 1
            yield from _shares(device, sample.time_s, parts, whole_s)

    def flush(self) -> Iterator[Share]:
        """The shares of all ranks in the newest step, when it will get no more rows."""
        if self._time_s is not None and self._ranks:
            yield from _shares(MEAN, self._time_s, self._sums, self._whole_s)
        self._ranks = 0


def _seconds(values: Mapping[str, Value]) -> tuple[dict[str, float], float] | None:
    """The parts of a step and the whole, in seconds; ``None`` if a row has no step, or not its parts.

    Parts that add up to more than the step, because clocks disagree, count as all of it.
    """
    step_s, communication_s, waiting_s = (
        number_in(values.get(name)) for name in ("step_s", "communication_s", "waiting_s")
    )
    if step_s is None or communication_s is None or waiting_s is None:
        return None
    input_s = number_in(values.get("input_s"))
    computing_s = number_in(values.get("compute_s"))
    rest_s = max(0.0, step_s - communication_s - waiting_s - (input_s or 0.0))
    compute_s = rest_s
    if computing_s is not None:
        compute_s = min(rest_s, max(0.0, computing_s))
    parts = {"compute": compute_s, "communication": communication_s, "waiting": waiting_s}
    if input_s is not None:
        parts["input"] = input_s
    # Shares never add up to more than 1; the rest belongs to no part.
    return parts, max(step_s, sum(parts.values()))


def _shares(device: str, time_s: float, parts: Mapping[str, float], whole_s: float) -> Iterator[Share]:
    if whole_s > 0:
        yield from ((f"{part}_share", device, time_s, seconds / whole_s) for part, seconds in parts.items())


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding, reported as a note: its topic, a sentence, and its figures."""

    topic: str
    text: str
    details: Mapping[str, Any]


class RankFindings:
    """Reports each finding once. Belongs to one thread.

    Args:
        now_s: current time in seconds, on the clock of `new`.
    """

    def __init__(self, now_s: float) -> None:
        self._polled_s = now_s
        self._suspect: int | None = None
        self._reported: set[tuple[str, int]] = set()

    def new(self, ranks: Ranks, now_s: float) -> Iterator[Finding]:
        """New findings that are certain by now."""
        if now_s - self._polled_s < POLL_S:
            return
        self._polled_s = now_s
        found = findings(ranks)
        slow = found["straggler"]
        suspect = self._suspect
        self._suspect = None
        if slow is not None:
            self._suspect = slow["rank"]
        # Only if the previous check found the same rank: one outlier must not accuse a rank.
        if slow is not None and slow["rank"] == suspect:
            yield from self._once(Topic.STRAGGLER, slow)
        yield from self._once(Topic.IMBALANCE, found["memory_imbalance"])

    def at_end(self, ranks: Ranks) -> Iterator[Finding]:
        """Findings of the result that have not been reported."""
        found = findings(ranks)
        yield from self._once(Topic.STRAGGLER, found["straggler"])
        yield from self._once(Topic.IMBALANCE, found["memory_imbalance"])

    def _once(self, topic: str, found: Mapping[str, Any] | None) -> Iterator[Finding]:
        if found is not None and (topic, found["rank"]) not in self._reported:
            self._reported.add((topic, found["rank"]))
            yield Finding(topic, found["text"], {key: value for key, value in found.items() if key != "text"})


def findings(ranks: Ranks) -> dict[str, dict[str, Any] | None]:
    """``straggler`` {rank, slower, text} and ``memory_imbalance`` {rank, bytes, text} of a result."""
    found: dict[str, dict[str, Any] | None] = {"straggler": None, "memory_imbalance": None}
    slow = ranks.straggler()
    if slow is not None:
        found["straggler"] = {"rank": slow.rank, "slower": slow.slower, "text": slow.text}
    full = None
    if ranks.joined >= SETTLED_STEPS:
        full = ranks.imbalance()
    if full is not None:
        found["memory_imbalance"] = {"rank": full.rank, "bytes": full.bytes, "text": full.text}
    return found
