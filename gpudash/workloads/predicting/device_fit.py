"""What a traced run needs on a device, what makes it fit unchanged, and the largest batch or sequence that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpudash.memory.allocator.settings import EXPANDABLE
from gpudash.memory.allocator.trace import Trace, between
from gpudash.memory.predicting.estimate import (
    CARDS_BYTES,
    GROWING,
    HANDED_OUT_RATIO,
    Alternative,
    Estimate,
    Target,
    fits,
    judge,
    needed_room,
    passage,
)
from gpudash.speed.work import StepWork
from gpudash.units import GIB

FLOPS = "FLOPs of the dry run"

SAME_PRODUCTS = "the same products in smaller batches"
"""What an expected time is based on."""

MOST_TRIES = 20
"""The most dry runs for this search."""


Followed = Callable[[Trace, Target, Estimate], object]
"""Called with a run's requests to the allocator of a device, and the resulting estimate."""


def answers(number: object, estimates: Iterable[Estimate], extras: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The answers of a process: each estimate has more than the one before, and the last is sent again as final.

    Args:
        number: of the request.
        extras: entries that `estimates` adds are sent with the next estimate, and then cleared.
    """
    last: Estimate | None = None
    known_work: StepWork | None = None
    for last in estimates:
        # once, like a timeline: it is the same in every estimate of a request
        if last.work is not None and last.work is not known_work:
            known_work = last.work
            extras["work"] = known_work.to_dict()
        yield {"id": number, "estimate": last.to_json(), "final": False, **extras}
        # Cleared, so that a timeline is sent once rather than with every later estimate.
        extras.clear()
    if last is not None:
        yield {"id": number, "estimate": last.to_json(), "final": True}


def unchanged(
    trace_on: Callable[[Target], Trace], target: Target, found: Estimate, elsewhere: Iterable[Target]
) -> Iterator[Alternative]:
    """What would make a run fit unchanged: expandable segments, another device, a larger card.

    Args:
        trace_on: returns the run's requests to the allocator of a device.
        target: where it should fit.
        found: its estimate there.
        elsewhere: the other devices it can use.
    """
    yield from _expandable(trace_on(target), target, found)
    for other in elsewhere:
        yield as_alternative(f"on {other.device}", judge(trace_on(other), other, found.workload), device=other.device)
    yield from _larger_card(trace_on, target, found)


def as_alternative(change: str, found: Estimate, **differs: Any) -> Alternative:
    """A change of a run with what it then needs.

    Args:
        change: for people.
        found: the estimate of the changed run.
        differs: the other fields of `Alternative`.
    """
    return Alternative(
        change,
        peak_reserved_bytes=found.peak_reserved_bytes or found.peak_allocated_bytes,
        fits=found.fits,
        releases_cache=found.fits is True and bool(found.released_bytes),
        needed_bytes=found.needed_bytes,
        free_bytes=found.free_bytes,
        **differs,
    )


def _expandable(trace: Trace, target: Target, found: Estimate) -> Iterator[Alternative]:
    """Expandable segments, if they need less."""
    if target.device == "cpu" or target.settings.expandable_segments or found.peak_reserved_bytes is None:
        return
    settings = replace(target.settings, expandable_segments=True)
    other = judge(trace, replace(target, settings=settings), found.workload)
    # Peak reserved memory, plus what had to be released on the way: better segments reduce both.
    before, after = (one.released_bytes + (one.peak_reserved_bytes or 0) for one in (found, other))
    if after < before or (other.fits and not found.fits):
        yield as_alternative("expandable segments", other, allocator=EXPANDABLE)


def _larger_card(trace_on: Callable[[Target], Trace], target: Target, found: Estimate) -> Iterator[Alternative]:
    """The smallest card that is large enough for each rank, even if the prediction is off by its margin."""
    if found.minimum_capacity_bytes is None or found.fits is True:
        return
    for nominal in CARDS_BYTES:
        size = int(nominal * HANDED_OUT_RATIO)
        # An empty card of that size as the driver reports it: slightly less than its name says.
        card = replace(target, capacity_bytes=size, free_bytes=size)
        if size < found.minimum_capacity_bytes or not fits(trace_on(card), card):
            continue
        count, name = len(found.ranks), f"{nominal // GIB} GiB"
        if count:
            text = f"{count} cards with {name} each"
        else:
            text = f"a card with {name}"
        yield as_alternative(text, judge(trace_on(card), card, found.workload), card_bytes=nominal)
        return


@dataclass(frozen=True)
class Sized:
    """The run at one size: the memory it needs in bytes, including the margin, and whether it is available.

    Attributes:
        size: of a batch, or of a sequence in tokens.
        need: the fewest bytes with which it fits.
        fits: whether they are available.
        releases: whether it only fits because the allocator releases cached memory.
        growing: bytes at its peak that grow with the size; 0 if unknown.
        trace: its requests to the allocator; ``None`` for a run on several devices.
    """

    size: int
    need: int
    fits: bool
    releases: bool
    growing: int = 0
    trace: Trace | None = None

    @classmethod
    def of(cls, size: int, trace: Trace, target: Target) -> Sized:
        """The result for a traced run of this size on ``target``."""
        found = passage(trace, target)
        need = needed_room(trace, target, found)
        growing = sum(found.spacious.by_category.get(category, 0) for category in GROWING)
        return cls(size, need, found.fits is True, bool(found.released), growing, trace)


def largest(tried: Callable[[int], Sized], size: int, limit: int, target: Target) -> Sized | None:
    """The largest size with which the otherwise unchanged run fits; size 0 if none does, ``None`` if not found.

    Memory grows nearly linearly with the size. The next size to try comes from a line through two sizes, or at first
    through one and the part that does not grow. The line is inaccurate by the rounding of segments. So once the limit
    lies between two sizes that request the same blocks, the search uses interpolated traces (`between`), and tries
    their result.

    Args:
        tried: returns the result for a size.
        size: of the run as it is.
        limit: the largest allowed size.
        target: where it should fit.
    """
    now = tried(size)
    if now.fits:
        low, high = (size, limit + 1)
    else:
        low, high = (0, size)
    known = {size: now}
    # The part that grows at the peak gives a second point of the line without another dry run.
    base = replace(now, size=0, need=now.need - now.growing)
    if not now.growing and high - low > 1:
        other = size // 2 or 2
        base = known[other] = tried(other)
    last, leap = now, 1
    for _ in range(MOST_TRIES):
        # The limit lies between the bounds: `low` fits (or is 0), `high` does not (or is beyond the maximum).
        if high - low <= 1:
            break
        next_size = _edge_between(known.get(low), known.get(high), target)
        if next_size is None:
            # Move away from the line by doubling steps: if needs jump, a line alone would creep towards the limit.
            next_size = _on_line(base, last, target.room_bytes or 0)
            if last.size == low:
                next_size = max(next_size, low + leap)
            else:
                next_size = min(next_size, high - leap)
            leap *= 2
        # A guess outside the bounds is useless; halving always ends.
        if not low < next_size < high:
            next_size = limit if high > limit else (low + high) // 2
        last = known[next_size] = tried(next_size)
        if last.fits:
            low = next_size
        else:
            high = next_size
    # Not found within `MOST_TRIES`: no answer is better than one that may be wrong.
    if high - low > 1:
        return None
    return known.get(low, Sized(0, 0, fits=False, releases=False))


def _on_line(base: Sized, last: Sized, room: int) -> int:
    """The size that needs exactly ``room``, if two sizes and their needs lie on a line."""
    slope = (last.need - base.need) / ((last.size - base.size) or 1)
    if slope > 0:
        return int(last.size + (room - last.need) / slope)
    return 2 * last.size


def _edge_between(low: Sized | None, high: Sized | None, target: Target) -> int | None:
    """The largest size that should fit, between one that does and one that does not; the one above ``low`` if none
    should. ``None`` if their traces differ in structure."""
    if low is None or high is None or low.trace is None or high.trace is None:
        return None
    # Bisection over traces interpolated from the two, without a dry run.
    edge, beyond = low.size, high.size
    while beyond - edge > 1:
        size = (edge + beyond) // 2
        trace = between(low.trace, high.trace, (size - low.size) / (high.size - low.size))
        if trace is None:
            return None
        if fits(trace, target):
            edge = size
        else:
            beyond = size
    return max(edge, low.size + 1)
