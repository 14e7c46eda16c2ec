"""Requests that are answered one at a time on another thread, where only the newest one matters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from gpudash.system.threads import joined, started

T = TypeVar("T")


class NewestRequest(Generic[T]):
    """Answers requests on a thread that exists only while there are requests.

    A request that arrives during another one waits, replacing the one that was already waiting.

    Args:
        name: name of the thread.
        answer: callback on that thread; returns false to have equal requests ignored from then on. Must not raise.
    """

    def __init__(self, name: str, answer: Callable[[T], bool]) -> None:
        self._name = name
        self._answer = answer
        self._lock = threading.Lock()
        self._waiting: T | None = None
        self._retried = False
        self._refused: T | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether any request is unanswered."""
        with self._lock:
            return self._thread is not None

    def submit(self, request: T, *, retry: bool = False) -> None:
        """Request an answer, replacing a waiting request; returns immediately.

        Args:
            request: the request.
            retry: whether to answer it even if an equal one was refused before.
        """
        with self._lock:
            if retry:
                self._refused = None
            self._begin(request, retry=retry)

    def submit_if_none_waits(self, request: T) -> None:
        """Request an answer unless another request waits; returns immediately."""
        # For requests of low priority, such as reading ahead: they must not replace one that a caller waits for.
        with self._lock:
            if self._waiting is None:
                self._begin(request)

    def wait(self, timeout_s: float) -> bool:
        """Wait until all requests are answered; false on timeout."""
        # Read once: the thread may end meanwhile.
        thread = self._thread
        return joined(thread, timeout_s)

    def close(self) -> None:
        """Accept no more requests; the present one continues, and `wait` waits for it."""
        with self._lock:
            self._closed = True
            self._waiting = None

    def _begin(self, request: T, *, retry: bool = False) -> None:
        """Store a request, and start the thread if necessary; the caller holds the lock."""
        # A refused request would be refused again; a caller that redraws repeats it with every frame.
        if self._closed or request == self._refused:
            return
        self._waiting = request
        self._retried = retry
        if self._thread is None:
            self._thread = started(self._name, self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                request = self._waiting
                self._waiting = None
                # Under the same lock as `_begin`: no request can arrive between the last check and the thread's end.
                if request is None:
                    self._thread = None
                    return
            if not self._answer(request):
                with self._lock:
                    self._refused = request
                    if self._waiting == request and not self._retried:  # it arrived before the refusal was known
                        self._waiting = None
