"""The axes of a drawing in SVG: from what is drawn to pixels, grid lines with their words, areas and marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 960
"""Of every drawing, in its own units; the page scales it."""

Point = tuple[float, float]
"""A place across and a value, in the units of what is drawn."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Where values are in one drawing. What lies outside of a range is drawn at its edge.

    Attributes:
        span: what the left and the right edge stand for: seconds, or events.
        low, high: values at the bottom and at the top.
        height: of the whole drawing; the others are its margins.
    """

    span: tuple[float, float]
    low: float
    high: float
    height: int = 210
    left: int = 84
    right: int = 44
    top: int = 20
    bottom: int = 26

    @property
    def floor(self) -> int:
        """Pixels from the top to the lower edge of the plot."""
        return self.height - self.bottom

    @property
    def end(self) -> int:
        """Pixels from the left to the right edge of the plot."""
        return WIDTH - self.right

    @property
    def columns(self) -> int:
        """Pixels across the plot."""
        return self.end - self.left

    def x(self, place: float) -> float:
        """Pixels from the left."""
        start, end = self.span
        return self.left + self.columns * min(max((place - start) / (end - start), 0.0), 1.0)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        share = (value - self.low) / (self.high - self.low)
        return self.top + (self.floor - self.top) * (1 - min(max(share, 0.0), 1.0))

    def grid(self, levels: Iterable[tuple[float, str]]) -> Iterator[str]:
        """A line across at every value, with its words, plain text, at the left."""
        for value, words in levels:
            yield self.across(value, "grid")
            yield text(self.left - 6, self.y(value) + 4, words, anchor="end")

    def across(self, value: float, kind: str) -> str:
        """A line at a value, of the class ``kind``."""
        y = self.y(value)
        return f'<line class="{kind}" x1="{self.left}" x2="{self.end}" y1="{y:.1f}" y2="{y:.1f}"/>'

    def upright(self, place: float, kind: str, title: str = "") -> str:
        """A line from top to bottom, of the class ``kind``; ``title`` is told where it is pointed at."""
        x = self.x(place)
        within = f"><title>{escape(title)}</title></line>" if title else "/>"
        return f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{self.floor}"{within}'

    def points(self, points: Iterable[Point]) -> list[str]:
        """Points as a path names them."""
        return [f"{self.x(place):.1f},{self.y(value):.1f}" for place, value in points]

    def outline(self, points: Sequence[Point]) -> str:
        """The path from zero up to the first point, along all of them, and down to zero."""
        drawn, zero = self.points(points), f"{self.y(0.0):.1f}"
        first, last = drawn[0].split(",")[0], drawn[-1].split(",")[0]
        return f"M{first},{zero} L{' '.join(drawn)} {last},{zero}"

    def element(self, words: str, parts: Iterable[str]) -> str:
        """The drawing of ``parts``; ``words``, plain text, say what it shows to who does not see it."""
        frame = f'viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(words)}"'
        return f"<svg {frame}>{''.join(parts)}</svg>"


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """Words, plain text, at pixels from left and top."""
    of_kind = f' class="{kind}"' if kind else ""
    at = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text{of_kind} x="{x:.1f}" y="{y:.1f}"{at}>{escape(words)}</text>'
