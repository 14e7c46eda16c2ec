"""Batches on the GPU ahead of their steps: a prefetcher's queue, or a list of all of them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import numpy as np

from gpudash.memory.allocator.trace import ACTIVATIONS, GRADIENTS, WEIGHTS
from gpudash.memory.frames import Frame
from gpudash.memory.snapshot.causes.batch_size import Number, number_of
from gpudash.memory.snapshot.causes.case import Case, Ints, ProgramCause, replayed
from gpudash.memory.snapshot.source_edits import Function, LineEdits, SourceFile, Splice, keyword_of, method_of
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import format_bytes, needed

SHARE_OF_LIVE = 0.2
"""Part of the live bytes that they must hold."""

FEWEST_BATCHES = 4
"""Fewest batches: every program has the next one or two on the GPU."""

_MOVES = frozenset({"cuda", "to"})
_QUEUES = frozenset({"Queue", "LifoQueue"})


def batches_on_the_card(case: Case) -> ProgramCause | None:
    """Many batches of the same size, moved to the GPU by one line."""
    data = case.of_other_category(ACTIVATIONS, WEIGHTS, GRADIENTS)
    for line, lives in case.largest_groups(data, case.innermost):
        size = case.bytes_of(lives)
        if size < SHARE_OF_LIVE * case.live_bytes:
            return None
        file = case.file(line.file)
        moves = _moves(file, line.line)
        sizes = Counter(case.lives.requested[lives].tolist())
        # A batch has parts of different sizes: count the largest ones.
        count = sizes[max(sizes)]
        if not moves or count < FEWEST_BATCHES:
            continue
        place = f"{short(line.file)}:{line.line}"
        limit = _limit(file, line.line, count)
        if limit is not None:
            text = f"{count} batches that {place} copies to the GPU ahead of their steps take {format_bytes(size)}."
            return ProgramCause(text, tuple(_fewer(case, lives, line, count, limit)), is_waste=True)
        patch = _kept_on_host(file, line.line, moves)
        if patch:
            text = f"{count} batches that {place} keeps on the GPU take {format_bytes(size)}."
            label = f"{place}: keep them in host memory and move each where its step begins: {needed(size)} less"
            ran = case.resized(lives, 0, request=line in case.refused_frames[:1])
            return ProgramCause(text, (replayed(label, ran, patch),), is_waste=True)
    return None


def _moves(file: SourceFile, line: int) -> list[ast.Call]:
    """The calls in a statement that move its result to the GPU."""
    statement = file.simple_statement(line)
    if statement is None:
        return []
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in _MOVES]


def _limit(file: SourceFile, line: int, count: int) -> Number | None:
    """The largest number of batches ahead, if the source around a line that moves one defines it."""
    path = file.path(line)
    around = [node for node in path if isinstance(node, ast.ClassDef | Function)]
    scope: ast.AST = path[0]
    if around:
        scope = around[0]
    for node in ast.walk(scope):
        for value in _limits(node):
            number = _resolved(file, value)
            # One may be in its step, and the next one on its way.
            if number is not None and number.value >= count - 1:
                return number
    return None


def _limits(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that define the capacity of a queue."""
    if isinstance(node, ast.Call):
        if method_of(node) in _QUEUES:
            yield from filter(None, [*node.args[:1], keyword_of(node, "maxsize")])
        elif method_of(node) == "deque":
            yield from filter(None, [*node.args[1:2], keyword_of(node, "maxlen")])
        elif method_of(node) == "islice":
            yield from node.args[1:2]
    elif (
        isinstance(node, ast.Compare)
        and method_of(node.left) in ("len", "qsize")
        and isinstance(node.ops[0], ast.Lt | ast.LtE)
    ):
        yield node.comparators[0]


def _resolved(file: SourceFile, value: ast.expr) -> Number | None:
    """A number at its definition: a constant, the value of an attribute or name, an argument for a parameter."""
    if isinstance(value, ast.Attribute):
        text = ast.unparse(value)
        assigned = (node for node in file.nodes() if isinstance(node, ast.Assign))
        given = [node.value for node in assigned if text in map(ast.unparse, node.targets)]
        if len(given) != 1 or isinstance(given[0], ast.Attribute):
            return None
        value = given[0]
    if isinstance(value, ast.Name):
        passed = _argument(file, value.id)
        if passed is not None:
            value = passed
    return number_of(file, value)


