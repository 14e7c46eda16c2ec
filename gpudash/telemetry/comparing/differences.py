"""Two figures beside one another: B minus A, B over A, and whether that is more than noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["more", "less", "same"]
Judgement = Literal["better", "worse"]
Direction = Literal["lower", "higher"]


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
class Difference:
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
        """Whether B has more or less than A; "same" within the noise."""
        if not abs(self.difference) > self.noise:
            return "same"
        return "more" if self.difference > 0 else "less"

    @property
    def judgement(self) -> Judgement | None:
        """Whether B is better or worse; ``None`` where it is the same, or where neither is wanted."""
        wanted = self.a.wanted if self.a.wanted == self.b.wanted else None
        if wanted is None or self.verdict == "same":
            return None
        return "better" if (self.verdict == "more") == (wanted == "higher") else "worse"

    @property
    def strength(self) -> float:
        """Size of the difference, 0 (the same) to 1 (twice or half as much, or more)."""
        if self.verdict == "same":
            return 0.0
        least, most = sorted((abs(self.a.value), abs(self.b.value)))
        return 1.0 if least == 0 or self.a.value * self.b.value < 0 else min(1.0, math.log2(most / least))

    def exceeds(self, tolerance: float) -> bool:
        """Whether B is worse by more than ``tolerance`` (a share of A) and by more than the noise."""
        return self.judgement == "worse" and abs(self.difference) > tolerance * abs(self.a.value)
