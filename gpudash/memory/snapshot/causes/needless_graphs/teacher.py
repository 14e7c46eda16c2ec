"""The forward pass of a network that is not trained, such as a teacher, keeps its graph for another network's loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from gpudash.memory.allocator.trace import ACTIVATIONS, TEMPORARY
from gpudash.memory.explaining.memory_state import OTHER_TENSORS
from gpudash.memory.frames import Frame, is_own
from gpudash.memory.snapshot.causes.case import Case, Ints, ProgramCause, replayed
from gpudash.memory.snapshot.source_edits import Function, SourceFile, is_without_graph, keyword_of, method_of
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import format_bytes, needed

SHARE_OF_LIVE = 0.2
"""Part of the live bytes that the pass must hold."""

SHARE_OF_MISSING = 0.1
"""The same if it is as much as was missing."""

MOST_ROUNDS = 5
"""How often the program is scanned for values derived from what is trained: from a function to those it calls."""

_READS_PARAMETERS = frozenset({"sum", "zip", "any", "all", "next", "len", "max", "min", "print", "info"})
"""Functions that receive parameters but do not train them."""

_PLACES = frozenset({"device", "dtype", "config"})
"""Attributes of a network that are not differentiable."""

_COPIES = frozenset({"deepcopy", "clone", "detach"})
"""Functions whose result is not trained along with their argument."""


def teacher_with_graph(case: Case) -> ProgramCause | None:
    """A pass of a network whose parameters no optimizer has, on inputs that do not depend on trained ones."""
    held = case.of_category(ACTIVATIONS, TEMPORARY, OTHER_TENSORS)
    trained = None
    for line, lives in case.groups(held, lambda life: _line_that_calls(case, life)).items():
        size = case.bytes_of(lives)
        share = SHARE_OF_LIVE
        if size >= case.found.missing_bytes:
            share = SHARE_OF_MISSING
        if size < share * case.live_bytes:
            continue
        # Read only now: most out-of-memory cases have no such line.
        trained = trained or _Trained([*case.program_files, *case.imported_files])
        call = trained.untrained_call(case.file(line.file), line.line)
        if call is None:
            continue
        place = f"{short(line.file)}:{line.line}"
        text = (
            f"The forward pass of {_chain(call.func)} at {place} keeps its graph, {format_bytes(size)}, and no "
            f"optimizer has its weights: torch.no_grad() is missing."
        )
        return ProgramCause(text, (_remedy(case, line, call, lives, trained),), is_waste=True)
    return None


def _line_that_calls(case: Case, life: int) -> Iterator[Frame]:
    """The program's line that itself called the outermost module, unless a library did."""
    number = int(case.lives.stack[life])
    if number < 0:
        return
    outer: Frame | None = None
    for frame in (Frame(*one) for one in reversed(case.history.device.stacks[number])):
        if "torch/nn/modules/module.py" in frame.file.replace("\\", "/"):
            if outer is not None:
                yield outer
            return
        outer = None
        if is_own(frame):
            outer = frame


