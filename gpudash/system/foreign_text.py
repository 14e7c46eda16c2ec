"""Text that is not ours, as it leaves the program: on a terminal, in a table, on a page."""

from __future__ import annotations

from unicodedata import category

UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of what a terminal obeys, or draws nothing for: control and format characters (among them the
overrides of the direction of writing and what has no width), halves of pairs, separators of lines and paragraphs."""


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
