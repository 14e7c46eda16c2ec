"""Edits of a program's source as unified diffs.

Finds the statements at a line, and builds the file with some of them replaced, wrapped or removed. Files are read line
by line through a `SourceLine`. If an edit is not safe, there is no diff.
"""

from __future__ import annotations

import ast
import difflib
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from gpudash.memory.explaining.call_sites import SourceLine

MOST_LINES = 20_000
"""Most lines of a file that is parsed."""

MOST_IMPORTED = 50
"""Most imported files next to the given ones that are searched for."""

EMPTY_LINES = 200
"""Number of consecutive empty lines that count as the end of a file."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True, slots=True)
class Splice:
    """A replacement for the text between two columns of a line, in bytes as `ast` counts them."""

    line: int
    begin: int
    end: int
    text: str


WAITS = {"Popen": "communicate", "Process": "join"}
"""The method that waits for a process's end, by what started it (subprocess, multiprocessing)."""


class SourceFile:
    """A file of the program.

    Args:
        file: absolute path.
        source: reads its lines.

    Attributes:
        lines: lines of the file, without line ends.
    """

    def __init__(self, file: str, source: SourceLine) -> None:
        self.file = file
        self.lines = source_lines(file, source)

    @cached_property
    def module(self) -> ast.Module | None:
        """The syntax tree of the file; ``None`` if it cannot be read or is not Python."""
        try:
            if self.lines:
                return ast.parse("\n".join(self.lines))
            return None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def path(self, line: int) -> list[ast.AST]:
        """The nodes that contain a line, from the module down to its statement; empty if there is none."""
        if self.module is None:
            found: list[ast.AST] = []
        else:
            found = [self.module]
        while found:
            inner = next((child for child in _blocks(found[-1]) if _holds(child, line)), None)
            if inner is None:
                break
            found.append(inner)
        if len(found) > 1:
            return found
        return []

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that contains a line."""
        return next((node for node in reversed(self.path(line)) if isinstance(node, ast.stmt)), None)

    def nodes(self) -> Iterator[ast.AST]:
        """Every node of the file."""
        if self.module is None:
            return iter(())
        return ast.walk(self.module)

    def imports(self, name: str) -> bool:
        """Whether a module of this name can be used in the file under its own name."""
        for node in self.nodes():
            if isinstance(node, ast.Import) and (name, None) in ((alias.name, alias.asname) for alias in node.names):
                return True
        return False

    def indent(self, line: int) -> str:
        """The indentation of a line."""
        text = self.lines[line - 1]
        return text[: len(text) - len(text.lstrip())]

    def replaced(self, node: ast.expr, text: str) -> tuple[int, str] | None:
        """The line of an expression, with other text in its place; ``None`` if it spans several lines."""
        if node.end_lineno != node.lineno or node.end_col_offset is None:
            return None
        line = self.lines[node.lineno - 1].encode()
        return node.lineno, (line[: node.col_offset] + text.encode() + line[node.end_col_offset :]).decode()

    def spliced(self, splices: Iterable[Splice]) -> dict[int, Sequence[str]]:
        """Lines with some parts replaced; the parts must not overlap."""
        changed: dict[int, Sequence[str]] = {}
        for splice in sorted(splices, key=lambda one: (one.line, one.begin), reverse=True):
            line = changed.get(splice.line, (self.lines[splice.line - 1],))[0].encode()
            changed[splice.line] = ((line[: splice.begin] + splice.text.encode() + line[splice.end :]).decode(),)
        return changed

    def patch_of(self, node: ast.expr, text: str) -> str:
        """The diff that writes other text in place of an expression; "" if that spans several lines."""
        changed = self.replaced(node, text)
        if changed is None:
            return ""
        return self.patch({changed[0]: (changed[1],)})

    def patch(self, changed: Mapping[int, Sequence[str]]) -> str:
        """A unified diff with a path relative to the root.

        Args:
            changed: line → the lines that replace it.
        """
        after: list[str] = []
        for number, line in enumerate(self.lines, 1):
            after += changed.get(number, (line,))
        name = self.file.lstrip("/")
        rows = difflib.unified_diff(self.lines, after, name, name, lineterm="")
        return "".join(f"{row}\n" for row in rows)

    def indented(self, nodes: Sequence[ast.stmt], header: str) -> dict[int, Sequence[str]] | None:
        """Consecutive statements indented one level deeper below ``header``; ``None`` if that would change a
        multi-line string.
        """
        for part in chain.from_iterable(map(ast.walk, nodes)):
            if isinstance(part, ast.Constant | ast.JoinedStr) and part.end_lineno != part.lineno:
                return None
        first, last = nodes[0].lineno, nodes[-1].end_lineno or nodes[-1].lineno
        changed: dict[int, Sequence[str]] = {}
        for number, line in enumerate(self.lines[first - 1 : last], first):
            changed[number] = ("",)
            if line.strip():
                changed[number] = (f"    {line}",)
        changed[first] = (self.indent(first) + header, *changed[first])
        return changed


def ended_before(file: SourceFile, line: int) -> str:
    """A diff with which the program waits for a process that it started before it reaches a line.

    The result is "" if the file does not contain exactly one.
    """
    found = [
        (node.targets[0].id, method_of(node.value))
        for node in file.nodes()
        if isinstance(node, ast.Assign) and node.lineno < line and len(node.targets) == 1
        if isinstance(node.targets[0], ast.Name) and method_of(node.value) in WAITS
    ]
    statement = file.statement(line)
    if len(found) != 1 or statement is None:
        return ""
    name, kind = found[0]
    first = statement.lineno
    return file.patch({first: (f"{file.indent(first)}{name}.{WAITS[kind]}()", file.lines[first - 1])})


def method_of(node: ast.AST) -> str:
    """Name of the function or method that is called; "" for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    if isinstance(node.func, ast.Name):
        return node.func.id
    return ""


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument in a call."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def imported_paths(files: Sequence[SourceFile], folder: str = "") -> list[str]:
    """Possible paths of the modules that some files import, next to each of these files and in ``folder``."""
    roots = dict.fromkeys([*(posixpath.dirname(file.file) for file in files), *filter(None, [folder])])
    names = list(chain.from_iterable(map(imported_names, files)))
    # A module's name does not give its folder: look in all of them.
    return list(dict.fromkeys(posixpath.normpath(f"{root}/{part}") for root in roots for part in names))