def _argument(file: SourceFile, name: str) -> ast.expr | None:
    """The argument for a parameter in its only call that passes one, else its default."""
    default: ast.expr | None = None
    passed: list[ast.expr] = []
    for node in file.nodes():
        owner = ""
        functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        if isinstance(node, ast.ClassDef):
            owner = node.name
            functions = [inner for inner in node.body if isinstance(inner, Function) and inner.name == "__init__"]
        elif isinstance(node, Function) and node.name != "__init__":
            owner = node.name
            functions = [node]
        for function in functions:
            names = [one.arg for one in function.args.args]
            if name not in names:
                continue
            defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
            default = defaults.get(name, default)
            place = names.index(name) - int(names[0] == "self")
            calls = [call for call in file.nodes() if isinstance(call, ast.Call) and method_of(call) == owner]
            for call in calls:
                passed += filter(None, [keyword_of(call, name), *call.args[place : place + 1]])
    if len(passed) == 1:
        return passed[0]
    if passed:
        return None
    return default


def _fewer(case: Case, lives: Ints, line: Frame, count: int, limit: Number) -> Iterator[Remedy]:
    """Fewer batches ahead: as many as get past the request, and half of them, which leaves more for the step."""
    ordered = lives[np.argsort(case.lives.born[lives])]
    is_refused = line in case.refused_frames[:1]
    number = min(count, limit.value)
    while number > 1:
        number //= 2
        left = -(-len(ordered) * number // count)
        ran = case.resized(ordered[left:], 0, request=is_refused)
        if not ran.fits:
            continue
        for fewer in sorted({number, max(1, number // 2)}, reverse=True):
            saved = case.bytes_of(ordered[-(-len(ordered) * fewer // count) :])
            text = f"{limit.place}: at most {fewer} batches ahead, not {limit.value}: {needed(saved)} less"
            yield replayed(text, ran, limit.patch(fewer))
        return


def _kept_on_host(file: SourceFile, line: int, moves: list[ast.Call]) -> str:
    """The diff that keeps a list of batches in host memory and moves each one where a loop reads it; "" if it is also
    read elsewhere.
    """
    statement = file.statement(line)
    collected = ""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"))):
            collected = name
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.ListComp()):
            collected = name
    if not collected:
        return ""
    for call in moves:
        assert isinstance(call.func, ast.Attribute)
        if call.func.value.end_lineno != call.end_lineno:
            return ""
    edits = LineEdits(file, map(Splice.cut, moves))
    first = moves[0]
    assert isinstance(first.func, ast.Attribute)
    move = ast.unparse(first)[len(ast.unparse(first.func.value)) :]
    loops = [node for node in file.nodes() if isinstance(node, ast.For) and _takes_from(node, collected)]
    if not loops:
        return ""
    for loop in loops:
        begin = loop.body[0].lineno
        if begin == loop.lineno:
            return ""
        edits.before(begin, [_moved(_batch_of(loop), move, len(moves))])
    return edits.patch()


def _takes_from(loop: ast.For, name: str) -> bool:
    """Whether a loop iterates over a list, with or without `enumerate`."""
    values: list[ast.expr] = [loop.iter]
    if isinstance(loop.iter, ast.Call) and method_of(loop.iter) in ("enumerate", "tqdm"):
        values = loop.iter.args[:1]
    return any(isinstance(value, ast.Name) and value.id == name for value in values)


def _batch_of(loop: ast.For) -> ast.expr:
    if isinstance(loop.iter, ast.Call) and method_of(loop.iter) == "enumerate" and isinstance(loop.target, ast.Tuple):
        return loop.target.elts[-1]
    return loop.target


def _moved(batch: ast.expr, move: str, parts: int) -> str:
    """The statement that moves a batch."""
    if isinstance(batch, ast.Tuple):
        names = list(map(ast.unparse, batch.elts))
        return f"{', '.join(names)} = {', '.join(f'{name}{move}' for name in names)}"
    name = ast.unparse(batch)
    if parts > 1:
        return f"{name} = [part{move} for part in {name}]"
    return f"{name} = {name}{move}"
