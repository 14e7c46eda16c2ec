"""An allocator in another process, which sends its readings; read here at the monitor's own pace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from gpudash.telemetry.metrics import METRICS

HELD = ("allocated_bytes", "reserved_bytes")
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")

RETRIES = "allocation_retries"

READ_NS = "read_ns"
"""Key of a reading's own session time in nanoseconds, beside its metrics."""

STALE_S = 1.0
"""Silence of the other process after which its newest reading is out of date."""

_GAP = dict.fromkeys((metric.name for metric in METRICS["allocator"]), None)


class PushedReading:
    """The newest reading received; calling it returns the reading, as a probe for the monitor. Thread-safe.

    Args:
        clock: seconds, monotonic.
        stale_s: age in seconds after which a reading is out of date.
        lasts: whether the process sends only what has changed: a reading has its own time once, and is then of the
            moment at which it is asked for.
    """

    def __init__(self, clock: Callable[[], float], stale_s: float = STALE_S, *, lasts: bool = False) -> None:
        self._clock = clock
        self._stale_s = stale_s
        self._lasts = lasts
        self._lock = threading.Lock()
        self._newest: dict[str, int | None] | None = None
        self._ended = False
        self._put_s = 0.0
        self._peaks: dict[str, int] = {}
        self._highest: dict[str, int] = {}

    def put(self, reading: Mapping[str, int | None]) -> None:
        """Store a reading: metrics of the ``allocator`` table, ``None`` if not available."""
        with self._lock:
            self._newest, self._put_s = dict(reading), self._clock()
            for name in PEAKS:
                value = reading.get(name)
                if value is not None:
                    self._peaks[name] = max(value, self._peaks.get(name, value))
                    self._highest[name] = max(value, self._highest.get(name, value))

    def end(self) -> None:
        """The process has ended and its memory is free: there are no readings from now on, which is not a gap."""
        with self._lock:
            self._ended = True
            self._peaks.clear()  # they must not count for the next program on the device
            self._newest = {**dict.fromkeys((*HELD, *PEAKS), 0), RETRIES: (self._newest or {}).get(RETRIES)}

    def __call__(self) -> Mapping[str, int | None]:
        """The newest reading, with peaks since the previous call; ``None`` for every metric if out of date.

        A peak received between two calls is in the next valid reading.
        """
        with self._lock:
            if self._newest is None or (not self._ended and self._clock() - self._put_s > self._stale_s):
                return dict(_GAP)
            reading = {**self._newest, **self._peaks}
            self._peaks.clear()
            if self._lasts:
                self._newest.pop(READ_NS, None)
            return reading

    def peaks(self) -> dict[str, int | None]:
        """The highest peaks ever received, in bytes; ``None`` if there were none."""
        with self._lock:
            return {name: self._highest.get(name) for name in PEAKS}
