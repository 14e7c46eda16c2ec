"""Figures of the code that say how heavy it is to read: ``python -m tests.code_figures``.

Lines are those of files; a line of code is one with a token that is neither a comment nor a docstring.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parent.parent

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING)


@dataclass(frozen=True)
class Figures:
    """Counts of one file or of many together."""

    lines: int = 0
    code: int = 0
    comments: int = 0
    conditionals: int = 0
    comprehensions: int = 0
    statements: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.lines + other.lines,
            self.code + other.code,
            self.comments + other.comments,
            self.conditionals + other.conditionals,
            self.comprehensions + other.comprehensions,
            self.statements + other.statements,
        )

    def per_thousand(self, count: int) -> float:
        """A count for 1,000 lines of code."""
        return 1000 * count / max(1, self.code)

    @classmethod
    def of(cls, source: str) -> Figures:
        """Those of a module's text."""
        tree = ast.parse(source)
        docstrings = set(_docstring_lines(tree))
        code: set[int] = set()
        comments = 0
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                comments += not token.line[: token.start[1]].strip()
            elif token.type not in LAYOUT:
                code.update(range(token.start[0], token.end[0] + 1))
        nodes = list(ast.walk(tree))
        return cls(
            lines=source.count("\n"),
            code=len(code - docstrings),
            comments=comments,
            conditionals=sum(isinstance(node, ast.IfExp) for node in nodes),
            comprehensions=sum(isinstance(node, COMPREHENSIONS) for node in nodes),
            statements=sum(isinstance(node, ast.stmt) for node in nodes),
        )


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Lines of docstrings, and of the strings below constants."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.Expr) or not isinstance(child.value, ast.Constant):
                continue
            if isinstance(child.value.value, str) and child.end_lineno is not None:
                yield from range(child.lineno, child.end_lineno + 1)


def figures_of(folder: Path) -> Figures:
    """Those of every module below a folder."""
    found = (Figures.of(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py")))
    return sum(found, Figures())


def main() -> None:
    """Write them for the package, each room of it, and the tests."""
    package = PROJECT / "gpudash"
    rooms = sorted(folder for folder in package.iterdir() if any(folder.glob("*.py")))
    table = [
        f"{'':20}{'lines':>9}{'code':>9}{'statements':>12}{'comments':>10}{'conditional':>13}{'comprehensions':>16}"
    ]
    for folder in (package, *rooms, PROJECT / "tests"):
        found = figures_of(folder)
        comments = f"{100 * found.comments / max(1, found.lines):.2f} %"
        conditionals, comprehensions = map(found.per_thousand, (found.conditionals, found.comprehensions))
        table.append(
            f"{folder.relative_to(PROJECT)!s:20}{found.lines:>9,}{found.code:>9,}{found.statements:>12,}{comments:>10}"
            f"{conditionals:>13.1f}{comprehensions:>16.1f}"
        )
    table.append("Conditional expressions and comprehensions are counted for 1,000 lines of code.\n")
    sys.stdout.write("\n".join(table))


if __name__ == "__main__":
    main()
