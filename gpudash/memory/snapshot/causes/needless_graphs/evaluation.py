"""Forward passes whose graph is kept although no backward pass uses it: an evaluation without ``no_grad``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeGuard

import numpy as np

from gpudash.memory.allocator.trace import ACTIVATIONS, INPUTS, TEMPORARY
from gpudash.memory.explaining.memory_state import OTHER_TENSORS
from gpudash.memory.frames import Frame, is_installed, is_library
from gpudash.memory.snapshot.causes.activations import halved
from gpudash.memory.snapshot.causes.batch_size import batch_sizes
from gpudash.memory.snapshot.causes.case import Case, Ints, ProgramCause, replayed
from gpudash.memory.snapshot.leak_edits import keepers
from gpudash.memory.snapshot.source_edits import (
    COLLECTS,
    Function,
    LineEdits,
    Loop,
    calls_any,
    is_without_graph,
    loop_of,
    method_of,
    names_in,
    scope_of,
)
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import format_bytes, needed

SHARE_OF_LIVE = 0.3
"""Part of the live bytes that such passes must hold."""

FEWEST_PASSES = 3

DIFFERENTIATES = frozenset({"backward", "grad", "manual_backward", "vjp", "jvp", "functional_call"})
"""Methods that mark a nearby forward pass as part of training."""


def evaluation_with_graph(case: Case) -> ProgramCause | None:
    """Passes of a model at one line of the program, none of which is followed by a backward pass."""
    held = case.of_category(ACTIVATIONS, TEMPORARY, OTHER_TENSORS)
    held = held[case.through("torch/nn/modules/module.py", "_call_impl")[held]]
    if case.bytes_of(held) < SHARE_OF_LIVE * case.live_bytes:
        return None
    lines = case.largest_groups(held, lambda life: _call_of_model(case, life))
    if not lines:
        return None
    line, lives = lines[0]
    size = case.bytes_of(lives)
    if size < SHARE_OF_LIVE * case.live_bytes or _trains(case, lives[0], line):
        return None
    passes = _passes(case, line, lives)
    # A single pass may be too large without its graph as well.
    batches = []
    if len(passes) < FEWEST_PASSES:
        batches = batch_sizes(case, evaluates=True)
    smaller = [remedy for batch in batches if batch.is_named for remedy in halved(case, batch)]
    remedies = (*_remedies(case, line, lives, passes), *smaller)
    return ProgramCause(_text(line, len(passes), size), remedies, is_waste=len(passes) >= FEWEST_PASSES)


def _call_of_model(case: Case, life: int) -> Iterator[Frame]:
    """The program's line that called a model, unless a library used by the program did."""
    stack = case.history.device.stacks[int(case.lives.stack[life])]
    # From the outside in: the program's last own line before the first module's call.
    outermost = None
    for frame in (Frame(*one) for one in reversed(stack)):
        if frame.name == "_call_impl" and "torch/nn/modules/module.py" in frame.file.replace("\\", "/"):
            if outermost is not None:
                yield outermost
            return
        if outermost is not None and is_installed(frame) and not is_library(frame):
            return
        if frame in case.own_frames[int(case.lives.stack[life])]:
            outermost = frame


def _trains(case: Case, life: int, line: Frame) -> bool:
    """Whether the result of a pass reaches a backward pass, as far as the lines that led to it show; or it has no
    graph anyway.
    """
    frames = case.frames(life)
    outer = frames[frames.index(line) :]
    flow = Flow(DIFFERENTIATES | _differentiating(case))
    # Outwards from the call: a caller may differentiate what the evaluating function returns.
    for frame in outer:
        path = case.file(frame.file).path(frame.line)
        # Without a graph, its tensors were kept for another reason, and no_grad would not help.
        if is_without_graph(path):
            return True
        if path and flow.differentiates(path):
            return True
    return not any(case.file(frame.file).path(frame.line) for frame in outer)


