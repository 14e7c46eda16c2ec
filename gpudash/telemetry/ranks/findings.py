"""What stands out among the ranks of a run, while it is on and at its end: who is slower, and who is fuller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpudash.telemetry.ranks.ranks import Ranks

LOOK_S = 1.0
"""Between two looks; a straggler has to be found in two that follow each other."""

SETTLED_STEPS = 5
"""Joined steps before memory is compared: until then one rank may have loaded what the others are about to."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact that is told as a note: its topic, in a sentence, and its figures."""

    topic: str
    text: str
    details: Mapping[str, Any]


class RankFindings:
    """Tells each finding once. Belongs to one thread.

    Args:
        now_s: a clock's time in seconds, as `look` is given it.
    """

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s
        self._suspect: int | None = None
        self._told: set[tuple[str, int]] = set()

    def look(self, ranks: Ranks, now_s: float) -> Iterator[Finding]:
        """What is certain by now and was not told yet."""
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        found = findings(ranks)
        slow = found["straggler"]
        suspect, self._suspect = self._suspect, None if slow is None else slow["rank"]
        if slow is not None and slow["rank"] == suspect:
            yield from self._once("straggler", slow)
        yield from self._once("imbalance", found["memory_imbalance"])

    def at_end(self, ranks: Ranks) -> Iterator[Finding]:
        """What the result tells and was not told yet."""
        found = findings(ranks)
        yield from self._once("straggler", found["straggler"])
        yield from self._once("imbalance", found["memory_imbalance"])

    def _once(self, topic: str, found: Mapping[str, Any] | None) -> Iterator[Finding]:
        if found is not None and (topic, found["rank"]) not in self._told:
            self._told.add((topic, found["rank"]))
            yield Finding(topic, found["text"], {key: value for key, value in found.items() if key != "text"})


def findings(ranks: Ranks) -> dict[str, dict[str, Any] | None]:
    """``straggler`` {rank, slower, text} and ``memory_imbalance`` {rank, bytes, text} of a result."""
    slow = ranks.straggler()
    full = ranks.imbalance() if ranks.joined >= SETTLED_STEPS else None
    return {
        "straggler": None if slow is None else {"rank": slow.rank, "slower": slow.slower, "text": slow.text},
        "memory_imbalance": None if full is None else {"rank": full.rank, "bytes": full.bytes, "text": full.text},
    }
