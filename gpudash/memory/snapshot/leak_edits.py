"""Finds the cause of a leak in a program's source: the statement that keeps a value from every step, and its
replacement.

Works on source alone: the lines that create the kept memory are given, and the syntax tree shows where their values
go. A line without such a statement, or a file that cannot be read, has none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gpudash.memory.explaining.call_sites import SourceLine
from gpudash.memory.frames import Frame, is_library
from gpudash.memory.snapshot.kept_errors import errors_kept
from gpudash.memory.snapshot.source_edits import (
    COLLECTS,
    EMPTIES,
    Functions,
    LineEdits,
    Loop,
    SourceFile,
    functions_of,
    is_without_graph,
    method_of,
    names_in,
    one_line,
)
from gpudash.telemetry.explanation import Growth, Rewrite, short

MOST_KEEPERS = 3
"""Most keeping lines for which there is advice."""

MOST_CALLERS = 30
"""Most lines of the program, among those that led to what is kept, whose results are traced."""

MOST_CALLS = 3
"""Most functions of the program through which a value is traced."""

HOOKS = frozenset({"register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"})
"""Methods of a module that register a function to be called with its inputs and outputs."""

LEAVES = frozenset({"cpu", "item", "numpy", "tolist", "size", "dim", "numel"})
"""Methods whose result is not in the device's memory."""

ON_HOST = frozenset({"bool", "float", "format", "int", "len", "repr", "str", "type"})
"""Functions that do the same."""

TAKES_NUMBERS = frozenset({"as_tensor", "asarray", "full", "scalar_tensor", "tensor"})
"""Functions of torch that make a tensor of a number, too."""

OF_NUMBERS = (
    COLLECTS
    | EMPTIES
    | {"as_integer_ratio", "conjugate", "hex", "imag", "is_integer", "items", "keys", "real", "values"}
)
"""Attributes of a Python number, and methods of a collection of collections."""

Place = tuple[str, int]
"""File and line."""


@dataclass(frozen=True)
class Keeper:
    """A statement that keeps a value from every step.

    Attributes:
        place: where it begins.
        statement: its source, on one line.
        name: what is kept: a variable, or the expression that creates it; ``text`` also has calls of detach() and
            clone().
        before, after: the statement's source around ``text``.
        detached: whether it is kept without its graph.
        is_added: whether it is added to a running sum, not to a collection.
        is_carried: whether the variable is carried from step to step, so that its graph contains all steps.
        without_backward: whether it is in a loop that never calls backward().
        is_read_as_tensor: whether the program calls something with what is kept that a Python number cannot do, such
            as ``torch.stack(losses)`` or ``losses[-1].item()``.
        made: line whose result it keeps.
        is_in_variable: whether a variable holds the value, too, until the next iteration assigns it anew.
        in_hook: whether it is in a hook of a module.
        span: position of ``text`` in the file: line and column of its start and its end, as in `Rewrite`.
    """

    place: Place
    statement: str
    name: str
    text: str
    made: Place
    before: str = ""
    after: str = ""
    detached: bool = False
    is_added: bool = False
    is_carried: bool = False
    without_backward: bool = False
    is_read_as_tensor: bool = False
    is_in_variable: bool = False
    in_hook: bool = False
    span: tuple[int, int, int, int] | None = None

    @property
    def shown_place(self) -> str:
        """The statement's short name: "train.py:44 (losses.append(loss))"."""
        return f"{short(self.place[0])}:{self.place[1]} ({self.statement})"

    def edit(self, *, is_number: bool) -> str:
        """The statement with what it should keep instead.

        Args:
            is_number: whether the value is a scalar.
        """
        if self.is_carried:
            return f"{self._detached()} where a step begins"
        if not is_number and not self.is_added and self.without_backward and not self.detached:
            return f"{self.before}{self.name}.cpu(){self.after} under torch.no_grad()"
        return f"{self.before}{self.kept(is_number=is_number)}{self.after}"

    def rewrite(self, *, is_number: bool) -> Rewrite | None:
        """The same as an edit of the file; ``None`` if more than ``text`` has to change."""
        if self.is_carried or self.span is None:
            return None
        line, column, end_line, end_column = self.span
        kept = self.kept(is_number=is_number)
        return Rewrite(self.place[0], line, column, end_line, end_column, self.text, kept)

    def kept(self, *, is_number: bool) -> str:
        """What to keep instead of ``text``."""
        if is_number and not self.is_read_as_tensor:
            return f"{self.name}.item()"
        if self.is_added or (is_number and not self.detached):
            return f"{self.name}.detach()"
        return f"{self.name}.detach().cpu()"

    def changes(self, source: SourceFile, *, is_number: bool, written: str = "") -> dict[int, Sequence[str]] | None:
        """The edit as lines of its file and what replaces them; ``None`` if it cannot be made line by line.

        Args:
            source: the file.
            is_number: as in `edit`.
            written: the final statement, if this edit is only part of it.
        """
        line = self.place[1]
        statement = source.simple_statement(line)
        if statement is None:
            return None
        edits = LineEdits(source)
        if self.is_carried:
            loop = next((node for node in source.path(line) if isinstance(node, Loop)), None)
            if loop is None or loop.body[0].lineno == loop.lineno:
                return None
            edits.before(loop.body[0].lineno, [self._detached()])
            return edits.changed
        # A hook's lambda is only a part of its line.
        if one_line(statement) != self.statement:
            return None
        edits.replace(statement, [written or f"{self.before}{self.kept(is_number=is_number)}{self.after}"])
        return edits.changed

    def _detached(self) -> str:
        """The statement that lets go of the graph of what is carried."""
        return f"{self.name} = {', '.join(f'{name}.detach()' for name in self.name.split(', '))}"


