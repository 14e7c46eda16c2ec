"""Joins what the ranks of a run tell one by one, in any order, into rows of the reading table ``rank``."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudash.telemetry.ranks.envelope import LEAST_RANKS, envelope
from gpudash.telemetry.ranks.imbalance import Imbalance, imbalance
from gpudash.telemetry.ranks.rank_records import JoinedStep, RankMemory, RankStep
from gpudash.telemetry.ranks.straggler import Paces, Straggler
from gpudash.telemetry.records import Sample, Value

MOST_PENDING = 1024
"""Steps that wait for a rank: of more the oldest are given up, since a rank may never tell them."""

MEDIAN_STEPS = 2048
"""Newest steps whose medians a summary tells."""

MEMORY = ("used_bytes", "allocated_bytes", "reserved_bytes")


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
        self.heard = tuple(range(world_size) if heard is None else sorted(set(heard)))
        if not self.heard or not 0 <= self.heard[0] <= self.heard[-1] < world_size:
            raise ValueError(f"Ranks {list(self.heard)} are not among {world_size}.")
        self._ranks = {number: _Rank() for number in self.heard}
        self._pending: dict[int, dict[int, RankStep]] = {}
        self._paces = Paces(self.heard)
        self._enveloped: set[int] = set()

    def take_step(self, told: RankStep) -> JoinedStep | None:
        """Take in a rank's step: the joined one when it was the last that was missing.

        Raises:
            ValueError: when there is no such rank.
        """
        rank = self._of(told.rank)
        rank.newest = told.step if rank.newest is None else max(rank.newest, told.step)
        waiting = self._pending.setdefault(told.step, {})
        waiting[told.rank] = told
        if len(waiting) < len(self.heard):
            if len(self._pending) > MOST_PENDING:
                del self._pending[min(self._pending)]
            return None
        del self._pending[told.step]
        return self._joined([waiting[number] for number in self.heard])

    def take_memory(self, told: RankMemory) -> tuple[Sample, ...]:
        """Take in a rank's memory: its row, and the envelope whenever every rank has told anew.

        Raises:
            ValueError: when there is no such rank.
        """
        rank = self._of(told.rank)
        rank.memory = _known({metric: getattr(told, metric) for metric in MEMORY})
        for metric in MEMORY:
            for size in (getattr(told, metric), getattr(told, f"peak_{metric}", None)):
                if size is not None:
                    rank.peaks[metric] = max(rank.peaks.get(metric, 0), size)
        row = Sample(told.time_s, "rank", str(told.rank), rank.memory)
        self._enveloped.add(told.rank)
        if len(self.heard) < LEAST_RANKS or len(self._enveloped) < len(self.heard):
            return (row,)
        self._enveloped.clear()
        return (row, *envelope(told.time_s, [one.memory for one in self._ranks.values() if one.memory is not None]))

    def behind(self) -> tuple[int, ...]:
        """Ranks whose newest step is below the furthest."""
        furthest = max((rank.newest for rank in self._ranks.values() if rank.newest is not None), default=None)
        return tuple(number for number, rank in self._ranks.items() if rank.newest != furthest)

    def begin_again(self) -> None:
        """All ranks have been started anew: steps half told are given up, and paces are measured anew."""
        self._pending.clear()
        self._enveloped.clear()
        self._paces = Paces(self.heard)
        for rank in self._ranks.values():
            rank.newest = rank.memory = None

    def straggler(self) -> Straggler | None:
        """The rank that is clearly slower than the others; ``None`` among equals, and where no rank tells."""
        return self._paces.straggler()

    def imbalance(self) -> Imbalance | None:
        """The rank whose memory is well above the others'."""
        return imbalance({number: rank.peaks for number, rank in self._ranks.items()})

    def summary(self) -> list[dict[str, Any]]:
        """One row a rank: steps, medians in seconds, shares of its time from 0 to 1, peaks in bytes."""
        return [_summary(number, rank) for number, rank in self._ranks.items()]

    def _of(self, number: int) -> _Rank:
        if number not in self._ranks:
            raise ValueError(f"There is no rank {number} among {self.world_size}.")
        return self._ranks[number]

    def _joined(self, told: Sequence[RankStep]) -> JoinedStep:
        self.joined += 1
        time_s = max(one.time_s for one in told)
        blocked = [one.blocked_s for one in told]
        known = [seconds for seconds in blocked if seconds is not None and math.isfinite(seconds)]
        # the rank that comes last to a collective waits for nobody: its time there is the communication
        communication_s = min(known) if len(known) == len(told) else None
        rows: list[dict[str, Value]] = []
        waits: dict[int, float] = {}
        for one in told:
            waiting_s = None
            if communication_s is not None and one.blocked_s is not None:
                waiting_s = waits[one.rank] = one.blocked_s - communication_s
            rows.append(_row(one, communication_s, waiting_s))
            self._count(one, communication_s, waiting_s)
        self._paces.take({one.rank: one.compute_s for one in told}, waits)
        samples = (Sample(time_s, "rank", str(one.rank), row) for one, row in zip(told, rows, strict=True))
        return JoinedStep(
            step=told[0].step,
            time_s=time_s,
            seconds=max(one.step_s for one in told),
            loss=_mean([one.loss for one in told]),
            accuracy=_mean([one.accuracy for one in told]),
            samples=(*samples, *envelope(time_s, rows)),
        )

    def _count(self, told: RankStep, communication_s: float | None, waiting_s: float | None) -> None:
        rank = self._ranks[told.rank]
        rank.steps += 1
        rank.step_seconds.append(told.step_s)
        if told.compute_s is not None:
            rank.compute_seconds.append(told.compute_s)
        if communication_s is not None and waiting_s is not None and told.compute_s is not None:
            rank.parted_s += told.step_s
            rank.compute_s += told.compute_s
            rank.communication_s += communication_s
            rank.waiting_s += waiting_s


def _row(told: RankStep, communication_s: float | None, waiting_s: float | None) -> dict[str, Value]:
    row: dict[str, Value] = {
        "step": told.step,
        "step_s": told.step_s,
        "compute_s": told.compute_s,
        "communication_s": communication_s,
        "waiting_s": waiting_s,
        "loss": told.loss,
        "accuracy": told.accuracy,
    }
    return _known(row)


def _known(values: dict[str, Value]) -> dict[str, Value]:
    """Without what the rank has not told: that was not asked for, so it is no gap either."""
    return {metric: value for metric, value in values.items() if value is not None}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _summary(number: int, rank: _Rank) -> dict[str, Any]:
    def share(seconds: float) -> float | None:
        return min(1.0, seconds / rank.parted_s) if rank.parted_s > 0 else None

    return {
        "rank": number,
        "steps": rank.steps,
        "step_seconds_median": statistics.median(rank.step_seconds) if rank.step_seconds else None,
        "compute_seconds_median": statistics.median(rank.compute_seconds) if rank.compute_seconds else None,
        "compute_share": share(rank.compute_s),
        "communication_share": share(rank.communication_s),
        "waiting_share": share(rank.waiting_s),
        **{f"peak_{metric}": rank.peaks.get(metric) for metric in MEMORY},
    }
