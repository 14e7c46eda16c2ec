"""A page of HTML that needs nothing but itself: no script, no font, no picture from elsewhere.

A page is made of blocks of plain text. Only the templates beside this file know how they become HTML, and they
escape every text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gpudash.system.foreign_text import visible

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser lets the page do (https://www.w3.org/TR/CSP3/): its own style, and nothing else. Should a text of
somebody else's ever become an element, no script of it is run and nothing is loaded."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A text with what stands at it.

    Attributes:
        link: id of the heading that the text leads to.
        badge: stands in a frame behind the text.
        rest: more text, behind the badge.
        code: a line of source below.
    """

    text: str
    link: str = ""
    badge: str = ""
    rest: str = ""
    code: str = ""


Text = str | Phrase


@dataclass(frozen=True, slots=True)
class HeadingBlock:
    """A title, of level 1 to 3."""

    text: Text
    level: int = 3
    id: str = ""


@dataclass(frozen=True, slots=True)
class ParagraphBlock:
    """A paragraph; `kind` is what it is to the reader: "soft", "bad", "cause", "status"."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class BulletsBlock:
    """A list."""

    rows: Sequence[str]


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Rows of cells; of each column its title and whether it holds numbers."""

    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[Text]]


@dataclass(frozen=True, slots=True)
class FactsBlock:
    """Names, and what is known of each."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class BarsBlock:
    """Names, sizes and bars, which are as long as a share of the widest, 0 to 1."""

    rows: Sequence[tuple[str, str, float]]


@dataclass(frozen=True, slots=True)
class FoldedBlock:
    """Lines of code that are shown on a click; each with whether it matters less."""

    summary: str
    lines: Sequence[tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: the kind of a curve, its name, and its range in words."""

    kind: str
    name: str
    range: str


@dataclass(frozen=True, slots=True)
class FigureBlock:
    """A drawing with its title and legend."""

    title: str
    legend: Sequence[Key]
    drawing: Markup


@dataclass(frozen=True, slots=True)
class DrawingBlock:
    """A drawing alone."""

    svg: Markup


Block = (
    HeadingBlock
    | ParagraphBlock
    | BulletsBlock
    | TableBlock
    | FactsBlock
    | BarsBlock
    | FoldedBlock
    | FigureBlock
    | DrawingBlock
)
"""A part of a page. A macro of the templates draws it: `table` a `TableBlock`."""


def page(title: str, body: Iterable[Block], kind: str = "") -> str:
    """The whole page, in which control characters are written out (`visible`).

    Args:
        title: of the browser's tab.
        body: its parts, in order.
        kind: "report" where it is printed and has plots.
    """
    template = _environment().get_template("page.html")
    return visible(template.render(title=title, body=_named(body), kind=kind, policy=POLICY))


def fragment(body: Iterable[Block]) -> str:
    """The same as a part of somebody else's page, such as the output of a notebook's cell; its style is its own."""
    template = _environment().get_template("fragment.html")
    return visible(template.render(body=_named(body)))


def _named(body: Iterable[Block]) -> list[tuple[str, Block]]:
    # The macro is found by the block's class, so that a new kind of block is a class here and a macro there.
    return [(type(block).__name__.removesuffix("Block").lower(), block) for block in body]


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        # A name that a template misspells is an error, not an empty place.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
