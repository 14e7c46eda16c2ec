"""Where a rank's step goes, as shares of it: worked out at each step, of every rank and in the mean over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpudash.telemetry.records import Sample, Value

PARTS = ("compute", "communication", "waiting")
"""What a step is spent on; each is a series ``<part>_share``. Computing is what is neither of the others."""

MEAN = "mean"
"""Device under which the shares of all ranks together are kept."""

Share = tuple[str, str, float, float]
"""Metric, device, session time and share, 0 to 1."""


class RankShares:
    """Takes the rows of the table ``rank`` in order; a step's rows follow each other and bear the same time."""

    def __init__(self) -> None:
        self._time_s: float | None = None
        self._sums: list[float] = []
        self._ranks = 0

    def take(self, sample: Sample) -> Iterator[Share]:
        """The shares that ``sample`` brings: of its rank, and of all ranks in the step before it."""
        parts = _seconds(sample.values)
        if parts is None:
            return
        if sample.time_s != self._time_s:
            yield from self.flush()
            self._time_s, self._sums, self._ranks = sample.time_s, [0.0] * len(PARTS), 0
        device = sample.device or ""
        if device.isdecimal():
            self._sums = [before + seconds for before, seconds in zip(self._sums, parts, strict=True)]
            self._ranks += 1
            yield from _shares(device, sample.time_s, parts)

    def flush(self) -> Iterator[Share]:
        """The shares of all ranks in the newest step, when no more of it will come."""
        if self._time_s is not None and self._ranks:
            yield from _shares(MEAN, self._time_s, self._sums)
        self._ranks = 0


def _seconds(values: Mapping[str, Value]) -> list[float] | None:
    """The parts of a step in seconds; ``None`` where a row tells of no step, or not where it went."""
    found = [values.get(name) for name in ("step_s", "communication_s", "waiting_s")]
    known = [float(value) for value in found if isinstance(value, int | float)]
    if len(known) < len(found):
        return None
    step_s, communication_s, waiting_s = known
    return [max(0.0, step_s - communication_s - waiting_s), communication_s, waiting_s]


def _shares(device: str, time_s: float, parts: list[float]) -> Iterator[Share]:
    whole = sum(parts)
    if whole > 0:
        yield from ((f"{name}_share", device, time_s, part / whole) for name, part in zip(PARTS, parts, strict=True))
