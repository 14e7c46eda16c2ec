"""Cells of tables that leave the program, as CSV or on the clipboard, for programs that calculate with tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpudash.system.foreign_text import visible

_FORMULA = ("=", "+", "-", "@", "\t", "'")
"""With one of these at its beginning a cell is a formula to programs that calculate with tables; an apostrophe is the
mark that it is none."""

_NUMBER = re.compile(r"[+-](?:(?:[\d., ]*\d(?:e[+-]?\d+)?|inf|nan)(?: [\w%/·]+)*)?\Z")
"""A number with its sign, perhaps in words: "-3", "+4.00 MiB"; or a sign alone, which stands for no value."""

_PARTING = str.maketrans("\t\r\n", "   ")


def harmless(text: str) -> str:
    """``text`` as a cell that no program takes for a formula: names are not ours, and ``=HYPERLINK(…)`` is one.

    What a terminal would obey is written out (`visible`).

    A text that begins as formulas do has an apostrophe before it, which such programs take for "this is text"; so has
    one that begins with an apostrophe, so that what was added can be told. Numbers stay numbers.
    """
    text = visible(text)
    if text.startswith(_FORMULA) and not _NUMBER.match(text):
        return f"'{text}"
    return text


def tab_separated(lines: Iterable[Iterable[str]]) -> str:
    """Lines of cells for the clipboard: each cell `harmless`, and without tabs and line ends of its own."""
    return "\n".join("\t".join(harmless(cell.translate(_PARTING)) for cell in line) for line in lines)