class _Trained:
    """The names in a program that hold something trained, or something computed from it.

    A name counts in the whole program: one too many hides a cause, one too few would break a training.

    Args:
        files: files of the program.
    """

    def __init__(self, files: list[SourceFile]) -> None:
        self._nodes = [node for file in files for node in file.nodes()]
        self._names: set[str] = set()
        self._modules = {name for node in self._nodes for name in _imported(node)}
        for node in self._nodes:
            if isinstance(node, ast.Call):
                self._names.update(_given_parameters(node))
        functions = [node for node in self._nodes if isinstance(node, Function)]
        self._functions = {node.name: node for node in functions}
        for _ in range(MOST_ROUNDS if self._names else 0):
            before = len(self._names)
            for node in self._nodes:
                self._follow(node)
            if len(self._names) == before:
                break

    def reads(self, node: ast.AST, *, but: ast.AST | None = None) -> bool:
        """Whether an expression or a statement reads anything trained, except in the part ``but``."""
        return any(map(self._is_trained, _chains(node, but)))

    def untrained_call(self, file: SourceFile, line: int) -> ast.Call | None:
        """The outermost call in a line's statement through which nothing trained is differentiated."""
        path = file.path(line)
        statement = file.simple_statement(line)
        if statement is None or not self._names:
            return None
        # Without a graph, its tensors are kept for another reason.
        if is_without_graph(path):
            return None
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call) or method_of(call) in self._functions or not _chain(call.func):
                continue
            # A function of torch, as for random numbers, is not a network.
            if _chain(call.func).partition(".")[0] in self._modules:
                continue
            inputs = [*call.args, *(keyword.value for keyword in call.keywords)]
            is_read = any(self.reads(value) or self._is_differentiated(value) for value in inputs)
            is_untrained = inputs and not is_read and not self._is_trained(_chain(call.func))
            if is_untrained and self._meets_trained(statement, call):
                return call
        return None

    def _meets_trained(self, statement: ast.stmt, call: ast.Call) -> bool:
        """Whether a call's result is combined with something trained: otherwise the result itself is differentiated,
        and the optimizer has its parameters under another name.
        """
        if self.reads(statement, but=call):
            return True
        if not isinstance(statement, ast.Assign):
            return False
        given = _given(statement)
        for _ in range(MOST_ROUNDS):
            for node in self._nodes:
                if not isinstance(node, ast.Assign | ast.AugAssign | ast.Call) or not _reads_of(node, given):
                    continue
                if method_of(node) not in _READS_PARAMETERS and self.reads(node):
                    return True
                if isinstance(node, ast.Assign):
                    given |= _given(node)
        return False

    def _follow(self, node: ast.AST) -> None:
        """Record the names that receive something trained."""
        if isinstance(node, ast.Assign) and _chain(node.value):
            given = _given(node)
            # For a network of which a part is trained under a name of its own.
            if given & self._names:
                self._names.add(_chain(node.value))
        if isinstance(node, ast.Assign) and not _makes_another(node.value) and self.reads(node.value):
            self._names |= _given(node)
        elif isinstance(node, ast.For) and self.reads(node.iter):
            self._names.update(_targets(node.target))
        elif isinstance(node, ast.Call) and method_of(node) in self._functions:
            taken = self._functions[method_of(node)].args.args
            if taken and taken[0].arg == "self":
                taken = taken[1:]
            for parameter, value in zip(taken, node.args, strict=False):
                if self.reads(value):
                    self._names.add(parameter.arg)
            self._names.update(one.arg for one in node.keywords if one.arg and self.reads(one.value))

    def _is_trained(self, chain: str) -> bool:
        parts = chain.split(".")
        starts = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        return bool(starts & self._names) or any(name.startswith(f"{chain}.") for name in self._names)

    def _is_differentiated(self, value: ast.expr) -> bool:
        """Whether gradients of an input itself are needed, as for an adversarial image."""
        names = set(_chains(value))
        for node in self._nodes:
            target: ast.AST | None = None
            if method_of(node) == "requires_grad_" and isinstance(node, ast.Call):
                assert isinstance(node.func, ast.Attribute | ast.Name)
                target = getattr(node.func, "value", None)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                if node.targets[0].attr == "requires_grad":
                    target = node.targets[0].value
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                wanted = keyword_of(node.value, "requires_grad")
                if isinstance(wanted, ast.Constant) and wanted.value is True:
                    target = node.targets[0]
            if target is not None and _chain(target) in names:
                return True
        return False


def _imported(node: ast.AST) -> Iterator[str]:
    """Names of modules that a statement imports, and of what it imports from torch."""
    if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("torch"):
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        for one in node.names:
            yield one.asname or one.name.partition(".")[0]


