"""Fuzzy matching: finding names by some of their letters."""

from __future__ import annotations

from collections.abc import Sequence

AT_START = 6.0
"""Bonus for a letter at the start of a word."""

IN_ROW = 6.5
"""Bonus for a letter right after the previous match."""

SKIPPED = 0.02
"""Penalty for each letter of the text that is not matched, so that shorter texts win."""

SECOND = 0.5
"""Weight of a match in the place (the menu), relative to one in the name."""

OTHER = 0.95
"""Weight of a match in other words for an entry, relative to one in the name."""

NEVER = float("-inf")


def score(query: str, text: str) -> float | None:
    """How well the letters of ``query`` match ``text`` in this order; ``None`` if they do not.

    Letters at starts of words and consecutive letters score higher. Case and spaces are ignored.
    """
    letters, found = query.lower().replace(" ", ""), text.lower()
    if not _holds(letters, found):
        return None
    starts = [not before.isalnum() or (now.isupper() and before.islower()) for before, now in _pairs(text)]
    # best[i]: the highest score for the letters so far with the last of them matched at index i of the text.
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


def rank(query: str, entries: Sequence[tuple[str, ...]]) -> list[int]:
    """Indices of the entries that match every word of ``query``, best first; all entries for an empty query.

    Args:
        query: words in any order; each may be abbreviated.
        entries: (name, place), such as ("Range as CSV…", "File ▸ Export"); further words by which an entry is found,
            as a third text: they count only from their start.
    """
    terms = query.split()
    ranked: list[tuple[float, int]] = []
    for number, (name, place, *others) in enumerate(entries):
        scores = [_best(word, name, place, " ".join(others).lower().split()) for word in terms]
        if None not in scores:
            ranked.append((-sum(found for found in scores if found is not None), number))
    return [number for _score, number in sorted(ranked)]


def _best(word: str, name: str, place: str, others: Sequence[str]) -> float | None:
    in_name, in_place = score(word, name), score(word, place)
    known = [found for found in (in_name, None if in_place is None else SECOND * in_place) if found is not None]
    begun = [score(word, other) for other in others if other.startswith(word.lower())]
    known += [OTHER * found for found in begun if found is not None]
    return max(known, default=None)


def _holds(letters: str, text: str) -> bool:
    rest = iter(text)
    return all(letter in rest for letter in letters)


def _pairs(text: str) -> list[tuple[str, str]]:
    return list(zip(f" {text}", text, strict=False))
