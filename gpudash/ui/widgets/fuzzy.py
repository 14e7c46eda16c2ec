"""Finding names by a few of their letters."""

from __future__ import annotations

from collections.abc import Sequence

AT_START = 6.0
"""For a letter that begins a word."""

IN_ROW = 6.5
"""For a letter right behind the one before."""

SKIPPED = 0.02
"""Taken off for each letter of the text that is not looked for: the shorter of two is meant."""

SECOND = 0.5
"""What a letter found in the place (the menu) is worth beside one found in the name."""

NEVER = float("-inf")


def score(query: str, text: str) -> float | None:
    """How well the letters of ``query`` are found in this order in ``text``; ``None`` when they are not.

    Letters at the beginnings of words, and letters in a row, are worth more. Case and spaces do not count.
    """
    letters, found = query.lower().replace(" ", ""), text.lower()
    if not _holds(letters, found):
        return None
    starts = [not before.isalnum() or (now.isupper() and before.islower()) for before, now in _pairs(text)]
    # best[i]: the highest score with the letters so far, the last of them at place i of the text
    best = [NEVER] * len(found)
    for number, letter in enumerate(letters):
        reached, before, free = best, NEVER, NEVER if number else 0.0
        best = [NEVER] * len(found)
        for i, other in enumerate(found):
            if other == letter:
                in_row = NEVER
                if number:
                    in_row = before + IN_ROW
                ahead = max(free, in_row)
                if ahead > NEVER:
                    best[i] = ahead + 1.0 + (AT_START if starts[i] else 0.0)
                else:
                    best[i] = NEVER
            before = reached[i]
            if number:
                free = max(free, before)
    if letters:
        return max(best, default=0.0) - SKIPPED * (len(found) - len(letters))
    return 0.0


def rank(query: str, entries: Sequence[tuple[str, str]]) -> list[int]:
    """Places of the entries that hold every word of ``query``, the best first; all of them for an empty query.

    Args:
        query: words, each of which may be abbreviated, in any order.
        entries: (name, place), such as ("Range as CSV…", "File ▸ Export").
    """
    terms = query.split()
    ranked: list[tuple[float, int]] = []
    for number, (name, place) in enumerate(entries):
        scores = [_best(word, name, place) for word in terms]
        if None not in scores:
            ranked.append((-sum(found for found in scores if found is not None), number))
    return [number for _score, number in sorted(ranked)]


def _best(word: str, name: str, place: str) -> float | None:
    in_name, in_place = score(word, name), score(word, place)
    known = [found for found in (in_name, None if in_place is None else SECOND * in_place) if found is not None]
    return max(known, default=None)


def _holds(letters: str, text: str) -> bool:
    rest = iter(text)
    return all(letter in rest for letter in letters)


def _pairs(text: str) -> list[tuple[str, str]]:
    return list(zip(f" {text}", text, strict=False))
