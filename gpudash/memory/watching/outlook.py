"""The forecast itself: from a growth and what is left to the time that is left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gpudash.memory.watching.growth import GrowthTrend

HORIZON_S = 600.0
"""Ten minutes: a growth that needs longer is no forecast."""

LEAST_SURE = 0.2
"""Confidence below which nothing is said."""

SOON_S = 60.0
"""Remaining time below which a forecast is worth a notice."""

SURE = 0.55
"""Confidence from which a forecast is worth a notice, of a memory that is nearly full or fills within `BRIEF_S`."""

NEARLY_FULL = 0.88

BRIEF_S = 3.0
"""A memory that fills within this is told of at any level: there is no time to wait for it to be nearly full."""

VERY_SURE = 0.75
"""Confidence from which a forecast is worth a notice, of a memory that is `FAIRLY_FULL`."""

FAIRLY_FULL = 0.8

WIDER = 1.6
"""How much wider than the quartiles of the slopes the range is, so that it holds the truth four times in five."""

LEAST_WIDTH = 0.12
"""Half-width of the narrowest range, as a part of the time left: readings and allocations are not continuous."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a memory reaches its limit if it goes on growing as it does.

    Attributes:
        seconds_low: earliest; the range holds the truth about four times in five when the growth does go on.
        seconds: most likely.
        seconds_high: latest.
        limit: what is reached first, the capacity or the guard's level.
        limit_bytes: where that lies.
        bytes_per_second: growth.
        confidence: estimated probability, 0 to 1, that the growth goes on that long.
        bytes_per_step: growth per step of the run; ``None`` where no steps are known.
        level_bytes: where the growth stands now; of a sawtooth, its peaks.
        cause: what grows, in words for the end of a sentence ("losses.append at train.py:31"); ``None`` when unknown.
    """

    seconds_low: float
    seconds: float
    seconds_high: float
    limit: Literal["capacity", "guard"]
    limit_bytes: int
    bytes_per_second: float
    confidence: float
    level_bytes: float = 0.0
    bytes_per_step: float | None = None
    cause: str | None = None


def outlook(
    growth: GrowthTrend, now_s: float, limit: Literal["capacity", "guard"], limit_bytes: int
) -> Forecast | None:
    """When ``growth`` reaches ``limit_bytes``; ``None`` when it ends before, takes more than ten minutes, or is unsure.

    The confidence is T / (T + s) for a growth that has lasted T and must last s more: the probability of lasting that
    long when nothing is known of its whole length (Gott 1993, "Implications of the Copernican principle"), times the
    line's quality.
    """
    left = max(limit_bytes - growth.level(now_s), 0.0)
    straight = left / growth.median
    slowed = _slowed(left, growth)
    if slowed is None or straight > HORIZON_S:
        return None
    seconds = math.sqrt(straight * slowed) if straight else 0.0
    width = max(LEAST_WIDTH, WIDER * growth.spread / 2)
    grain = growth.grain_s / 2
    low = max(0.0, min(straight, seconds) / (1 + width) - grain)
    high = max(slowed, seconds) * (1 + width) + grain
    confidence = growth.lasted_s / (growth.lasted_s + seconds) * growth.quality
    if confidence < LEAST_SURE:
        return None
    return Forecast(
        seconds_low=low,
        seconds=min(max(seconds, low), high),
        seconds_high=high,
        limit=limit,
        limit_bytes=limit_bytes,
        bytes_per_second=growth.median,
        confidence=confidence,
        level_bytes=limit_bytes - left,
    )


def is_due(ahead: Forecast) -> bool:
    """Whether ``ahead`` is worth telling unasked: near enough in time, likely enough, and far enough on the way."""
    if ahead.seconds >= SOON_S:
        return False
    ratio = ahead.level_bytes / ahead.limit_bytes
    near = ratio >= NEARLY_FULL or ahead.seconds < BRIEF_S
    return ahead.confidence >= (SURE if near else VERY_SURE) and (near or ratio >= FAIRLY_FULL)


def _slowed(left: float, growth: GrowthTrend) -> float | None:
    """Seconds that ``left`` bytes take a growth that slows down as it has; ``None`` when it ends before.

    With a rate that falls as exp(−k·t), the part 1 − exp(−k·t) of what is still to come has come after t.
    """
    if growth.slowing <= 0:
        return left / growth.median
    part = left / growth.to_come
    return None if part >= 1 else -math.log1p(-part) / growth.slowing