def edit_of_statement(keepers: Sequence[tuple[Keeper, bool]]) -> str:
    """The replacement for a statement that keeps several values.

    Args:
        keepers: its kept values, each with whether it is a scalar.
    """
    text = keepers[0][0].statement.encode()
    length = len(text)
    for keeper, is_number in sorted(keepers, key=lambda one: len(one[0].before), reverse=True):
        # From the end of the statement to its start, so that the columns of remaining edits stay valid.
        begin = len(keeper.before.encode())
        end = length - len(keeper.after.encode())
        text = text[:begin] + keeper.kept(is_number=is_number).encode() + text[end:]  # what follows is edited already
    return text.decode()


def keepers(makers: Sequence[Place], source: SourceLine) -> list[Keeper]:
    """Statements that keep what is created, or else what is computed from it, or else carry it from step to step.

    Args:
        makers: lines whose result may be what is kept, the most likely first.
        source: reads lines of the program.
    """
    found: dict[tuple[Place, str], Keeper] = {}
    files = {file: SourceFile(file, source) for file, _line in makers}

    @cache
    def functions() -> Functions:
        return functions_of(list(files.values()), source)

    def passed_of(file: str, path: Sequence[ast.AST]) -> Iterator[Keeper]:
        return _passed_of(file, path, functions())

    # The most certain rule first; the first that finds anything wins.
    for rule in (_kept_of, _derived_of, passed_of, _carried_of, _hooked_of):
        for file, line in makers:
            path = files[file].path(line)
            if not path or not isinstance(path[-1], ast.stmt):
                continue
            for keeper in rule(file, path):
                found.setdefault((keeper.place, keeper.name), keeper)
        if found:
            break
    return list(found.values())[:MOST_KEEPERS]


def makers_of(growing: Sequence[Growth], stacks: Iterable[Sequence[tuple[str, int, str]]]) -> list[Place]:
    """Lines whose result may be what is kept: those that grow, and their callers, the outermost first."""
    called: dict[Place, None] = {}
    for stack in stacks:
        for file, line, name in reversed(stack):
            if not is_library(Frame(file, line, name)):
                # A dict as an ordered set; a line in several stacks has its first position.
                called[file, line] = None
    own = [(growth.file, growth.line) for growth in growing]
    return list(dict.fromkeys([*own, *list(called)[:MOST_CALLERS]]))


def keeper_of(growth: Growth, stacks: Iterable[Sequence[tuple[str, int, str]]], source: SourceLine) -> str:
    """Place of the statement that keeps what a line allocates; "" if that line does, or the source does not show it.

    Args:
        growth: the line.
        stacks: those with which it allocates, innermost line first.
        source: reads lines of the program.
    """
    makers = makers_of([growth], stacks)
    found = keepers(makers, source)
    if found and found[0].place == (growth.file, growth.line):
        return ""
    if found:
        return found[0].shown_place
    for file, line in makers:
        path = SourceFile(file, source).path(line)
        for handler in (one for node in path if isinstance(node, ast.Try) for one in node.handlers):
            for statement, _error in errors_kept(handler):
                return f"{short(file)}:{statement.lineno} ({one_line(statement)})"
    return ""


