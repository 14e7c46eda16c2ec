"""The XID errors of one GPU: the driver queues them for registered clients and hands them out one by one."""

from __future__ import annotations

import contextlib
from typing import Any

import pynvml

from gpudash.sources.nvml.errors import NVML_ERRORS

METRICS = ("xid_errors", "last_xid")

WAIT_MS = 1
"""How long the driver may wait for one: not at all, since later ones are handed out next time."""

MOST_AT_ONCE = 16
"""Errors that are taken in a reading; more stay in the driver's queue for the next one."""


class XidEvents:
    """Belongs to the thread that reads.

    Attributes:
        count: errors so far.
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
        """Has the driver queue this GPU's from now on, if it does not yet.

        Raises:
            Exception: of `NVML_ERRORS`, where it does not.
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
        """Numbers of those that have come since, oldest first. No handle is used: a lost GPU's last one comes too.

        Raises:
            Exception: of `NVML_ERRORS`.
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
        """Gives the queue back."""
        events = self._events
        self.forget()
        if events is not None:
            with contextlib.suppress(*NVML_ERRORS):
                pynvml.nvmlEventSetFree(events)

    def forget(self) -> None:
        """Leaves the queue to a library that has been shut down, with which it ended."""
        self._events = self._handle = None
