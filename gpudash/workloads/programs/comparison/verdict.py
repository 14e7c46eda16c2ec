"""The verdict of a comparison in words, with the cause where the GPU does not pay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gpudash.devices.names import kind_of
from gpudash.units import format_duration, format_percent
from gpudash.workloads.programs.comparison.figures import Measured, SideFigures
from gpudash.workloads.programs.comparison.ratio import Ratio, more_needed

NOTICEABLE = 1.05
"""Ratios below it, in either direction, are too close to call."""

FINEST = 0.005
"""Half a width (0.5 %) below which no number of runs is asked for: a ratio may lie right at the limit."""

COPYING = 0.25
"""Share of a step from which copying is blamed for the rest."""

FULL = 0.95
"""Share of the GPU's memory from which it counts as full: the allocator then frees and asks anew."""

BUSY = 0.2
"""Share of the time given to other programs from which a GPU's time says little of it.

A CPU's is counted without what it gave to others.
"""

RISEN = 1.05
"""Times the energy from which it is said to have risen."""

Outcome = Literal["faster", "slower", "close"]
Cause = Literal["placement", "transfers", "memory", "too_small", "arithmetic", "energy"]


@dataclass(frozen=True)
class Verdict:
    """What a comparison comes to.

    Attributes:
        outcome: of the second side, or of the GPU where just one side is one.
        cause: why it does not pay; ``None`` where it does, or where both sides are the same device.
        headline: one sentence with the number.
        because: the cause in a sentence, "" without one.
        more: further repetitions on each device that a decision needs; 0 where it has been made.
    """

    outcome: Outcome
    cause: Cause | None
    headline: str
    because: str
    more: int = 0

    @property
    def text(self) -> str:
        return f"{self.headline} {self.because}".strip()


def verdict(found: Measured) -> Verdict:
    """Judge: faster or slower only when the whole interval says so and the ratio is noticeable."""
    ratio = found.ratio
    settled = ratio.low >= 1 / NOTICEABLE and ratio.high <= NOTICEABLE
    crowded = any(side.lost >= BUSY and kind_of(side.device) != "cpu" for side in (found.first, found.second))
    if crowded and not settled:
        more = max(2, more_runs(ratio))
        headline = f"Too close to call, needs {_runs(more)} on each device."
        return Verdict("close", None, headline, "Other programs took the cores; close them and run it again.", more)
    if ratio.low > 1 and ratio.value >= NOTICEABLE:
        winner, loser, times = found.second, found.first, ratio.value
    elif ratio.high < 1 and ratio.value <= 1 / NOTICEABLE:
        winner, loser, times = found.first, found.second, 1 / ratio.value
    else:
        return _close(found)
    names = name(winner, found), name(loser, found)
    good = winner is found.challenger
    headline = f"{_capital(names[0])} is {times_words(times)} faster than {names[1]} for this workload."
    if not good and _unlike(found):
        same = ", and both find the same" if found.agreement.agrees else ""
        headline = f"The GPU is not worth it here: {names[0]} is {times_words(times)} faster{same}."
    if good:
        cause, because = _energy(winner, loser)
    else:
        cause, because = _cause(found)
    return Verdict("faster" if good else "slower", cause, headline, because)


def more_runs(ratio: Ratio) -> int:
    """Repetitions on each device that are still missing for a decision; 0 when the difference is below 5 %.

    Needed is an interval that ends before 1, or, of a ratio that is not noticeable, one within 0.95 to 1.05.
    """
    limit, middle = math.log(NOTICEABLE), abs(math.log(ratio.value))
    if -limit <= _log(ratio.low) and _log(ratio.high) <= limit:
        return 0
    distance = middle if middle >= limit else limit - middle
    return 2 * more_needed(ratio, max(distance, FINEST))


def _close(found: Measured) -> Verdict:
    more = more_runs(found.ratio)
    if more:
        headline = f"Too close to call, needs {_runs(more)} on each device."
    else:
        headline = "Too close to call: the difference is below 5 %."
    cause, because = _cause(found) if _unlike(found) and not more else (None, "")
    return Verdict("close", cause, headline, because, more)


def _runs(more: int) -> str:
    return f"{more} more run{'' if more == 1 else 's'}"


