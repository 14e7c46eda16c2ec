"""A program's lines with what they held: which file comes first, what a change does to its rows, what is kept of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpudash.memory.explaining.annotated_source import change_of, read_source, source_files
from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.patches import edited_files, kept_lines, line_changes
from gpudash.telemetry.explanation import Explanation, Growth, Owner, Remedy
from tests.unit.memory.test_explain import state

MIB = 2**20
TWO_FILES = """\
--- a.py
+++ a.py
@@ -1,3 +1,2 @@
 one
-two
-three
+2
@@ -6,2 +5,3 @@
 six
+more
 seven
--- lib/b.py
+++ lib/b.py
@@ -2,1 +2,1 @@
--- dashes
+++ pluses
\\ No newline at end of file
"""


def owner(file: str, line: int, size: int, text: str = "", category: str = "activations") -> Owner:
    return Owner(file, line, "f", "", category, size, 1, size, text)


def found_with(*owners: Owner, growing: tuple[Growth, ...] = (), **facts: object) -> Explanation:
    return replace(explain(state()), owners=owners, growing=growing, **facts)  # type: ignore[arg-type]


def test_a_diff_is_known_by_its_files_lines_and_what_it_shows_of_them() -> None:
    changes = line_changes(TWO_FILES)
    assert [(one.file, one.line, one.removed, one.added) for one in changes] == [
        ("a.py", 2, ("two", "three"), ("2",)),
        ("a.py", 6, (), ("more",)),
        ("lib/b.py", 2, ("-- dashes",), ("++ pluses",)),
    ]
    assert kept_lines(TWO_FILES)["a.py", 7] == "seven" and kept_lines(TWO_FILES)["lib/b.py", 2] == "-- dashes"


def test_a_diff_of_several_files_is_made_of_each() -> None:
    files = {"a.py": b"one\ntwo\nthree\nfour\nfive\nsix\nseven\n", "lib/b.py": b"1\r\n-- dashes\r\n"}
    made = edited_files(TWO_FILES, files.__getitem__)
    assert made == {"a.py": b"one\n2\nfour\nfive\nsix\nmore\nseven\n", "lib/b.py": b"1\r\n++ pluses\r\n"}


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"one\n2\n", "a.py has other lines"), (b"\xff", "a.py is no text in UTF-8")],
)
def test_a_file_that_is_another_by_now_is_refused_in_a_sentence(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        edited_files(TWO_FILES, lambda _name: content)


def test_the_file_of_the_change_comes_first_and_then_the_largest() -> None:
    found = found_with(
        owner("/p/big.py", 1, 90 * MIB),
        owner("/p/small.py", 1, 2 * MIB),
        owner("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 1, 99 * MIB),
        owner("/p/notes.txt", 1, 99 * MIB),
        owner("relative.py", 1, 99 * MIB),
    )
    change = Remedy("x", patch=TWO_FILES)
    assert source_files(found, change, "/p") == ["/p/a.py", "/p/lib/b.py", "/p/big.py", "/p/small.py"]
    assert source_files(found, None, "/p") == ["/p/big.py", "/p/small.py"]


def test_a_change_that_does_comes_before_one_that_is_not_known_to() -> None:
    likely, sure = Remedy("a", patch=TWO_FILES), Remedy("b", flags="NAME=1", fits=True)
    found = found_with(remedies=(Remedy("4 GiB"), likely, sure))
    assert change_of(found) is sure
    assert change_of(replace(found, remedies=(Remedy("4 GiB"), likely))) is likely
    assert change_of(replace(found, remedies=(Remedy("4 GiB"),))) is None


def test_the_change_in_front_is_the_first_of_the_ranking_be_it_a_setting() -> None:
    setting = Remedy("expandable segments", flags="NAME=1", verified_by="replay")
    batch = Remedy("half the batch", patch=TWO_FILES, verified_by="replay")
    assert change_of(found_with(remedies=(setting, batch))) is setting
    assert change_of(found_with(remedies=(batch, setting))) is batch
    later = replace(batch, puts_off="lasts at least 3 steps more, then it is full again")
    assert change_of(found_with(remedies=(later, setting))) is setting, "what only puts it off comes after"


def test_lines_of_a_change_take_the_place_of_those_that_go(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one\ntwo\nthree\nfour\nfive\nsix\nseven\n")
    found = found_with(owner(str(file), 4, MIB, "four"), owner(str(file), 4, MIB, category="workspace"))
    source = read_source(found, str(file), Remedy("x", patch=TWO_FILES), str(tmp_path))
    assert source is not None and not source.note
    assert [(row.number, row.kind, row.text) for row in source.rows] == [
        (1, "line", "one"),
        (2, "removed", "two"),
        (3, "removed", "three"),
        (0, "added", "2"),
        (4, "line", "four"),
        (5, "line", "five"),
        (6, "line", "six"),
        (0, "added", "more"),
        (7, "line", "seven"),
    ]
    assert (source.held_bytes, source.most_bytes) == (MIB, MIB), "a workspace is nobody's"
    assert source.way is None and source.front == 1


def test_growth_of_a_hundredth_of_the_fastest_is_no_news(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one\ntwo\n")
    slow = Growth(str(file), 1, "f", "one", 512.0, 5120, 10, 1)
    found = found_with(owner(str(file), 1, 5120), growing=(slow, replace(slow, line=2, text="two", bytes_per_step=MIB)))
    source = read_source(found, str(file), None, str(tmp_path))
    assert source is not None and [row.growth for row in source.rows] == [0.0, MIB]


def test_places_that_no_file_has_are_left_aside(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one\n")
    found = found_with(owner(str(file), -7, MIB, "one"), owner(str(file), 0, MIB, "one"))
    source = read_source(found, str(file), Remedy("x", patch="--- a.py\n+++ a.py\n@@ -0,1 +0,1 @@\n-x\n+y\n"), "/p")
    assert source is not None and [row.text for row in source.rows] == ["one"]
    assert read_source(found, "/nowhere\0.py", None, "/p") is None


def test_what_was_asked_for_is_what_pytorch_had_and_the_request_together() -> None:
    found = explain(state())
    had = found.part_bytes("category", "idle", "pending", "private")
    assert found.refused_total_bytes == had + (found.segment_bytes or 0) > had
