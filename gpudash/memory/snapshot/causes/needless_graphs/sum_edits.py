"""Finds losses that are added up for a single backward pass in a program's source, and a diff that uses several.

Works on source alone. The diff moves the backward pass to where a loss is added, with the sum's scaling applied to
that loss, and clears gradients where the sum is reset. If the training could change in any way, there is no diff.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpudash.memory.snapshot.causes.needless_graphs.evaluation import DIFFERENTIATES
from gpudash.memory.snapshot.leak_edits import is_plain
from gpudash.memory.snapshot.source_edits import (
    COLLECTS,
    Function,
    LineEdits,
    Loop,
    SourceFile,
    calls_any,
    method_of,
    scope_of,
)

MOST_NAMES = 3
"""Most variables through which a sum is traced to its backward pass."""

PART = "micro_loss"
"""Name for the loss of one iteration if the program has none."""

_BACKWARD = frozenset({"backward", "manual_backward"})

_READS = frozenset({"item", "detach", "tolist"})
"""Methods that read a sum without its graph."""

_SHOWS = frozenset({"float", "print"})
"""Functions that do the same."""

_UPDATES = frozenset({"step", "zero_grad"})

_LEAVES_ROUND = ast.Continue | ast.Break | ast.Return | ast.Raise


@dataclass(frozen=True)
class LossSum:
    """Losses that a loop adds up.

    Attributes:
        file: file of the program.
        function: name of the function; "<module>" outside of functions.
        line: line that adds a loss.
        backward_line: line of the backward pass over the sum.
        loop: loop whose iterations each add a loss.
        patch: the diff with a backward pass in each iteration; "" if the training could change.
    """

    file: str
    function: str
    line: int
    backward_line: int
    loop: ast.For | ast.AsyncFor | ast.While
    patch: str


def loss_sums(file: SourceFile, files: Sequence[SourceFile]) -> Iterator[LossSum]:
    """The sums in a file that are differentiated after several iterations of their loop.

    Args:
        file: file to search.
        files: files of the program, for functions that a loop calls.
    """
    for node in file.nodes():
        added = _added(node)
        if added is None or all(is_plain(term) or "detach" in ast.unparse(term) for term in added[1]):
            continue
        assert isinstance(node, ast.Assign | ast.AugAssign)
        found = _Accumulation.of(file, node, *added)
        # Steps of a recurrent network are not micro-batches: their loss needs the whole graph.
        if found is not None and not found.carries_on():
            function = getattr(found.scope, "name", "<module>")
            patch = found.patch(files)
            yield LossSum(file.file, function, node.lineno, found.backward.lineno, found.loop, patch)


def _added(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    """The variable to which a statement adds something, and the terms."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return ast.unparse(node.target), [node.value]
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.BinOp):
        return None
    name = ast.unparse(node.targets[0])
    terms = list(_terms(node.value))
    rest = [term for term in terms if ast.unparse(term) != name]
    if len(rest) != len(terms) - 1 or not rest:
        return None
    return name, rest


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