def imported_names(file: SourceFile) -> Iterator[str]:
    """Possible paths of a file's imported modules, relative to the folder of any file of the program."""
    for node in file.nodes():
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = node.module or ""
            modules = [*filter(None, [package]), *(".".join(filter(None, (package, a.name))) for a in node.names)]
        above = ""
        if isinstance(node, ast.ImportFrom):
            above = "../" * max(0, node.level - 1)
        yield from (f"{above}{module.replace('.', '/')}.py" for module in modules)


Functions = dict[str, tuple[ast.AST, ast.FunctionDef]]
"""Functions and methods by name, and classes by name with their `__init__`; each with its module."""


def functions_of(modules: Mapping[str, ast.Module | None], source: SourceLine) -> Functions:
    """Functions of some files, and of the files they import from the same folder, whose name is unique."""
    seen: dict[str, list[tuple[ast.AST, ast.FunctionDef]]] = {}
    found = [module for module in modules.values() if module is not None]
    for module in (*found, *_imported(modules, source)):
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                makers = [
                    inner for inner in node.body if isinstance(inner, ast.FunctionDef) and inner.name == "__init__"
                ]
                seen.setdefault(node.name, []).extend((module, maker) for maker in makers)
            elif isinstance(node, ast.FunctionDef) and node.name != "__init__":
                seen.setdefault(node.name, []).append((module, node))
    return {name: nodes[0] for name, nodes in seen.items() if len(nodes) == 1}


def _imported(modules: Mapping[str, ast.Module | None], source: SourceLine) -> Iterator[ast.Module]:
    """Modules next to some files that these import."""
    names: dict[str, None] = {}
    for file in modules:
        for part in imported_names(SourceFile(file, source)):
            names[posixpath.normpath(f"{posixpath.dirname(file)}/{part}")] = None
    for name in list(names)[:MOST_IMPORTED]:
        module = None
        if name not in modules:
            module = SourceFile(name, source).module
        if module is not None:
            yield module


def _blocks(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child


def _holds(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.match_case):
        first = node.pattern.lineno
    else:
        first = int(getattr(node, "lineno", 0))
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    first = min([first, *(decorator.lineno for decorator in decorators)])
    return first <= line <= int(getattr(node, "end_lineno", None) or first)


def source_lines(file: str, source: SourceLine) -> list[str]:
    """The lines of a file without trailing empty ones: a source has no length."""
    found: list[str] = []
    empty = 0
    while len(found) < MOST_LINES and empty < EMPTY_LINES:
        found.append(source(file, len(found) + 1))
        if found[-1]:
            empty = 0
        else:
            empty = empty + 1
    while found and not found[-1]:
        found.pop()
    return found
