"""Joins what the ranks of a run tell one by one, in any order, into rows of the reading table ``rank``: of each rank,
over all of them, and where their steps go; and tells what stands out among them."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudash.telemetry.ranks.straggler import Imbalance, Paces, Straggler, compared, imbalance
from gpudash.telemetry.records import Sample, Topic, Value

MOST_PENDING = 1024
"""Steps that wait for a rank: of more the oldest are given up, since a rank may never tell them."""

MEDIAN_STEPS = 2048
"""Newest steps whose medians a summary tells."""

MEMORY = ("used_bytes", "allocated_bytes", "reserved_bytes")

LEAST_RANKS = 5
"""Ranks from which on curves of single ranks can no longer be told apart by their line style."""

ENVELOPE = ("lowest", "median", "highest")
"""Devices of the table ``rank`` that are no ranks."""

PARTS = ("compute", "communication", "waiting", "input")
"""What a step is spent on; each is a series ``<part>_share``, that of input where a rank tells it.

Computing is what the rank has told, else what is none of the others. Where ranks tell their computing without the
time in which they waited for a core, that time is none of these, and the shares add up to less than 1.
"""

MEAN = "mean"
"""Device under which the shares of all ranks together are kept."""

POLL_S = 1.0
"""Between two looks; a straggler has to be found in two that follow each other."""

SETTLED_STEPS = 5
"""Joined steps before memory is compared: until then one rank may have loaded what the others are about to."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of one rank.

    Attributes:
        rank: its number, from 0.
        step: the step's number, the same in every rank.
        time_s: session time of the step's end.
        step_s: from the end of the step before to the end of this one.
        compute_s: of that, what the rank computed itself; ``None`` where it cannot tell. A rank that can tell how long
            it waited for a core leaves that out; the logger in a watched script cannot, and there it is all that was
            not blocked.
        blocked_s: of that, what it did not compute but was blocked in collectives: communicating, and waiting for the
            ranks that came to them later; ``None`` where it cannot tell.
        loss: of the rank's own share of the batch, in nats.
        accuracy: of that share, 0 to 1.
        input_s: of the step, how long the rank waited for its next batch; ``None`` where it cannot tell.
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
        """What the rank spends without the others, and they may wait for: computing, and waiting for its input."""
        if self.compute_s is None:
            return None
        return self.compute_s + (self.input_s or 0.0)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank at a session time, in bytes: of its process or device, and what its allocator says.

    The peaks are those since the process began, where its allocator keeps them; else those of the readings.
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
    """A step that every rank has told.

    Attributes:
        step: its number.
        time_s: session time at which the last rank ended it.
        seconds: of the rank that took longest.
        loss: mean over the ranks that told one.
        accuracy: likewise.
        samples: rows of the reading table ``rank``, with the envelope from five ranks on.
    """

    step: int
    time_s: float
    seconds: float
    loss: float | None
    accuracy: float | None
    samples: tuple[Sample, ...]


@dataclass(slots=True)
class _Rank:
    """One rank since its beginning."""

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
    """The ranks of one run. Belongs to one thread.

    Args:
        world_size: how many there are.
        heard: numbers of those that are heard here, ascending; ``None`` for all. Of several nodes each hears its own.

    Raises:
        ValueError: when there is none.

    Attributes:
        joined: steps that every rank has told.
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
        """Take in a rank's step: the joined one when it was the last that was missing.

        Raises:
            ValueError: when there is no such rank.
        """
        rank = self._of(report.rank)
        if rank.newest is None:
            rank.newest = report.step
        else:
            rank.newest = max(rank.newest, report.step)
        waiting = self._pending.setdefault(report.step, {})
        waiting[report.rank] = report
        if len(waiting) < len(self.heard):
            # the oldest step by its number: a rank that is behind may still tell the newer ones
            if len(self._pending) > MOST_PENDING:
                del self._pending[min(self._pending)]
            return None
        del self._pending[report.step]
        return self._joined([waiting[number] for number in self.heard])

    def take_memory(self, report: RankMemory) -> tuple[Sample, ...]:
        """Take in a rank's memory: its row, and the envelope whenever every rank has told anew.

        Raises:
            ValueError: when there is no such rank.
        """
        rank = self._of(report.rank)
        rank.memory = _known({metric: getattr(report, metric) for metric in MEMORY})
        for metric in MEMORY:
            for size in (getattr(report, metric), getattr(report, f"peak_{metric}", None)):
                if size is not None:
                    rank.peaks[metric] = max(rank.peaks.get(metric, 0), size)
        row = Sample(report.time_s, "rank", str(report.rank), rank.memory)
        # an envelope is over one reading of each rank: it waits until all have told since the last one
        self._enveloped.add(report.rank)
        if len(self.heard) < LEAST_RANKS or len(self._enveloped) < len(self.heard):
            return (row,)
        self._enveloped.clear()
        return (row, *envelope(report.time_s, [one.memory for one in self._ranks.values() if one.memory is not None]))

    def begin_again(self) -> None:
        """All ranks have been started anew: steps half told are given up, and paces are measured anew."""
        self._pending.clear()
        self._enveloped.clear()
        self._paces = Paces(self.heard)
        for rank in self._ranks.values():
            # counts and medians go on over the restart: they are of the run
            rank.newest = rank.memory = None

    def straggler(self) -> Straggler | None:
        """The rank that is clearly slower than the others; ``None`` among equals, and where no rank tells."""
        return self._paces.straggler()

    def imbalance(self, wanted: Mapping[int, int] | None = None) -> Imbalance | None:
        """The rank whose memory is well above the others'.

        Args:
            wanted: bytes that ranks would have had, with what they were refused, by rank.
        """
        peaks = {number: dict(rank.peaks) for number, rank in self._ranks.items()}
        for number, size in (wanted or {}).items():
            peaks[number]["allocated_bytes"] = max(size, peaks[number].get("allocated_bytes", 0))
        return imbalance(peaks)

    @property
    def compared(self) -> str | None:
        """By which metric the memory of all ranks is known; ``None`` where one of them has not told any."""
        return compared([rank.peaks for rank in self._ranks.values()])

    def peak(self, number: int, metric: str) -> int | None:
        """A rank's peak of a metric of `MEMORY` in bytes; ``None`` where it has not told."""
        return self._of(number).peaks.get(metric)

    def summary(self) -> list[dict[str, Any]]:
        """One row a rank: steps, medians in seconds, shares of its time from 0 to 1, peaks in bytes."""
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
        # the rank that comes last to a collective waits for nobody: its time there is the communication
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
    """Without what the rank has not told: that was not asked for, so it is no gap either."""
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
    """Lowest, median and highest over the ranks' ``rows``; nothing of fewer than `LEAST_RANKS`."""
    if len(rows) < LEAST_RANKS:
        return
    # a dict as an ordered set: metrics in the order in which the first rank has them
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
    """Bytes and counts are whole, also where a median lies between two of them."""
    if metric == "step" or metric.endswith("_bytes"):
        return int(value)
    return value