@dataclass(frozen=True)
class _Accumulation:
    """A statement that adds a loss, with its context.

    Attributes:
        file: its file.
        name: name of the sum.
        terms: the added terms.
        adds: the statement.
        path: path to it, from the module on.
        scope: its function, or the module.
        backward: statement that differentiates the sum.
        backward_path: path to that statement.
        loop: outermost loop that ends before the backward pass; else the innermost one, in some of whose iterations it
            runs.
    """

    file: SourceFile
    name: str
    terms: Sequence[ast.expr]
    adds: ast.Assign | ast.AugAssign
    path: Sequence[ast.AST]
    scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
    backward: ast.Expr
    backward_path: Sequence[ast.AST]
    loop: ast.For | ast.AsyncFor | ast.While

    @classmethod
    def of(
        cls, file: SourceFile, adds: ast.Assign | ast.AugAssign, name: str, terms: Sequence[ast.expr]
    ) -> _Accumulation | None:
        """``None`` if the sum is differentiated in every iteration, or nowhere visible."""
        path = file.path(adds.lineno)
        if not path or path[-1] is not adds:
            return None
        scope = scope_of(path)
        assert scope is not None
        loops = [node for node in path[path.index(scope) :] if isinstance(node, Loop)]
        passes: list[ast.Expr] = []
        if loops:
            passes = [one for one in ast.walk(scope) if isinstance(one, ast.Expr) and method_of(one.value) in _BACKWARD]
        names: set[str] = set()
        if passes:
            names = _derived(scope, name)
        for node in passes:
            behind = file.path(node.lineno)
            # If a line has several statements, only the last one ends a path.
            if not _reads(node, names) or behind[-1:] != [node]:
                continue
            apart = [loop for loop in loops if loop not in behind]
            if not apart and not _is_at_times(loops[-1], adds, behind):
                continue
            loop = next(iter(apart), loops[-1])
            return cls(file, name, terms, adds, path, scope, node, behind, loop)
        return None

    def patch(self, files: Sequence[SourceFile]) -> str:
        """The diff; "" if the training could change."""
        if not self.name.isidentifier():
            return ""
        differentiated = self._differentiated()
        if differentiated is None or not self._is_sum_alone() or self._changes_more(files):
            return ""
        return self._written(differentiated) or ""

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.scope) for child in ast.iter_child_nodes(node)}

    @cached_property
    def _block(self) -> Sequence[ast.stmt]:
        return _block_of(self.backward_path)

    @property
    def _is_within(self) -> bool:
        """Whether the backward pass is inside the loop, in some of its iterations."""
        return self.loop in self.backward_path

    @cached_property
    def _rescales(self) -> ast.Assign | ast.AugAssign | None:
        """The statement before the backward pass that divides or multiplies the whole sum."""
        for statement in self._block[: self._block.index(self.backward)]:
            if statement is self.adds or not isinstance(statement, ast.Assign | ast.AugAssign):
                continue
            is_target = isinstance(statement, ast.AugAssign) and ast.unparse(statement.target) == self.name
            if is_target or (_reads(statement.value, {self.name}) and not self._is_read(statement.value)):
                return statement
        return None

    def _is_read(self, node: ast.AST) -> bool:
        """Whether a node only reads the sum without its graph."""
        names = [one for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == self.name]
        return all(map(self._is_plain_read, names))

    def _is_plain_read(self, name: ast.Name) -> bool:
        parent = self._parents[name]
        if isinstance(parent, ast.Attribute):
            return parent.attr in _READS
        if isinstance(parent, ast.Call):
            return isinstance(parent.func, ast.Name) and parent.func.id in _SHOWS and name in parent.args
        return isinstance(parent, ast.FormattedValue)

    def _differentiated(self) -> ast.expr | None:
        """The call of the backward pass on the sum itself; ``None`` if it is anything but the sum times a factor."""
        call = self.backward.value
        assert isinstance(call, ast.Call)
        if call.keywords or not isinstance(call.func, ast.Attribute):
            return None
        inner: ast.expr = call.func.value
        if call.args:
            inner = call.args[0]
            if len(call.args) > 1 or _reads(call.func, {self.name}):
                return None
        name = self.name
        value = inner
        rescales = self._rescales
        if rescales is not None:
            name = ast.unparse(_targets(rescales)[0])
            value = rescales.value
            if isinstance(rescales, ast.AugAssign):
                value = ast.BinOp(ast.Name(self.name, ast.Load()), rescales.op, rescales.value)
            if not self._is_scaled(value, self.name):
                return None
        if not self._is_scaled(inner, name):
            return None
        copied = ast.parse(ast.unparse(call), mode="eval").body
        if rescales is not None:
            copied = _Substitution(name, value).visit(copied)
        return copied

    def _is_scaled(self, node: ast.expr, name: str) -> bool:
        """Whether an expression is a variable times something that is the same in every iteration."""
        match node:
            case ast.Name(id=found):
                return found == name
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                sides = (left, right)
                return any(self._is_scaled(a, name) and self._is_fixed(b) for a, b in (sides, sides[::-1]))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self._is_scaled(left, name) and self._is_fixed(right)
            case ast.Call(func=ast.Attribute(attr="scale"), args=[inner], keywords=[]):
                return self._is_scaled(inner, name)
        return False

    def _is_fixed(self, node: ast.expr) -> bool:
        """Whether an expression keeps its value from the loop's beginning until the backward pass."""
        if any(isinstance(inner, ast.Call) and method_of(inner) != "len" for inner in ast.walk(node)):
            return False
        given = set()
        for inner in ast.walk(self.scope):
            if not isinstance(inner, ast.Name | ast.Attribute) or not isinstance(inner.ctx, ast.Store):
                continue
            if inner.lineno >= self.loop.lineno:
                given.add(ast.unparse(inner))
        return not _reads(node, given)

    def _is_sum_alone(self) -> bool:
        """Whether the sum is differentiated once, and otherwise only read as a number that does not affect that."""
        names = {self.name}
        known: list[ast.AST] = [self.adds, self.backward]
        if self._rescales is not None:
            known.append(self._rescales)
            names.add(ast.unparse(_targets(self._rescales)[0]))
        of_known = {inner for node in known for inner in ast.walk(node)}
        numbers: set[str] = set()
        for node in ast.walk(self.scope):
            if isinstance(node, ast.Name) and node.id in names and node not in of_known:
                if isinstance(node.ctx, ast.Load) and not self._is_plain_read(node):
                    return False
                if not isinstance(node.ctx, ast.Load) and self._parents[node] not in self._resets:
                    return False
            if node not in of_known and method_of(node) in DIFFERENTIATES:
                return False
            if isinstance(node, ast.Assign) and node not in known and _reads(node.value, names):
                numbers.update(map(ast.unparse, node.targets))
            if isinstance(node, ast.Global | ast.Nonlocal | ast.Yield | ast.YieldFrom):
                return False
        return not self._is_decided_by(names | numbers) and not any(_reads(term, names) for term in self.terms)

    def _is_decided_by(self, names: set[str]) -> bool:
        """Whether an ``if`` on one of these may skip the backward pass, which would already have run."""
        for node in ast.walk(self.scope):
            if not isinstance(node, ast.If | ast.While) or not _reads(node.test, names):
                continue
            if any(inner is self.backward or isinstance(inner, _LEAVES_ROUND) for inner in ast.walk(node)):
                return True
        return False

    @cached_property
    def _resets(self) -> list[ast.Assign]:
        """Statements that reset the sum."""
        found = []
        for node in ast.walk(self.scope):
            if not isinstance(node, ast.Assign) or list(map(ast.unparse, node.targets)) != [self.name]:
                continue
            is_zero = isinstance(node.value, ast.Constant) and node.value.value in (0, None)
            if is_zero or method_of(node.value) in ("zeros", "tensor"):
                found.append(node)
        return found

    def _changes_more(self, files: Sequence[SourceFile]) -> bool:
        """Whether an iteration changes what the next one differentiates, or may keep part of its graph."""
        functions = [node for file in files for node in file.nodes() if isinstance(node, Function)]
        updating = {
            one.name for one in functions if one is not self.scope and calls_any(one, DIFFERENTIATES | _UPDATES)
        }
        if any(method_of(node) in updating - {"forward"} for node in ast.walk(self.loop)):
            return True
        # A module that keeps a tensor of its own between calls.
        for node in (node for file in files for node in file.nodes() if isinstance(node, ast.ClassDef)):
            methods = [one for one in node.body if isinstance(one, Function)]
            if any(one.name == "forward" for one in methods) and any(map(_keeps_in_self, methods)):
                return True
        return any(self._collected())

    def _collected(self) -> Iterator[str]:
        """Collections from before an iteration that receive something that may have a graph."""
        rebound = self._rebound()
        for node in ast.walk(self.loop):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name = ast.unparse(node.func.value)
            if node.func.attr not in COLLECTS or name in rebound:
                continue
            if not all(is_plain(value) or "detach" in ast.unparse(value) for value in node.args):
                yield name

    def carries_on(self) -> bool:
        """Whether an iteration uses a variable or collection that may have the graph of the previous one."""
        return self._reads_a_variable_again() or self._reads_a_collection()

    def _reads_a_variable_again(self) -> bool:
        inside = list(ast.walk(self.loop))
        rebound = self._rebound()
        for node in inside:
            if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) or node in (self.adds, *self._resets):
                continue
            if node is self._rescales or node.value is None or is_plain(node.value):
                continue
            for name in _names_within(_targets(node)):
                if name.id in rebound and name.id not in _names_read(inside, rebound[name.id]):
                    continue
                # A variable that is never read in the loop carries nothing on.
                if not isinstance(name.ctx, ast.Store) or name.id in _names_read(inside):
                    return True
        return False

    def _reads_a_collection(self) -> bool:
        collected = set(self._collected())
        read: list[ast.expr] = []
        for node in ast.walk(self.loop):
            if isinstance(node, ast.Subscript):
                read.append(node.value)
            elif isinstance(node, ast.Call):
                read += node.args
        return any(ast.unparse(value) in collected for value in read)

    def _rebound(self) -> dict[str, int]:
        """Variables assigned in every iteration, and the line until which they have the previous one's value."""
        found: dict[str, int] = {}
        statements: list[ast.stmt] = [self.loop]
        while statements:
            node = statements.pop(0)
            given: Sequence[ast.AST] = ()
            if isinstance(node, ast.For | ast.AsyncFor):
                given = [node.target]
            elif isinstance(node, ast.Assign):
                given = node.targets
            # A loop variable has its new value before any line of the loop.
            until = 0
            if node is not self.loop:
                until = node.end_lineno or node.lineno
            if isinstance(node, ast.With | ast.For | ast.AsyncFor | ast.While):
                statements += node.body
            for name in _names_within(given):
                if isinstance(name.ctx, ast.Store):
                    found[name.id] = min(until, found.get(name.id, until))
        return found

    def _written(self, differentiated: ast.expr) -> str | None:
        """The diff, if each statement is on its own line and gradients are cleared together with the sum."""
        gradients = self._gradients()
        if gradients is None:
            return None
        moved, inserted = gradients
        between = list(self.path[self.path.index(self.loop) + 1 : -1])
        contexts = [node for node in between if isinstance(node, ast.With)]
        # With autocast around the sum, the backward pass follows it, as torch recommends.
        if between[len(between) - len(contexts) :] != contexts or not all(map(_is_condition_or_autocast, between)):
            return None
        if not all(map(self._is_by_itself, (self.adds, self.backward, *moved, *inserted))):
            return None
        if not [node for node in self._block if node is not self.backward and node not in moved]:
            return None
        part = PART
        first = [f"{PART} = {' + '.join(map(ast.unparse, self.terms))}"]
        if len(self.terms) == 1 and isinstance(self.terms[0], ast.Name) and not contexts:
            part = self.terms[0].id
            first = []
        elif any(PART in line for line in self.file.lines):
            return None
        backward = ast.unparse(_Substitution(self.name, ast.Name(part, ast.Load())).visit(differentiated))
        operator = "+=" if isinstance(self.adds, ast.AugAssign) else f"= {self.name} +"
        added = f"{self.name} {operator} {part}.detach()"
        lines = LineEdits(self.file)
        if contexts:
            lines.replace(self.adds, [*first, added])
            lines.behind(contexts[0], [backward])
        else:
            lines.replace(self.adds, [*first, backward, added])
        for node in (self.backward, *moved):
            lines.replace(node, [])
        for reset, texts in inserted.items():
            lines.before(reset.lineno, texts)
        return lines.patch()

    def _gradients(self) -> tuple[list[ast.Expr], dict[ast.Assign, list[str]]] | None:
        """Statements between the sum and its backward pass that clear gradients, to be removed, and for each place
        that resets the sum the statements that must clear them there; ``None`` if that cannot be determined.
        """
        at = self._block.index(self.backward)
        above = self._block[:at]
        below = self._block[at + 1 :]
        if self._is_within and (self.adds.lineno > self.backward.lineno or not self._is_under_ifs()):
            return None
        if not self._is_within and self.loop not in self._block:
            return None
        clearing = self._clearing(above, below)
        if clearing is None:
            return None
        moved, kept = clearing
        texts = list(dict.fromkeys(map(ast.unparse, (*moved, *kept))))
        if not texts or not self._resets:
            return None
        inserted: dict[ast.Assign, list[str]] = {}
        for reset in self._resets:
            is_below = reset in below
            if not is_below and reset.lineno >= self.loop.lineno:
                return None
            # Iterations left over at the end of an epoch leave gradients behind, as they left a sum.
            if kept and (is_below or not self._is_within):
                continue
            behind = below[below.index(reset) :] if is_below else []
            if any(calls_any(node, {"step"}) for node in behind) or not self._knows(texts, reset):
                return None
            inserted[reset] = texts
        return moved, inserted

    def _clearing(
        self, above: Sequence[ast.stmt], below: Sequence[ast.stmt]
    ) -> tuple[list[ast.Expr], list[ast.Expr]] | None:
        """Statements that clear gradients: those between the sum and its backward pass, and those that may stay;
        ``None`` if there are others, or gradients are used in between.
        """
        first = self.loop.lineno
        last = self.loop.end_lineno or first
        moved: list[ast.Expr] = []
        kept: list[ast.Expr] = []
        for node in ast.walk(self.scope):
            if isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Store):
                return None
            if method_of(node) == "step" and first <= getattr(node, "lineno", 0) <= last and not _is_in(node, below):
                return None
            if method_of(node) != "zero_grad":
                continue
            statement = self._parents[node]
            if not isinstance(statement, ast.Expr):
                return None
            before_loop = not self._is_within and statement in above and statement.lineno < first
            if statement in below or before_loop:
                kept.append(statement)
            elif statement in above:
                moved.append(statement)
            elif first <= statement.lineno <= last or not self._is_within:
                return None
        return moved, kept

    def _is_under_ifs(self) -> bool:
        between = self.backward_path[self.backward_path.index(self.loop) + 1 : -1]
        return bool(between) and all(isinstance(node, ast.If) for node in between)

    def _knows(self, texts: Sequence[str], place: ast.stmt) -> bool:
        """Whether variables read by some statements have a value at a place."""
        read = {node.id for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        given: dict[str, int] = {}
        for node in ast.walk(self.scope):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                given[node.id] = min(node.lineno, given.get(node.id, node.lineno))
        return all(given.get(name, 0) < place.lineno for name in read)

    def _is_by_itself(self, node: ast.stmt) -> bool:
        """Whether no other statement is on its lines."""
        before = self.file.lines[node.lineno - 1].encode()[: node.col_offset].strip()
        after = self.file.lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset or 0 :].strip()
        return not before and (not after or after.startswith(b"#"))


