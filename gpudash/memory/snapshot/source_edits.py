"""Edits of a program's source as unified diffs.

Finds the statements at a line, and builds the file with some of them replaced, wrapped or removed. Files are read line
by line through a `SourceLine`. If an edit is not safe, there is no diff.
"""

from __future__ import annotations

import ast
import difflib
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

COLLECTS = frozenset({"add", "append", "appendleft", "extend", "insert", "put", "update"})
"""Methods with which a collection receives a value."""

EMPTIES = frozenset({"clear", "pop", "popitem", "popleft", "remove", "get"})
"""Methods with which it returns or removes one."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True, slots=True)
class Splice:
    """A replacement for the text between two columns of a line, in bytes as `ast` counts them."""

    line: int
    begin: int
    end: int
    text: str

    @classmethod
    def behind(cls, node: ast.expr, text: str) -> Splice:
        """Text added at the end of an expression."""
        end = node.end_col_offset or 0
        return cls(node.end_lineno or node.lineno, end, end, text)

    @classmethod
    def cut(cls, call: ast.Call) -> Splice:
        """A method call removed from the object that it is called on; its name and its arguments are on one line."""
        assert isinstance(call.func, ast.Attribute)
        inner = call.func.value
        return cls(inner.end_lineno or 0, inner.end_col_offset or 0, call.end_col_offset or 0, "")


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

    def simple_statement(self, line: int) -> ast.stmt | None:
        """The same, unless it has statements of its own, as a loop has."""
        statement = self.statement(line)
        if hasattr(statement, "body"):
            return None
        return statement

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
    found: list[str] = []
    for node in file.nodes():
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if node.lineno < line:
                method = WAITS.get(method_of(value))
                if method is not None:
                    found.append(f"{name}.{method}()")
    statement = file.statement(line)
    if len(found) != 1 or statement is None:
        return ""
    edits = LineEdits(file)
    edits.before(statement.lineno, found)
    return edits.patch()


class LineEdits:
    """Statements of a file that are replaced, and lines written around them.

    Args:
        file: the file.
        splices: parts of lines that are replaced before.
    """

    def __init__(self, file: SourceFile, splices: Iterable[Splice] = ()) -> None:
        self._file = file
        self.changed: dict[int, Sequence[str]] = file.spliced(splices)

    def replace(self, node: ast.stmt, texts: Sequence[str]) -> None:
        """Write some lines, with the statement's indentation, in place of all of its own."""
        self.changed.update(dict.fromkeys(lines_of(node), ()))
        self.changed[node.lineno] = self._indented(node.lineno, texts)

    def before(self, line: int, texts: Sequence[str]) -> None:
        """Write some lines before a line, with its indentation."""
        self.changed[line] = (*self._indented(line, texts), *self._of(line))

    def behind(self, node: ast.stmt, texts: Sequence[str], *, indent_of: int = 0) -> None:
        """Write some lines behind a statement, with its indentation or that of a line."""
        last = node.end_lineno or node.lineno
        self.changed[last] = (*self._of(last), *self._indented(indent_of or node.lineno, texts))

    def patch(self) -> str:
        """All of it as a diff."""
        return self._file.patch(self.changed)

    def _of(self, line: int) -> Sequence[str]:
        return self.changed.get(line, (self._file.lines[line - 1],))

    def _indented(self, line: int, texts: Sequence[str]) -> Sequence[str]:
        return [f"{self._file.indent(line)}{text}" for text in texts]


def lines_of(node: ast.stmt | ast.expr) -> range:
    """The lines of a node."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def scope_of(path: Sequence[ast.AST]) -> Function | ast.Module | None:
    """The innermost function of a path, else its module."""
    return next((node for node in reversed(path) if isinstance(node, Function | ast.Module)), None)


def loop_of(path: Sequence[ast.AST]) -> Loop | None:
    """The innermost loop of a path."""
    return next((node for node in reversed(path) if isinstance(node, Loop)), None)


def is_without_graph(path: Sequence[ast.AST]) -> bool:
    """Whether a path's last statement runs under torch.no_grad() or torch.inference_mode()."""
    around: list[ast.expr] = []
    for node in path:
        if isinstance(node, ast.With):
            around += [item.context_expr for item in node.items]
        elif isinstance(node, Function):
            around += node.decorator_list
    texts = map(ast.unparse, around)
    return any("no_grad" in text or "inference_mode" in text for text in texts)


def names_in(node: ast.AST) -> set[str]:
    """Variables and attributes in a node, as they are written."""
    return {ast.unparse(inner) for inner in ast.walk(node) if isinstance(inner, ast.Name | ast.Attribute)}


def calls_any(node: ast.AST, names: Collection[str]) -> bool:
    """Whether a node calls a function or method of one of these names."""
    return any(method_of(inner) in names for inner in ast.walk(node))


def one_line(node: ast.AST) -> str:
    """The source of a statement, on one line."""
    return " ".join(ast.unparse(node).split())


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


def functions_of(files: Sequence[SourceFile], source: SourceLine) -> Functions:
    """Functions of some files, and of the files they import from the same folder, whose name is unique."""
    seen: dict[str, list[tuple[ast.AST, ast.FunctionDef]]] = {}
    for file in (*files, *_imported(files, source)):
        module = file.module
        if module is None:
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                makers = [
                    inner for inner in node.body if isinstance(inner, ast.FunctionDef) and inner.name == "__init__"
                ]
                seen.setdefault(node.name, []).extend((module, maker) for maker in makers)
            elif isinstance(node, ast.FunctionDef) and node.name != "__init__":
                seen.setdefault(node.name, []).append((module, node))
    return {name: nodes[0] for name, nodes in seen.items() if len(nodes) == 1}


def _imported(files: Sequence[SourceFile], source: SourceLine) -> Iterator[SourceFile]:
    """Files next to some files that these import."""
    names: dict[str, None] = {}
    for file in files:
        for part in imported_names(file):
            names[posixpath.normpath(f"{posixpath.dirname(file.file)}/{part}")] = None
    known = {file.file for file in files}
    yield from (SourceFile(name, source) for name in list(names)[:MOST_IMPORTED] if name not in known)


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
