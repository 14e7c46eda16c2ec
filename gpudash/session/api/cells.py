"""What a notebook cell, or a function defined in one, needs from earlier cells.

A cell continues the ones before it. They are not run again as a whole, since one of them may be a training: only the
statements that create what the cell uses run before it. Use from the notebook's thread.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Sequence

_CONDITIONAL = (ast.If, ast.For, ast.While, ast.Try, ast.With)


def with_cell_names(text: str) -> str:
    """``text`` with lines of cells numbered as in the notebook: "In[3], line 5"."""
    ipython = sys.modules.get("IPython")
    shell = None
    if ipython is not None:
        shell = ipython.get_ipython()
    # ipykernel compiles a cell under the name of a file that does not exist; reports keep its last part
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    for file, number in numbers.items():
        name = re.escape(file.rpartition("/")[2])
        text = re.sub(rf"(?:[^\s<>]*/)?{name}:(\d+)", rf"In[{number}], line \1", text)
    return text


def needed_of(cell: str, earlier: Sequence[str]) -> str:
    """The statements of earlier cells that create what a cell uses, as the source of one module.

    Loops, and calls whose value is discarded, are left out, unless they bind a name that is needed or call one of its
    methods ("model.cuda()").

    Raises:
        ValueError: one sentence, when the cell is not valid Python.
    """
    try:
        wanted = _used(ast.parse(cell).body)
    except SyntaxError as error:
        raise ValueError(f"Line {error.lineno} of the cell is no Python: {error.msg}.") from None
    kept: list[ast.stmt] = []
    for statement in reversed([statement for one in earlier for statement in _statements(one)]):
        binds = _bound(statement)
        if not (binds & wanted or _changes(statement) in wanted or _takes_all(statement)):
            continue
        kept.append(statement)
        if not isinstance(statement, (*_CONDITIONAL, ast.AugAssign)):
            wanted -= binds  # what was bound before is overwritten here
        wanted |= _used([statement])
    lines = list(map(ast.unparse, reversed(kept)))
    return "\n".join([*lines, '__all__ = [name for name in globals() if not name.startswith("__")]', ""])


def _statements(source: str) -> Iterable[ast.stmt]:
    """The statements of a cell that has run; none if it is not valid Python."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return ()


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds in the notebook."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    found = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    inner = (node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt))
    return found.union(*map(_bound, inner))


def _changes(statement: ast.stmt) -> str | None:
    """The name of the object that a statement modifies by a method, attribute or item; ``None`` if there is none."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        target: ast.expr = statement.value.func
    elif isinstance(statement, (ast.Assign, ast.AugAssign)):
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        else:
            target = statement.target
    else:
        return None
    if isinstance(target, ast.Name):
        return None
    while isinstance(target, (ast.Attribute, ast.Subscript)):
        target = target.value
    if isinstance(target, ast.Name):
        return target.id
    return None


def _takes_all(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"


def _used(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that these statements read without having bound them before."""
    used: set[str] = set()
    bound = set(dir(builtins))
    for statement in statements:
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and not _stores(node)}
        assigns = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign))  # it reads before it binds
        if assigns:
            own = _bound_inside(statement)
        else:
            own = _bound_within(statement)
        used |= names - own - bound
        bound |= _bound(statement)
    return used


def _bound_inside(statement: ast.stmt) -> set[str]:
    """The names that only the comprehensions and lambdas of an expression bind."""
    nodes = list(ast.walk(statement))
    targets = (ast.walk(node.target) for node in nodes if isinstance(node, ast.comprehension))
    names = {node.id for found in targets for node in found if isinstance(node, ast.Name)}
    return names | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _bound_within(statement: ast.stmt) -> set[str]:
    """Every name that a statement binds, such as the variable of a loop or an argument."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and _stores(node)}
    names |= {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    return names.union(*(_bound(node) for node in ast.walk(statement) if isinstance(node, ast.stmt)))


def _stores(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)