class _Substitution(ast.NodeTransformer):
    """Replaces a variable by an expression."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self._name = name
        self._value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == self._name:
            return self._value
        return node


def _derived(scope: ast.AST, name: str) -> set[str]:
    """The sum, and variables computed from it."""
    names = {name}
    for _ in range(MOST_NAMES):
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and not is_plain(node.value) and _reads(node.value, names):
                names.update(map(ast.unparse, node.targets))
    return names


def _is_at_times(loop: ast.AST, adds: ast.stmt, backward_path: Sequence[ast.AST]) -> bool:
    """Whether a loop's backward pass runs only in some of its iterations."""
    between = backward_path[backward_path.index(loop) + 1 : -1]
    if any(isinstance(node, ast.If) and adds not in ast.walk(node) for node in between):
        return True
    last = getattr(backward_path[-1], "lineno", 0)
    return any(isinstance(node, ast.Continue) and adds.lineno < node.lineno < last for node in ast.walk(loop))


def _block_of(path: Sequence[ast.AST]) -> Sequence[ast.stmt]:
    """The block of statements that contains the last one of a path."""
    blocks: Iterator[Sequence[ast.stmt]] = (getattr(path[-2], name, []) for name in ("body", "orelse", "finalbody"))
    return next((block for block in blocks if path[-1] in block), [])


