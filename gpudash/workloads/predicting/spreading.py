"""A training that does not fit on one GPU, distributed over several: those available, or more of its size."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pydantic import ValidationError

from gpudash.devices.names import SIMULATED, kind_of
from gpudash.memory.allocator.trace import GRADIENTS, OPTIMIZER_STATE, WEIGHTS, Trace
from gpudash.memory.predicting.estimate import CARDS_BYTES, HANDED_OUT_RATIO, Alternative, Estimate, Target, judge
from gpudash.memory.predicting.rank_estimates import STRATEGIES, of_ranks, ranks_on
from gpudash.specs import ModelSpec, Spec
from gpudash.specs.changes import SpecChange, over_ranks
from gpudash.units import GIB, format_bytes
from gpudash.workloads.predicting.device_fit import as_alternative

COUNTS = (2, 4, 8, 16)
"""Numbers of ranks to try, in addition to the number of GPUs available."""

SHARDED = (WEIGHTS, GRADIENTS, OPTIMIZER_STATE)
"""Categories that FSDP2 shards over the ranks; all of them exist when the optimizer steps."""


def spread_over(
    spec: Spec, target: Target, elsewhere: Sequence[Target], trace: Callable[[Spec, Target], Trace]
) -> Iterator[Alternative]:
    """Data-parallel training with the same global batch, over available GPUs or over more of the same size.

    With DDP every rank keeps all weights, so only activations shrink, if the batch can be divided. If that is not
    enough, FSDP2 shards the weights too.

    Args:
        spec: of the run on one device.
        target: that device.
        elsewhere: the other available devices.
        trace: returns a spec's requests to the allocator of a device.

    Raises:
        Exception: whatever ``trace`` raises.
    """
    if kind_of(target.device) != "cpu":
        yield from _Spreading(spec, target, elsewhere, trace).alternatives()


class _Spreading:
    """One search; the arguments are those of `spread_over`."""

    def __init__(
        self, spec: Spec, target: Target, elsewhere: Sequence[Target], trace: Callable[[Spec, Target], Trace]
    ) -> None:
        self._spec = spec
        self._target = target
        self._trace = trace
        # One device type: CUDA and simulated cards cannot form a group.
        same = (other for other in elsewhere if kind_of(other.device) == kind_of(target.device))
        self._there = sorted([target, *same], key=_room, reverse=True)

    def alternatives(self) -> Iterator[Alternative]:
        """See `spread_over`."""
        there = len(self._there)
        # The fewest GPUs first, and of these those with the most room.
        for count in sorted({count for count in (*COUNTS, there) if 2 <= count <= there}):
            # By name: ranks are numbered in the order of their devices.
            chosen = sorted(self._there[:count], key=lambda one: one.device)
            for strategy in ("ddp", "fsdp"):
                found = self._judged(strategy, ranks_on(chosen))
                if found is None:
                    continue
                yield self._over(strategy, chosen, found)
                if found.fits:
                    return
        yield from self._more_cards()

    def _over(self, strategy: str, chosen: Sequence[Target], found: Estimate) -> Alternative:
        """An alternative on available GPUs, which can be applied unless torch cannot connect them (simulated ones)."""
        names = [target.device for target in chosen]
        if len(names) <= 2:
            text = ", ".join(names)
        else:
            text = f"{len(names)} GPUs"
        if kind_of(names[0]) == "sim":
            text += f" ({SIMULATED})"
        change = over_ranks(self._spec, names, strategy)
        assert change is not None  # otherwise it would not have been judged
        spread = change.applied(self._spec)
        offered = isinstance(spread, ModelSpec) or not spread.run_problems(names[0])  # a model spec is only predicted
        fields = change.fields if offered else {}
        return self._alternative(f"{STRATEGIES[strategy]} over {text}", change, found, fields=fields, ranks=len(names))

    def _more_cards(self) -> Iterator[Alternative]:
        """The fewest GPUs of this size, more than available and empty, over which the model's shards fit."""
        capacity = self._target.capacity_bytes
        if capacity is None:
            return
        empty = replace(self._target, free_bytes=capacity)
        for count in COUNTS:
            change = over_ranks(self._spec, ["cpu"] * count, "fsdp")
            # Cheaper than a dry run: if the shards alone do not fit, the run need not be followed.
            if change is None or count <= len(self._there) or self._sharded_bytes > count * _room(empty):
                continue
            found = self._judged("fsdp", ranks_on([replace(empty, device=f"rank {rank}") for rank in range(count)]))
            if found is not None and found.fits:
                size = _nominal(capacity)
                text = f"{count} × {f'{size // GIB} GiB' if size % GIB == 0 else format_bytes(size)} with FSDP2"
                yield self._alternative(text, change, found, card_bytes=size, ranks=count)
                return

    @functools.cached_property
    def _sharded_bytes(self) -> int:
        """The minimum size of all shards together: too few GPUs for it need not be tried."""
        alone = judge(self._trace(self._spec, self._target), self._target, self._spec.name)
        return sum(alone.by_category.get(category, 0) for category in SHARDED)

    def _judged(self, strategy: str, targets: Sequence[Target]) -> Estimate | None:
        """What each of several ranks needs on its device; ``None`` if it cannot be distributed so or gains nothing."""
        change = over_ranks(self._spec, ["cpu"] * len(targets), strategy)
        # DDP with the whole batch on each rank needs as much as one device, plus its buckets.
        if change is None or (strategy == "ddp" and not {"batch", "global_batch"} & set(change.fields)):
            return None
        try:
            ranks = change.applied(self._spec)
        except ValidationError:
            return None
        return of_ranks(targets, strategy, lambda one: judge(self._trace(ranks, one), one, self._spec.name))

    def _alternative(self, text: str, change: SpecChange, found: Estimate, **differs: object) -> Alternative:
        note, changes_training = change.note, change.changes_training
        return as_alternative(text, found, note=note, changes_training=changes_training, **differs)


def _nominal(capacity: int) -> int:
    """The nominal capacity of a card with ``capacity`` bytes: the driver reports up to a tenth less."""
    return next((size for size in CARDS_BYTES if size * HANDED_OUT_RATIO <= capacity <= size), capacity)


def _room(target: Target) -> int:
    return target.room_bytes or 0
