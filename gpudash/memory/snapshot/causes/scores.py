"""Attention that is written out creates all of its scores together."""

from __future__ import annotations

import ast

import numpy as np

from gpudash.memory.snapshot.causes.case import Case, ProgramCause, replayed
from gpudash.memory.snapshot.source_edits import SourceFile, lines_of, method_of, scope_of
from gpudash.telemetry.explanation import short
from gpudash.units import format_bytes


def scores_of_attention(case: Case) -> ProgramCause | None:
    """``scores = query @ key.transpose(-2, -1) …`` and ``softmax(scores, -1) @ value``, which a fused kernel
    replaces."""
    for frame in case.refused_frames[:1]:
        file = case.file(frame.file)
        scope = scope_of(file.path(frame.line)[:-1])
        if scope is None:
            continue
        for node in ast.walk(scope):
            found = _scores(node)
            if found is None or not isinstance(node, ast.Assign):
                continue
            use = _weighted(scope, node, found)
            if use is None:
                continue
            # The failed request may be the product's, the mask's, the softmax's or the weighted sum's.
            lines = range(node.lineno, (use.end_lineno or use.lineno) + 1)
            if frame.line not in lines:
                continue
            size = case.found.requested_bytes or 0
            place = f"{short(file.file)}:{node.lineno}"
            text = f"Attention at {place} makes all of its scores at once: {format_bytes(size)} were asked for."
            label = f"{place}: torch.nn.functional.scaled_dot_product_attention, which makes them piece by piece"
            patch = ""
            if file.imports("torch"):
                patch = _patched(file, node, use, found)
            written = np.flatnonzero(case.with_frames([(file.file, line) for line in lines]))
            return ProgramCause(text, (replayed(label, case.resized(written, 0, request=True), patch),))
    return None


def _scores(node: ast.AST) -> tuple[str, ast.expr, ast.expr, str] | None:
    """For a statement that computes scores: their name, the query, the key and the scale."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return None
    value = node.value
    # scaled_dot_product_attention divides by the root of the width unless it gets a scale.
    scale = "1.0"
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div):
        factor = ast.unparse(value.right)
        scale = factor
        if isinstance(value.op, ast.Div):
            scale = f"1 / ({factor})"
        if isinstance(value.right, ast.Constant):
            scale = scale.replace("(", "").replace(")", "")
        value = value.left
    left, right = _product(value)
    if left is None or right is None or method_of(right) not in ("transpose", "mT"):
        return None
    assert isinstance(right, ast.Call) and isinstance(right.func, ast.Attribute)
    if sorted(map(ast.unparse, right.args)) != ["-1", "-2"]:
        return None
    return node.targets[0].id, left, right.func.value, scale


def _product(value: ast.expr) -> tuple[ast.expr | None, ast.expr | None]:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult):
        return value.left, value.right
    if method_of(value) in ("matmul", "bmm") and isinstance(value, ast.Call) and len(value.args) == 2:
        return value.args[0], value.args[1]
    return None, None


def _weighted(scope: ast.AST, scores: ast.AST, found: tuple[str, ast.expr, ast.expr, str]) -> ast.stmt | None:
    """The statement that computes the result from the scores; ``None`` if they are also read elsewhere."""
    name = found[0]
    readers: list[ast.Assign | ast.Return] = []
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign | ast.Return) or node is scores or node.value is None:
            continue
        names = [part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)]
        if name in names:
            readers.append(node)
    if len(readers) != 1 or readers[0].value is None:
        return None
    left, right = _product(readers[0].value)
    is_softmax = isinstance(left, ast.Call) and method_of(left) == "softmax" and right is not None
    if is_softmax and readers[0].end_lineno == readers[0].lineno:
        return readers[0]
    return None


def _patched(file: SourceFile, scores: ast.AST, use: ast.stmt, found: tuple[str, ast.expr, ast.expr, str]) -> str:
    _name, query, key, scale = found
    assert isinstance(use, ast.Assign | ast.Return) and use.value is not None and isinstance(scores, ast.stmt)
    value = _product(use.value)[1]
    assert value is not None
    operands = ", ".join(map(ast.unparse, (query, key, value)))
    call = f"torch.nn.functional.scaled_dot_product_attention({operands}, scale={scale})"
    changed = file.replaced(use.value, call)
    if changed is None:
        return ""
    return file.patch({**dict.fromkeys(lines_of(scores), ()), changed[0]: (changed[1],)})
