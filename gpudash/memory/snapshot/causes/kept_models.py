"""Models and optimizers of earlier folds, trials or epochs that are still referenced on the GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpudash.memory.allocator.trace import OPTIMIZER_STATE, WEIGHTS
from gpudash.memory.frames import Frame
from gpudash.memory.snapshot.causes.case import Case, Ints, ProgramCause, replayed
from gpudash.memory.snapshot.causes.optimizer_state import STATES
from gpudash.memory.snapshot.kept_errors import errors_kept, without_traceback
from gpudash.memory.snapshot.leak_edits import Keeper, Place, is_plain, keepers
from gpudash.memory.snapshot.source_edits import (
    Function,
    LineEdits,
    Loop,
    SourceFile,
    Splice,
    lines_of,
    loop_of,
    method_of,
    one_line,
    scope_of,
)
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import format_bytes, needed

SHARE_OF_LIVE = 0.2
"""Part of the live bytes that the earlier ones must hold."""

SHARE_OF_LARGEST = 0.05
"""Smallest size of each, as a part of the largest: parameters added later are not another model."""

MOST_CALLS = 4
"""Most function results through which a variable is traced to the origin of its value."""


@dataclass(frozen=True)
class _Kept:
    """Objects that are on the GPU several times.

    Attributes:
        what: name of the objects, in the plural.
        makings: blocks of each, the oldest first.
        frames: the program's lines that create each, innermost first.
    """

    what: str
    makings: Sequence[Ints]
    frames: Sequence[Frame]


@dataclass(frozen=True)
class _Release:
    """How the program can release them.

    Attributes:
        place: file and line of the statement that keeps them.
        statement: its source, on one line.
        write: text to write instead.
        patch: the same as a diff.
        through: how it keeps them, as the end of a sentence; "" if it names them.
    """

    place: Place
    statement: str
    write: str
    patch: str
    through: str = ""


def kept_models(case: Case) -> ProgramCause | None:
    """Weights or optimizer states created several times by the same lines, which are all still alive.

    They belong to different models if the program used each one before it created the next.
    """
    kept = _several(case, case.of_category(WEIGHTS), "models") or _several_states(case)
    if kept is None:
        return None
    begins = [int(case.lives.born[making].min()) for making in kept.makings]
    born = case.lives.born[case.alive]
    # Everything between the first and the last, including what was created besides the weights, such as gradients.
    earlier: Ints = case.alive[(born >= begins[0]) & (born < begins[-1])]
    size = case.bytes_of(earlier)
    if size < max(SHARE_OF_LIVE * case.live_bytes, case.found.missing_bytes):
        return None
    # Each block is freed when the object after its own is created.
    next_begin = np.searchsorted(begins, case.lives.born[earlier], side="right").tolist()
    ran = case.freed_sooner({life: begins[place] for life, place in zip(earlier.tolist(), next_begin, strict=True)})
    place = f"{short(kept.frames[0].file)}:{kept.frames[0].line}"
    subject = f"{len(kept.makings)} {kept.what} from {place} are on the GPU at a time"
    release = _release(case, kept) or _release_of_error(case, kept)
    if release is None:
        text = f"{subject}, {format_bytes(size)} for the earlier ones."
        change = (
            f"{place}: let go of each before the next is made (del), or move it to host memory: {needed(size)} less"
        )
        return ProgramCause(text, (Remedy(change),))
    file, line = release.place
    text = f"{subject}: {short(file)}:{line} ({release.statement}) keeps {format_bytes(size)} of earlier ones"
    text += f"{release.through}."
    change = f"{short(file)}:{line}: {release.write}: {needed(size)} less"
    return ProgramCause(text, (replayed(change, ran, release.patch),))


def _several(case: Case, lives: Ints, what: str) -> _Kept | None:
    """The lines that created most of some blocks, among lines that created them several times."""

    def outer_parts(life: int) -> Iterator[tuple[Frame, ...]]:
        stack = tuple(case.frames(life))
        for place in range(len(stack)):
            yield stack[place:]

    # By every outer part of the stack: the lines common to several objects may be anywhere in it. Of equal sizes, the
    # innermost comes first.
    for frames, found in case.largest_groups(lives, outer_parts):
        makings = _makings(case, found)
        if len(makings) > 1:
            return _Kept(what, makings, frames)
    return None


def _several_states(case: Case) -> _Kept | None:
    """The same for optimizer states, if they are more than one optimizer can have for the weights."""
    states = case.of_category(OPTIMIZER_STATE)
    of_one = (max(STATES.values()) + 1) * case.bytes_of(case.of_category(WEIGHTS))
    if case.bytes_of(states) > of_one:
        return _several(case, states, "optimizers' states")
    return None


def _makings(case: Case, lives: Ints) -> list[Ints]:
    """The blocks of each object that some lines created, without small ones."""
    found = case.makings(lives)
    largest = max(map(case.bytes_of, found), default=0)
    return [making for making in found if case.bytes_of(making) >= SHARE_OF_LARGEST * largest]


def _release(case: Case, kept: _Kept) -> _Release | None:
    """Where the objects are kept, and how to release them; ``None`` if the source does not show it."""
    makers = [(frame.file, frame.line) for frame in kept.frames]
    if kept.what != "models":
        makers += _made_optimizers(case)
    made = {(frame.file, frame.line) for frame in kept.frames}
    found = keepers(makers, case.source)
    calls = {id(keeper): _call(case.file(keeper.place[0]), keeper, made) for keeper in found}
    first = next((keeper for keeper in found if calls[id(keeper)]), None)
    if first is None:
        return None
    file = case.file(first.place[0])
    line = first.place[1]
    loop = _loop(file.path(line))
    statement = file.statement(line)
    if statement is None:
        return None
    together = [keeper for keeper in found if keeper.place == first.place]
    added = [f"{keeper.name}.{calls[id(keeper)]}" for keeper in together if calls[id(keeper)]]
    # A result that is kept beside a model holds the graph, which holds the parameters.
    results = [keeper for keeper in together if not calls[id(keeper)] and _has_graph(file, keeper)]
    edits = LineEdits(file, (splice for keeper in results for splice in _detached(keeper)))
    where = "behind it"
    if loop is not None:
        edits.behind(loop, added, indent_of=loop.body[0].lineno)
        where = "at the end of each round of its loop"
    else:
        edits.behind(statement, added)
    write = f"{' and '.join(added)} {where}"
    write = ", ".join([*(f"{keeper.name}.detach() in place of {keeper.name}" for keeper in results), write])
    return _Release(first.place, first.statement, write, edits.patch())


def _release_of_error(case: Case, kept: _Kept) -> _Release | None:
    """The same for objects that the traceback of a kept exception refers to, which was raised where they were made."""
    for frame in kept.frames:
        file = case.file(frame.file)
        for node in file.path(frame.line):
            if not isinstance(node, ast.Try) or not any(frame.line in lines_of(one) for one in node.body):
                continue
            for statement, error in (one for handler in node.handlers for one in errors_kept(handler)):
                instead, patch = without_traceback(file, statement, error, case.program_files)
                return _Release(
                    (file.file, statement.lineno),
                    one_line(statement),
                    f"{instead} in place of {ast.unparse(error)}",
                    patch,
                    ", as the traceback of an exception refers to the variables of the functions that it left",
                )
    return None


def _has_graph(file: SourceFile, keeper: Keeper) -> bool:
    value = _value(file, file.path(keeper.place[1]), keeper.name)
    return value is not None and not is_plain(value) and not keeper.detached


def _detached(keeper: Keeper) -> Iterator[Splice]:
    if keeper.span is not None:
        _line, _column, end_line, end_column = keeper.span
        yield Splice(end_line, end_column, end_column, ".detach()")


def _loop(path: Sequence[ast.AST]) -> Loop | None:
    """The innermost loop around a statement, within its function."""
    scope = scope_of(path)
    if scope is None:
        return None
    return loop_of(path[path.index(scope) :])


def _made_optimizers(case: Case) -> Iterator[Place]:
    for file in case.program_files:
        for node in file.nodes():
            if isinstance(node, ast.Assign) and method_of(node.value) in STATES:
                yield file.file, node.lineno


def _call(file: SourceFile, keeper: Keeper, made: set[Place]) -> str:
    """The method call that releases a kept object's memory; "" if it is neither a model nor an optimizer."""
    value = _value(file, file.path(keeper.place[1]), keeper.name)
    if value is None or _is_other_class(file, value):
        return ""
    if method_of(value) in STATES:
        return "state.clear()"
    if not any((file.file, line) in made for line in lines_of(value)):
        return ""
    return "cpu()"


