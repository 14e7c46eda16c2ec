"""A retry while the out-of-memory error of an earlier attempt, whose traceback holds that one's tensors, is kept."""

from __future__ import annotations

import ast

import numpy as np

from gpudash.memory.allocator.trace import GRADIENTS, OPTIMIZER_STATE, WEIGHTS, WORKSPACE
from gpudash.memory.frames import Frame
from gpudash.memory.snapshot.causes.case import Case, Ints, ProgramCause, replayed
from gpudash.memory.snapshot.kept_errors import errors_kept, without_traceback
from gpudash.memory.snapshot.source_edits import SourceFile, lines_of, one_line
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
    lines = _lines(file, tried)
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


def retry_with_kept_error(case: Case) -> ProgramCause | None:
    """Tensors of failed attempts, held by their exceptions, which the program keeps."""
    if len(case.history.ooms) < 2:
        return None
    for file in case.program_files:
        for tried in file.nodes():
            if not isinstance(tried, ast.Try):
                continue
            kept = next((one for handler in tried.handlers for one in errors_kept(handler)), None)
            lives = _of_earlier_tries(case, file, tried)
            if kept is not None and case.bytes_of(lives) >= SHARE_OF_LIVE * case.live_bytes:
                return _held_by_error(case, file, lives, *kept)
    return None


def _lines(file: SourceFile, tried: ast.Try) -> list[tuple[str, int]]:
    return [(file.file, line) for statement in tried.body for line in lines_of(statement)]


def _of_earlier_tries(case: Case, file: SourceFile, tried: ast.Try) -> Ints:
    """Live blocks that a ``try`` allocated before a request of it failed, without what a training keeps anyway."""
    lines = _lines(file, tried)
    lives = case.of_other_category(WEIGHTS, GRADIENTS, OPTIMIZER_STATE, WORKSPACE)
    earlier: Ints = lives[case.with_frames(lines)[lives] & (case.lives.born[lives] < case.history.ooms[-2])]
    return earlier


def _held_by_error(case: Case, file: SourceFile, lives: Ints, statement: ast.stmt, error: ast.expr) -> ProgramCause:
    size = case.bytes_of(lives)
    ooms = case.history.ooms
    # Without the exception, a try's tensors are freed when it has failed.
    failed = ooms[np.searchsorted(ooms, case.lives.born[lives])]
    ran = case.freed_sooner(dict(zip(lives.tolist(), (failed + 1).tolist(), strict=True)))
    place = f"{short(file.file)}:{statement.lineno}"
    text = (
        f"{place} ({one_line(statement)}) keeps {format_bytes(size)} of earlier tries, as the traceback of an "
        "exception refers to the variables of the functions that it left."
    )
    instead, patch = without_traceback(file, statement, error, case.program_files)
    change = f"{place}: {instead} in place of {ast.unparse(error)}: {needed(size)} less"
    return ProgramCause(text, (replayed(change, ran, patch),), is_waste=True)


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
