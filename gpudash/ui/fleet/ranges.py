"""Which part of the past is looked at: the last minutes or days, or from one moment to another. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

PRESETS = (("15 min", 900.0), ("1 h", 3600.0), ("6 h", 6 * 3600.0), ("24 h", 86_400.0), ("7 days", 7 * 86_400.0))

DAY_S = 86_400.0

SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True)
class Range:
    """A part of the past.

    Attributes:
        seconds: how long it is.
        ended_wall_s: when it ends, in seconds since the epoch; ``None`` for now, with which it moves on.
    """

    seconds: float = PRESETS[1][1]
    ended_wall_s: float | None = None

    def at(self, now_s: float) -> tuple[float, float]:
        """Begin and end in seconds since the epoch."""
        end = now_s if self.ended_wall_s is None else min(self.ended_wall_s, now_s)
        return end - self.seconds, end

    def earlier(self, now_s: float) -> Range:
        """The part of the same length before this one."""
        return replace(self, ended_wall_s=self.at(now_s)[0])

    def later(self, now_s: float) -> Range:
        """The part of the same length after this one; the last one moves on with now."""
        end = self.at(now_s)[1] + self.seconds
        return replace(self, ended_wall_s=None if end >= now_s else end)

    def days_before(self, days: int, now_s: float) -> Range:
        """The same hours so many days earlier."""
        return replace(self, ended_wall_s=self.at(now_s)[1] - days * DAY_S)


def between(first_s: float, last_s: float) -> Range:
    """The part between two moments, in either order."""
    begin, end = min(first_s, last_s), max(first_s, last_s)
    return Range(max(end - begin, SHORTEST_S), end)


def range_words(began_s: float, ended_s: float) -> str:
    """A part of the past in local time: "21 Nov 13:10 to 14:10"; with seconds where it is short."""
    begin, end = (datetime.fromtimestamp(wall) for wall in (began_s, ended_s))  # noqa: DTZ006  # the user's own clock
    clock = "%H:%M:%S" if ended_s - began_s < 600 else "%H:%M"
    day = "" if begin.date() == end.date() else f"{end.day} {end:%b} "
    return f"{begin.day} {begin:%b} {begin.strftime(clock)} to {day}{end.strftime(clock)}"
