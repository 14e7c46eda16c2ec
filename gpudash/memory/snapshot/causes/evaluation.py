"""Forward passes that keep their graph although no backward pass ever uses it: an evaluation without ``no_grad``."""

from __future__ import annotations

import ast
from itertools import pairwise

import numpy as np

from gpudash.memory.allocator.trace import ACTIVATIONS, TEMPORARY
from gpudash.memory.explaining.memory_state import OTHER_TENSORS
from gpudash.memory.explaining.wording import needed
from gpudash.memory.frames import Frame, is_installed, is_library
from gpudash.memory.snapshot.causes.case import BY_REPLAY, Case, Ints, ProgramCause
from gpudash.memory.snapshot.source_edits import Function, Loop, SourceFile
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import format_beside, format_bytes

SHARE_OF_LIVE = 0.3
"""Part of the live bytes that such passes must hold."""

FEWEST_PASSES = 3

DIFFERENTIATES = frozenset({"backward", "grad", "manual_backward", "vjp", "jvp", "functional_call"})
"""Methods in whose neighbourhood a forward pass is one of a training."""

_WITHOUT_GRAPH = ("no_grad", "inference_mode")


def evaluation_with_graph(case: Case) -> ProgramCause | None:
    """Passes of a model at one line of the program, none of which is followed by a backward pass there."""
    held = case.of_category(ACTIVATIONS, TEMPORARY, OTHER_TENSORS)
    held = held[_in_modules(case)[held]]
    if case.bytes_of(held) < SHARE_OF_LIVE * case.live_bytes:
        return None
    lines: dict[Frame, list[int]] = {}
    for life in held.tolist():
        call = _call_of_model(case, life)
        if call is not None:
            lines.setdefault(call, []).append(life)
    if not lines:
        return None
    line, found = max(lines.items(), key=lambda item: case.bytes_of(np.array(item[1], np.int64)))
    lives = np.array(found, np.int64)
    size = case.bytes_of(lives)
    if size < SHARE_OF_LIVE * case.live_bytes or _trains(case, lives[0], line):
        return None
    passes = _passes(case, lives)
    if len(passes) < FEWEST_PASSES and not _ends_with(case, line):
        return None
    return ProgramCause(_text(line, len(passes), size), tuple(_remedies(case, line, lives, passes)))


def _in_modules(case: Case) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return case.through("torch/nn/modules/module.py", "_call_impl")


def _call_of_model(case: Case, life: int) -> Frame | None:
    """The program's line that called a model, unless a library that it uses did."""
    stack = case.history.device.stacks[int(case.lives.stack[life])]
    outermost = None
    for frame in (Frame(*one) for one in reversed(stack)):
        if frame.name == "_call_impl" and "torch/nn/modules/module.py" in frame.file.replace("\\", "/"):
            return outermost
        if outermost is not None and is_installed(frame) and not is_library(frame):
            return None
        if frame in case.own_frames[int(case.lives.stack[life])]:
            outermost = frame
    return None


def _trains(case: Case, life: int, line: Frame) -> bool:
    """Whether a line that led to a pass has a backward pass after it, or in its loop; or keeps no graph anyway."""
    frames = case.frames(life)
    outer = frames[frames.index(line) :]
    return any(_differentiates(case.file(frame.file), frame.line) for frame in outer) or not any(
        case.file(frame.file).path(frame.line) for frame in outer
    )


def _differentiates(file: SourceFile, line: int) -> bool:
    path = file.path(line)
    if not path:
        return False
    if any("no_grad" in text or "inference_mode" in text for text in _contexts(path)):
        return True
    scope = next(node for node in reversed(path[:-1]) if isinstance(node, Function | ast.Module))
    loops: list[ast.AST] = [node for node in path[path.index(scope) :] if isinstance(node, Loop)]
    nodes = loops[:1] or [node for node in ast.iter_child_nodes(scope) if _is_behind(node, line)]
    return any(_calls_one(node, DIFFERENTIATES) for node in nodes)


def _is_behind(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.stmt) and (node.end_lineno or 0) >= line and not isinstance(node, Function)


def _contexts(path: list[ast.AST]) -> list[str]:
    found = [ast.unparse(item.context_expr) for node in path if isinstance(node, ast.With) for item in node.items]
    return found + [ast.unparse(mark) for node in path if isinstance(node, Function) for mark in node.decorator_list]


def _calls_one(node: ast.AST, names: frozenset[str]) -> bool:
    return any(
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in names
        for inner in ast.walk(node)
    )


def _passes(case: Case, lives: Ints) -> list[Ints]:
    """The blocks of each pass: the request that begins the first one begins each."""
    ordered = lives[np.argsort(case.lives.born[lives])]
    kinds = list(zip(case.lives.stack[ordered].tolist(), case.lives.requested[ordered].tolist(), strict=True))
    begins = [place for place, kind in enumerate(kinds) if kind == kinds[0]]
    if len(begins) > 1:
        # where one line runs several times in a pass, as in a loop over layers, the widest gap between them is the pass
        return [ordered[begin:end] for begin, end in zip(begins, [*begins[1:], len(ordered)], strict=True)]
    return [ordered]


def _ends_with(case: Case, line: Frame) -> bool:
    """Whether nothing of the file differentiates at all: then a single pass need not keep its graph either."""
    file = case.file(line.file)
    return file.module is not None and not _calls_one(file.module, DIFFERENTIATES | {"step", "fit", "train"})


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
    before = case.live_bytes
    if len(passes) < FEWEST_PASSES:
        words = f"{place}: {write}: up to {needed(case.bytes_of(lives))} less at this moment"
        return [Remedy(words, patch=patch)]
    ends = {}
    for now, then in pairwise(passes):
        begin = int(case.lives.born[then[0]])
        ends.update(dict.fromkeys(now[:-1].tolist(), begin))  # the last of them is what the pass gives
    ran = case.freed_sooner(ends)
    if not ran.fits:
        return [Remedy(f"{place}: {write}", patch=patch)]
    peak = format_beside(ran.peak_reserved, before)
    words = f"{place}: {write}: {peak} at the peak"
    return [Remedy(words, predicted_peak_bytes=ran.peak_reserved, verified_by=BY_REPLAY, patch=patch)]


def _edit(case: Case, line: Frame) -> tuple[str, str]:
    """What to write, and the diff for it: over the function that evaluates, else around the loop or the statement."""
    file = case.file(line.file)
    words = "torch.no_grad()" if file.imports("torch") else "no_grad() of torch"
    path = file.path(line.line)
    scope = next((node for node in reversed(path[:-1]) if isinstance(node, Function | ast.Module)), None)
    if isinstance(scope, Function) and scope.name != "forward" and not _calls_one(scope, DIFFERENTIATES):
        first = min([scope.lineno, *(mark.lineno for mark in scope.decorator_list)])
        added = (f"{file.indent(first)}@torch.no_grad()", file.lines[first - 1])
        patch = file.patch({first: added}) if file.imports("torch") else ""
        return f"evaluate under {words}: put @torch.no_grad() above def {scope.name}", patch
    loop = next((node for node in path if isinstance(node, Loop)), None)
    around = loop if loop is not None else path[-1]
    assert isinstance(around, ast.stmt)
    changed = file.indented([around], "with torch.no_grad():") if file.imports("torch") else None
    what = "loop" if loop is not None else "line"
    return f"put this {what} under with {words}:", "" if changed is None else file.patch(changed)
