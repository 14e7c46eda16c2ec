"""The lines of a program whose memory grew from one commit to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from gpudash.session.predicting.bisecting.repository import Hunk

MOST_LINES = 8
"""Lines that are named, those that grew most."""

ALIKE = 0.7
"""How much of two lines has to agree (`difflib.SequenceMatcher.ratio`) for the one to be the other, edited."""

LEAST_SHARE = 0.02
"""Part of the whole change below which a line is not named."""


@dataclass(frozen=True)
class ChangedLine:
    """A line, and what of the peak it had allocated in two commits.

    Attributes:
        file, line: where it stands in the later commit; in the earlier one where it is gone.
        before_bytes, after_bytes: at the peak.
        is_gone: whether the later commit has no such line.
        hunk: of the later commit, where that touches the line.
        text: of it; "" where that is not known.
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
        """Bytes more than before."""
        return self.after_bytes - self.before_bytes


def split_place(place: str) -> tuple[str, int]:
    """File and line of ``train.py:12``, also where ", in LIBRARY:LINE" follows; line 0 where there is none."""
    own = place.partition(", in ")[0]
    file, _, number = own.rpartition(":")
    if not number.isdecimal():
        return own, 0
    return file, int(number)


def mapped(file: str, line: int, hunks: Sequence[Hunk]) -> tuple[str, int] | None:
    """Where a line of the earlier commit stands in the later one; ``None`` where it is gone.

    Args:
        file, line: of the earlier commit.
        hunks: between the two, without unchanged lines around them.
    """
    shift = 0
    name = file
    for hunk in hunks:
        if hunk.old_file != file:
            continue
        name = hunk.new_file
        # Without context, git gives an insertion the line that it follows, which itself stays where it was.
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
    """Lines that hold another part of the peak than before, those that changed most first.

    Args:
        before, after: bytes at the peak by "file:line" of either commit.
        hunks: between the two, without unchanged lines around them.
        shown: the same with the lines around them.
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
    """Those of ``lines`` that explain the change, the largest: without what is negligible beside the rest.

    Lines that hold less are among them where others hold more: code that was written anew is gone in one place and
    there in another.
    """
    whole = sum(abs(one.difference) for one in lines)
    return [one for one in lines if abs(one.difference) >= LEAST_SHARE * whole][:MOST_LINES]


def _in_place_of(hunk: Hunk, place: int) -> int | None:
    """Which line of a hunk, counted from 0, stands for one that it takes away; ``None`` where none does."""
    # As many lines as before are most often the same lines, edited.
    if hunk.old_count == hunk.new_count:
        return place
    # Else a line that moved, was indented or edited is known by its text, where one alone is like it.
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
    """The hunk to show for a line that the later commit has written or changed."""
    written = any(hunk.new_file == file and hunk.new_start <= line < hunk.new_start + hunk.new_count for hunk in hunks)
    if not written:
        return None
    return next(
        (hunk for hunk in shown if hunk.new_file == file and hunk.new_start <= line < hunk.new_start + hunk.new_count),
        None,
    )