def _reads(node: ast.AST, names: set[str]) -> bool:
    read = (one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute))
    return any(isinstance(one.ctx, ast.Load) and ast.unparse(one) in names for one in read)


def _is_in(node: ast.AST, statements: Sequence[ast.stmt]) -> bool:
    return any(node is inner for statement in statements for inner in ast.walk(statement))


def _is_condition_or_autocast(node: ast.AST) -> bool:
    """Whether a statement around others only runs them sometimes, several times, or under autocast."""
    if isinstance(node, ast.With):
        return all("autocast" in ast.unparse(item.context_expr) for item in node.items)
    return isinstance(node, ast.If | ast.For)


def _keeps_in_self(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method stores something in its object that may be a tensor."""
    if method.name == "__init__":
        return False
    for node in ast.walk(method):
        if not isinstance(node, ast.Assign | ast.AugAssign) or is_plain(node.value):
            continue
        if any(ast.unparse(target).startswith("self.") for target in _targets(node)):
            return True
    return False


def _targets(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> Sequence[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target]


def _names_within(nodes: Iterable[ast.AST]) -> Iterator[ast.Name]:
    """The variables that stand anywhere in ``nodes``."""
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield part


def _names_read(nodes: Sequence[ast.AST], until: int | None = None) -> set[str]:
    """Variables that some nodes read, or read before a line."""
    read = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return {node.id for node in read if until is None or node.lineno <= until}
