"""Where a rank's step goes, as shares of it: worked out at each step, of every rank and in the mean over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpudash.telemetry.records import Sample, Value

PARTS = ("compute", "communication", "waiting")
"""What a step is spent on; each is a series ``<part>_share``.

Computing is what the rank has told, else what is neither of the others. Where ranks tell their computing without the
time in which they waited for a core, that time is none of the three, and the shares add up to less than 1.
"""

MEAN = "mean"
"""Device under which the shares of all ranks together are kept."""

Share = tuple[str, str, float, float]
"""Metric, device, session time and share, 0 to 1."""


class RankShares:
    """Takes the rows of the table ``rank`` in order; a step's rows follow each other and bear the same time."""

    def __init__(self) -> None:
        self._time_s: float | None = None
        self._sums: list[float] = []
        self._whole_s = 0.0
        self._ranks = 0

    def take(self, sample: Sample) -> Iterator[Share]:
        """The shares that ``sample`` brings: of its rank, and of all ranks in the step before it."""
        spent = _seconds(sample.values)
        if spent is None:
            return
        parts, whole_s = spent
        if sample.time_s != self._time_s:
            yield from self.flush()
            self._time_s, self._sums, self._whole_s, self._ranks = sample.time_s, [0.0] * len(PARTS), 0.0, 0
        device = sample.device or ""
        if device.isdecimal():
            self._sums = [before + seconds for before, seconds in zip(self._sums, parts, strict=True)]
            self._whole_s += whole_s
            self._ranks += 1
            yield from _shares(device, sample.time_s, parts, whole_s)

    def flush(self) -> Iterator[Share]:
        """The shares of all ranks in the newest step, when no more of it will come."""
        if self._time_s is not None and self._ranks:
            yield from _shares(MEAN, self._time_s, self._sums, self._whole_s)
        self._ranks = 0


def _seconds(values: Mapping[str, Value]) -> tuple[list[float], float] | None:
    """The parts of a step and the whole of it in seconds; ``None`` where a row tells of no step, or not where it went.

    Parts that are more than the step took, by clocks that disagree, are taken for all of it.
    """
    found = [values.get(name) for name in ("step_s", "communication_s", "waiting_s")]
    known = [float(value) for value in found if isinstance(value, int | float)]
    if len(known) < len(found):
        return None
    step_s, communication_s, waiting_s = known
    rest_s, told = max(0.0, step_s - communication_s - waiting_s), values.get("compute_s")
    compute_s = min(rest_s, max(0.0, float(told))) if isinstance(told, int | float) else rest_s
    parts = [compute_s, communication_s, waiting_s]
    return parts, max(step_s, sum(parts))


def _shares(device: str, time_s: float, parts: list[float], whole_s: float) -> Iterator[Share]:
    if whole_s > 0:
        yield from ((f"{name}_share", device, time_s, part / whole_s) for name, part in zip(PARTS, parts, strict=True))
