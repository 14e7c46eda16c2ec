"""The NVLinks of one GPU: their traffic, errors and number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from gpudash.sources.nvml.calls import ByteCounter, counters, counters_wanted
from gpudash.sources.nvml.errors import NVML_ERRORS, Scope, classify
from gpudash.telemetry.records import Value

RATES = ("nvlink_rx_bytes_per_second", "nvlink_tx_bytes_per_second")
METRICS = (*RATES, "nvlink_errors", "nvlink_links")

LINKS_PERIOD_S = 10.0
"""Interval at which active links are counted, with one call for each."""

KIB = 1024

FASTEST_KIB_PER_SECOND = 2e12 / KIB
"""More than all links of any GPU carry in one direction: Blackwell's carry 0.9 TB/s."""

ALL_LINKS = 0xFFFFFFFF
"""Scope of a throughput that is the sum over all links (nvml.h)."""

_THROUGHPUT = tuple(
    (field, ALL_LINKS)
    for field in (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
)
"""Counters in KiB."""

_ERRORS_OF_ALL = (
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)
"""Error counters up to Ampere."""

_ERRORS_OF_A_LINK = (
    (
        pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
        pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
        pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    ),
    (
        pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
        pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
    ),
)
"""Error counters of Hopper, and from Blackwell on; their scope is the link."""


class NvLinks:
    """Reads the NVLinks. Belongs to the reading thread; reset with each handle.

    Args:
        rates: two rates of counters, received and sent: each called with a counter, a time and the link's bytes per
            second.
    """

    def __init__(self, rates: Sequence[Callable[[ByteCounter, float, float], float | None]]) -> None:
        self._rates = rates
        self._links = 0
        self._active = 0
        self._polled_s = -math.inf
        self._wanted: bytes | None = None

    def ask(self, handle: Any, now_s: float) -> dict[str, Value]:
        """The metrics; without rates the first time.

        Raises:
            Exception: one of `NVML_ERRORS`; "not supported" for a GPU without links.
        """
        if now_s - self._polled_s >= LINKS_PERIOD_S:
            self._poll(handle)
            self._polled_s = now_s
        if self._wanted is None:
            self._wanted = counters_wanted([*_THROUGHPUT, *self._error_fields(handle)])
        *moved, errors = self._read(handle, self._wanted)
        answer: dict[str, Value] = {"nvlink_errors": errors, "nvlink_links": self._active}
        for metric, rate, counter in zip(RATES, self._rates, moved, strict=True):
            if counter is None:
                answer[metric] = None
            elif (value := rate(ByteCounter(counter, 64), now_s, FASTEST_KIB_PER_SECOND)) is not None:
                answer[metric] = value * KIB
        return answer

    def _poll(self, handle: Any) -> None:
        """Count the links, and the active ones."""
        states = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                states.append(pynvml.nvmlDeviceGetNvLinkState(handle, link))
            except NVML_ERRORS as error:
                if classify(error).scope is not Scope.METRIC:
                    raise
                break  # no more links
        if not states:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if len(states) != self._links:
            self._wanted = None
        self._links = len(states)
        self._active = sum(state == pynvml.NVML_FEATURE_ENABLED for state in states)

    def _error_fields(self, handle: Any) -> Sequence[tuple[int, int]]:
        """The error counters that this GPU has; empty if none of the known ones."""
        families = [[(field, 0) for field in _ERRORS_OF_ALL]]
        families += [[(field, link) for link in range(self._links) for field in of] for of in _ERRORS_OF_A_LINK]
        for fields in families:
            if any(found is not None for found in counters(handle, counters_wanted(fields))):
                return fields
        return ()

    @staticmethod
    def _read(handle: Any, wanted: bytes) -> tuple[int | None, int | None, int | None]:
        """KiB received and sent, and errors, since some time in the past."""
        received, sent, *errors = counters(handle, wanted)
        found = [counter.value for counter in errors if counter is not None]
        return received and received.value, sent and sent.value, sum(found) if found else None
