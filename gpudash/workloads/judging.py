"""What a traced run comes to on a device, and what would let it fit without a change of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpudash.memory.allocator.environment import EXPANDABLE
from gpudash.memory.allocator.trace import WORKSPACE, Trace
from gpudash.memory.estimate import Alternative, Estimate, Target, judge, smallest_card
from gpudash.memory.workspace import USUAL_BYTES
from gpudash.units import GIB


def judged(trace: Trace, target: Target, name: str) -> Estimate:
    """Whether a traced run fits ``target``, also where that is the CPU.

    Args:
        trace: the run.
        target: where it is to fit.
        name: what it is called.
    """
    found = judge(held_on(trace, target), target, name)
    return found if target.device != "cpu" else _on_cpu(found)


def unchanged(trace: Trace, target: Target, found: Estimate, elsewhere: Iterable[Target]) -> Iterator[Alternative]:
    """What would let a run fit as it is: other segments, another device, a larger card.

    Args:
        trace: the run.
        target: where it is to fit.
        found: what it comes to there.
        elsewhere: the other devices it can use.
    """
    yield from _expandable(trace, target, found)
    for other in elsewhere:
        there = judged(trace, other, found.workload)
        peak = there.peak_reserved_bytes or there.peak_allocated_bytes
        yield Alternative(f"on {other.device}", device=other.device, peak_reserved_bytes=peak, fits=there.fits)
    yield from _larger_card(found)


def held_on(trace: Trace, target: Target) -> Trace:
    """``trace`` with the workspaces that torch takes on ``target``; the ones that the run itself sizes stay."""
    return trace.with_sizes(WORKSPACE, USUAL_BYTES, target.workspace_bytes)


def _expandable(trace: Trace, target: Target, found: Estimate) -> Iterator[Alternative]:
    """Expandable segments, where they take less."""
    if target.device == "cpu" or target.settings.expandable_segments or found.peak_reserved_bytes is None:
        return
    settings = replace(target.settings, expandable_segments=True)
    other = judged(trace, replace(target, settings=settings), found.workload)
    if (other.peak_reserved_bytes or 0) < found.peak_reserved_bytes or (other.fits and not found.fits):
        peak = other.peak_reserved_bytes
        yield Alternative("expandable segments", allocator=EXPANDABLE, peak_reserved_bytes=peak, fits=other.fits)


def _larger_card(found: Estimate) -> Iterator[Alternative]:
    """The smallest card that would do for each rank, also if the prediction is off by its margin."""
    if found.minimum_capacity_bytes is None or found.fits is True:
        return
    card = smallest_card(found.minimum_capacity_bytes + found.margin_bytes)
    if card is not None:
        count, size = len(found.ranks), f"{card // GIB} GiB"
        words = f"{count} cards with {size} each" if count else f"a card with {size}"
        yield Alternative(words, card_bytes=card, peak_reserved_bytes=found.peak_reserved_bytes, fits=True)


def _on_cpu(found: Estimate) -> Estimate:
    """The CPU has no caching allocator: what is allocated is all that can be said."""
    room, peak = found.free_bytes, found.peak_allocated_bytes or 0
    margin = found.margin_bytes
    verdict: bool | None = None
    if room is not None and abs(room - peak) > margin:
        verdict = peak < room
    return replace(
        found,
        peak_reserved_bytes=None,
        minimum_capacity_bytes=None,
        fits=verdict,
        spare_bytes=None if room is None else room - peak,
        method=found.method.replace("replayed by a model of torch's caching allocator", "tensors added up"),
    )
