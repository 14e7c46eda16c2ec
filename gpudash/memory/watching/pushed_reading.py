"""An allocator that lives in another process: its readings are pushed, and read here at the monitor's own pace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from gpudash.telemetry.metrics import METRICS

HELD = ("allocated_bytes", "reserved_bytes")
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")

RETRIES = "allocation_retries"

STALE_S = 1.0
"""Silence of the other process after which its newest reading is no longer taken for the present."""

_GAP = dict.fromkeys((metric.name for metric in METRICS["allocator"]), None)


class PushedReading:
    """The newest reading that was pushed; calling it reads, as a probe of the monitor. Any thread may do either.

    Args:
        clock: seconds, monotonic.
        stale_s: after so long without a reading there is none.
    """

    def __init__(self, clock: Callable[[], float], stale_s: float = STALE_S) -> None:
        self._clock = clock
        self._stale_s = stale_s
        self._lock = threading.Lock()
        self._newest: Mapping[str, int | None] | None = None
        self._ended = False
        self._put_s = 0.0
        self._peaks: dict[str, int] = {}
        self._highest: dict[str, int] = {}

    def put(self, reading: Mapping[str, int | None]) -> None:
        """Take in a reading: metrics of the ``allocator`` table, ``None`` for one that could not be had."""
        with self._lock:
            self._newest, self._put_s = dict(reading), self._clock()
            for name in PEAKS:
                value = reading.get(name)
                if value is not None:
                    self._peaks[name] = max(value, self._peaks.get(name, value))
                    self._highest[name] = max(value, self._highest.get(name, value))

    def end(self) -> None:
        """The process has ended: what it held is given back, so that nothing is read from now on, which is no gap."""
        with self._lock:
            self._ended = True
            self._peaks.clear()  # whatever comes next on the device would be taken to have reached them; see `peaks`
            self._newest = {**dict.fromkeys((*HELD, *PEAKS), 0), RETRIES: (self._newest or {}).get(RETRIES)}

    def __call__(self) -> Mapping[str, int | None]:
        """The newest reading, its peaks those of all readings since the call before; every metric ``None`` when stale.

        A peak pushed between two looks is in the next reading that is not stale.
        """
        with self._lock:
            if self._newest is None or (not self._ended and self._clock() - self._put_s > self._stale_s):
                return dict(_GAP)
            reading = {**self._newest, **self._peaks}
            self._peaks.clear()
            return reading

    def peaks(self) -> dict[str, int | None]:
        """The highest peaks ever pushed, in bytes; ``None`` where none was."""
        with self._lock:
            return {name: self._highest.get(name) for name in PEAKS}
