"""Untrusted text, made safe for terminals, tables and pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from unicodedata import category

if TYPE_CHECKING:
    from pathlib import Path

UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories that a terminal obeys or does not show: control and format characters (including bidirectional
overrides and zero-width ones), surrogates, line and paragraph separators."""

_FORMULA = ("=", "+", "-", "@", "\t", "'")
"""A cell that begins with one of these is a formula to spreadsheets; an apostrophe marks it as text."""

_NUMBER = re.compile(r"[+-](?:(?:[\d., ]*\d(?:e[+-]?\d+)?|inf|nan)(?: [\w%/·]+)*)?\Z")
"""A signed number, possibly with a unit: "-3", "+4.00 MiB"; or a sign alone, which means no value."""

_PARTING = str.maketrans("\t\r\n", "   ")


def json_object(text: str | bytes | bytearray | None) -> dict[str, Any] | None:
    """The JSON object in a text; ``None`` if it is something else, or there is no text."""
    import json  # most of what uses this module has no JSON

    try:
        found = json.loads(text or "")
    except (ValueError, TypeError, RecursionError):
        return None
    if isinstance(found, dict):
        return found
    return None


def visible(text: str, keep: str = "\n\t") -> str:
    """``text`` with everything escaped that a terminal would obey or hide, as in ``\\x1b``, except ``keep``.

    Also used for files: ``cat`` shows them in a terminal.

    Names of devices, functions, files and labels are untrusted: an escape sequence could clear the screen, set the
    window's title, or make one name look like another.
    """
    # True for nearly every text; checking each character would be the largest cost of a table.
    if text.isprintable():
        return text
    return "".join(
        mark.encode("unicode_escape").decode("ascii") if category(mark) in UNSEEN and mark not in keep else mark
        for mark in text
    )


def first_line(text: str) -> str:
    """The first line of a text that is not blank, without the spaces around it; "" where all are."""
    return next(filter(None, map(str.strip, text.splitlines())), "")


def last_line(text: str) -> str:
    """As `first_line`, from the end."""
    return next(filter(None, map(str.strip, reversed(text.splitlines()))), "")


def error_text(error: BaseException) -> str:
    """The type of an error and the first line of its message: "ValueError: no such card"."""
    first = first_line(str(error))
    if first:
        return f"{type(error).__name__}: {first}"
    return type(error).__name__


def name_of(path: Path) -> str:
    """The name of a file, safe for a sentence."""
    if path.name.isprintable():
        return path.name
    return repr(path.name)[1:-1]


def harmless(text: str) -> str:
    """``text`` as a cell that no spreadsheet takes for a formula: names are untrusted, and ``=HYPERLINK(…)`` is one.

    What a terminal would obey is escaped (`visible`).

    A text that looks like a formula gets an apostrophe in front, which spreadsheets take for "this is text"; so does
    one that begins with an apostrophe, so that an added one can be recognised. Numbers stay numbers.
    """
    text = visible(text)
    if text.startswith(_FORMULA) and not _NUMBER.match(text):
        return f"'{text}"
    return text


def tab_separated(lines: Iterable[Iterable[str]]) -> str:
    """Lines of cells for the clipboard: each cell is `harmless`, and free of tabs and line ends."""
    return "\n".join("\t".join(harmless(cell.translate(_PARTING)) for cell in line) for line in lines)
