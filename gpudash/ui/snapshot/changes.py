"""What grew and what shrank between two states, row by row and in a sentence. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpudash.ui.snapshot.holders import Holder
from gpudash.units import format_bytes, format_count

NAMED = 2
"""Rows that a sentence names."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row of both states; bytes and numbers of blocks, 0 where it has none.

    Attributes:
        stack: number of the stack that allocated most of it in the state that has more, -1 without one.
        in_first: whether that is the first state.
    """

    name: str
    first: int
    second: int
    first_count: int
    second_count: int
    stack: int
    in_first: bool

    @property
    def grown(self) -> int:
        """Bytes, second minus first."""
        return self.second - self.first

    @property
    def word(self) -> str:
        """What became of it."""
        if not self.grown:
            return "same"
        if not self.first:
            return "new"
        if not self.second:
            return "gone"
        return "grew" if self.grown > 0 else "shrank"


def changes(first: Sequence[Holder], second: Sequence[Holder]) -> list[Change]:
    """Rows of either state, what changed most first; what stayed the same comes last."""
    before = {row.name: row for row in first}
    after = {row.name: row for row in second}
    found = []
    for name in {**after, **before}:
        old, new = before.get(name), after.get(name)
        larger = max((row for row in (old, new) if row is not None), key=lambda row: row.own)
        found.append(
            Change(
                name,
                0 if old is None else old.own,
                0 if new is None else new.own,
                0 if old is None else old.count,
                0 if new is None else new.count,
                larger.stack,
                larger is old,
            )
        )
    return sorted(found, key=lambda change: (-abs(change.grown), -change.second, change.name))


def change_words(found: Sequence[Change], first: str, second: str) -> str:
    """The sum in a sentence, and the rows that make most of it.

    Args:
        found: as `changes` gives it.
        first, second: names of the states, such as "event 12".
    """
    grown = sum(change.grown for change in found)
    if not any(change.grown for change in found):
        return f"The same is live at {first} and at {second}."
    word = "grew" if grown > 0 else "shrank"
    verb = f"live bytes {word} by {format_bytes(abs(grown))}" if grown else "live bytes are the same in sum"
    named = [change for change in found if change.grown][:NAMED]
    reasons = ", ".join(f"{signed(change.grown)} {change.name}" for change in named)
    rest = sum(1 for change in found if change.grown) - len(named)
    more = f" and {format_count(rest)} more" if rest else ""
    return f"From {first} to {second} {verb}: {reasons}{more}."


def signed(size: int) -> str:
    """Bytes with their sign: "+1.10 GiB", "-3 MiB", "same"."""
    return "same" if not size else f"{'+' if size > 0 else '-'}{format_bytes(abs(size))}"