def _is_other_class(file: SourceFile, value: ast.expr) -> bool:
    """Whether a value is an instance of a class in the file that is not a module."""
    for node in file.nodes():
        if isinstance(node, ast.ClassDef) and node.name == method_of(value) and "Module" not in ast.unparse(node):
            return True
    return False


def _value(file: SourceFile, path: Sequence[ast.AST], name: str, calls: int = MOST_CALLS) -> ast.expr | None:
    """The expression assigned to a function's variable, traced through results of the file's own functions."""
    scope = scope_of(path)
    if scope is None:
        return None
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        value = node.value
        if isinstance(target, ast.Tuple):
            names = list(map(ast.unparse, target.elts))
            if name not in names:
                continue
            return _result(file, value, names.index(name), calls)
        if ast.unparse(target) == name:
            return _result(file, value, None, calls)
    return None


def _result(file: SourceFile, value: ast.expr, place: int | None, calls: int) -> ast.expr:
    """The result of a call of one of the file's functions, if it can be determined; else the expression itself."""
    functions = [node for node in file.nodes() if isinstance(node, Function)]
    function = next((node for node in functions if node.name == method_of(value)), None)
    found = value
    # `calls` limits the depth: functions may call each other recursively.
    if function is not None and calls:
        given = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
        if given:
            found = given[-1]
    if place is not None and isinstance(found, ast.Tuple) and place < len(found.elts):
        found = found.elts[place]
    if function is None or found is value or not isinstance(found, ast.Name):
        return found
    return _value(file, [function], found.id, calls - 1) or found
