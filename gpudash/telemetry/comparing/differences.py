"""Two figures beside one another: B minus A, B over A, and whether that is more than noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["more", "less", "same", "unclear"]
Judgement = Literal["better", "worse"]
Direction = Literal["lower", "higher"]


TELLING_SHARE = 0.05
"""Share of the larger figure from which on a difference would matter, so that one within the noise is not "same" but
too noisy to tell: chosen, above the few per cent that equal runs differ by (`noise.TIME_SHARE` of each)."""

LARGEST_RATIO = 1e300
"""Ratio beyond which it, or its inverse, is no longer a number that a double holds exactly."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one run.

    Attributes:
        name: as in the JSON document.
        title: as a person reads it.
        unit: "bytes", "s", "items/s", "1/s", "B/s", "FLOP/s", "ratio", "times", "nats" or "" for a plain number.
        value: finite.
        noise: how far it would lie from that of an equal run (see `noise`), in its unit.
        wanted: which way is better; ``None`` where neither is.
        judged: whether a worse one counts against the run.
    """

    name: str
    title: str
    unit: str
    value: float
    noise: float
    wanted: Direction | None = None
    judged: bool = False


@dataclass(frozen=True, slots=True)
class FigureDifference:
    """The same figure of two runs."""

    a: Figure
    b: Figure

    @property
    def name(self) -> str:
        return self.a.name

    @property
    def difference(self) -> float:
        """B minus A."""
        return self.b.value - self.a.value

    @property
    def ratio(self) -> float | None:
        """B over A; ``None`` where that is no number."""
        if self.a.value == 0 or self.b.value == 0:
            return 1.0 if self.a.value == self.b.value else None
        ratio = self.b.value / self.a.value
        return ratio if 1 / LARGEST_RATIO < abs(ratio) < LARGEST_RATIO else None

    @property
    def noise(self) -> float:
        """How large a difference between equal runs may be: the root of the sum of both squares."""
        return math.hypot(self.a.noise, self.b.noise)

    @property
    def verdict(self) -> Verdict:
        """Whether B has more or less than A by more than the noise.

        Within the noise it is "same" where the difference is small, and "unclear" where it is too noisy to tell.
        """
        if abs(self.difference) > self.noise:
            return "more" if self.difference > 0 else "less"
        telling = TELLING_SHARE * max(abs(self.a.value), abs(self.b.value))
        return "unclear" if abs(self.difference) > telling else "same"

    @property
    def judgement(self) -> Judgement | None:
        """Whether B is better or worse; ``None`` where it is the same, or where neither is wanted."""
        if self._wanted is None or self.verdict in ("same", "unclear"):
            return None
        return "worse" if self._points_to_worse else "better"

    @property
    def strength(self) -> float:
        """Size of the difference, 0 (within the noise) to 1 (twice or half as much, or more)."""
        if self.verdict in ("same", "unclear"):
            return 0.0
        least, most = sorted((abs(self.a.value), abs(self.b.value)))
        return 1.0 if least == 0 or self.a.value * self.b.value < 0 else min(1.0, math.log2(most / least))

    def exceeds(self, tolerance: float) -> bool:
        """Whether B is worse by more than ``tolerance`` (a share of A) and by more than the noise."""
        return self.judgement == "worse" and abs(self.difference) > tolerance * abs(self.a.value)

    def may_exceed(self, tolerance: float) -> bool:
        """Whether B is worse by more than ``tolerance`` (a share of A), but too noisy to tell from an equal run."""
        beyond = abs(self.difference) > tolerance * abs(self.a.value)
        return self.verdict == "unclear" and self._points_to_worse and beyond

    @property
    def _wanted(self) -> Direction | None:
        return self.a.wanted if self.a.wanted == self.b.wanted else None

    @property
    def _points_to_worse(self) -> bool:
        """Whether B lies on the side that is not wanted, by however little."""
        return self._wanted is not None and (self.difference > 0) == (self._wanted == "lower")