class Flow:
    """Data flow of a statement's values, by the names that hold them, in the order of execution.

    Args:
        differentiates: functions and methods that run a backward pass on their arguments.
    """

    def __init__(self, differentiates: frozenset[str] = DIFFERENTIATES) -> None:
        self._by = differentiates
        self._names: set[str] = set()
        self._given: set[str] = set()

    def differentiates(self, path: Sequence[ast.AST]) -> bool:
        """Whether a value of a path's last statement reaches a backward pass within its function.

        Attributes that hold such a value keep it for the next path, the one in the function's caller.
        """
        statement = path[-1]
        assert isinstance(statement, ast.stmt)
        # Local names end with their function; an attribute of an object outlives it.
        self._names = {name for name in self._names if "." in name} | _bound(statement)
        scope = max(place for place, node in enumerate(path[:-1]) if isinstance(node, Function | ast.Module))
        inner = path[scope]
        if isinstance(inner, Function):
            self._given = {argument.arg for argument in inner.args.args}
        else:
            self._given = set()
        if calls_any(statement, DIFFERENTIATES):
            return True
        # From the innermost loop out to the function: each time, the statements that may run after the inner ones.
        for place in range(len(path) - 2, scope - 1, -1):
            around, inside = path[place], path[place + 1]
            if not isinstance(around, Loop) and place > scope:
                continue
            simple = [node for node in ast.walk(around) if _is_simple(node) and not _is_within(inside, node)]
            simple = [node for node in simple if isinstance(around, Loop) or not _is_in_function(around, node)]
            simple.sort(key=lambda node: (node.lineno, node.col_offset))
            begin = int(getattr(inside, "lineno", 0))
            behind = [node for node in simple if node.lineno > begin]
            # A loop returns to the statements before.
            before = []
            if isinstance(around, Loop):
                before = [node for node in simple if node.lineno <= begin]
            if any(map(self._passes_on, (*behind, *before))):
                return True
        return False

    def _passes_on(self, node: ast.stmt) -> bool:
        """Whether a statement differentiates a value; if not, its results are followed."""
        if any(method_of(inner) in self._by and names_in(inner) & self._names for inner in ast.walk(node)):
            return True
        if isinstance(node, ast.Expr) and names_in(node) & self._names and _bound(node) & self._given:
            return True  # it is added to the caller's list, which is not followed
        if isinstance(node, Loop):
            if not isinstance(node, ast.While):
                reassigned = names_in(node.target)
            else:
                reassigned = set()
            self._names -= reassigned
        # Follow what is computed from a value; a name that is reassigned is no longer followed.
        elif names_in(node.value if isinstance(node, ast.Assign) else node) & self._names:
            self._names |= _bound(node)
        elif isinstance(node, ast.Assign):
            self._names -= _bound(node)
        return False


def _is_simple(node: ast.AST) -> TypeGuard[ast.stmt]:
    """Whether a node is a statement that contains no others, or the head of a loop."""
    return isinstance(node, ast.stmt) and (not hasattr(node, "body") or isinstance(node, Loop))


def _is_within(around: ast.AST, node: ast.stmt) -> bool:
    first = int(getattr(around, "lineno", 0))
    last = int(getattr(around, "end_lineno", None) or 0)
    return first <= node.lineno <= last


def _is_in_function(around: ast.AST, node: ast.stmt) -> bool:
    functions = [inner for inner in ast.walk(around) if isinstance(inner, Function) and inner is not around]
    return any(_is_within(function, node) for function in functions)