def _kept_of(file: str, path: Sequence[ast.AST], *, derived: bool = False) -> Iterator[Keeper]:
    """Statements that keep the result of ``path``'s last statement.

    Args:
        derived: whether to include those that keep something computed from it.
    """
    maker = path[-1]
    assert isinstance(maker, ast.stmt)
    place = (file, maker.lineno)
    yield from _keeping(file, path, path, place, None)
    # The variables with the value, traced through the rest of the function.
    made = dict.fromkeys(_assigned(maker), place)
    if not made:
        return
    for behind in _behind(path):
        statement = behind[-1]
        assert isinstance(statement, ast.stmt)
        yield from _keeping(file, behind, path, place, made)
        names = _assigned(statement)
        value = getattr(statement, "value", None)
        if value is not None and made.keys() & names and is_plain(value):
            # A variable that is assigned a plain value no longer holds the tensor.
            made = {name: there for name, there in made.items() if name not in names}
        elif derived and value is not None and made.keys() & names_in(value) and not is_plain(value):
            made.update(dict.fromkeys(names, (file, statement.lineno)))


def _derived_of(file: str, path: Sequence[ast.AST]) -> Iterator[Keeper]:
    return _kept_of(file, path, derived=True)


def _hooked_of(file: str, path: Sequence[ast.AST]) -> Iterator[Keeper]:
    """What a hook keeps of a module's inputs or outputs; ``path``'s last statement calls the module."""
    module = path[0]
    maker = path[-1]
    assert isinstance(maker, ast.stmt)
    place = (file, maker.lineno)
    for hook, fixed in _hooks(module):
        given = [argument.arg for argument in hook.args.args[1:]]
        names = dict.fromkeys((*given, *(f"{name}[0]" for name in given)), place)
        for inner in _statements([module, hook]):
            for keeper in _keeping(file, inner, path, place, names):
                if not _is_overwritten(inner[-1], fixed) and not _is_emptied(module, inner[-1]):
                    yield replace(keeper, in_hook=True)


def _hooks(module: ast.AST) -> Iterator[tuple[ast.FunctionDef, set[str]]]:
    """Functions that a file registers as hooks, or whose makers' results it registers; each with the names that are the
    same at every call.
    """
    registered: set[str] = set()
    makers: set[str] = set()
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or _method(node) not in HOOKS:
            continue
        for argument in node.args:
            if isinstance(argument, ast.Lambda):
                statement = ast.copy_location(ast.Expr(argument.body), argument.body)
                hook = ast.FunctionDef("<lambda>", argument.args, [statement], [])
                yield hook, _module_of(hook)
            elif isinstance(argument, ast.Call):
                makers.add(method_of(argument))
            else:
                registered.add(ast.unparse(argument).rpartition(".")[2])
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef):
            continue
        if node.name in registered:
            yield node, _module_of(node)
        if node.name in makers:
            yield from _hooks_made(node)


def _hooks_made(maker: ast.FunctionDef) -> Iterator[tuple[ast.FunctionDef, set[str]]]:
    """The functions that a function defines and returns."""
    returned = {ast.unparse(node.value) for node in ast.walk(maker) if isinstance(node, ast.Return) and node.value}
    for node in maker.body:
        if isinstance(node, ast.FunctionDef) and node.name in returned:
            yield node, _module_of(node) | {argument.arg for argument in maker.args.args}


def _module_of(hook: ast.FunctionDef) -> set[str]:
    """The name of a hook's module, which is its first argument."""
    return {argument.arg for argument in hook.args.args[:1]}


def _is_overwritten(statement: ast.AST, fixed: set[str]) -> bool:
    """Whether a statement stores under a key of ``fixed`` names alone, so that each call replaces what the last one
    stored.
    """
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Subscript):
        return False
    used = {node.id for node in ast.walk(statement.targets[0].slice) if isinstance(node, ast.Name)}
    return bool(used) and used <= fixed


