"""The XID errors of one GPU, which the driver queues for registered clients and returns one by one."""

from __future__ import annotations

import contextlib
from typing import Any

import pynvml

from gpudash.sources.nvml.errors import NVML_ERRORS

METRICS = ("xid_errors", "last_xid")

WAIT_MS = 1
"""How long the driver may wait for an event: not at all, since later ones are read next time."""

MOST_AT_ONCE = 16
"""Most errors taken in one reading; the rest stays in the driver's queue."""


class XidEvents:
    """Reads XID errors. Belongs to the reading thread.

    Attributes:
        count: number of errors so far.
        last: number of the newest; 0 for none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = 0
        self._events: Any = None
        self._handle: Any = None

    @property
    def registered(self) -> bool:
        """Whether there is a queue."""
        return self._events is not None

    def register(self, handle: Any) -> None:
        """Ask the driver to queue this GPU's errors from now on, if it does not yet.

        Raises:
            Exception: one of `NVML_ERRORS`, if it refuses.
        """
        if handle is self._handle:
            return
        self.release()
        events = pynvml.nvmlEventSetCreate()
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except NVML_ERRORS:
            with contextlib.suppress(*NVML_ERRORS):
                pynvml.nvmlEventSetFree(events)
            raise
        self._events, self._handle = events, handle

    def take(self) -> list[int]:
        """New errors, oldest first. Uses no handle, so it also returns the last error of a lost GPU.

        Raises:
            Exception: one of `NVML_ERRORS`.
        """
        found: list[int] = []
        while self._events is not None and len(found) < MOST_AT_ONCE:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, WAIT_MS)
            except pynvml.NVMLError_Timeout:
                break
            found.append(int(event.eventData))
        self.count += len(found)
        if found:
            self.last = found[-1]
        return found

    def release(self) -> None:
        """Free the queue."""
        events = self._events
        self.forget()
        if events is not None:
            with contextlib.suppress(*NVML_ERRORS):
                pynvml.nvmlEventSetFree(events)

    def forget(self) -> None:
        """Drop the queue without freeing it: it ended when the library was shut down."""
        self._events = self._handle = None
