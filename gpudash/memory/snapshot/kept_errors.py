"""Exceptions that a program keeps, whose tracebacks hold tensors, and what it could keep instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gpudash.memory.snapshot.source_edits import COLLECTS, EMPTIES, SourceFile, method_of, names_in

SETS = frozenset({"put_nowait", "set_exception", "setdefault"})
"""Methods besides those of collections with which an object receives an exception for good."""

OF_COLLECTIONS = COLLECTS | EMPTIES | SETS | {"items", "keys", "values"}
"""Methods of what holds exceptions."""


def errors_kept(handler: ast.ExceptHandler) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Statements of a handler with which its exception outlives it, each with the expression that holds it.

    The traceback of an exception refers to the variables of all functions that it left.
    """
    for node in ast.walk(handler):
        held: Sequence[ast.expr] = ()
        match node:
            case ast.Assign(value=value) | ast.AugAssign(value=value):
                held = [value]
            case ast.AnnAssign(value=ast.expr() as value) | ast.Return(value=ast.expr() as value):
                held = [value]
            case ast.Expr(value=ast.Call() as call) if method_of(call) in COLLECTS | SETS:
                held = [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(node, ast.stmt):
            yield from ((node, error) for value in held for error in _errors_in(value, handler.name))


def _errors_in(value: ast.expr, name: str | None) -> Iterator[ast.expr]:
    """Parts of an expression that are an exception or its traceback, and that the expression's value refers to.

    Args:
        value: the expression.
        name: variable of the exception.
    """
    match value:
        case ast.Name(id=found) | ast.Attribute(value=ast.Name(id=found), attr="__traceback__") if found == name:
            yield value
        case ast.Call() if method_of(value) == "exc_info":
            yield value
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
            for part in parts:
                yield from _errors_in(part, name)
        case ast.Subscript(value=inner, slice=part) if method_of(inner) == "exc_info":
            if not (isinstance(part, ast.Constant) and part.value == 0):
                yield value
        # Other functions, such as str(), make something of an exception that does not refer to it.
        case ast.Call() if method_of(value)[:1].isupper() or method_of(value) in ("dict", "list", "tuple"):
            for part in (*value.args, *(keyword.value for keyword in value.keywords)):
                yield from _errors_in(part, name)


def without_traceback(
    file: SourceFile, statement: ast.stmt, error: ast.expr, program: Sequence[SourceFile]
) -> tuple[str, str]:
    """What to keep in place of an exception or its traceback, and the diff; "" if that would not run.

    Args:
        file: the file of the statement.
        statement, error: as found by `errors_kept`.
        program: the program's files.
    """
    is_needed = isinstance(statement, ast.Return) or _needs_exception(file, statement)
    if not isinstance(error, ast.Name):
        patch = ""
        if file.imports("traceback") and not is_needed:
            patch = file.patch_of(error, "traceback.format_exc()")
        return "traceback.format_exc()", patch
    instead = f"str({error.id})"
    if is_needed:
        instead = f"{error.id}.with_traceback(None)"
    if is_needed and any(map(_raises_another, program)):
        # Its cause has a traceback of its own.
        instead = f"type({error.id})(*{error.id}.args)"
    return instead, file.patch_of(error, instead)


def _raises_another(file: SourceFile) -> bool:
    """Whether a file raises an exception while it handles another one, which becomes a part of it."""
    handlers = [node for node in file.nodes() if isinstance(node, ast.ExceptHandler)]
    raised = [node.exc for handler in handlers for node in ast.walk(handler) if isinstance(node, ast.Raise)]
    return any(exc is not None and not isinstance(exc, ast.Name) for exc in raised)


def _needs_exception(file: SourceFile, statement: ast.stmt) -> bool:
    """Whether the program raises what a statement keeps, or reads its attributes."""
    targets = [*getattr(statement, "targets", [])]
    if isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        targets = [statement.value.func]
    names = {_holder(target) for target in targets} - {""}
    for node in file.nodes():
        if isinstance(node, ast.For) and _holder(node.iter) in names:
            names.update(names_in(node.target))
    for node in file.nodes():
        if isinstance(node, ast.Raise) and any(_holder(inner) in names for inner in ast.walk(node)):
            return True
        if isinstance(node, ast.Attribute) and _holder(node.value) in names and node.attr not in OF_COLLECTIONS:
            return True
    return False


def _holder(node: ast.AST) -> str:
    """Name of the variable or attribute that holds an element, or on which a method of collections is called."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Subscript(value=inner) | ast.Starred(value=inner) | ast.Call(func=inner):
            return _holder(inner)
        case ast.Attribute(value=inner, attr=attr) if attr in OF_COLLECTIONS:
            return _holder(inner)
        case ast.Attribute(attr=attr):
            return attr
    return ""