def _is_emptied(module: ast.AST, statement: ast.AST) -> bool:
    """Whether a file empties, anywhere or in a loop of its own, what a hook's statement fills."""
    assert isinstance(statement, ast.stmt)
    containers = set()
    for container, _expression, _is_added in _stored(statement):
        root = container
        if isinstance(root, ast.Subscript):
            root = root.value
        containers.add(ast.unparse(root))
    # An assignment outside of every loop is where it begins.
    emptying = [node for node in ast.walk(module) if not isinstance(node, ast.Assign | ast.AnnAssign)]
    for loop in ast.walk(module):
        if isinstance(loop, ast.For | ast.While):
            emptying += ast.walk(loop)
    return any(_empties(node, name) for node in emptying for name in containers if node is not statement)


def _passed_of(file: str, path: Sequence[ast.AST], functions: Functions) -> Iterator[Keeper]:
    """Arguments that pass the result of ``path``'s last statement to a function of the program that keeps it."""
    maker = path[-1]
    assert isinstance(maker, ast.stmt)
    made = dict.fromkeys(_assigned(maker), (file, maker.lineno))
    if made:
        yield from _passed(file, list(_behind(path)), made, functions, MOST_CALLS)


def _passed(
    file: str, paths: Sequence[Sequence[ast.AST]], made: dict[str, Place], functions: Functions, calls: int
) -> Iterator[Keeper]:
    """The arguments of some statements that a function keeps.

    Args:
        file: file of the statements.
        paths: paths to the statements.
        made: variables with what is kept, and the line that created it.
        functions: functions of the program.
        calls: most functions through which a variable is traced.
    """
    for path in paths:
        statement = path[-1]
        if hasattr(statement, "body") or not isinstance(statement, ast.stmt):
            continue
        text = one_line(statement)
        # The statement twice: on one line, to quote it, and as in the file, to rewrite it there.
        for call, in_file in zip(_calls_in(ast.parse(text)), _calls_in(statement), strict=False):
            module, function = functions.get(method_of(call), (None, None))
            if module is None or function is None:
                continue
            pairs = zip(_arguments(call, function), _arguments(in_file, function), strict=False)
            for (argument, parameter), (there, _) in pairs:
                inner, detached = _without_detach(argument)
                name = ast.unparse(inner)
                if name not in made:
                    continue
                if _keeps(module, function, parameter) and not _calls(function, "backward"):
                    before, after = _around(text, argument)
                    yield Keeper(
                        place=(file, statement.lineno),
                        statement=text,
                        name=name,
                        text=ast.unparse(argument),
                        made=made[name],
                        before=before,
                        after=after,
                        detached=detached or is_without_graph(path),
                        span=_span(there),
                    )
                elif calls and module is path[0]:
                    within = list(_statements([module, function]))
                    yield from _passed(file, within, {parameter: made[name]}, functions, calls - 1)


def _calls_in(node: ast.AST) -> list[ast.Call]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _arguments(call: ast.Call, function: ast.FunctionDef) -> Iterator[tuple[ast.expr, str]]:
    """The arguments of a call, with the names of their parameters."""
    takes = function.args
    names = [argument.arg for argument in (*takes.posonlyargs, *takes.args)]
    if names[:1] in (["self"], ["cls"]):
        del names[0]
    rest = ""
    if takes.vararg is not None:
        rest = takes.vararg.arg
    for place, value in enumerate(call.args):
        name = rest
        if place < len(names):
            name = names[place]
        yield from ((part, name) for part in _parts(value) if name)
    known = {*names, *(argument.arg for argument in takes.kwonlyargs)}
    others = ""
    if takes.kwarg is not None:
        others = takes.kwarg.arg
    for keyword in call.keywords:
        name = others
        if keyword.arg is not None and keyword.arg in known:
            name = keyword.arg
        yield from ((part, name) for part in _parts(keyword.value) if name)


def _keeps(module: ast.AST, function: ast.FunctionDef, parameter: str) -> bool:
    """Whether a function puts its argument into a collection that outlives it."""
    names = {parameter}
    # What is created in the function, or passed to it, ends with it or belongs to the caller.
    local = {argument.arg for argument in function.args.args} - {"self", "cls"}
    for node in ast.walk(function):
        if isinstance(node, ast.For) and names & names_in(node.iter):
            names |= names_in(node.target)
        if isinstance(node, ast.stmt):
            local |= _assigned(node)
    for path in _statements([module, function]):
        statement = path[-1]
        if hasattr(statement, "body") or not isinstance(statement, ast.stmt):
            continue
        for container, expression, _ in _stored(statement):
            inner, _ = _without_detach(expression)
            if ast.unparse(inner) not in names or _is_bounded(container, path):
                continue
            if ast.unparse(container).partition("[")[0].partition(".")[0] not in local:
                return True
    return False


