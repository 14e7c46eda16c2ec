"""The thread that runs workloads: the only one that imports and touches torch."""

from __future__ import annotations

import gc
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from gpudash.system.foreign_text import error_text
from gpudash.system.garbage import without_collection
from gpudash.system.processes import TORCH_IMPORT_S
from gpudash.system.threads import joined
from gpudash.telemetry.records import Event, Note, Record, Topic
from gpudash.units import format_bytes, format_like

if TYPE_CHECKING:  # a session that only watches also has a worker, which never runs anything
    from gpudash.workloads.profiling import ProfileRequest
    from gpudash.workloads.running.context import Requests
    from gpudash.workloads.running.hosted.run import Host
    from gpudash.workloads.running.run import Probe, RunRequest

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")

SPARE_DELAY_S = 1.0
"""Idle seconds after a run in a process of its own before the next one is started, which takes seconds of CPU."""

POLL_S = 0.05
"""Seconds between two polls of a starting process, and of whether to continue waiting."""


class Worker:
    """Runs one workload at a time on its own daemon thread, or in a process that this thread starts and follows.

    Such a process runs one workload and ends. The next one is started in advance, so that a run need not wait for
    torch.

    Args:
        emit: receives every event, and the readings of ranks; called on the worker's thread.
        clock: session time in seconds.
        on_probe: called with the device and a callable that reads its allocator when a run on a GPU starts; it remains
            valid after the run, and the next run on the device provides a new one.
    """

    def __init__(
        self,
        emit: Callable[[Record], None],
        clock: Callable[[], float],
        on_probe: Callable[[str, Probe], None] | None = None,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._on_probe = on_probe
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._requests: Requests | None = None
        self._torch: dict[str, Any] | None = None
        self._loading = False
        self._closing = False
        self._spare: Host | None = None
        self._wants_spare = False
        self._thread = threading.Thread(target=self._work, name="gpudash-worker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def warm_up(self, isolate: bool = False) -> None:
        """Import torch ahead of the first run; a note of topic "torch" reports when it is available, or why it is not.

        If CUDA can be used, a process for the first run there is started too.

        Args:
            isolate: import it only in such a process, which every run will have.
        """
        self._orders.put(self._load_aside if isolate else self._load)

    def submit(self, request: RunRequest) -> None:
        """Run ``request`` as soon as the thread has finished its minor tasks.

        Raises:
            RuntimeError: a run is on, or the worker is closed.
        """
        from gpudash.workloads.running.context import Requests

        with self._lock:
            if self._requests is not None:
                raise RuntimeError("A run is in progress; stop it before starting another.")
            if self._closing:
                raise RuntimeError("The worker is closed.")
            # Set under the lock and before the thread sees it: `busy` is true from here on.
            requests = self._requests = Requests()
            requests.profile = request.profile
        self._orders.put(lambda: self._run(request, requests))

    def stop(self, because: str | None = None) -> None:
        """Ask the run to end after its current operation; returns at once.

        Args:
            because: the guard's sentence; the run then ends as out of memory instead of cancelled.
        """
        with self._lock:
            # The first reason stays: a guard's, after the user's Stop, would turn it into an out-of-memory.
            if self._requests is not None and not self._requests.stop.is_set():
                self._requests.because = because
                self._requests.stop.set()

    def explain(self) -> None:
        """Request an explanation of the run's memory; a note of topic `EXPLANATION` answers at the end of the step."""
        with self._lock:
            if self._requests is not None:
                self._requests.explain.set()

    def profile(self, request: ProfileRequest) -> None:
        """Profile the next steps of the run; a note of topic `OPERATORS` answers.

        Raises:
            RuntimeError: no run is on, or its steps are already being profiled.
        """
        with self._lock:
            if self._requests is None:
                raise RuntimeError("No run is in progress whose steps could be profiled; start one.")
            if self._requests.profile is not None:
                raise RuntimeError("Steps of this run are being profiled already.")
            self._requests.profile = request

    def free_cache(self) -> None:
        """Release idle memory: between two operations of the run, or now if there is no run."""
        with self._lock:
            if self._requests is not None:
                self._requests.free_cache.set()
                return
        self._orders.put(self._free_cache)

    @property
    def busy(self) -> bool:
        """Whether a run is on: from `submit` until just before its last event."""
        return self._requests is not None

    @property
    def loading(self) -> bool:
        """Whether torch is being imported now."""
        return self._loading

    def close(self, timeout_s: float) -> bool:
        """Stop the run, end the thread, and wait for both up to ``timeout_s``.

        Returns:
            Whether the thread has ended; otherwise it is a daemon and does not keep the process alive.
        """
        with self._lock:
            self._closing = True
        self.stop()
        # After everything queued: the thread ends once it gets there.
        self._orders.put(None)
        if self._thread.ident is None:
            return True
        return joined(self._thread, max(0.0, timeout_s))

    def _work(self) -> None:
        logger.info("the worker began")
        try:
            while True:
                order = self._next_order()
                # A run that was queued before closing must still report its end.
                if order is None or (self._closing and self._requests is None):
                    return
                self._tried(order, "The worker met an error and goes on")
        finally:
            if self._spare is not None:
                self._spare.close()
            logger.info("the worker ended")

    def _next_order(self) -> Callable[[], None] | None:
        if self._wants_spare:
            # Idle time is over when an order arrives; without one the next process is started.
            try:
                return self._orders.get(timeout=SPARE_DELAY_S)
            except queue.Empty:
                return self._start_spare
        return self._orders.get()

    def _tried(self, action: Callable[[], _Found], failure: str) -> _Found | None:
        """The result of ``action``; ``None`` after an error, which is reported in a note: the thread continues."""
        try:
            return action()
        except Exception as error:  # CUDA's errors have no common type, and no error may end the thread
            logger.exception("%s", failure)
            self._note(Topic.WORKER, f"{failure} ({error_text(error)}).", details=str(error))
            return None

    def _load(self) -> None:
        if self._torch is not None and self._torch["version"] is not None:
            return
        from gpudash.workloads.running.installed import torch_report

        new = "torch" not in sys.modules
        self._loading = True
        try:
            with without_collection():
                report = torch_report()
        finally:
            self._loading = False
        if new:  # 150,000 objects that stay: later garbage collections, during which all threads wait, skip them
            gc.freeze()
        self._report_torch(report)
        self._wants_spare = bool(report["cuda_available"])

    def _load_aside(self) -> None:
        """Get torch's report from a run's own process, and keep the process for the run."""
        if self._torch is not None:
            return
        self._loading = True
        try:
            with suppress(OSError):  # the run itself reports that no process can be started
                self._start_spare()
            spare, until = self._spare, time.monotonic() + TORCH_IMPORT_S
            while spare is not None and spare.torch is None and not (spare.gone or self._closing):
                spare.receive(POLL_S)
                if time.monotonic() > until:
                    break
        finally:
            self._loading = False
        if spare is not None and spare.torch is not None:
            self._report_torch(dict(spare.torch))
        elif not self._closing:
            self._load()

    def _report_torch(self, report: dict[str, Any]) -> None:
        from gpudash.workloads.running.installed import torch_text

        self._torch = report
        self._note(Topic.TORCH, torch_text(report), **report)

    def _start_spare(self) -> None:
        from gpudash.workloads.running.hosted.run import Host

        self._wants_spare = False
        if self._spare is None and not self._closing:
            self._spare = Host()

    def _host(self) -> Host:
        """A process for a run: the waiting one, or a new one."""
        from gpudash.workloads.running.hosted.run import Host
        from gpudash.workloads.running.run_errors import WorkloadError

        spare, self._spare = self._spare, None
        if spare is not None:
            # It may have died while it waited, which shows only when receiving.
            spare.receive(0)
            if spare.alive:
                return spare
            spare.close()
        try:
            return Host()
        except OSError as error:
            message = f"The run's own process cannot be started ({error.strerror or error})."
            raise WorkloadError("host", message, "Close other programs, or run it with --no-isolate.") from error

    def _note(self, topic: str, text: str, **details: Any) -> None:
        self._emit(Note(time_s=self._clock(), topic=topic, text=text, details=details))

    def _run(self, request: RunRequest, requests: Requests) -> None:
        ending = self._route(request)(request, requests)
        # Before the end is emitted: its receiver may submit the next run at once.
        with self._lock:
            self._requests = None
        self._emit(ending)

    def _route(self, request: RunRequest) -> Callable[[RunRequest, Requests], Event]:
        if request.spec.rank_devices:
            return self._on_several
        if request.isolate:
            return self._hosted
        return self._run_here

    def _on_several(self, request: RunRequest, requests: Requests) -> Event:
        from gpudash.workloads.programs.parallel.parallel_run import ParallelRun

        # Ranks have processes of their own in any case, so this comes before `isolate`.
        return ParallelRun(request, requests, self._emit, self._clock).perform()

    def _run_here(self, request: RunRequest, requests: Requests) -> Event:
        from gpudash.workloads.running.run import Run, release

        self._tried(self._load, "Torch could not be looked at")
        if self._torch is None:
            problem = None
        elif self._torch["version"] is None:
            problem = self._torch["problem"]
        else:
            problem = None
        # torch's state is unknown: the run's own import reports the problem.
        ending = Run(request, requests, self._emit, self._clock, self._on_probe).perform(problem)
        # As at the end of a process, the device returns to its previous level.
        self._tried(lambda: release(context=True), "What the run has left could not all be given back")
        return ending

    def _hosted(self, request: RunRequest, requests: Requests) -> Event:
        from gpudash.workloads.running.hosted.run import HostedRun

        run = HostedRun(request, requests, self._emit, self._clock, self._on_probe)
        ending = run.perform(self._host)
        if self._torch is None and run.torch is not None:
            self._report_torch(dict(run.torch))
        self._wants_spare = True
        return ending

    def _free_cache(self) -> None:
        from gpudash.workloads.running.run import release

        released = self._tried(release, "Idle memory could not be given back")
        if released is None:
            return
        before, after = released
        if before is None or after is None:
            self._note(Topic.CACHE, "Freed heap was given back to the system.")
            return
        self._note(
            Topic.CACHE,
            f"Idle memory was given back: PyTorch holds {format_like(after, before)} instead of "
            f"{format_bytes(before)}.",
            reserved_bytes_before=before,
            reserved_bytes_after=after,
        )
