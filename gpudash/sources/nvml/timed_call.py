"""A question to the driver that may never be answered, asked on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class PendingCall(Generic[T]):
    """Calls ``call`` on a daemon thread, at once."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._result: T | None = None
        self._error: Exception | None = None
        self._asked_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"gpudash {name}", daemon=True)
        self._thread.start()

    @property
    def answered(self) -> bool:
        """Whether the call has returned or raised."""
        return not self._thread.is_alive()

    @property
    def age_s(self) -> float:
        """Seconds since it was asked."""
        return time.monotonic() - self._asked_s

    def answer(self) -> T | None:
        """What the call returned; ``None`` while it has not.

        Raises:
            Exception: what the call raised.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout_s: float) -> None:
        self._thread.join(max(0.0, timeout_s))

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # handed to whoever asks for the answer
            self._error = error


def wait_for(calls: Iterable[PendingCall[T]], timeout_s: float) -> None:
    """Waits until all are answered, at most ``timeout_s`` in all."""
    deadline = time.monotonic() + timeout_s
    for call in calls:
        call.wait(deadline - time.monotonic())
