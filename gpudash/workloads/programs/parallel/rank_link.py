"""A rank's connection to its run: ten readings a second, the run's requests, and how the rank failed, if it did."""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from gpudash.agent.channel import Channel
from gpudash.agent.wire import PROTOCOL, Message
from gpudash.system.foreign_text import first_line
from gpudash.system.processes import resident_bytes
from gpudash.workloads.running.accelerators import module_of
from gpudash.workloads.running.run_errors import WorkloadError, shortage_of

BEAT_S = 0.1
"""Seconds between two readings of a rank's memory."""

POLL_S = 0.02
"""Seconds between two polls for the run's requests."""

SHUTDOWN_S = 5.0
"""Longest wait in seconds until the last messages are sent."""

COMPUTING, COLLECTIVE, STARTING, LEAVING = "computing", "collective", "starting", "leaving"
"""The phases of a rank: its own work, waiting in a collective, importing and building, shutting down."""


class EndsHere(Exception):  # noqa: N818 - nothing went wrong
    """The run ends before the step that would start now."""


class Link:
    """Reports to the run what this rank does. The main thread trains; `start` starts the thread that reports the rest.

    Args:
        path: of the run's socket.
        origin_s: the system's monotonic clock at session time 0.

    Raises:
        OSError: nothing listens there.

    Attributes:
        rank, local_rank, world_size: from torchrun's environment variables.
        phase: the main thread's current phase.
        allocator: reads the GPU's allocator, once it exists.
        communicates: returns whether the rank is in a collective now; ``None`` if `phase` says so.
        card: reads the figures of a simulated GPU as a whole; ``None`` for any other device.
        free_cache: whether cached memory should be released between two steps.
    """

    def __init__(self, path: Path, origin_s: float) -> None:
        environment = os.environ
        self.rank = int(environment["RANK"])
        self.local_rank = int(environment["LOCAL_RANK"])
        self.world_size = int(environment["WORLD_SIZE"])
        self.phase = STARTING
        self.allocator: Callable[[], Mapping[str, int | None]] | None = None
        self.communicates: Callable[[], bool] | None = None
        self.card: Callable[[], dict[str, Any]] | None = None
        self.free_cache = threading.Event()
        self._origin_s = origin_s
        self._channel = Channel(str(path))
        self._main = threading.main_thread().ident or 0
        self._changed = threading.Condition()
        self._begun = 0
        self._held = False
        self._last: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gpudash-link", daemon=True)

    @property
    def step(self) -> int:
        """The latest step that has started."""
        return self._begun

    def clock(self) -> float:
        """Session time in seconds."""
        return time.monotonic() - self._origin_s

    def start(self, device: str) -> None:
        """Introduce this rank, and start reporting its state."""
        environment = os.environ
        self.report(
            "hello",
            protocol=PROTOCOL,
            rank=self.rank,
            local_rank=self.local_rank,
            world_size=self.world_size,
            pid=os.getpid(),
            device=device,
            host=socket.gethostname(),
            restart=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            run=environment.get("TORCHELASTIC_RUN_ID", ""),
        )
        self._thread.start()

    def report(self, kind: str, **facts: Any) -> None:
        """Send one message."""
        self._channel.post({"type": kind, **facts}, keep=True)

    def begin_step(self, step: int) -> None:
        """Call this before every step.

        Raises:
            EndsHere: the run ends before it.
        """
        with self._changed:
            # Held at the start of a step, outside of any collective, where all ranks can wait.
            while self._held and self._last is None:
                self._changed.wait()
            # All ranks were sent the same last step, the latest that any had started.
            if self._last is not None and step > self._last:
                raise EndsHere
            self._begun = step
        self.phase = COMPUTING

    def leave(self) -> None:
        """Send what is queued, and close the connection."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._channel.drain(SHUTDOWN_S)
        self._channel.close()

    def beat(self) -> None:
        """Report memory and state now."""
        reading: Mapping[str, int | None] = {}
        if self.allocator is not None:
            reading = self.allocator()
        card = None
        if self.card is not None:
            card = self.card()
        phase = self.phase
        if self.communicates is not None and self.communicates():
            phase = COLLECTIVE
        self._channel.post(
            {
                "type": "beat",
                "time_s": self.clock(),
                "used_bytes": resident_bytes(),
                # Peaks since the last reading, which reset the allocator's own: none is missed between two beats.
                "allocated_bytes": reading.get("peak_allocated_bytes"),
                "reserved_bytes": reading.get("peak_reserved_bytes"),
                "card": card,
                "step": self._begun,
                "phase": phase,
                "where": place_of(sys._current_frames().get(self._main)),  # noqa: SLF001 - the only access to another thread's stack
            }
        )

    def _work(self) -> None:
        due = 0.0
        while not self._ended.wait(POLL_S) and self._channel.alive:
            for message in self._channel.receive():
                self._handle(message)
            now = time.monotonic()
            if now >= due:
                due = now + BEAT_S
                self.beat()
            self._channel.flush()

    def _handle(self, message: Message) -> None:
        kind = message["type"]
        if kind == "stop":
            with self._changed:
                # Holding the lock: `begin_step` has either started its step before, or waits.
                # from here on no further step starts, until the run sends the step at which all of them end
                self._held = True
                self.report("held", step=self._begun)
        elif kind == "end_at":
            with self._changed:
                self._last = int(message["step"])
                self._changed.notify_all()
        elif kind == "free_cache":
            self.free_cache.set()


def place_of(frame: FrameType | None) -> str:
    """Where a thread is: "training.py:12 in step", from the innermost frame that is not torch's own."""
    if frame is None:
        return ""
    innermost = frame
    found = frame
    while found.f_back is not None and f"{os.sep}torch{os.sep}" in found.f_code.co_filename:
        found = found.f_back
    shown = innermost
    if found.f_back is not None:
        shown = found
    return f"{os.path.basename(shown.f_code.co_filename)}:{shown.f_lineno} in {shown.f_code.co_name}"  # noqa: PTH119