def _around(text: str, expression: ast.expr) -> tuple[str, str]:
    """The parts of a line before and after an expression."""
    # Columns of `ast` count bytes, not characters.
    line = text.encode()
    return line[: expression.col_offset].decode(), line[expression.end_col_offset :].decode()


def _carried_of(file: str, path: Sequence[ast.AST]) -> Iterator[Keeper]:
    """A variable that each step computes from its own last value, so that the graph continues from step to step."""
    statement = path[-1]
    loops = [node for node in path if isinstance(node, ast.For | ast.While)]
    if not isinstance(statement, ast.Assign) or not loops or is_without_graph(path):
        return
    scope = next(node for node in reversed(path) if isinstance(node, ast.FunctionDef | ast.Module))
    outermost = next(loop for loop in loops if loop in list(ast.walk(scope)))
    trains = _calls(outermost, "backward") or _calls(outermost, "step")
    if isinstance(scope, ast.FunctionDef) and not trains:
        return
    carried = [name for name in _assigned(statement) if name in names_in(statement.value)]
    for other in ast.walk(outermost):
        if not isinstance(other, ast.Assign) or other is statement:
            continue
        # Assigned in the loop from something without the graph: each step then starts a new one.
        reassigned = _assigned(other)
        carried = [name for name in carried if name not in reassigned or name in _graph_of(other.value)]
    carried = [name for name in carried if not _is_detached_in(outermost, name) and not is_plain(statement.value)]
    if carried:
        text = one_line(statement)
        names = ", ".join(carried)
        place = (file, statement.lineno)
        yield Keeper(place, text, names, names, place, is_carried=True)


def _graph_of(value: ast.expr) -> set[str]:
    """Names whose graph continues in a value; not those inside a call of detach()."""
    if any(isinstance(node, ast.Call) and "detach" in ast.unparse(node.func) for node in ast.walk(value)):
        return set()
    if "repackage" in ast.unparse(value):
        return set()
    return names_in(value)


def _is_detached_in(loop: ast.AST, name: str) -> bool:
    for node in ast.walk(loop):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr.startswith("detach") and ast.unparse(node.func.value).startswith(name):
            return True
    return False


def _behind(path: Sequence[ast.AST]) -> Iterator[list[ast.AST]]:
    """Paths of the statements after ``path``'s last one, within its function."""
    # The function that contains the statement, else the module.
    place = len(path) - 1
    while not isinstance(path[place], ast.FunctionDef | ast.Module):
        place -= 1
    last = path[-1]
    assert isinstance(last, ast.stmt)
    for found in _statements(list(path[: place + 1])):
        if getattr(found[-1], "lineno", 0) > (last.end_lineno or last.lineno):
            yield found


def _statements(path: list[ast.AST]) -> Iterator[list[ast.AST]]:
    """Paths of the statements in a block, without those in nested functions and classes."""
    for child in ast.iter_child_nodes(path[-1]):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            inner = [*path, child]
            if isinstance(child, ast.stmt):
                yield inner
            yield from _statements(inner)


def _keeping(
    file: str, path: Sequence[ast.AST], of: Sequence[ast.AST], made: Place, names: dict[str, Place] | None
) -> Iterator[Keeper]:
    """What a statement keeps of the variables with the value, or without ``names``, of its own result."""
    statement = path[-1]
    if hasattr(statement, "body") or not isinstance(statement, ast.stmt):
        return
    line = statement.lineno
    text = one_line(statement)
    stored = _stored(ast.parse(text).body[0])
    written = _stored(statement)
    for (container, expression, is_added), (_, in_file, _) in zip(stored, written, strict=False):
        inner, detached = _without_detach(expression)
        known = isinstance(inner, ast.Name | ast.Attribute | ast.Subscript)
        name = ast.unparse(inner)
        if names is None:
            keeps = known or (isinstance(inner, ast.Call | ast.BinOp) and not is_plain(inner))
        else:
            keeps = known and name in names
        if not keeps or _is_bounded(container, path):
            continue
        shown = name
        if not known and not isinstance(inner, ast.Call):
            shown = f"({name})"
        maker = made
        if names is not None:
            maker = names[name]
        before, after = _around(text, expression)
        loops = [node for node in (*path, *of) if isinstance(node, ast.For | ast.While)]
        # A sum that is itself differentiated needs the new graph: what is kept is that of the previous steps.
        if is_added and any(_differentiates(loop, container) for loop in loops):
            summed = ast.unparse(container)
            yield Keeper((file, line), text, summed, summed, maker, is_added=True, is_carried=True)
            continue
        yield Keeper(
            place=(file, line),
            statement=text,
            name=shown,
            text=ast.unparse(expression),
            made=maker,
            before=before,
            after=after,
            detached=detached or is_without_graph(path),
            is_added=is_added,
            without_backward=bool(loops) and not any(_calls(loop, "backward") for loop in loops),
            is_read_as_tensor=_is_read_as_tensor(path[0], container, is_added=is_added),
            is_in_variable=names is not None and _outlives_iteration(of, name),
            span=_span(in_file),
        )


