"""When a GPU of a fleet runs out of memory, foretold here where its exporter does not foretell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpudash.memory.forecast import Forecaster
from gpudash.session.fleet.gpu import FleetGpu

FULL_RATIO = 0.8
"""How full a memory must be before its growth is worth a word: a program that starts up fills memory fast and stops."""

LEAST_SURE = 0.55
"""Confidence from which a forecast is told, see `gpudash.memory.forecast.outlook.SURE`."""

HORIZON_S = 600.0
"""A growth that needs longer is no forecast."""

MOST_AT_ONCE = 64
"""Memories that are thought about in one answer, those first that have waited longest: one takes about 0.3 ms."""

USUAL_INTERVAL_S = 15.0
"""Seconds between scrapes where that is not known."""


@dataclass(slots=True)
class _Followed:
    """A memory. `time` counts in scrapes, `seen_s` is when it was scraped last, `thought` the answer it waits since."""

    forecaster: Forecaster = field(default_factory=Forecaster)
    time: float = 0.0
    seen_s: float = 0.0
    interval_s: float = USUAL_INTERVAL_S
    thought: int = 0
    ahead_s: float | None = None

    def observe(self, gpu: FleetGpu, interval_s: float) -> None:
        assert gpu.used_bytes is not None and gpu.total_bytes is not None
        self.time += (gpu.seen_s - self.seen_s) / interval_s if self.seen_s else 0.0
        self.seen_s, self.interval_s = gpu.seen_s, interval_s
        self.forecaster.observe(self.time, gpu.used_bytes + (gpu.reserved_bytes or 0), gpu.total_bytes)

    def think(self, answer: int) -> None:
        self.thought = answer
        ahead = self.forecaster.forecast()
        ahead_s = None if ahead is None or ahead.confidence < LEAST_SURE else ahead.seconds * self.interval_s
        self.ahead_s = ahead_s if ahead_s is not None and ahead_s <= HORIZON_S else None


class Forecasts:
    """Follows the memory of GPUs. Belongs to one thread.

    The forecaster is made for readings many times a second. Here its seconds are scrapes, so that it looks as far back,
    in readings, as it does there.
    """

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}
        self._answers = 0

    def take(self, gpus: Iterable[FleetGpu], intervals: Mapping[tuple[str, str], float]) -> dict[str, float]:
        """Take in an answer; key → seconds until that memory is full.

        Args:
            gpus: all of the fleet, fullest first; those that gpudash itself foretells are left out.
            intervals: (instance, identity) → seconds between two scrapes.
        """
        self._answers += 1
        followed, due = {}, []
        for gpu in gpus:
            if gpu.exporter == "gpudash" or gpu.stale or gpu.fullness is None:
                continue
            memory = followed[gpu.key] = self._followed.get(gpu.key) or _Followed()
            if gpu.seen_s > memory.seen_s:
                memory.observe(gpu, intervals.get(gpu.where, USUAL_INTERVAL_S))
                if gpu.fullness >= FULL_RATIO:
                    due.append(memory)
                else:
                    memory.ahead_s = None
        for memory in sorted(due, key=lambda memory: memory.thought)[:MOST_AT_ONCE]:
            memory.think(self._answers)
        self._followed = followed
        return {key: memory.ahead_s for key, memory in followed.items() if memory.ahead_s is not None}
