"""What would have let a recorded run go on, or take less: each found by replaying its trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.environment import EXPANDABLE, assignment
from gpudash.memory.estimate import smallest_card
from gpudash.memory.explanation import Explanation, Growth, Remedy
from gpudash.memory.replay_remedies import REPLAY
from gpudash.memory.snapshot import leaks
from gpudash.memory.snapshot.history import History
from gpudash.memory.snapshot.rerun import UNLIMITED
from gpudash.memory.snapshot.what_if import WhatIf
from gpudash.units import GIB, MIB, format_bytes

MOST_EVENTS = 400_000
"""Events of a trace that is replayed for remedies: about a second each."""

SETTINGS = (EXPANDABLE, "max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:8")
"""Settings that are tried."""

WORTH_TELLING = 0.02
WORTH_TELLING_BYTES = 20 * MIB
"""Part of what was reserved at most, and bytes, that a change has to save to be told where nothing had failed."""


def remedies(history: History, what_if: WhatIf, found: Explanation, capacity: int | None) -> tuple[Remedy, ...]:
    """Changes with which the trace passes ``capacity``; without one, changes with which it takes clearly less.

    Args:
        history: of the device.
        what_if: of the same device.
        found: why it failed, or where memory is.
        capacity: bytes that PyTorch could have had, ``None`` when that is not known.
    """
    if not history.is_recorded or history.count > MOST_EVENTS or history.disagreeing:
        return ()
    failed = capacity is not None and not what_if.run(capacity).fits
    let_go = tuple(_let_go(history, found.growing, capacity if failed else None))
    if found.verdict == "leak" or leaks.is_leaking(found):
        # with anything else the run would only fail later
        return let_go
    larger = _larger(what_if, capacity) if failed else ()
    return (*let_go, *_settings(history, what_if, capacity if failed else None), *larger)


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
            fits=None if capacity is None else True,
            verified_by=REPLAY,
        )
        # one setting is enough
        return


def _larger(what_if: WhatIf, capacity: int | None) -> Iterator[Remedy]:
    smallest = what_if.smallest_capacity()
    if capacity is None or not capacity < smallest < UNLIMITED:
        return
    card = smallest_card(smallest)
    words = f"{format_bytes(smallest)} for PyTorch" + ("" if card is None else f", a card with {card // GIB} GiB")
    yield Remedy(words, predicted_peak_bytes=what_if.run(smallest).peak_reserved, fits=True, verified_by=REPLAY)
