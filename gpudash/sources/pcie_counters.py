"""Transfer rates from PCIe byte counters that wrap."""

from __future__ import annotations

from dataclasses import dataclass

from gpudash.sources.nvml_calls import Counter

NARROW = 1 << 32

_TOLERANCE = 2.0
"""Readings are a little early or late; a rate beyond twice what the link carries is a counter that was reset."""


@dataclass(slots=True)
class WrappingRate:
    """The rate of one byte counter.

    nvml.h says the value "can be wrapped". Drivers type it as 64 bits and still wrap it at 2^32, so it counts as
    32 bits wide until a larger value has been seen.
    """

    _value: int = 0
    _time_s: float | None = None
    _wide: bool = False

    def update(self, counter: Counter, time_s: float, limit: float) -> float | None:
        """Bytes a second since the last reading.

        Args:
            counter: the reading.
            time_s: its time.
            limit: the most bytes a second the link carries: what decides whether more than one wrap is possible.

        Returns:
            ``None`` for the first reading. NaN when so much time has passed that the counter may have wrapped more than
            once, or when it was reset.
        """
        before, since_s = self._value, self._time_s
        self._value, self._time_s = counter.value, time_s
        self._wide = self._wide or counter.value >= NARROW
        if since_s is None or time_s <= since_s:
            return None
        modulus = (1 << counter.bits) if self._wide else NARROW
        elapsed_s = time_s - since_s
        rate = ((counter.value - before) % modulus) / elapsed_s
        if limit * elapsed_s >= modulus or rate > _TOLERANCE * limit:
            return float("nan")
        return rate


def safe_period_s(limit: float) -> float:
    """The longest period at which a 32-bit counter on a link of ``limit`` bytes a second wraps at most once."""
    return NARROW / limit
