"""Titles of a comparison's tab, whole and shortened."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def comparison_title(names: Sequence[str]) -> str:
    """The title of a comparison of runs with these names."""
    more = ""
    if len(names) > 2:
        more = f" and {len(names) - 2} more"
    return f"{names[0]} vs {names[1]}{more}"


def short_title(names: Sequence[str], longest: int) -> str:
    """The same title in ``longest`` characters, in whole words if possible: "training width 512 vs 1024 +2".

    Words common to the start or end of both names appear once, as many as fit. If no whole words fit, only the
    differing parts are shown, cut. Text in brackets at the end is used only if nothing else differs.
    """
    # Text in brackets counts only if the rest is equal.
    alone = [name.rpartition(" (")[0] if name.endswith(")") else name for name in names[:2]]
    a, b = (name.split() for name in (alone if alone[0] != alone[1] else names[:2]))
    begin = _common(a, b)
    end = _common(a[begin:][::-1], b[begin:][::-1])
    before, after = a[:begin], a[len(a) - end :]
    apart = [" ".join(name_parts[begin : len(name_parts) - end]).rstrip(",") or "default" for name_parts in (a, b)]
    others = ""
    if len(names) > 2:
        others = f" +{len(names) - 2}"
    if len(before) > 2:
        ends = [before[0], "…", before[-1]]
    else:
        ends = before
    # From most to fewest words; the first that fits is used.
    for left, right in ((before, after), (before, []), (ends, []), (before[-1:], []), ([], [])):
        text = f"{' '.join([*left, apart[0], 'vs', apart[1], *right])}{others}"
        if len(text) <= longest:
            return text
    if before:  # they differ only in their files' names, which say less
        both = f" ×2{others}"
        return f"{_cut(' '.join(before), longest - len(both))}{both}"
    # Each gets half of the room left by " vs ".
    room = (longest - len(f" vs {others}")) // 2
    return f"{_cut(apart[0], room)} vs {_cut(apart[1], room)}{others}"


def _cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    return f"{text[: room - 1].rstrip()}…"


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """The number of words that both begin with."""
    return sum(1 for _word in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
