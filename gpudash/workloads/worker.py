"""The thread that runs workloads: the only one that imports and touches torch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from gpudash.telemetry.records import Event, Note, OutOfMemory
from gpudash.units import format_bytes
from gpudash.workloads.context import MemoryLevel, Wishes
from gpudash.workloads.installed import torch_report, torch_words
from gpudash.workloads.run import Probe, Run, RunRequest, release

__all__ = ["MemoryLevel", "RunRequest", "Worker"]

_Found = TypeVar("_Found")


class Worker:
    """Runs one workload at a time on its own daemon thread.

    Args:
        emit: takes every event; called on the worker's thread.
        clock: session time in seconds.
        on_probe: given the device and a callable that reads its allocator when a CUDA run begins; it stays good after
            the run, and the next run on the device brings a new one.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        on_probe: Callable[[str, Probe], None] | None = None,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._on_probe = on_probe
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._wishes: Wishes | None = None
        self._torch: dict[str, Any] | None = None
        self._loading = False
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="gpudash-worker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def warm_up(self) -> None:
        """Import torch ahead of the first run; a note of topic "torch" tells when it is there, or why it is not."""
        self._orders.put(self._load)

    def submit(self, request: RunRequest) -> None:
        """Run ``request`` as soon as the thread is free of lesser duties.

        Raises:
            RuntimeError: when a run is on, or the worker is closed.
        """
        with self._lock:
            if self._wishes is not None:
                raise RuntimeError("A run is on; stop it before starting another.")
            if self._closing:
                raise RuntimeError("The worker is closed.")
            wishes = self._wishes = Wishes()
        self._orders.put(lambda: self._run(request, wishes))

    def stop(self, because: str | None = None) -> None:
        """Ask the run to end after its current operation; returns at once.

        Args:
            because: the guard's sentence: the run then ends as out of memory instead of cancelled.
        """
        with self._lock:
            if self._wishes is not None and not self._wishes.stop.is_set():
                self._wishes.because = because
                self._wishes.stop.set()

    def explain(self) -> None:
        """Ask the run what its memory holds; a note of topic `EXPLANATION` answers at the end of the step."""
        with self._lock:
            if self._wishes is not None:
                self._wishes.explain.set()

    def free_cache(self) -> None:
        """Give idle memory back: between two operations of the run, or now when there is none."""
        with self._lock:
            if self._wishes is not None:
                self._wishes.free_cache.set()
                return
        self._orders.put(self._free_cache)

    @property
    def busy(self) -> bool:
        """Whether a run is on: from `submit` until just before its last event."""
        return self._wishes is not None

    @property
    def loading(self) -> bool:
        """Whether torch is being imported now."""
        return self._loading

    def close(self, timeout_s: float) -> bool:
        """Stop the run, end the thread, and wait for both at most ``timeout_s``.

        Returns:
            Whether the thread is gone; one that is not is a daemon and does not keep the process.
        """
        with self._lock:
            self._closing = True
        self.stop()
        self._orders.put(None)
        if self._thread.ident is None:
            return True
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            order = self._orders.get()
            if order is None or (self._closing and self._wishes is None):
                return
            self._tried(order, "The worker met an error and goes on")

    def _tried(self, action: Callable[[], _Found], failure: str) -> _Found | None:
        """What ``action`` returns; ``None`` after an error, which a note tells: the thread goes on."""
        try:
            return action()
        except Exception as error:  # CUDA's errors have no common type, and an unknown one must not end the thread
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            told = f"{type(error).__name__}: {first}" if first else type(error).__name__
            self._note("worker", f"{failure} ({told}).", details=str(error))
            return None

    def _load(self) -> None:
        if self._torch is not None and self._torch["version"] is not None:
            return
        self._loading = True
        try:
            report = torch_report()
        finally:
            self._loading = False
        self._torch = report
        self._note("torch", torch_words(report), **report)

    def _note(self, topic: str, text: str, **details: Any) -> None:
        self._emit(Note(time_s=self._clock(), topic=topic, text=text, details=details))

    def _run(self, request: RunRequest, wishes: Wishes) -> None:
        self._tried(self._load, "Torch could not be looked at")
        problem = None if self._torch is None else self._torch["problem"] if self._torch["version"] is None else None
        ending = Run(request, wishes, self._emit, self._clock, self._on_probe).perform(problem)
        try:
            # After an out-of-memory the device goes back to its level before: idle segments too.
            full = isinstance(ending, OutOfMemory)
            self._tried(lambda: release(cache=full), "What the run has left could not all be given back")
        finally:
            with self._lock:
                self._wishes = None
            self._emit(ending)

    def _free_cache(self) -> None:
        released = self._tried(lambda: release(cache=True), "Idle memory could not be given back")
        if released is None:
            return
        before, after = released
        if before is None or after is None:
            self._note("cache", "Freed heap was given back to the system.")
            return
        self._note(
            "cache",
            f"Idle memory was given back: PyTorch holds {format_bytes(after)} instead of {format_bytes(before)}.",
            reserved_bytes_before=before,
            reserved_bytes_after=after,
        )
