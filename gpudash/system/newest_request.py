"""Requests that are answered one at a time away from the caller, where only the newest one still matters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from gpudash.system.threads import joined

T = TypeVar("T")


class NewestRequest(Generic[T]):
    """Answers requests on a thread, which is there only while there is something to answer.

    A request that comes while another is answered waits for it, in place of one that waited already.

    Args:
        name: of the thread.
        answer: called on that thread; false has the same request ignored from then on. It raises nothing.
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
        """Whether something that was requested has not been answered yet."""
        with self._lock:
            return self._thread is not None

    def submit(self, request: T, *, retry: bool = False) -> None:
        """Have ``request`` answered in place of one that waits; returns at once.

        Args:
            request: what is answered.
            retry: answer it also where the same was refused before.
        """
        with self._lock:
            if retry:
                self._refused = None
            self._begin(request, retry=retry)

    def submit_if_none_waits(self, request: T) -> None:
        """Have ``request`` answered unless another one waits; returns at once."""
        # A request of lesser weight, such as reading ahead, does not replace one that a caller waits for.
        with self._lock:
            if self._waiting is None:
                self._begin(request)

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything that was requested has been answered; false when the time passed first."""
        # Read once: the thread may end between two looks.
        thread = self._thread
        return joined(thread, timeout_s)

    def close(self) -> None:
        """Answer nothing more; what is being answered goes on, and `wait` waits for it."""
        with self._lock:
            self._closed = True
            self._waiting = None

    def _begin(self, request: T, *, retry: bool = False) -> None:
        """The caller holds the lock."""
        # What was refused once would be refused again; a caller that redraws asks for the same at every frame.
        if self._closed or request == self._refused:
            return
        self._waiting = request
        self._retried = retry
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                request = self._waiting
                self._waiting = None
                # Under the lock, with which `_begin` looks: no request can come between the last look and the
                # thread's end.
                if request is None:
                    self._thread = None
                    return
            if not self._answer(request):
                with self._lock:
                    self._refused = request
                    if self._waiting == request and not self._retried:  # it came before the refusal was known
                        self._waiting = None