def _numbers(rows: Sequence[Mapping[str, Value]], metric: str) -> list[float]:
    found = (row.get(metric) for row in rows)
    return [value for value in found if isinstance(value, int | float) and math.isfinite(value)]


Share = tuple[str, str, float, float]
"""Metric, device, session time and share, 0 to 1."""


class RankShares:
    """Takes the rows of the table ``rank`` in order; a step's rows follow each other and bear the same time."""

    def __init__(self) -> None:
        self._time_s: float | None = None
        self._sums: dict[str, float] = {}
        self._whole_s = 0.0
        self._ranks = 0

    def take(self, sample: Sample) -> Iterator[Share]:
        """The shares that ``sample`` brings: of its rank, and of all ranks in the step before it."""
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
        """The shares of all ranks in the newest step, when no more of it will come."""
        if self._time_s is not None and self._ranks:
            yield from _shares(MEAN, self._time_s, self._sums, self._whole_s)
        self._ranks = 0


def _seconds(values: Mapping[str, Value]) -> tuple[dict[str, float], float] | None:
    """The parts of a step and the whole of it in seconds; ``None`` where a row tells of no step, or not where it went.

    Parts that are more than the step took, by clocks that disagree, are taken for all of it.
    """
    found = [values.get(name) for name in ("step_s", "communication_s", "waiting_s")]
    known = [float(value) for value in found if isinstance(value, int | float)]
    if len(known) < len(found):
        return None
    step_s, communication_s, waiting_s = known
    loading = values.get("input_s")
    computing = values.get("compute_s")
    input_s = 0.0
    if isinstance(loading, int | float):
        input_s = float(loading)
    rest_s = max(0.0, step_s - communication_s - waiting_s - input_s)
    compute_s = rest_s
    if isinstance(computing, int | float):
        compute_s = min(rest_s, max(0.0, float(computing)))
    parts = {"compute": compute_s, "communication": communication_s, "waiting": waiting_s}
    if isinstance(loading, int | float):
        parts["input"] = input_s
    # shares never add up to more than 1; what is less was spent on none of them
    return parts, max(step_s, sum(parts.values()))


def _shares(device: str, time_s: float, parts: Mapping[str, float], whole_s: float) -> Iterator[Share]:
    if whole_s > 0:
        yield from ((f"{part}_share", device, time_s, seconds / whole_s) for part, seconds in parts.items())


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, reported as a note: its topic, a sentence, and its figures."""

    topic: str
    text: str
    details: Mapping[str, Any]


class RankFindings:
    """Tells each finding once. Belongs to one thread.

    Args:
        now_s: a clock's time in seconds, as `new` is given it.
    """

    def __init__(self, now_s: float) -> None:
        self._polled_s = now_s
        self._suspect: int | None = None
        self._reported: set[tuple[str, int]] = set()

    def new(self, ranks: Ranks, now_s: float) -> Iterator[Finding]:
        """What is certain by now and was not told yet."""
        if now_s - self._polled_s < POLL_S:
            return
        self._polled_s = now_s
        found = findings(ranks)
        slow = found["straggler"]
        suspect = self._suspect
        self._suspect = None
        if slow is not None:
            self._suspect = slow["rank"]
        # named only where the look before had found the same one: one outlier must not accuse a rank
        if slow is not None and slow["rank"] == suspect:
            yield from self._once(Topic.STRAGGLER, slow)
        yield from self._once(Topic.IMBALANCE, found["memory_imbalance"])

    def at_end(self, ranks: Ranks) -> Iterator[Finding]:
        """What the result tells and was not told yet."""
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