def _given_parameters(call: ast.Call) -> Iterator[str]:
    """The networks whose parameters a call receives, and other variables passed to an optimizer."""
    if method_of(call) in _READS_PARAMETERS:
        return
    is_trainer = method_of(call).endswith("Trainer")
    for value in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for node in ast.walk(value):
            if method_of(node) in ("parameters", "named_parameters"):
                assert isinstance(node, ast.Call)
                yield _chain(node.func).rpartition(".")[0]
    if is_trainer:
        # A library's trainer passes the network on under this name.
        yield "model"
        for model in filter(None, [*call.args[:1], keyword_of(call, "model")]):
            yield from _chains(model)
    # torch's optimizers are in a module of this name, and accept lists of tensors too.
    if "optim" in ast.unparse(call.func) and call.args:
        yield from _chains(call.args[0])


def _makes_another(value: ast.expr) -> bool:
    """Whether an expression turns something trained into something else: a copy, or an optimizer of its parameters."""
    return method_of(value) in _COPIES or (isinstance(value, ast.Call) and any(_given_parameters(value)))


def _reads_of(node: ast.AST, names: set[str]) -> bool:
    """Whether a node reads any of some names, or their attributes."""
    return any(chain in names or chain.partition(".")[0] in names for chain in _chains(node))


def _chains(node: ast.AST, but: ast.AST | None = None) -> Iterator[str]:
    """Names and dotted names in a node, each in full, without those in ``but``."""
    if node is but:
        return
    chain = _chain(node)
    if chain:
        if chain.rpartition(".")[2] not in _PLACES:
            yield chain
        return
    for inner in ast.iter_child_nodes(node):
        yield from _chains(inner, but)


def _chain(node: ast.AST) -> str:
    """A dotted name as it is written; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _chain(node.value)
        if before:
            return f"{before}.{node.attr}"
    return ""


def _given(node: ast.Assign) -> set[str]:
    """The names that an assignment gives something to."""
    return {name for target in node.targets for name in _targets(target)}


def _targets(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            yield from _targets(part)
        return
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    if _chain(node):
        yield _chain(node)


def _remedy(case: Case, line: Frame, call: ast.Call, lives: Ints, trained: _Trained) -> Remedy:
    """The pass under ``no_grad``, replayed if the request came after it."""
    file = case.file(line.file)
    place = f"{short(line.file)}:{line.line}"
    patch = ""
    if file.imports("torch"):
        patch = _patch(file, line.line, call, trained)
    text = f"{place}: {_chain(call.func)} under torch.no_grad(): up to {needed(case.bytes_of(lives))} less"
    text += " at this moment"
    ordered = lives[np.argsort(case.lives.born[lives])]
    # In the middle of the pass, it is unknown which of its tensors would be freed.
    if line in case.refused_frames or len(ordered) < 2:
        return Remedy(text, patch=patch)
    # Without a graph, only the result of a pass remains.
    end = int(case.lives.born[ordered[-1]]) + 1
    ran = case.freed_sooner(dict.fromkeys(ordered[:-1].tolist(), end))
    return replayed(text, ran, patch)


def _patch(file: SourceFile, line: int, call: ast.Call, trained: _Trained) -> str:
    """The diff that puts a call under ``no_grad``: its whole statement, or the call on a line before it."""
    statement = file.statement(line)
    assert statement is not None
    header = "with torch.no_grad():"
    if not trained.reads(statement, but=call):
        changed = file.indented([statement], header)
        if changed is None:
            return ""
        return file.patch(changed)
    name = f"of_{_chain(call.func).rpartition('.')[2]}"
    replaced = file.replaced(call, name)
    is_one_line = statement.lineno == call.lineno == statement.end_lineno
    if replaced is None or not is_one_line or any(name in text for text in file.lines):
        return ""
    indent = file.indent(statement.lineno)
    before = (f"{indent}{header}", f"{indent}    {name} = {ast.unparse(call)}")
    return file.patch({statement.lineno: (*before, replaced[1])})