def _outlives_iteration(path: Sequence[ast.AST], name: str) -> bool:
    """Whether a variable that ``path``'s last statement assigns is still there as the next iteration begins."""
    function = max(place for place, node in enumerate(path) if isinstance(node, ast.FunctionDef | ast.Module))
    loops = [node for node in path[function:] if isinstance(node, ast.For | ast.While)]
    # A variable of a function that is called anew in each iteration ends with the call.
    if not loops:
        return "." in name
    for node in ast.walk(loops[-1]):
        if isinstance(node, ast.Delete) and name in map(ast.unparse, node.targets):
            return False
    return True


def _is_read_as_tensor(module: ast.AST, container: ast.expr, *, is_added: bool) -> bool:
    """Whether a program needs tensors, not Python numbers, of a collection or running sum.

    Args:
        module: the program.
        container: the collection or the sum, as in the statement that keeps a value.
        is_added: whether it is a sum.
    """
    root = container
    while isinstance(root, ast.Subscript | ast.Call):
        if isinstance(root, ast.Subscript):
            root = root.value
        elif isinstance(root.func, ast.Attribute):
            root = root.func.value
        else:
            return False
    name = ast.unparse(root)
    values = _values_of(module, name)
    if is_added:
        values.add(name)
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr not in OF_NUMBERS and _is_value(node.value, name, values):
            return True
        if not isinstance(node, ast.Call) or not _is_of_torch(node.func):
            continue
        if any(name in names_in(argument) for argument in node.args):
            return True
    return False


def _values_of(module: ast.AST, name: str) -> set[str]:
    """Variables that take the values of a collection one after the other."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.For | ast.comprehension) and ast.unparse(node.iter) == name:
            found |= names_in(node.target)
    return found


def _is_value(node: ast.expr, name: str, values: set[str]) -> bool:
    """Whether an expression is a value of a collection, or computed from such values as numbers and tensors both are.

    Args:
        node: the expression.
        name: the collection.
        values: variables with a value of it.
    """
    match node:
        case ast.Name() | ast.Attribute():
            return ast.unparse(node) in values
        case ast.Subscript(value=inner):
            return name in names_in(inner) or _is_value(inner, name, values)
        case ast.BinOp(left=left, right=right):
            return _is_value(left, name, values) or _is_value(right, name, values)
        case ast.Call(func=ast.Name(id="max" | "min" | "sum"), args=[first, *_]):
            return ast.unparse(first) == name
    return False


def _is_of_torch(function: ast.expr) -> bool:
    """Whether a called function is one of torch that takes tensors."""
    module, _, name = ast.unparse(function).rpartition(".")
    if name in TAKES_NUMBERS:
        return False
    return module.partition(".")[0] in ("torch", "F") or (not module and name in ("cat", "stack"))


def _differentiates(loop: ast.AST, variable: ast.expr) -> bool:
    """Whether a loop calls ``backward`` on a variable."""
    name = f"{ast.unparse(variable)}.backward"
    return any(ast.unparse(call.func) == name for call in _calls_in(loop))


def _span(node: ast.expr) -> tuple[int, int, int, int] | None:
    if node.end_lineno is None or node.end_col_offset is None:
        return None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _stored(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Where a statement stores something, what, and whether it adds to a sum."""
    if isinstance(statement, ast.AugAssign):
        inside = list(_parts(statement.value))
        yield from ((statement.target, part, inside == [statement.value]) for part in inside)
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        value = statement.value
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            if ast.unparse(value.left) == ast.unparse(target):
                inside = list(_parts(value.right))
                yield from ((target, part, inside == [value.right]) for part in inside)
        elif isinstance(target, ast.Subscript):
            yield from ((target, part, False) for part in _parts(value))
    elif isinstance(statement, ast.Expr) and _method(statement.value) in COLLECTS:
        call = statement.value
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        for argument in call.args:
            yield from ((call.func.value, part, False) for part in _parts(argument))


