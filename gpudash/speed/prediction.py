"""From the work of a step to its time on a card: kernels, host, copies, exchanges, and the uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray

from gpudash.devices.card_performance import CardPerformance
from gpudash.speed.changes import Change, changes
from gpudash.speed.columns import WorkColumns, columns_of
from gpudash.speed.constants import Constants, Spread, constants, spread
from gpudash.speed.kernels import KernelTimes, kernel_times
from gpudash.speed.work import (
    ATTENTION,
    BOUNDS,
    CONVOLUTION,
    DEPTHWISE,
    GROUPED,
    KINDS,
    NORMALISATION,
    OPTIMIZER,
    UNKNOWN,
    Gain,
    HostSpeed,
    StepTime,
    StepWork,
)

Floats = NDArray[np.float64]

WORTHWHILE = 1.05
"""Smallest gain for which a change is mentioned."""


def predict(work: StepWork, card: CardPerformance, host: HostSpeed, batch_room: float | None = None) -> StepTime:
    """The time of a step on ``card``: its interval, what limits it, and what would help.

    Args:
        batch_room: how many times larger a batch fits there; ``None`` if unknown.
    """
    c = constants()
    columns = columns_of(work)
    step = _step(work, columns, card, host, c)
    median_s = step.seconds()
    by_kind = step.by_kind()
    unknown = int(columns.count[columns.kind == KINDS.index(UNKNOWN)].sum())
    known = spread()
    low_s, high_s = _interval(step, card, host, known)
    return StepTime(
        median_s=median_s,
        low_s=low_s,
        high_s=high_s,
        bound=step.bound(),
        by_kind=by_kind,
        host_s=step.host_s,
        device_s=step.device_s,
        copy_s=step.copy_s,
        communication_s=step.communication_s,
        unknown=unknown,
        unknown_s=by_kind.get(UNKNOWN, 0.0),
        items=work.items,
        unit=work.unit,
        gains=_gains(work, columns, card, host, step, c, batch_room),
        source=known.source,
    )


def joined(device_s: Floats, host_s: Floats) -> Floats:
    """The longer of both, plus a little if they are close: each waits for the other at times."""
    both: Floats = (device_s**8 + host_s**8) ** (1 / 8)
    return both


_BUCKET_BYTES = 25 * 2**20
"""Size of the gradient buckets of data parallel training (torch.nn.parallel.DistributedDataParallel:
bucket_cap_mb)."""

_HIDDEN_SHARE = 0.9
"""Part of the backward pass that overlaps with the exchange of gradients: the first layers' come last."""


@dataclass(frozen=True)
class _Step:
    """The parts of a step's time."""

    columns: WorkColumns
    kernels: KernelTimes
    host_s: float
    copy_s: float
    exchange_s: float
    exchange_last_s: float
    waiting_s: float
    start_s: float

    @property
    def device_s(self) -> float:
        return float(self.kernels.together @ self.columns.count) + self.start_s

    @property
    def communication_s(self) -> float:
        """Time of exchanges that the backward pass does not hide."""
        if self.exchange_s == 0:
            return 0.0
        backward = float(
            self.kernels.together[self.columns.backward_phase] @ self.columns.count[self.columns.backward_phase]
        )
        return max(self.exchange_s - _HIDDEN_SHARE * backward, self.exchange_last_s)

    def seconds(
        self,
        *,
        device_s: float | None = None,
        host_s: float | None = None,
        copy_s: float | None = None,
        communication_s: float | None = None,
    ) -> float:
        """Time of the step, with some of its parts replaced if given."""
        device = self.device_s if device_s is None else device_s
        host = self.host_s if host_s is None else host_s
        copies = self.copy_s if copy_s is None else copy_s
        communication = self.communication_s if communication_s is None else communication_s
        busy = device + copies + communication + self.waiting_s
        return float(joined(np.array(busy), np.array(host)))

    def by_kind(self) -> dict[str, float]:
        """The device's time by kind of operation; without kinds that take none."""
        seconds = np.bincount(self.columns.kind, self.kernels.together * self.columns.count, len(KINDS))
        return {kind: float(value) for kind, value in zip(KINDS, seconds, strict=True) if value > 0}

    def bound(self) -> str:
        """The part whose removal would shorten the step most."""
        count = self.columns.count
        start = self.start_s
        compute, memory, launches, copies, communication = BOUNDS
        without = {
            compute: self.seconds(device_s=float((self.kernels.memory + self.kernels.launches) @ count) + start),
            memory: self.seconds(device_s=float((self.kernels.arithmetic + self.kernels.launches) @ count) + start),
            launches: self.seconds(device_s=self.device_s - float(self.kernels.launches @ count) - start, host_s=0.0),
            copies: self.seconds(copy_s=0.0),
            communication: self.seconds(communication_s=0.0),
        }
        return min(without, key=without.__getitem__)


def _step(work: StepWork, columns: WorkColumns, card: CardPerformance, host: HostSpeed, c: Constants) -> _Step:
    per_operation = np.where(columns.backward_phase, host.backward_operation_s, host.operation_s) * _starts(columns)
    exchange_s, last_s = _exchange(work, card, c)
    return _Step(
        columns=columns,
        kernels=kernel_times(columns, card, c),
        host_s=float(per_operation @ columns.count),
        copy_s=_copy_s(work, card, c),
        exchange_s=exchange_s,
        exchange_last_s=last_s,
        waiting_s=max(work.synchronisations - 1, 0) * c.synchronisation,
        start_s=c.start,
    )


