"""What grew and what shrank between two moments, of one snapshot or of two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpudash.memory.snapshot.history.history import History, moment_words
from gpudash.memory.snapshot.history.phases import CATEGORIES
from gpudash.telemetry.explanation import site_name
from gpudash.units import format_bytes, format_count

TOLD = 3
"""Call sites that the sentence names."""


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A call site, and what of its blocks was alive at each of two moments; sizes in bytes.

    Attributes:
        file, line, name: of the site; "" and 0 for blocks without a stack.
        category: of most of its bytes.
        before, after: bytes; `count_before` and `count_after` blocks.
    """

    file: str
    line: int
    name: str
    category: str
    before: int
    after: int
    count_before: int
    count_after: int

    @property
    def grown(self) -> int:
        """Bytes more than before; negative when it shrank."""
        return self.after - self.before

    @property
    def place(self) -> str:
        """The site's short name: "train.py:41 step"."""
        return site_name(self.file, self.line, self.name)


@dataclass(frozen=True, slots=True)
class Difference:
    """Two moments compared; sizes in bytes.

    Attributes:
        before, after: allocated.
        changes: call sites with another number of bytes, the largest change first.
        words: the same in a sentence.
    """

    before: int
    after: int
    changes: tuple[SiteChange, ...]
    words: str


def compare(first: History, begin: int, second: History, end: int) -> Difference:
    """What changed, by call site, from a moment of one history to a moment of the same or of another one."""
    before, after = _by_place(first, begin), _by_place(second, end)
    changes = []
    for place in before.keys() | after.keys():
        old, new = before.get(place), after.get(place)
        known = new or old
        assert known is not None
        change = SiteChange(
            place[0],
            place[1],
            known[2],
            known[3],
            old[0] if old else 0,
            new[0] if new else 0,
            old[1] if old else 0,
            new[1] if new else 0,
        )
        if change.grown:
            changes.append(change)
    changes.sort(key=lambda change: (-abs(change.grown), change.file, change.line))
    was, now = int(first.allocated[begin + 1]), int(second.allocated[end + 1])
    same = first is second
    beginning = moment_words(first, begin) if same else f"the first snapshot ({moment_words(first, begin)})"
    ending = moment_words(second, end) if same else f"the second ({moment_words(second, end)})"
    return Difference(was, now, tuple(changes), _words(beginning, ending, was, now, changes))


def _by_place(history: History, moment: int) -> dict[tuple[str, int], tuple[int, int, str, str]]:
    """Bytes, count, function and category of most bytes, by file and line."""
    alive = history.alive(moment)
    kinds = len(CATEGORIES)
    key = history.site_of(alive) * kinds + history.lives.category[alive]
    total = np.bincount(key, weights=history.lives.bytes[alive], minlength=len(history.sites.frames) * kinds)
    total = total.reshape(-1, kinds)
    count = np.bincount(history.site_of(alive), minlength=len(history.sites.frames))
    most = total.argmax(axis=1)
    whole = total.sum(axis=1)
    found = {}
    for site in np.flatnonzero(count).tolist():
        file, line, name = history.sites.frames[site]
        found[file, line] = (int(whole[site]), int(count[site]), name, CATEGORIES[int(most[site])])
    return found


def _words(beginning: str, ending: str, was: int, now: int, changes: list[SiteChange]) -> str:
    grown = now - was
    if not changes:
        return f"Between {beginning} and {ending} nothing changed: {format_bytes(now)} allocated at both."
    if grown:
        verb = "grew" if grown > 0 else "fell"
        head = f"Between {beginning} and {ending} allocated {verb} by {format_bytes(abs(grown))}"
    else:
        head = f"Between {beginning} and {ending} allocated stayed at {format_bytes(now)}"
    told = [f"{_signed(change.grown)} {change.place} ({change.category})" for change in changes[:TOLD]]
    rest = changes[TOLD:]
    if rest:
        amount = sum(change.grown for change in rest)
        told.append(f"{_signed(amount)} {format_count(len(rest))} other call site{'s' if len(rest) > 1 else ''}")
    return f"{head}: {', '.join(told)}."


def _signed(size: int) -> str:
    return f"{'−' if size < 0 else '+'}{format_bytes(abs(size))}"