LOST_PARTNER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "connection was closed",
    "NCCL communicator was aborted",
    "remote process exited",
    "Remote process",
)
"""In a backend's error: another rank has ended, and is the cause (Gloo's transport, ProcessGroupNCCL.cpp)."""

TIMED_OUT = ("Timed out", "timed out", "timeout", "Timeout")
"""In a backend's error: another rank did not reach a collective in time."""


def facts_of(error: BaseException, link: Link, device: str) -> dict[str, Any]:
    """``error`` as a message, with the memory use of this rank and its device at that moment."""
    text = str(error)
    kind = type(error).__name__
    remedy = ""
    if isinstance(error, WorkloadError):
        kind = error.kind
        remedy = error.remedy
    full = None
    requested = None
    short = shortage_of(error)
    if short is not None:
        full = short.memory
        requested = short.requested
    return {
        "error": kind,
        "message": first_line(text),
        "remedy": remedy,
        "where": _frame_of(error),
        "details": "".join(traceback.format_exception(error)),
        "because_of": _partner(error, text),
        "step": link.step,
        "full": full,
        "requested_bytes": requested,
        **memory_facts(device),
    }


def memory_facts(device: str) -> dict[str, int | None]:
    """This process's memory, its limit, and what the device holds, in bytes; ``None`` for unknown."""
    facts: dict[str, int | None] = dict.fromkeys(("allocated_bytes", "reserved_bytes", "free_bytes", "total_bytes"))
    # The soft limit counts: the process could raise it, but does not.
    limit: int | None = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        limit = None
    facts.update(used_bytes=resident_bytes(), limit_bytes=limit)
    if device == "cpu":
        facts["total_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return facts
    torch = sys.modules.get("torch")
    with suppress(Exception):  # a broken device raises errors from now on
        if torch is not None:
            module = module_of(torch.device(device))
            free, total = module.mem_get_info(device)
            facts.update(free_bytes=free, total_bytes=total)
            facts.update(allocated_bytes=module.memory_allocated(device), reserved_bytes=module.memory_reserved(device))
    return facts


def _partner(error: BaseException, text: str) -> str | None:
    """Whether another rank is the cause: "gone" or "late"; ``None`` if it is this rank's own failure."""
    # By name: `DistBackendError` and others do not exist in every build of torch.
    if type(error).__name__ not in ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError"):
        return None
    if any(sign in text for sign in LOST_PARTNER):
        return "gone"
    # Of RuntimeErrors only those that name a backend: a data loader's timeout is the rank's own failure.
    lower = text.lower()
    backend = type(error).__name__.startswith("Dist") or any(word in lower for word in ("gloo", "nccl", "collective"))
    if not backend:
        return None
    if any(sign in text for sign in TIMED_OUT):
        return "late"
    return "gone"


def _frame_of(error: BaseException) -> str:
    """Where it was raised: file, line and function of the innermost frame outside torch."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame.filename] or frames
    if own:
        return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}"
    return ""
