"""What to keep instead of a tensor that every step leaves behind: that depends on what kind of value is kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.explaining.call_sites import SourceLine
from gpudash.memory.explaining.memory_state import Frame, is_library
from gpudash.memory.snapshot.history.history import History
from gpudash.telemetry.explanation import Growth, short
from gpudash.units import format_bytes

AHEAD = 40
"""Lines behind one that makes a value in which the line that keeps it is looked for."""

MOST_KEEPERS = 3
"""Lines that keep something, of which advice is given."""

MOST_CALLERS = 30
"""Lines of the program that led to what is kept, whose results are followed."""

NUMBER_BYTES = 8
"""Of the largest single number."""

COLLECTS = frozenset({"add", "append", "appendleft", "extend", "put"})
"""Methods by which a collection takes a value in."""

LEAVES = frozenset({"cpu", "item", "numpy", "tolist"})
"""Methods whose result is not in the device's memory."""

Ints = NDArray[np.int64]

Place = tuple[str, int]
"""File and line."""


@dataclass(frozen=True)
class _Kept:
    """A value that a statement keeps.

    Attributes:
        name: of the variable, or the expression that makes it.
        text: what is kept of it, such as ``out.detach()``.
        detached: whether it is kept without its graph.
        is_added: to a running sum, and not to a collection.
    """

    name: str
    text: str
    detached: bool
    is_added: bool


@dataclass(frozen=True)
class _Keeper:
    """A line that keeps a value of every step.

    Attributes:
        made: the line whose result it keeps.
    """

    place: Place
    statement: str
    kept: _Kept
    made: Place


def advice(history: History, moment: int, growing: Sequence[Growth], source: SourceLine) -> str:
    """What the program could keep instead, as far as a trace and the source show what it keeps; "" without growth.

    Args:
        history: of the device.
        moment: at which the lines were found growing.
        growing: the lines, the fastest first.
        source: reads lines of the program.
    """
    if not growing:
        return ""
    step = _one_step(history, moment, growing)
    keepers = _keepers(_makers(history, step, growing), source)
    values = {keeper.place: _value(history, step, keeper.made) for keeper in keepers}
    rest = set(step.tolist()) - {value for value in values.values() if value is not None}
    graph = ("the graph" if len(keepers) == 1 else "any graph") if rest else ""
    sentences = [_instead(keeper, history, values[keeper.place], graph) for keeper in keepers]
    return " ".join(sentences) or _unseen(history, step, growing[0])


def _one_step(history: History, moment: int, growing: Sequence[Growth]) -> Ints:
    """Lives that the newest complete step has left behind on these lines, the oldest first."""
    lines = {(growth.file, growth.line) for growth in growing}
    on_them = np.array([frame[:2] in lines for frame in history.sites.frames], bool)
    alive: Ints = history.alive(moment)
    alive = alive[on_them[history.site_of(alive)]]
    steps: Ints = history.step_of(history.lives.born[alive])
    complete = steps[(steps > 0) & (steps < history.step_at(moment))]
    if not len(complete):
        return np.zeros(0, np.int64)
    found: Ints = alive[steps == complete.max()]
    oldest_first: Ints = found[np.argsort(history.lives.born[found])]
    return oldest_first


def _makers(history: History, step: Ints, growing: Sequence[Growth]) -> list[Place]:
    """Lines whose result may be what is kept: those that grow, and those that called them, the outermost first."""
    called: dict[Place, None] = {}
    for life in step:
        for file, line, name in reversed(_stack(history, life)):
            if not is_library(Frame(file, line, name)):
                called[file, line] = None
    own = [(growth.file, growth.line) for growth in growing]
    return list(dict.fromkeys([*own, *list(called)[:MOST_CALLERS]]))


def _stack(history: History, life: int) -> Sequence[tuple[str, int, str]]:
    number = int(history.lives.stack[life])
    return history.device.stacks[number] if number >= 0 else ()


def _keepers(makers: Sequence[Place], source: SourceLine) -> list[_Keeper]:
    """Lines that keep what is made; where there are none, those that keep what is worked out of it."""
    found: dict[Place, _Keeper] = {}
    for derived in (False, True):
        for file, line in makers:
            for keeper in _behind(file, line, source, derived=derived):
                found.setdefault(keeper.place, keeper)
        if found:
            break
    return list(found.values())[:MOST_KEEPERS]


def _behind(file: str, line: int, source: SourceLine, *, derived: bool) -> Iterator[_Keeper]:
    """Those on a line and behind it, for the variables that it assigns.

    Args:
        derived: whether also for those that are worked out of them.
    """
    text = source(file, line)
    statement = _parsed(text)
    for kept in _kept(statement, made_here=True):
        yield _Keeper((file, line), text, kept, (file, line))
    made = dict.fromkeys(_assigned(statement), (file, line))
    for behind in range(line + 1, line + AHEAD) if made else ():
        text = source(file, behind)
        statement = _parsed(text)
        for kept in _kept(statement):
            if kept.name in made:
                yield _Keeper((file, behind), text, kept, made[kept.name])
        if derived and statement is not None and made.keys() & _used(statement):
            made.update(dict.fromkeys(_assigned(statement), (file, behind)))


