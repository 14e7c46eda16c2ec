"""Syntax highlighting of Python source, line by line, in the theme's colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pygments.lexers.python import PythonLexer
from pygments.token import Token

from gpudash.ui.colours import Palette

MOST_CHARACTERS = 400_000
"""Longest text that is highlighted, which takes about a second; longer text stays plain."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a line in one colour: start, length and kind. Counted in UTF-16 code units, as Qt does."""

    begin: int
    length: int
    kind: str


KINDS = (
    (Token.Comment, "comment"),
    (Token.Keyword, "keyword"),
    (Token.Operator.Word, "keyword"),
    (Token.Literal.String, "string"),
    (Token.Literal.Number, "number"),
)
"""Token types that are highlighted; everything else has the text colour."""


def colours_of(palette: Palette) -> Mapping[str, str]:
    """The colour of each kind; each has the contrast required of text."""
    return {
        "comment": palette.muted,
        "keyword": palette.accent,
        "string": palette.warn,
        "number": palette.curves["optimizer state"],
    }


def spans_of(lines: Sequence[str]) -> list[list[Span]]:
    """The spans of each line; empty if the source is too long."""
    found: list[list[Span]] = [[] for _ in lines]
    if sum(map(len, lines)) > MOST_CHARACTERS:
        return found
    row = at = 0
    # Keep blank lines at both ends, which the lexer strips by default: spans must match line numbers.
    lexer = PythonLexer(stripnl=False, ensurenl=False)
    for token, text in lexer.get_tokens("\n".join(lines)):
        kind = next((name for group, name in KINDS if token in group), "")
        for place, part in enumerate(text.split("\n")):
            if place:
                row += 1
                at = 0
            units = len(part.encode("utf-16-le", "surrogatepass")) // 2
            if kind and units:
                found[row].append(Span(at, units, kind))
            at += units
    return found
