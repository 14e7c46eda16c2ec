"""What would have let a recorded run go on, or take less: found by replaying its trace, or told as not tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.environment import EXPANDABLE, assignment
from gpudash.memory.allocator.trace import ACTIVATIONS, INPUTS, TEMPORARY
from gpudash.memory.estimate import smallest_card
from gpudash.memory.explanation import Explanation, Growth, Remedy
from gpudash.memory.replay_remedies import REPLAY
from gpudash.memory.snapshot import leaks
from gpudash.memory.snapshot.history import History
from gpudash.memory.snapshot.model import Stack
from gpudash.memory.snapshot.rerun import UNLIMITED
from gpudash.memory.snapshot.what_if import WhatIf
from gpudash.memory.wording import available, needed
from gpudash.units import GIB, MIB, format_bytes

MOST_EVENTS = 400_000
"""Events of a trace that is replayed for remedies: about a second each."""

SETTINGS = (EXPANDABLE, "max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:8")
"""Settings that are tried."""

FROM_AN_EARLIER_STEP = (
    "The recording ends at the refused request: the replay goes on with what an earlier step asked from there on."
)

ENDS_HERE = (
    "The recording ends at the refused request, and no earlier step came to it in the same way: what the rest of the "
    "step takes is not known, so that more may be needed."
)

WORTH_TELLING = 0.02
WORTH_TELLING_BYTES = 20 * MIB
"""Part of what was reserved at most, and bytes, that a change has to save to be told where nothing had failed."""


SHARE_OF_ACTIVATIONS = 0.3
"""Part of the live bytes that activations must be for changes to be named that make them smaller."""


@dataclass(frozen=True, slots=True)
class Found:
    """Remedies, and why they may not be enough; "" where they are."""

    remedies: tuple[Remedy, ...]
    note: str = ""


def remedies(history: History, what_if: WhatIf, found: Explanation, capacity: int | None) -> Found:
    """Changes with which the trace passes ``capacity``; without one, changes with which it takes clearly less.

    A trace that ends with the refused request goes on with the rest of an earlier step, where it holds one; else a
    change that gets past the request is told as no more than that.

    Args:
        history: of the device.
        what_if: of the same history.
        found: why it failed, or where memory is.
        capacity: bytes that PyTorch could have had, ``None`` when that is not known.
    """
    if not history.is_recorded or history.count > MOST_EVENTS or history.disagreeing:
        return Found(())
    failed = capacity is not None and not what_if.run(capacity).fits
    let_go = tuple(_let_go(history, found.growing, capacity if failed else None))
    if found.verdict == "leak" or leaks.is_leaking(found):
        # with anything else the run would only fail later
        return Found(let_go)
    if not failed:
        return Found((*let_go, *_settings(history, what_if, None)))
    replayed = (*_settings(history, what_if, capacity), *_larger(what_if, capacity))
    smaller = _smaller_activations(history, found) if found.requested_bytes is not None else ()
    note = ENDS_HERE if what_if.ends_refused else FROM_AN_EARLIER_STEP if what_if.goes_on else ""
    return Found((*let_go, *replayed, *smaller), note if replayed else "")


def _let_go(history: History, growing: Sequence[Growth], capacity: int | None) -> Iterator[Remedy]:
    if not growing:
        return
    told = leaks.let_go(history, growing, capacity)
    if told is None or told.fits is False or told.peak >= told.peak_before:
        return
    others = len(growing) - 1
    more = f" and {others} other line{'s' if others > 1 else ''}" if others else ""
    instead = f"{format_bytes(told.peak)} at the peak instead of {format_bytes(told.peak_before)}"
    verb = "keep" if len(growing) > 1 else "keeps"
    yield Remedy(
        f"let go of what {growing[0].place}{more} {verb}: {instead}",
        predicted_peak_bytes=told.peak,
        fits=told.fits,
        verified_by=REPLAY,
    )


def _settings(history: History, what_if: WhatIf, capacity: int | None) -> Iterator[Remedy]:
    """The first setting with which the trace passes a capacity that was too little, or takes clearly less."""
    # a card that refused a segment had PyTorch release what it kept, which one without end does not
    before = min(int(history.reserved.max()), what_if.run(None).peak_reserved)
    least_saved = max(WORTH_TELLING_BYTES, WORTH_TELLING * before)
    for text in SETTINGS:
        chosen = AllocatorSettings.parse(text)
        ran = what_if.run(capacity, chosen)
        if not ran.fits if capacity is not None else ran.peak_reserved > before - least_saved:
            continue
        words = "expandable segments" if text == EXPANDABLE else text
        yield Remedy(
            words,
            allocator=text,
            flags=assignment(text),
            predicted_peak_bytes=ran.peak_reserved,
            fits=None if capacity is None or what_if.ends_refused else True,
            verified_by=REPLAY,
        )
        # one setting is enough
        return


def _larger(what_if: WhatIf, capacity: int | None) -> Iterator[Remedy]:
    smallest = what_if.smallest_capacity()
    if capacity is None or not capacity < smallest < UNLIMITED:
        return
    peak = what_if.run(smallest).peak_reserved
    if what_if.ends_refused:
        yield Remedy(f"at least {needed(smallest)} for PyTorch", predicted_peak_bytes=peak, verified_by=REPLAY)
        return
    card = smallest_card(smallest)
    words = f"{needed(smallest)} for PyTorch" + ("" if card is None else f", a card with {card // GIB} GiB")
    yield Remedy(words, predicted_peak_bytes=peak, fits=True, verified_by=REPLAY)


def _smaller_activations(history: History, found: Explanation) -> Iterator[Remedy]:
    """Changes of the program that make activations smaller, where they are much of what is live; none was tried."""
    live = sum(found.by_category.values())
    activations = found.by_category.get(ACTIVATIONS, 0)
    if activations < SHARE_OF_ACTIVATIONS * live:
        return
    of_batch = activations + found.by_category.get(INPUTS, 0) + found.by_category.get(TEMPORARY, 0)
    yield Remedy(
        f"half the batch, two of them for each optimizer step: up to {available(of_batch // 2)} less at this moment"
    )
    if not _checkpoints(history.device.stacks):
        yield Remedy(
            f"activation checkpointing (torch.utils.checkpoint): up to {available(activations)} less at this moment"
        )
    yield Remedy(
        f"bf16 autocast, if the activations are float32: up to {available(activations // 2)} less at this moment",
        changes_training=True,
    )


def _checkpoints(stacks: Sequence[Stack]) -> bool:
    """Whether the program already checkpoints some of its activations."""
    return any("torch/utils/checkpoint.py" in frame[0].replace("\\", "/") for stack in stacks for frame in stack)
