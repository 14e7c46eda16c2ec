"""The colours of Python's source, line by line, in those of the theme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pygments.lexers.python import PythonLexer
from pygments.token import Token

from gpudash.ui.colours import Palette

MOST_CHARACTERS = 400_000
"""Of a text that is coloured: about a second; a longer one is plain."""


@dataclass(frozen=True, slots=True)
class Span:
    """Letters of a line that have a colour: where they begin, how many there are, and what they are. Qt counts them in
    units of UTF-16.
    """

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
"""What is coloured; the rest is in the colour of words."""


def colours_of(palette: Palette) -> Mapping[str, str]:
    """The colour of each kind; all of them reach the contrast of words."""
    return {
        "comment": palette.muted,
        "keyword": palette.accent,
        "string": palette.warn,
        "number": palette.curves["optimizer state"],
    }


def spans_of(lines: Sequence[str]) -> list[list[Span]]:
    """The spans of each line of a source; none where it is too long."""
    found: list[list[Span]] = [[] for _ in lines]
    if sum(map(len, lines)) > MOST_CHARACTERS:
        return found
    row = at = 0
    # as the lines stand: the lexer would else take empty ones away at both ends
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
