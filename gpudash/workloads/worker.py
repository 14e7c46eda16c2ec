"""The thread that runs workloads: the only one that imports and touches torch."""

from __future__ import annotations

import importlib
import os
import queue
import random
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpudash.specs import Spec
from gpudash.telemetry.records import Event, Note, RunFinished, RunStarted
from gpudash.units import format_bytes
from gpudash.workloads.context import Context, MemoryLevel, Wishes
from gpudash.workloads.endings import Progress, WorkloadError, ending_of
from gpudash.workloads.host_heap import give_back
from gpudash.workloads.installed import gpu_uuid, torch_report, torch_words

if TYPE_CHECKING:
    import torch

    from gpudash.workloads.allocator import AllocatorProbe

__all__ = ["MemoryLevel", "RunRequest", "Worker"]

Probe = Callable[[], Mapping[str, int]]
Workload = Callable[[Spec, Context], Mapping[str, Any]]


@dataclass(frozen=True)
class RunRequest:
    """One run.

    Attributes:
        spec: what to run.
        device: torch's name of the device: "cpu", "cuda:0".
        run_id: its number in the session.
        refuse: asked with the bytes of an announced allocation; a sentence refuses it.
        memory: how full the device is; ``None`` without a reading.
        warn_ratio: memory level of a warning, 0 to 1.
        expected_uuid: the GPU that NVML says ``device`` is; any other ends the run.
        link_bytes_per_second: theoretical rate of the link to the device, where it is known.
    """

    spec: Spec
    device: str
    run_id: int
    refuse: Callable[[int], str | None] | None = None
    memory: Callable[[], MemoryLevel | None] | None = None
    warn_ratio: float = 0.85
    expected_uuid: str | None = None
    link_bytes_per_second: float | None = None


class Worker:
    """Runs one workload at a time on its own daemon thread.

    Args:
        emit: takes every event; called on the worker's thread.
        clock: session time in seconds.
        on_probe: given the device and a callable that reads its allocator when a CUDA run begins, and the device and
            ``None`` when it ends.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        on_probe: Callable[[str, Probe | None], None] | None = None,
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
            try:
                order()
            except Exception as error:  # told like every failure: a thread must not die silently
                self._note("worker", f"The worker met an error and goes on ({type(error).__name__}: {error}).")

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
        self._load()
        spec, began_s = request.spec, self._clock()
        self._emit(
            RunStarted(
                time_s=began_s,
                run_id=request.run_id,
                workload=spec.name,
                device=request.device,
                spec=spec.model_dump(mode="json"),
            )
        )
        run = _Run(request, wishes, self._emit, self._clock, self._on_probe)
        try:
            self._require_torch()
            result, error = run.perform()
        except BaseException as raised:  # noqa: BLE001 - a workload may raise anything, and every run has an end
            result, error = {}, raised
        progress = Progress(
            time_s=self._clock(),
            run_id=request.run_id,
            seconds=self._clock() - began_s,
            steps=run.steps_done,
            result=result,
        )
        ending = (
            RunFinished(status="finished", **progress.fields())
            if error is None
            else ending_of(error, progress, spec.name, request.device)
        )
        del run, error  # the traceback's frames hold the run's tensors
        release()
        with self._lock:
            self._wishes = None
        self._emit(ending)

    def _require_torch(self) -> None:
        if self._torch is None or self._torch["version"] is None:
            problem = str((self._torch or {}).get("problem"))
            raise WorkloadError("torch", f"{problem.partition(';')[0]}.", "Run: pip install torch")

    def _free_cache(self) -> None:
        before = _reserved_bytes()
        release()
        if before is None:
            self._note("cache", "Freed heap was given back to the system.")
            return
        torch = sys.modules["torch"]
        torch.cuda.empty_cache()
        after = _reserved_bytes()
        self._note(
            "cache",
            f"Idle memory was given back: PyTorch holds {format_bytes(after)} instead of {format_bytes(before)}.",
            reserved_bytes_before=before,
            reserved_bytes_after=after,
        )