_STARTS = {CONVOLUTION: 2.5, DEPTHWISE: 2.5, GROUPED: 2.5, ATTENTION: 2.0, NORMALISATION: 1.5}
"""Host time to start one of these, relative to a usual operation: cuDNN looks up its plan, fused kernels create
several tensors. Based on their own CPU time in PyTorch's profiler; not fitted."""

_A_TENSOR = 0.05
"""The same for each tensor of an operation over a list of them."""


def _starts(columns: WorkColumns) -> Floats:
    """Host time to start each operation, relative to a usual one."""
    by_kind = np.array([_STARTS.get(kind, 1.0) for kind in KINDS])
    listed = np.where(columns.kind == KINDS.index(OPTIMIZER), columns.shape[:, 0] - 1, 0.0)
    return by_kind[columns.kind] + _A_TENSOR * listed


def _copy_s(work: StepWork, card: CardPerformance, c: Constants) -> float:
    """Time of copies; pageable memory is first copied into a pinned buffer by the processor."""
    rate = card.link_bytes_per_s * c.link
    if not work.pinned:
        rate = min(rate, c.pageable)
    return (work.copied_in_bytes + work.copied_out_bytes) / rate + work.copies * c.copy_start


def _exchange(work: StepWork, card: CardPerformance, c: Constants) -> tuple[float, float]:
    """Seconds to sum gradients over all ranks in a ring, and for the last bucket alone, which nothing hides."""
    if work.ranks < 2 or work.exchanged_bytes == 0:
        return 0.0, 0.0
    # Each rank sends all bytes but its own share twice: to sum, and to distribute the sums.
    passes = 2 * (work.ranks - 1) / work.ranks
    rate = card.peer_bytes_per_s * c.peer
    buckets = -(-work.exchanged_bytes // _BUCKET_BYTES)
    start_s = 2 * (work.ranks - 1) * c.hop
    last_bytes = min(work.exchanged_bytes, _BUCKET_BYTES)
    return passes * work.exchanged_bytes / rate + buckets * start_s, passes * last_bytes / rate + start_s


def _interval(step: _Step, card: CardPerformance, host: HostSpeed, known: Spread) -> tuple[float, float]:
    """Interval in seconds that contains nine of ten such steps."""
    median_s = step.seconds()
    further = further_doubts(step, card, host, known) + known.unseen_family**2
    faster_card = slower_card = 0.0
    if (card.multiprocessors, card.bytes_per_s) not in known.seen:
        faster_card = known.unseen_faster
        slower_card = known.unseen_slower
    low_s = median_s * exp(-sqrt(known.low**2 + further + faster_card**2))
    high_s = median_s * exp(sqrt(known.high**2 + further + slower_card**2))
    slower = known.slowest_host
    if host.source.startswith("measured"):
        slower = known.slower_host
    # A host is rarely faster than the fit's, but often slower; the cost depends on its part of the step.
    with_slow_host_s = step.seconds(host_s=slower * step.host_s) * exp(known.high)
    return low_s, max(high_s, with_slow_host_s)


def further_doubts(step: _Step, card: CardPerformance, host: HostSpeed, known: Spread) -> float:
    """Uncertainties from the parts of a step, as a sum of squares, since they are independent."""
    kernels = step.kernels.together * step.columns.count
    total = max(float(kernels.sum()), 1e-12)
    median_s = step.seconds()
    doubts = [known.kinds.get(kind, 0.0) * seconds / total for kind, seconds in step.by_kind().items()]
    doubts.append(known.training * float(kernels[step.columns.backward_phase].sum()) / total)
    if card.derived:
        doubts.append(known.guessed_card)
    host_doubt = known.usual_host
    if host.source.startswith("measured"):
        host_doubt = known.host
    # The host's speed counts by its influence on the step.
    doubts.append(host_doubt * min((step.host_s / median_s) ** 8, 1.0))
    doubts.append(known.copies * (step.copy_s + step.communication_s) / median_s)
    return sum(doubt**2 for doubt in doubts)


def _gains(
    work: StepWork,
    columns: WorkColumns,
    card: CardPerformance,
    host: HostSpeed,
    step: _Step,
    c: Constants,
    batch_room: float | None,
) -> tuple[Gain, ...]:
    """Each change, predicted by the same model on the changed work; those that do not fit in memory come last."""
    rate = work.items / step.seconds()
    found = []
    for change in changes(work, columns, card, step.bound(), _more(step), batch_room):
        factor = _rate(change, card, host, c) / rate
        if factor > WORTHWHILE:
            found.append(Gain(change.name, round(factor, 3), change.fits))
    return tuple(sorted(found, key=lambda gain: (gain.fits is False, -gain.factor)))


def _more(step: _Step) -> int:
    """How many times larger a batch would give the device as much to do as the host."""
    factor = 2
    while factor < 64 and factor * step.device_s < step.host_s:
        factor *= 2
    return factor


def _rate(change: Change, card: CardPerformance, host: HostSpeed, c: Constants) -> float:
    """Items per second with the change."""
    step = _step(change.work, change.columns, card, host, c)
    seconds = step.seconds(
        host_s=step.host_s - change.host_operations * host.operation_s if not change.graph else c.graph,
        copy_s=0.0 if change.copies_hidden else None,
    )
    if change.copies_hidden:
        # The copy of the next batch overlaps with this one's kernels.
        seconds = max(seconds, step.copy_s)
    return change.work.items / seconds
