"""A training that does not fit one GPU, spread over several: those there are, or as many of its size as it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from gpudash.devices.names import SIMULATED, kind_of
from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.estimate import CARDS_BYTES, HANDED_OUT_RATIO, Alternative, Estimate, Target, judge
from gpudash.memory.predicting.rank_estimates import STRATEGIES, of_ranks, ranks_on
from gpudash.specs import Spec, TrainingSpec
from gpudash.units import GIB, format_bytes
from gpudash.workloads.predicting.device_fit import as_alternative

COUNTS = (2, 4, 8, 16)
"""Numbers of ranks that are tried, beside the number of GPUs there are."""


def spread_over(
    spec: Spec, target: Target, elsewhere: Sequence[Target], trace: Callable[[Spec, Target], Trace]
) -> Iterator[Alternative]:
    """Data parallel training with the same global batch: over GPUs that are there, else over more of the same size.

    DDP leaves every rank all weights, so that only the activations shrink; where that is not enough, FSDP2 shards the
    weights too.

    Args:
        spec: of the run on one device.
        target: that device.
        elsewhere: the other devices that it can use.
        trace: what a spec asks of the allocator of a device.

    Raises:
        gpudash.workloads.predicting.estimate.CannotPredictError: as ``trace``.
    """
    kind = kind_of(target.device)
    if not isinstance(spec, TrainingSpec) or kind == "cpu" or spec.mode != "train" or spec.move_at_epoch:
        return
    there = sorted([target, *(other for other in elsewhere if kind_of(other.device) == kind)], key=_room, reverse=True)
    tried = sorted({count for count in (*COUNTS, len(there)) if 2 <= count <= len(there)})
    fit = {"ddp": False, "fsdp": False}
    for count in tried:
        if spec.batch % count:
            continue
        chosen = sorted(there[:count], key=lambda one: one.device)
        for strategy in ("ddp", "fsdp"):
            if not any(fit.values()):
                found = _judged(spec, strategy, ranks_on(chosen), trace)
                fit[strategy] = found.fits is True
                yield _over(spec, strategy, chosen, found)
        if any(fit.values()):
            return
    yield from _more_cards(spec, target, len(there), trace)


def _over(spec: TrainingSpec, strategy: str, chosen: Sequence[Target], found: Estimate) -> Alternative:
    """GPUs that are there; with a button's fields unless torch cannot connect them, as simulated ones."""
    names = [target.device for target in chosen]
    words = ", ".join(names) if len(names) <= 2 else f"{len(names)} GPUs"
    if kind_of(names[0]) == "sim":
        words += f" ({SIMULATED})"
    change, fields = f"{STRATEGIES[strategy]} over {words}", _fields(spec, strategy, names)
    return as_alternative(change, found, fields=fields, ranks=len(names))


def _more_cards(
    spec: TrainingSpec, target: Target, there: int, trace: Callable[[Spec, Target], Trace]
) -> Iterator[Alternative]:
    """The fewest GPUs of this size, more than there are and empty, over which the shards of the model fit."""
    if target.capacity_bytes is None:
        return
    empty = replace(target, free_bytes=target.capacity_bytes)
    for count in COUNTS:
        if count <= there or spec.batch % count:
            continue
        found = _judged(spec, "fsdp", ranks_on([replace(empty, device=f"rank {rank}") for rank in range(count)]), trace)
        if found.fits:
            size = _nominal(target.capacity_bytes)
            words = f"{count} × {f'{size // GIB} GiB' if size % GIB == 0 else format_bytes(size)} with FSDP2"
            yield as_alternative(words, found, card_bytes=size, ranks=count)
            return


def _judged(
    spec: TrainingSpec, strategy: str, targets: Sequence[Target], trace: Callable[[Spec, Target], Trace]
) -> Estimate:
    """What each of several ranks takes of its device."""
    update = {"devices": ",".join(["cpu"] * len(targets)), "parallel": strategy, "global_batch": spec.batch}
    ranks = spec.model_copy(update=update)
    return of_ranks(targets, strategy, lambda one: judge(trace(ranks, one), one, spec.name))


def _fields(spec: TrainingSpec, strategy: str, names: Sequence[str]) -> Mapping[str, Any]:
    fields = {"devices": ",".join(names), "parallel": strategy, "global_batch": spec.batch}
    try:
        spread = TrainingSpec.model_validate({**spec.model_dump(exclude_defaults=True), **fields})
    except ValidationError:
        return {}
    return {} if spread.run_problems(names[0]) else fields


def _nominal(capacity: int) -> int:
    """What a card of ``capacity`` bytes is called: the driver tells up to a tenth less."""
    return next((size for size in CARDS_BYTES if size * HANDED_OUT_RATIO <= capacity <= size), capacity)


def _room(target: Target) -> int:
    return target.room_bytes or 0
