"""Several ranks' predictions as one: the rank with least room decides whether the run fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from gpudash.memory.allocator.trace import WEIGHTS
from gpudash.memory.predicting.estimate import DeviceEstimate, Estimate, RankEstimate, Target
from gpudash.units import MIB

SPLIT = "split"
"""`Estimate.strategy` of a model whose halves lie on two devices: no ranks, and each device asks for its own."""

STRATEGIES = {"ddp": "DDP", "fsdp": "FSDP2", "fsdp1": "FSDP1", SPLIT: "split by hand"}
"""`Estimate.strategy` → how it is called."""

NCCL_CHANNEL_BYTES = 12 * MIB
NCCL_CHANNELS = 16
NCCL_BYTES = NCCL_CHANNELS * NCCL_CHANNEL_BYTES
"""Assumed of NCCL on each rank: a buffer of 10 MiB to receive into and 2 MiB to send from a channel, as counted in
NVIDIA/nccl issue 1685, for 16 channels. Two channels are usual over PCIe, up to 32 over NVLink, and 1.6 GB in all have
been seen (issue 864): torch's allocator knows nothing of it."""

NCCL_TEXT = "NCCL about 192 MiB per rank assumed (16 channels of 12 MiB; 2 to 32 are usual)"

GLOO_TEXT = "Gloo's copies of what it sends are not counted"
"""Gloo's all-gather and reduce-scatter copy their tensors on threads of their own, for the time of a collective."""


def connected(target: Target) -> Target:
    """``target`` as a rank finds it: what connects the ranks takes memory too."""
    if target.device == "cpu":
        return replace(target, overhead_words=_joined(target.overhead_words, GLOO_TEXT))
    return replace(
        target,
        overhead_bytes=target.overhead_bytes + NCCL_BYTES,
        overhead_words=_joined(target.overhead_words, NCCL_TEXT),
        communication_bytes=NCCL_BYTES,
    )


def ranks_on(targets: Sequence[Target]) -> tuple[Target, ...]:
    """The targets of ranks that run at the same time: those on one device share what is free there.

    Args:
        targets: each rank's device as it is without them.
    """
    names = [target.device for target in targets]
    return tuple(connected(_shared(target, names.count(target.device))) for target in targets)


def deciding(targets: Sequence[Target]) -> int:
    """The rank with least room, the first of equal ones; one of which nothing is known comes before all others."""
    return min(range(len(targets)), key=lambda rank: _room(targets[rank]))


def of_ranks(targets: Sequence[Target], strategy: str, judge: Callable[[Target], Estimate]) -> Estimate:
    """The prediction of the deciding rank, with those of all.

    Args:
        targets: of the ranks; one or more.
        strategy: "ddp", "fsdp" or "fsdp1".
        judge: predicts for one of them; all ranks ask the same of their allocators, but for rounding of shards.
    """
    known: list[tuple[Target, Estimate]] = []
    found = []
    for target in targets:
        same = next((estimate for other, estimate in known if replace(other, device=target.device) == target), None)
        if same is None:
            estimate = judge(target)
        else:
            estimate = replace(same, device=target.device)
        known.append((target, estimate))
        found.append(estimate)
    rank = deciding(targets)
    # one set of gradients is as large as the weights; fewer where some of them are frozen
    late = 0
    if strategy == "ddp" and found[rank].communication_bytes:
        late = found[rank].by_category.get(WEIGHTS, 0)
    count = f"one of {len(targets)} ranks ({STRATEGIES[strategy]}, torch's own code without its peers)"
    return replace(
        found[rank],
        ranks=tuple(_rank(number, estimate) for number, estimate in enumerate(found)),
        deciding_rank=rank,
        strategy=strategy,
        late_bytes=late,
        method=f"{count}: {found[rank].method}",
    )


def of_halves(found: Sequence[Estimate], what: str = "each half of a model that is split") -> Estimate:
    """The predictions of the devices over which a model is split as one: that with least to spare decides.

    Args:
        found: of each device, by what the run asks there.
        what: is on each.
    """
    place = min(range(len(found)), key=lambda number: _spare(found[number]))
    decides = found[place]
    return replace(
        decides,
        fits=_all_fit([each.fits for each in found]),
        ranks=tuple(_rank(number, each) for number, each in enumerate(found)),
        deciding_rank=place,
        strategy=SPLIT,
        method=f"{what}: {decides.method}",
    )


def _all_fit(each: Sequence[bool | None]) -> bool | None:
    """Whether all fit: not when one does not, and unknown when one is within its margin."""
    if False in each:
        return False
    if None in each:
        return None
    return True


def _spare(found: Estimate) -> tuple[int, float]:
    """What sorts first decides: what does not fit, then what is within the margin, then what has least to spare."""
    order = {False: 0, None: 1, True: 2}[found.fits]
    return order, float("-inf") if found.spare_bytes is None else found.spare_bytes


def unequal(estimate: Estimate) -> bool:
    """Whether the ranks have different room, so that one of them decides for all."""
    return len({(rank.capacity_bytes, rank.free_bytes) for rank in estimate.ranks}) > 1


def _shared(target: Target, count: int) -> Target:
    if count < 2 or target.free_bytes is None:
        return target
    text = f"free memory shared by {count} ranks"
    return replace(target, free_bytes=target.free_bytes // count, overhead_words=_joined(target.overhead_words, text))


def _room(target: Target) -> float:
    if target.room_bytes is None:
        return float("-inf")
    return target.room_bytes


def _rank(rank: int, found: Estimate) -> RankEstimate:
    return RankEstimate(**{field.name: getattr(found, field.name) for field in fields(DeviceEstimate)}, rank=rank)


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
