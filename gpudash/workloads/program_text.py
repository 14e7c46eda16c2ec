"""Fitting a program into the lines that can be read at a glance."""

from __future__ import annotations

import re

MOST_LINES = 60
WIDTH = 120

_COMPOUND = re.compile(r"(class|def|for|while|with|if|elif|else|import|from|return|try|except|finally|@)\b")


def fitted(lines: list[str], most: int = MOST_LINES) -> list[str]:
    """``lines`` as at most ``most``: where they are more, without blank ones, then with short statements side by side.

    Args:
        lines: of a program whose statements take a line each.
    """
    surplus = len(lines) - most
    kept: list[str] = []
    for line in reversed(lines):  # the blank lines between the imports and what follows go last
        if surplus > 0 and not line:
            surplus -= 1
        else:
            kept.append(line)
    lines = kept[::-1]
    while len(lines) > most:
        joined = _joined(lines, len(lines) - most)
        if len(joined) == len(lines):
            break
        lines = joined
    return lines


def _joined(lines: list[str], surplus: int) -> list[str]:
    """``lines`` with up to ``surplus`` statements put behind the one before, from the end on."""
    kept = [lines[-1]]
    for line in reversed(lines[:-1]):
        below = kept[-1]
        if surplus > 0 and _simple(line) and _simple(below) and _indent(line) == _indent(below):
            both = f"{line}; {below.strip()}"
            if len(both) <= WIDTH:
                kept[-1] = both
                surplus -= 1
                continue
        kept.append(line)
    return kept[::-1]


def _simple(line: str) -> bool:
    text = line.strip()
    whole = all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))
    return bool(text) and whole and "#" not in text and not _COMPOUND.match(text)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
