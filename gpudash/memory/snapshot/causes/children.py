"""Processes that the program starts itself, and where it could wait for their end."""

from __future__ import annotations

import ast

from gpudash.memory.snapshot.source_edits import SourceFile, method_of

WAITS = {"Popen": "communicate", "Process": "join"}
"""By what it is started (subprocess, multiprocessing): the method that waits for its end."""


def ended_before(file: SourceFile, line: int) -> str:
    """A diff with which the program waits for a process it has started before it comes to a line.

    It is "" where the file does not show a single one.
    """
    found = [
        (node.targets[0].id, method_of(node.value))
        for node in file.nodes()
        if isinstance(node, ast.Assign) and node.lineno < line and len(node.targets) == 1
        if isinstance(node.targets[0], ast.Name) and method_of(node.value) in WAITS
    ]
    statement = file.statement(line)
    if len(found) != 1 or statement is None:
        return ""
    name, kind = found[0]
    first = statement.lineno
    return file.patch({first: (f"{file.indent(first)}{name}.{WAITS[kind]}()", file.lines[first - 1])})
