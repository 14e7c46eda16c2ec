"""How much of the card PyTorch could have, as far as a trace shows it: by what it had, and by what it was refused."""

from __future__ import annotations

from dataclasses import dataclass

from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.model import NONE, SEGMENT_ALLOC, SEGMENT_MAP
from gpudash.memory.snapshot.replay.trace_program import releases
from gpudash.units import MIB, format_count


@dataclass(frozen=True, slots=True)
class CardLimits:
    """Bounds of what PyTorch could reserve of a card, in bytes.

    Attributes:
        least: that it had at once, and the driver called free beside it.
        below: less than this: a request was refused that would have come to it; ``None`` when none was.
        retries: requests for which the card had no more, and which were served once cached segments were released.
    """

    least: int
    below: int | None
    retries: int


def card_limits(history: History) -> CardLimits:
    """The bounds that a trace shows.

    Before a request that the card refuses is asked again, the allocator releases its free segments
    (c10/cuda/CUDACachingAllocator.cpp, `release_cached_blocks`): in the trace they go right before the segment that
    came then, by the stack of that request where stacks were recorded. A program that empties the cache itself leaves
    the stack of that, and its next segment would have fitted.
    """
    columns, reserved = history.columns, history.reserved
    free = columns.device_free[history.ooms]
    known = history.ooms[free != NONE]
    least = max(int(reserved.max()), int((reserved[known + 1] + free[free != NONE]).max(initial=0)))
    if history.device.settings.garbage_collection_threshold:
        return CardLimits(least, None, 0)  # it releases segments while the card has more
    came = [total for total in _asked_after_release(history) if total > least]
    return CardLimits(least, min(came, default=None), len(came))


def _asked_after_release(history: History) -> list[int]:
    """Of each release that a request may have caused, what would have been reserved without it; bytes."""
    columns = history.columns
    action, stack = columns.action, columns.stack
    found = []
    for release in releases(history.device):
        begin, end = release.begin, release.end
        if not release.is_retry or action[end] not in (SEGMENT_ALLOC, SEGMENT_MAP):
            continue
        if (stack[begin : end + 1] == stack[end]).all():
            found.append(int(history.reserved[begin]) + int(columns.size[end]))
    return found


def retry_words(limits: CardLimits) -> str:
    """That requests were refused and asked again, in a sentence; "" when none was."""
    if not limits.retries:
        return ""
    times = "once" if limits.retries == 1 else f"{format_count(limits.retries)} times"
    return f"The card ran short {times}: PyTorch released its idle cache, asked again and got the memory."


def capacity_words(limits: CardLimits) -> str:
    """What is known of the card's size, in a sentence."""
    if limits.below is None:
        return "How much the card has is not in the file."
    low, high = format_count(limits.least // MIB), format_count(-(-limits.below // MIB))
    return f"So the card has between {low} and {high} MiB for PyTorch."
