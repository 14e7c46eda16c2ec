"""Text that is not ours, as it leaves the program: on a terminal, in a table, on a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from unicodedata import category

UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of what a terminal obeys, or draws nothing for: control and format characters (among them the
overrides of the direction of writing and what has no width), halves of pairs, separators of lines and paragraphs."""

_FORMULA = ("=", "+", "-", "@", "\t", "'")
"""With one of these at its beginning a cell is a formula to programs that calculate with tables; an apostrophe is the
mark that it is none."""

_NUMBER = re.compile(r"[+-](?:(?:[\d., ]*\d(?:e[+-]?\d+)?|inf|nan)(?: [\w%/·]+)*)?\Z")
"""A number with its sign, perhaps in words: "-3", "+4.00 MiB"; or a sign alone, which stands for no value."""

_PARTING = str.maketrans("\t\r\n", "   ")


def visible(text: str, keep: str = "\n\t") -> str:
    """``text`` with what a terminal would obey or hide written out, as in ``\\x1b``, but for ``keep``.

    Also of files: who prints a table with ``cat`` has it in a terminal.

    Names of devices, functions, files and labels are not ours: an escape sequence in one could clear the screen, name
    the window, or make one name look like another.
    """
    # Nearly every text; going through its characters would cost more than all else in a table.
    if text.isprintable():
        return text
    return "".join(
        mark.encode("unicode_escape").decode("ascii") if category(mark) in UNSEEN and mark not in keep else mark
        for mark in text
    )


def name_of(path: Path) -> str:
    """The name of a file, fit for a sentence."""
    if path.name.isprintable():
        return path.name
    return repr(path.name)[1:-1]


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