def _value(history: History, step: Ints, made: Place) -> int | None:
    """The life of a line's result: what it allocated last of what is still there."""
    for life in step[::-1]:
        if any((file, line) == made for file, line, _ in _stack(history, life)):
            return int(life)
    return None


def _instead(keeper: _Keeper, history: History, value: int | None, graph: str) -> str:
    kept, name, (file, line) = keeper.kept, keeper.kept.name, keeper.place
    place = f"{short(file)}:{line} ({keeper.statement})"
    of_graph = f", and with it {graph} that made it" if graph and not kept.detached else ""
    if value is not None and history.lives.requested[value] <= NUMBER_BYTES:
        return f"{place} keeps {kept.text}{of_graph}: keep {name}.item() instead."
    if kept.is_added:
        return f"{place} adds up {kept.text}{of_graph}: add {name}.detach() instead."
    size = "" if value is None else f" {format_bytes(int(history.lives.bytes[value]))} of"
    there = f"{name}.detach().cpu(), which takes{size} host memory at each step"
    if of_graph:
        return (
            f"{place} keeps {kept.text}{of_graph}: keep less of it, or {there}. .detach() alone lets go of the graph."
        )
    return f"{place} keeps {kept.text} itself,{size or ' some of'} every step: keep less of it, or {there}."


def _unseen(history: History, step: Ints, first: Growth) -> str:
    """Where the source does not show what keeps it."""
    if len(step) == 1:
        size = format_bytes(int(history.lives.bytes[step[0]]))
        return (
            f"Each step leaves a tensor of {size} from {first.place}: keep less of it, or move it to host memory with "
            ".detach().cpu()."
        )
    return (
        "A tensor that is kept holds the graph that made it: keep the .item() of a number, or the .detach().cpu() of a "
        "tensor, which takes host memory instead."
    )


def _parsed(text: str) -> ast.stmt | None:
    """The one statement of a line; ``None`` for part of one."""
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0] if len(body) == 1 else None


def _assigned(statement: ast.stmt | None) -> set[str]:
    """Names of variables that a statement makes."""
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _used(statement: ast.stmt) -> set[str]:
    """Names of variables that a statement reads."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _kept(statement: ast.stmt | None, *, made_here: bool = False) -> Iterator[_Kept]:
    """What a statement puts into a collection, or adds to a sum.

    Args:
        made_here: whether it is what the statement itself makes, such as the result of a call.
    """
    for expression, is_added in _stored(statement):
        inner, detached = _without_detach(expression)
        if isinstance(inner, ast.Name):
            yield _Kept(inner.id, ast.unparse(expression), detached, is_added)
        elif made_here and isinstance(inner, ast.Call | ast.BinOp) and _method(inner) not in LEAVES:
            text = ast.unparse(inner)
            yield _Kept(
                text if isinstance(inner, ast.Call) else f"({text})", ast.unparse(expression), detached, is_added
            )


def _stored(statement: ast.stmt | None) -> Iterator[tuple[ast.expr, bool]]:
    if isinstance(statement, ast.AugAssign):
        inside = list(_parts(statement.value))
        yield from ((part, inside == [statement.value]) for part in inside)
    elif isinstance(statement, ast.Assign) and any(isinstance(target, ast.Subscript) for target in statement.targets):
        yield from ((part, False) for part in _parts(statement.value))
    elif isinstance(statement, ast.Expr) and _method(statement.value) in COLLECTS:
        arguments = statement.value.args if isinstance(statement.value, ast.Call) else ()
        yield from ((part, False) for argument in arguments for part in _parts(argument))


def _parts(expression: ast.expr) -> Iterator[ast.expr]:
    """An expression, or what stands in it where it is a tuple, list or dictionary."""
    if isinstance(expression, ast.Tuple | ast.List | ast.Set):
        for element in expression.elts:
            yield from _parts(element)
    elif isinstance(expression, ast.Dict):
        for element in expression.values:
            yield from _parts(element)
    else:
        yield expression


def _without_detach(expression: ast.expr) -> tuple[ast.expr, bool]:
    """What is called upon to detach or clone itself, and whether it detaches."""
    method = _method(expression)
    if method not in ("detach", "clone"):
        return expression, False
    assert isinstance(expression, ast.Call)
    assert isinstance(expression.func, ast.Attribute)
    inner, detached = _without_detach(expression.func.value)
    return inner, detached or method == "detach"


def _method(expression: ast.expr) -> str:
    """Name of the method that is called last; "" when none is."""
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        return expression.func.attr
    return ""
