"""Two changes as one remedy."""

from __future__ import annotations

import difflib

from gpudash.memory.explaining.pairs import MOST_PAIRS, pairs
from gpudash.memory.explaining.patches import merged
from gpudash.telemetry.explanation import Remedy

TEXT = "".join(f"line {number}\n" for number in range(40))


def diff(*changes: tuple[str, str]) -> str:
    after = TEXT
    for before, now in changes:
        after = after.replace(before, now)
    rows = difflib.unified_diff(TEXT.splitlines(keepends=True), after.splitlines(keepends=True), "a.py", "a.py")
    return "".join(rows)


def read(_name: str) -> bytes:
    return TEXT.encode()


EDIT = Remedy("an edit: up to 3 MiB less at this moment", patch=diff(("line 10\n", "LINE 10\n")))
NEXT_EDIT = Remedy("another", patch=diff(("line 11\n", "LINE 11\nand more\n")))
VARIABLE = Remedy("a variable", flags="NAME=1")
COMMAND = Remedy("fewer", command=("python", "a.py", "1"))


def test_two_diffs_of_lines_that_follow_one_another_become_one() -> None:
    both = merged(diff(("line 10\n", "LINE 10\nand\n"), ("line 30\n", "")), diff(("line 11\n", "LINE 11\n")), read)
    expected = diff(("line 10\nline 11\n", "LINE 10\nand\nLINE 11\n"), ("line 30\n", ""))
    assert both == expected


def test_two_diffs_of_the_same_line_or_of_another_text_do_not() -> None:
    first = diff(("line 10\n", "LINE 10\n"))
    assert merged(first, diff(("line 10\n", "")), read) == ""
    assert merged(first, diff(("line 30\n", "")), lambda _name: b"line 1\n") == ""


def test_a_pair_has_what_both_change_and_is_not_said_to_be_tried() -> None:
    (pair,) = pairs([EDIT, VARIABLE], read)
    assert pair.change == "an edit and a variable"
    assert (pair.patch, pair.flags) == (EDIT.patch, "NAME=1")
    assert pair.fits is None and not pair.verified_by
    (pair,) = pairs([EDIT, NEXT_EDIT], read)
    assert pair.patch == diff(("line 10\nline 11\n", "LINE 10\nLINE 11\nand more\n"))
    (pair,) = pairs([COMMAND, VARIABLE], read)
    assert (pair.command, pair.flags) == (COMMAND.command, "NAME=1")


def test_pairs_come_by_their_gain_and_are_a_few() -> None:
    found = list(pairs([EDIT, VARIABLE, COMMAND, NEXT_EDIT], read))
    assert [pair.change for pair in found] == [
        "an edit and a variable",
        "an edit and fewer",
        "a variable and fewer",
        "an edit and another",
    ]
    assert len(found) == MOST_PAIRS


def test_two_values_of_the_same_thing_are_no_pair() -> None:
    other = Remedy("other", flags="NAME=2")
    assert not list(pairs([VARIABLE, other], read))
    assert not list(pairs([COMMAND, Remedy("least", command=("python", "a.py", "0"))], read))
    assert not list(pairs([Remedy("by hand"), VARIABLE], read))