def _cause(found: Measured) -> tuple[Cause | None, str]:
    """The first that holds of what keeps a device from being faster."""
    slow = found.challenger
    the = name(slow, found)
    if slow.strays:
        more = f" and {len(slow.strays) - 2} more" if len(slow.strays) > 2 else ""
        return "placement", f"Not everything is on {the}: {', '.join(slow.strays[:2])}{more}."
    if not _unlike(found) and found.first.device == found.second.device:
        return None, "Both sides are the same device, so what differs is not the device."
    if slow.copied >= COPYING or _would_pay_resident(found):
        return "transfers", _copying_words(found, slow)
    if slow.retries or (slow.fullness or 0) > FULL:
        return "memory", _memory_words(slow, the)
    if kind_of(slow.device) != "cpu" and _too_small(found, slow):
        return "too_small", _size_words(found, slow)
    return (
        "arithmetic",
        f"{_capital(the)}'s arithmetic itself takes longer: {format_percent(slow.computed)} of its step.",
    )


def _would_pay_resident(found: Measured) -> bool:
    return found.resident is not None and found.of_challenger(found.resident).low > 1


def _copying_words(found: Measured, slow: SideFigures) -> str:
    words = f"{_capital(name(slow, found))} spends {format_percent(slow.copied)} of its step copying data"
    kept = found.of_challenger(found.resident or found.compute_only)
    measured = "with the data kept there" if found.resident is not None else "without the copies"
    if kept.value >= NOTICEABLE:
        return f"{words}; {measured} it is {times_words(kept.value)} faster than {name(_other(found), found)}."
    if kept.value <= 1 / NOTICEABLE:
        return f"{words}; {measured} it is still {times_words(1 / kept.value)} slower."
    return f"{words}; {measured} both are equally fast."


def _memory_words(slow: SideFigures, the: str) -> str:
    if slow.retries:
        times = "once" if slow.retries == 1 else f"{slow.retries} times"
        return f"The memory of {the} was full: its allocator had to give memory back and ask again {times}."
    return f"The memory of {the} was {format_percent(slow.fullness)} full."


def _too_small(found: Measured, slow: SideFigures) -> bool:
    """Whether larger pieces of work pay, or most of a step is spent on starting them."""
    return (found.sweep is not None and found.sweep.crossing is not None) or slow.waiting >= 0.5


def _size_words(found: Measured, slow: SideFigures) -> str:
    words = "The pieces of work are too small"
    if slow.waiting >= 0.5:
        words += f": {format_percent(slow.waiting)} of a step passes without computing"
    sweep = found.sweep
    if sweep is None:
        return f"{words}."
    if sweep.crossing is not None:
        return f"{words}; {name(slow, found)} pays off from about {sweep.field} {round_size(sweep.crossing)} upward."
    return f"{words}; up to {sweep.field} {sweep.points[-1].size} it did not pay off."


def _energy(winner: SideFigures, loser: SideFigures) -> tuple[Cause | None, str]:
    if winner.energy_j is None or not loser.energy_j or winner.energy_j < RISEN * loser.energy_j:
        return None, ""
    times = winner.energy_j / loser.energy_j
    return "energy", f"But it takes {times_words(times)} the energy: {joules(winner)} a step against {joules(loser)}."


def joules(side: SideFigures) -> str:
    """A step's energy."""
    value = side.energy_j or 0.0
    return f"{value:.3g} J" if value >= 1 else f"{value * 1e3:.3g} mJ"


def name(side: SideFigures, found: Measured) -> str:
    """What a side is called in a sentence."""
    if _unlike(found):
        return "the CPU" if kind_of(side.device) == "cpu" else "the GPU"
    return side.label


def times_words(ratio: float) -> str:
    """How many times: no decimals from 10 on, below with one."""
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.1f}×"


def interval_words(ratio: Ratio) -> str:
    """The interval, one digit finer than the number."""
    if ratio.low <= 0 or math.isinf(ratio.high):
        return "no interval yet"
    digits = 1 if ratio.value >= 9.95 else 2
    return f"{ratio.low:.{digits}f} – {ratio.high:.{digits}f}"


def round_size(size: float) -> int:
    """A size to two digits: an interpolated one is no better."""
    finest = int(10 ** max(0, math.floor(math.log10(max(1.0, size))) - 1))
    return round(size / finest) * finest


def step_words(side: SideFigures) -> str:
    """Where a step's time goes."""
    parts = [("computing", side.computed), ("copying", side.copied), ("waiting", side.waiting)]
    return " + ".join(f"{format_duration(share * side.step_seconds)} {what}" for what, share in parts)


def _other(found: Measured) -> SideFigures:
    return found.first if found.challenger is found.second else found.second


def _unlike(found: Measured) -> bool:
    return (kind_of(found.first.device) == "cpu") != (kind_of(found.second.device) == "cpu")


def _capital(words: str) -> str:
    return words[0].upper() + words[1:] if words.startswith("the ") else words


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
