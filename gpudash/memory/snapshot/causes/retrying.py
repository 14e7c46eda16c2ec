"""A retry inside the handler of an out-of-memory error, whose traceback still holds the first attempt's tensors."""

from __future__ import annotations

import ast

import numpy as np

from gpudash.memory.frames import Frame
from gpudash.memory.snapshot.causes.case import Case, ProgramCause, replayed
from gpudash.memory.snapshot.source_edits import SourceFile, lines_of
from gpudash.telemetry.explanation import short
from gpudash.units import format_bytes, needed

SHARE_OF_LIVE = 0.1
"""Part of the live bytes that the first attempt must hold."""

RETRIES = "ran_out"
"""Name of the variable that records that the first attempt ran out."""


def retry_while_handling(case: Case) -> ProgramCause | None:
    """Tensors of a failed attempt, held by its exception during the retry."""
    if len(case.history.ooms) < 2:
        return None
    for frame in reversed(case.refused_frames):
        file = case.file(frame.file)
        path = file.path(frame.line)
        handler = next((node for node in reversed(path) if isinstance(node, ast.ExceptHandler)), None)
        if handler is not None:
            tried = path[path.index(handler) - 1]
            if isinstance(tried, ast.Try):
                return _held(case, file, frame, tried, handler)
    return None


def _held(
    case: Case, file: SourceFile, frame: Frame, tried: ast.Try, handler: ast.ExceptHandler
) -> ProgramCause | None:
    lines = [(file.file, line) for statement in tried.body for line in lines_of(statement)]
    first = int(case.history.ooms[-2])
    # Created before the first failure, and still alive at the second.
    lives = case.alive[case.with_frames(lines)[case.alive] & (case.lives.born[case.alive] < first)]
    size = case.bytes_of(lives)
    if size < SHARE_OF_LIVE * case.live_bytes:
        return None
    text = (
        f"The tensors of the first try, {format_bytes(size)}, are still held by its exception while "
        f"{short(frame.file)}:{frame.line} tries again in the except block."
    )
    ran = case.freed_sooner(dict.fromkeys(np.asarray(lives).tolist(), first + 1))
    change = f"{short(file.file)}:{handler.lineno}: try again after the except block, not in it: {needed(size)} less"
    return ProgramCause(text, (replayed(change, ran, _after_the_block(file, tried, handler)),))


def _after_the_block(file: SourceFile, tried: ast.Try, handler: ast.ExceptHandler) -> str:
    """The handler only sets a variable, and its body follows the statement; "" if it names the exception, or the
    statement has other clauses after it.
    """
    if len(tried.handlers) > 1 or tried.orelse or tried.finalbody or handler.name or handler is not tried.handlers[-1]:
        return ""
    first = handler.body[0].lineno
    last = tried.end_lineno or handler.lineno
    indent = file.indent(tried.lineno)
    inner = file.indent(first)
    body = file.lines[first - 1 : last]
    after = [f"{inner}{RETRIES} = True", f"{indent}if {RETRIES}:", *body]
    changed: dict[int, list[str]] = {tried.lineno: [f"{indent}{RETRIES} = False", file.lines[tried.lineno - 1]]}
    # The body moves from the handler to after the whole statement.
    changed.update({line: [] for line in range(first, last + 1)})
    changed[first] = after
    return file.patch(changed)
