"""``%%gpudash_estimate`` in a notebook: the memory that a cell would take of a GPU, predicted before it is run.

A cell goes on where others ended. They are not run again as a whole, since one of them may be a training: what is run
before the cell are those of their statements that make what it uses. Belongs to the notebook's thread.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, Protocol

from gpudash.simulator.predict import PredictedProgram, PredictionError, predict_program

MAGIC = "gpudash_estimate"

CELL, EARLIER = "cell.py", "earlier_cells.py"

_MOST_LINES = 5
"""Lines of the cells that are named, those that hold most."""

_CONDITIONAL = (ast.If, ast.For, ast.While, ast.Try, ast.With)


class PredictedCell(PredictedProgram):
    """What a cell would take; a notebook shows it in a few lines."""

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(describe(self))


class Shell(Protocol):
    """What is asked of IPython's ``InteractiveShell``."""

    user_ns: dict[str, Any]

    def register_magic_function(self, func: Any, magic_kind: str = ..., magic_name: str | None = ...) -> None: ...

    def transform_cell(self, raw_cell: str) -> str: ...


class _Flags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%%{MAGIC} takes --gpu NAME_OR_SIZE, --steps N and --time-limit SECONDS: {message}.")


def _flags() -> argparse.ArgumentParser:
    parser = _Flags(prog=f"%%{MAGIC}", add_help=False, allow_abbrev=False)
    parser.add_argument("--gpu", action="append", default=[])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=60.0)
    return parser


def load_ipython_extension(shell: Shell) -> None:
    """Make the magic known to IPython; what ``%load_ext gpudash.simulator.notebook`` calls."""

    def gpudash_estimate(line: str, cell: str) -> PredictedCell | None:
        """Predict what this cell would take of a GPU, without running it: --gpu 24GiB, --steps 3, --time-limit 60."""
        try:
            options = _flags().parse_args(shlex.split(line))
            return predict_cell(
                shell.transform_cell(cell),
                shell.user_ns.get("In", [])[:-1],
                gpu=options.gpu,
                steps=options.steps,
                time_limit_s=options.time_limit,
            )
        except (PredictionError, ValueError) as error:
            print(error, file=sys.stderr)  # noqa: T201  # the cell's own output is where it is read
            return None

    shell.register_magic_function(gpudash_estimate, magic_kind="cell", magic_name=MAGIC)


def predict_cell(
    cell: str, earlier: Sequence[str], *, gpu: Sequence[str] = (), steps: int = 3, time_limit_s: float = 60.0
) -> PredictedCell:
    """Predict a cell in the present folder.

    Args:
        cell: its code, as Python.
        earlier: the code of the cells that were run before it, oldest first.
        gpu, steps, time_limit_s: as `predict_program`.

    Raises:
        ValueError: one sentence, when the cell is no Python.
        PredictionError: when there is no prediction.
    """
    before = needed_of(cell, earlier)
    with tempfile.TemporaryDirectory(prefix="gpudash-cell-") as folder:
        Path(folder, EARLIER).write_text(before, encoding="utf-8")
        script = Path(folder, CELL)
        first = f"import sys; sys.path.insert(0, {str(Path.cwd())!r}); from {Path(EARLIER).stem} import *"
        script.write_text(f"{first}\n{cell}", encoding="utf-8")
        try:
            found = predict_program(sys.executable, str(script), gpu=gpu, steps=steps, time_limit_s=time_limit_s)
        except PredictionError as error:
            raise PredictionError(re.sub(rf"{re.escape(folder)}/\S+:\d+", _place_found, str(error))) from None
        return PredictedCell(**{field.name: getattr(found, field.name) for field in fields(found)})


def needed_of(cell: str, earlier: Sequence[str]) -> str:
    """The statements of earlier cells that make what a cell uses, as a module that gives all of it.

    A loop, or a call whose value is not kept, is none of them, unless it binds a name that is needed or is a method of
    one ("model.cuda()").

    Raises:
        ValueError: one sentence, when the cell is no Python.
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
    lines = [ast.unparse(statement) for statement in reversed(kept)]
    return "\n".join([*lines, '__all__ = [name for name in globals() if not name.startswith("__")]', ""])


def _statements(source: str) -> Iterable[ast.stmt]:
    """Those of a cell that was run; none of one that is no Python."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return ()


def _bound(statement: ast.stmt) -> set[str]:
    """Names of the notebook that a statement binds."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    found = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    inner = (node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt))
    return found.union(*(_bound(node) for node in inner))


def _changes(statement: ast.stmt) -> str | None:
    """The name whose object a statement changes by a method or through an attribute or item; ``None`` for none."""
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
    """Names that these read and have not bound themselves before."""
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
    """What only the comprehensions and lambdas of an expression bind."""
    nodes = list(ast.walk(statement))
    targets = (ast.walk(node.target) for node in nodes if isinstance(node, ast.comprehension))
    names = {node.id for found in targets for node in found if isinstance(node, ast.Name)}
    return names | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _bound_within(statement: ast.stmt) -> set[str]:
    """What is bound anywhere in a statement, as the variable of a loop or an argument."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and _stores(node)}
    names |= {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    return names.union(*(_bound(node) for node in ast.walk(statement) if isinstance(node, ast.stmt)))


def _stores(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def describe(found: PredictedProgram) -> str:
    """A prediction in a few lines; those of the cell are counted as the notebook counts them."""
    fits = {True: "fits", False: "does not fit", None: "may not fit, or cannot be held against a GPU"}[found.fits]
    needed, held = _size(found.needed_bytes), _size(found.peak_allocated_bytes)
    lines = [f"This cell {fits}: it needs {needed} at its peak, of which tensors hold {held}."]
    largest = sorted(found.by_line.items(), key=lambda item: -item[1])[:_MOST_LINES]
    lines += [f"  {_size(size):>10}  {_place(where)}" for where, size in largest]
    return "\n".join([*lines, *found.assumptions])


def _size(count: int) -> str:
    """Bytes in words, as elsewhere in the program, of which nothing else may be imported here."""
    mib = count / 2**20
    if mib >= 1024:
        return f"{mib / 1024:.2f} GiB"
    if mib >= 1:
        return f"{mib:.0f} MiB"
    return f"{count / 1024:.0f} KiB"


def _place_found(match: re.Match[str]) -> str:
    return _place(match[0])


def _place(where: str) -> str:
    """Where a line stands, as it is found in the notebook."""
    file, _, number = where.rpartition(":")
    name = Path(file).name
    if name == CELL and number.isdecimal():
        return f"line {int(number) - 1} of the cell"
    if name == EARLIER:
        return f"line {number} of what earlier cells made"
    return where
