"""Edits of a program's source are diffs that leave everything else as it is."""

from __future__ import annotations

import ast

from gpudash.memory.snapshot.source_edits import SourceFile, Splice, ended_before, method_of

PROGRAM = """\
import subprocess
import torch

child = subprocess.Popen(["sleep", "9"])
for batch in batches:
    output = model(batch)
    text = '''of several
lines'''
total = sum(output)  # größe
"""


def file(text: str = PROGRAM) -> SourceFile:
    lines = text.splitlines()
    return SourceFile("/home/mia/train.py", lambda _file, line: lines[line - 1] if line <= len(lines) else "")


def changed(patch: str) -> list[str]:
    return [row for row in patch.splitlines()[2:] if row[:1] in "+-"]


def test_an_expression_is_replaced_within_its_line_also_behind_letters_of_several_bytes() -> None:
    found = file("größe = call(1, rate=0.5)  # größe\n")
    call = next(node for node in found.nodes() if method_of(node) == "call")
    assert isinstance(call, ast.expr)
    line = found.replaced(call, "other()")
    assert line == (1, "größe = other()  # größe")
    patch = found.patch({1: (line[1],)})
    assert patch.startswith("--- home/mia/train.py\n+++ home/mia/train.py\n@@ ")
    assert changed(patch) == ["-größe = call(1, rate=0.5)  # größe", "+größe = other()  # größe"]


def test_several_parts_of_a_line_are_replaced_wherever_the_others_begin() -> None:
    found = file("f(data[a:b], data[c])\n")
    lines = found.spliced([Splice(1, 11, 11, ".cuda()"), Splice(1, 20, 20, ".cuda()")])
    assert lines == {1: ("f(data[a:b].cuda(), data[c].cuda())",)}


def test_statements_with_text_over_several_lines_are_not_indented() -> None:
    loop = file().statement(5)
    assert isinstance(loop, ast.For)
    assert file().indented([loop], "with torch.no_grad():") is None
    total = file().statement(9)
    assert total is not None
    assert file().indented([total], "with x:") == {9: ("with x:", "    total = sum(output)  # größe")}


def test_a_file_that_cannot_be_read_has_no_statements() -> None:
    assert file("").statement(1) is None
    assert file("def (:\n").path(1) == []


def test_a_program_waits_for_the_process_it_has_started_before_a_line() -> None:
    assert changed(ended_before(file(), 9)) == ["+child.communicate()"]
    assert ended_before(file(), 3) == ""
    assert ended_before(file(f"{PROGRAM}other = subprocess.Popen(['ls'])\nx = 1\n"), 11) == ""