def _parts(expression: ast.expr) -> Iterator[ast.expr]:
    """An expression, or its parts if it is a tuple, list or dictionary, or the default of a lambda."""
    if isinstance(expression, ast.Tuple | ast.List | ast.Set):
        for element in expression.elts:
            yield from _parts(element)
    elif isinstance(expression, ast.Dict):
        for element in expression.values:
            yield from _parts(element)
    elif isinstance(expression, ast.Lambda):
        for default in (*expression.args.defaults, *filter(None, expression.args.kw_defaults)):
            yield from _parts(default)
    else:
        yield expression


def _is_bounded(container: ast.expr, path: Sequence[ast.AST]) -> bool:
    """Whether a container keeps nothing for good: it is reset, or removes or replaces its content."""
    if isinstance(container, ast.Subscript):
        if isinstance(container.slice, ast.Constant) or any(isinstance(n, ast.Mod) for n in ast.walk(container.slice)):
            return True
        container = container.value
    name = ast.unparse(container)
    if any(_makes_bounded(other, name) for node in path[:1] for other in ast.walk(node)):
        return True
    # Cleared or recreated in a loop around the statement: it holds a single iteration at most.
    loops = [loop for loop in path if isinstance(loop, ast.For | ast.While)]
    return any(_empties(node, name) for loop in loops for node in ast.walk(loop) if node is not path[-1])


def _empties(node: ast.AST, name: str) -> bool:
    """Whether a statement assigns, deletes or clears a container."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return name in _assigned(node)
    if isinstance(node, ast.Delete):
        return any(ast.unparse(target).startswith(name) for target in node.targets)
    return _method(node) in EMPTIES and ast.unparse(node).startswith(f"{name}.")


def _makes_bounded(node: ast.AST, name: str) -> bool:
    """Whether a statement creates a queue of this name with a fixed capacity."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or name not in _assigned(node):
        return False
    call = node.value
    if not isinstance(call, ast.Call):
        return False
    if any(word.arg in ("maxlen", "maxsize") for word in call.keywords):
        return True
    # deque(values, length)
    return ast.unparse(call.func).endswith("deque") and len(call.args) == 2


def is_plain(expression: ast.AST) -> bool:
    """Whether a value is certainly not in the device's memory: numbers, text, copies on the host."""
    match expression:
        case ast.Constant() | ast.JoinedStr() | ast.Compare():
            return True
        case ast.Attribute(attr="shape" | "dtype" | "device" | "grad_fn"):
            return True
        case ast.Call(func=ast.Name(id=name)) if name in ON_HOST:
            return True
        case ast.Call(func=ast.Name(id="round" | "sum" | "min" | "max"), args=[first, *_]):
            return is_plain(first)
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            return name in LEAVES or (is_plain(value) and name not in ("to", "cuda"))
        case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.UnaryOp(operand=value):
            return is_plain(value)
        case ast.BinOp(left=left, right=right):
            return is_plain(left) and is_plain(right)
        case ast.IfExp(body=left, orelse=right):
            return is_plain(left) and is_plain(right)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(map(is_plain, parts))
    return False


def _method(expression: ast.AST) -> str:
    """Name of the method that is called; "" for a plain function, which may have the name of one."""
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        return expression.func.attr
    return ""


def _calls(node: ast.AST, method: str) -> bool:
    return any(_method(inner) == method for inner in ast.walk(node))


def _assigned(statement: ast.AST) -> set[str]:
    """Variables and attributes assigned by a statement, as written."""
    targets: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = (statement.target,)
    found: set[str] = set()
    for target in targets:
        found.update(map(ast.unparse, _parts(target)))
    return found


def _without_detach(expression: ast.expr) -> tuple[ast.expr, bool]:
    """The object of a call of detach() or clone(), and whether it is detached."""
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        method = expression.func.attr
        if method in ("detach", "clone"):
            inner, detached = _without_detach(expression.func.value)
            return inner, detached or method == "detach"
    return expression, False
