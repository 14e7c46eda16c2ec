"""The lines of a program whose memory grew from one commit to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from gpudash.session.predicting.bisecting.repository import Hunk

MOST_LINES = 8
"""How many lines are named: those that grew most."""

ALIKE = 0.7
"""Similarity (`difflib.SequenceMatcher.ratio`) from which one line counts as an edit of another."""

LEAST_SHARE = 0.02
"""Share of the whole change below which a line is not named."""


@dataclass(frozen=True)
class ChangedLine:
    """A line, and the bytes of the peak that it had allocated in each of two commits.

    Attributes:
        file, line: position in the later commit; in the earlier one if it is gone.
        before_bytes, after_bytes: bytes at the peak.
        is_gone: whether the later commit has no such line.
        hunk: the hunk of the later commit that touches the line, if any.
        text: its source; "" if unknown.
    """

    file: str
    line: int
    before_bytes: int
    after_bytes: int
    is_gone: bool = False
    hunk: Hunk | None = None
    text: str = ""

    @property
    def difference(self) -> int:
        """Increase, in bytes."""
        return self.after_bytes - self.before_bytes


def split_place(place: str) -> tuple[str, int]:
    """File and line of ``train.py:12``, also with ", in LIBRARY:LINE" behind it; line 0 if there is none."""
    own = place.partition(", in ")[0]
    file, _, number = own.rpartition(":")
    if not number.isdecimal():
        return own, 0
    return file, int(number)


def mapped(file: str, line: int, hunks: Sequence[Hunk]) -> tuple[str, int] | None:
    """Position in the later commit of a line of the earlier one; ``None`` if it is gone.

    Args:
        file, line: position in the earlier commit.
        hunks: the hunks between the two, without context lines.
    """
    shift = 0
    name = file
    for hunk in hunks:
        if hunk.old_file != file:
            continue
        name = hunk.new_file
        # Without context lines, git locates an insertion at the line before it, which itself does not move.
        first = hunk.old_start + (not hunk.old_count)
        if line < first:
            continue
        if line < first + hunk.old_count:
            place = _in_place_of(hunk, line - first)
            if place is None:
                return None
            return name, hunk.new_start + place
        shift = hunk.new_start + (hunk.new_count or 1) - (hunk.old_start + (hunk.old_count or 1))
    if not name:
        return None
    return name, line + shift


def changed_lines(
    before: Mapping[str, int], after: Mapping[str, int], hunks: Sequence[Hunk], shown: Sequence[Hunk]
) -> list[ChangedLine]:
    """Lines whose part of the peak changed, the largest change first.

    Args:
        before, after: bytes at the peak by "file:line" of each commit.
        hunks: the hunks between the two, without context lines.
        shown: the same hunks with context lines.
    """
    was = _by_line(before)
    now = _by_line(after)
    moved: dict[tuple[str, int], int] = {}
    gone: dict[tuple[str, int], int] = {}
    for (file, line), size in was.items():
        place = mapped(file, line, hunks)
        if place is None:
            gone[file, line] = size
        else:
            moved[place] = moved.get(place, 0) + size
    found = [
        ChangedLine(file, line, moved.get((file, line), 0), size, hunk=_touching(file, line, hunks, shown))
        for (file, line), size in now.items()
    ]
    found += [ChangedLine(*place, size, 0) for place, size in moved.items() if place not in now]
    found += [ChangedLine(*place, size, 0, is_gone=True) for place, size in gone.items()]
    return sorted((one for one in found if one.difference), key=lambda one: -abs(one.difference))


def largest(lines: Sequence[ChangedLine]) -> list[ChangedLine]:
    """The ``lines`` that explain most of the change, without those that are negligible: first those that changed as the
    peak did.

    Lines that shrank are included when others grew: rewritten code disappears in one place and appears in another.
    """
    whole = sum(abs(one.difference) for one in lines)
    found = [one for one in lines if abs(one.difference) >= LEAST_SHARE * whole][:MOST_LINES]
    has_grown = sum(one.difference for one in lines) > 0
    return sorted(found, key=lambda one: one.difference, reverse=has_grown)


def _in_place_of(hunk: Hunk, place: int) -> int | None:
    """Which line of a hunk, counted from 0, replaces a removed one; ``None`` if none does."""
    # Equally many lines before and after are most often the same lines, edited.
    if hunk.old_count == hunk.new_count:
        return place
    # Otherwise a moved, indented or edited line is recognised by its text, if exactly one is similar.
    texts = hunk.text.splitlines()[1:]
    old = [text[1:].strip() for text in texts if text.startswith("-")]
    new = [text[1:].strip() for text in texts if text.startswith("+")]
    if place >= len(old):
        return None
    alike = get_close_matches(old[place], new, n=2, cutoff=ALIKE)
    if not alike or new.count(alike[0]) > 1 or old.count(old[place]) > 1:
        return None
    return new.index(alike[0])


def _by_line(sizes: Mapping[str, int]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for place, size in sizes.items():
        key = split_place(place)
        found[key] = found.get(key, 0) + size
    return found


def _touching(file: str, line: int, hunks: Sequence[Hunk], shown: Sequence[Hunk]) -> Hunk | None:
    """The hunk to show for a line that the later commit added or changed."""
    written = any(hunk.new_file == file and hunk.new_start <= line < hunk.new_start + hunk.new_count for hunk in hunks)
    if not written:
        return None
    return next(
        (hunk for hunk in shown if hunk.new_file == file and hunk.new_start <= line < hunk.new_start + hunk.new_count),
        None,
    )