def _bound(node: ast.AST) -> set[str]:
    """Names to which a statement assigns a value, or that collect one."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign(targets=found):
            targets = list(found)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr=method))) if method in COLLECTS:
            targets = [target]
    parts: list[ast.expr] = []
    for target in targets:
        if isinstance(target, ast.Tuple):
            parts += target.elts
        else:
            parts.append(target)
    names = set()
    for part in parts:
        # An element of a list, or a starred target, counts as all of it.
        if isinstance(part, ast.Subscript | ast.Starred):
            part = part.value
        names.add(ast.unparse(part))
    return names


def _differentiating(case: Case) -> frozenset[str]:
    """Functions of the program that run a backward pass themselves."""
    found = set()
    for file in (*case.program_files, *case.imported_files):
        for node in file.nodes():
            # A function called forward would make every module call a backward pass.
            if isinstance(node, Function) and node.name != "forward" and calls_any(node, DIFFERENTIATES):
                found.add(node.name)
    return frozenset(found)


def _passes(case: Case, line: Frame, lives: Ints) -> list[Ints]:
    """Blocks of a line's passes by pass, in order of time.

    Equal layers of a model ask alike several times in a pass. What the program allocates between two passes, such as
    their inputs, tells them apart; without that, the stack that comes back least often, such as that of the result.
    """
    ordered = lives[np.argsort(case.lives.born[lives])]
    of_pass = case.through("torch/nn/modules/module.py", "_call_impl") & case.with_frames([line[:2]])
    # Not what another thread allocates meanwhile, such as one that loads batches.
    of_function = [any(frame[0::2] == line[0::2] for frame in frames) for frames in case.own_frames]
    in_function = np.array([*of_function, False], bool)[case.lives.stack]
    outside = np.sort(case.lives.born[in_function & ~of_pass])
    between = np.searchsorted(outside, case.lives.born[ordered])
    begins = np.flatnonzero(np.diff(between)) + 1
    if not len(begins):
        stack = case.lives.stack[ordered]
        number, count = np.unique(stack, return_counts=True)
        again = count > 1
        if not again.any():
            return [ordered]
        rarest = number[again][np.argmin(count[again])]
        begins = np.flatnonzero(stack[:-1] == rarest) + 1
    return np.split(ordered, begins)


def _without_inputs(case: Case, line: Frame, passes: Sequence[Ints]) -> dict[int, int]:
    """When the inputs of a line's passes that only their graph keeps would be freed, as `Case.freed_sooner` takes it.

    Those that the line itself makes, before its first pass, are freed before it makes others; what it only makes later
    is of results. Those that other statements of its loop assign are freed when these have run again.
    """
    born = case.lives.born
    file = case.file(line.file)
    loop = loop_of(file.path(line.line))
    begins = np.array([born[one].min() for one in passes], np.int64)
    ends = {}
    others = np.setdiff1d(case.of_category(OTHER_TENSORS, INPUTS), np.concatenate(passes))
    for frame, made in case.groups(others, case.innermost).items():
        is_assigned = frame != line
        if frame[0::2] != line[0::2] or (is_assigned and not _is_passed_on(case, frame, loop)):
            continue
        kind = np.stack((case.lives.stack[made], case.lives.requested[made]))
        made_before = kind[:, born[made] < begins[0]]
        inputs = made[(kind[:, :, None] == made_before[:, None, :]).all(axis=0).any(axis=1)]
        inputs = inputs[np.argsort(born[inputs])]
        of_pass = np.searchsorted(begins, born[inputs])
        for now, then in pairwise(np.split(inputs, np.flatnonzero(np.diff(of_pass)) + 1)):
            event = int(born[then[0]])
            if is_assigned:
                event = int(born[then[-1]]) + 1
            ends.update(dict.fromkeys(now.tolist(), event))
    return ends


def _is_passed_on(case: Case, frame: Frame, loop: Loop | None) -> bool:
    """Whether the line of a frame assigns variables in a loop, and nothing else keeps what it assigns."""
    file = case.file(frame.file)
    if loop is None or loop_of(file.path(frame.line)) is not loop:
        return False
    statement = file.simple_statement(frame.line)
    if not isinstance(statement, ast.Assign):
        return False
    if any(isinstance(part, ast.Subscript) for target in statement.targets for part in ast.walk(target)):
        return False
    place = frame[:2]
    return all(keeper.made != place for keeper in keepers([place], case.source))


def _text(line: Frame, passes: int, size: int) -> str:
    place = f"{short(line.file)}:{line.line}"
    if passes < FEWEST_PASSES:
        return f"The forward pass at {place} keeps {format_bytes(size)} for a backward pass that never comes."
    return (
        f"{passes} forward passes at {place} keep their graph, {format_bytes(size)} in all, and no backward pass uses "
        "it: torch.no_grad() is missing."
    )


def _remedies(case: Case, line: Frame, lives: Ints, passes: list[Ints]) -> list[Remedy]:
    write, patch = _edit(case, line)
    place = f"{short(line.file)}:{line.line}"
    if len(passes) < FEWEST_PASSES:
        text = f"{place}: {write}: up to {needed(case.bytes_of(lives))} less at this moment"
        return [Remedy(text, patch=patch)]
    # Without a graph, all of a pass but its last block, the result, would be freed once that is made.
    ends = _without_inputs(case, line, passes)
    for one in passes[:-1]:
        ends.update(dict.fromkeys(one[:-1].tolist(), int(case.lives.born[one[-1]]) + 1))
    ran = case.freed_sooner(ends)
    text = f"{place}: {write}"
    return [replayed(text, ran, patch)]


def _edit(case: Case, line: Frame) -> tuple[str, str]:
    """The text to write, and its diff: around the evaluating function, else the loop or the statement."""
    file = case.file(line.file)
    text = "no_grad() of torch"
    if file.imports("torch"):
        text = "torch.no_grad()"
    path = file.path(line.line)
    scope = scope_of(path[:-1])
    if isinstance(scope, Function) and scope.name != "forward" and not calls_any(scope, DIFFERENTIATES):
        first = min([scope.lineno, *(mark.lineno for mark in scope.decorator_list)])
        patch = ""
        if file.imports("torch"):
            edits = LineEdits(file)
            edits.before(first, ["@torch.no_grad()"])
            patch = edits.patch()
        return f"evaluate under {text}: put @torch.no_grad() above def {scope.name}", patch
    # The outermost loop that does not train.
    what = "line"
    around = path[-1]
    for node in path:
        if isinstance(node, Loop) and not calls_any(node, DIFFERENTIATES):
            what = "loop"
            around = node
            break
    assert isinstance(around, ast.stmt)
    changed = None
    if file.imports("torch"):
        changed = file.indented([around], "with torch.no_grad():")
    patch = ""
    if changed is not None:
        patch = file.patch(changed)
    return f"put this {what} into with {text}", patch
