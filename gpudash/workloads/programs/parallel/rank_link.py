"""A rank's end of the run's socket: what it does, how it is, and when it is to end.

A thread of its own tells ten times a second what memory the rank holds and where its main thread stands, so that a rank
that hangs in its own code can be told from one that waits for another. To stop, ranks must leave at the same step:
those that went on would wait for the others for ever. So a rank that is asked (``stop``) says at once which step it has
begun (``held``), begins no other, and goes on to the last step that any has begun (``end_at``).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from gpudash.agent.channel import Channel
from gpudash.agent.wire import PROTOCOL, Message
from gpudash.workloads.programs.comparison.process import resident_bytes

BEAT_S = 0.1
"""Between two readings of a rank's memory."""

LOOK_S = 0.02
"""Between two looks for what the run asks."""

FAREWELL_S = 5.0
"""Longest that the last messages are waited for to be taken."""

COMPUTING, COLLECTIVE, STARTING, LEAVING = "computing", "collective", "starting", "leaving"
"""What a rank is at: its own work, waiting in a collective, importing and building, saying farewell."""


class EndsHere(Exception):  # noqa: N818 - nothing went wrong
    """The run is to end before the step that would begin now."""


class Link:
    """Tells the run what this rank does. The main thread trains; `start` begins the thread that tells the rest.

    Args:
        path: of the run's socket.
        origin_s: the system's monotonic clock at session time 0.

    Raises:
        OSError: when nobody listens there.

    Attributes:
        rank, local_rank, world_size: as torchrun has set them in the environment.
        phase: what the main thread is at.
        allocator: reads the GPU's allocator once there is one.
        free_cache: whether idle memory is to be given back between two steps.
    """

    def __init__(self, path: Path, origin_s: float) -> None:
        environment = os.environ
        self.rank, self.local_rank = int(environment["RANK"]), int(environment["LOCAL_RANK"])
        self.world_size = int(environment["WORLD_SIZE"])
        self.phase = STARTING
        self.allocator: Callable[[], Mapping[str, int]] | None = None
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
        """The newest step that has begun."""
        return self._begun

    def clock(self) -> float:
        """Session time in seconds."""
        return time.monotonic() - self._origin_s

    def start(self, device: str) -> None:
        """Introduce this rank, and begin to tell how it is."""
        environment = os.environ
        self.tell(
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

    def tell(self, kind: str, **facts: Any) -> None:
        """Tell one message."""
        self._channel.post({"type": kind, **facts}, keep=True)

    def begin_step(self, step: int) -> None:
        """To be called before every step.

        Raises:
            EndsHere: when the run is to end before it.
        """
        with self._changed:
            while self._held and self._last is None:
                self._changed.wait()
            if self._last is not None and step > self._last:
                raise EndsHere
            self._begun = step
        self.phase = COMPUTING

    def leave(self) -> None:
        """Send what waits, and let the connection go."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._channel.drain(FAREWELL_S)
        self._channel.close()

    def beat(self) -> None:
        """Tell memory and standing now."""
        reading = {} if self.allocator is None else self.allocator()
        self._channel.post(
            {
                "type": "beat",
                "time_s": self.clock(),
                "used_bytes": resident_bytes(),
                "allocated_bytes": reading.get("peak_allocated_bytes"),
                "reserved_bytes": reading.get("peak_reserved_bytes"),
                "step": self._begun,
                "phase": self.phase,
                "where": place_of(sys._current_frames().get(self._main)),  # noqa: SLF001 - the only way to look at another thread
            }
        )

    def _work(self) -> None:
        due = 0.0
        while not self._ended.wait(LOOK_S) and self._channel.alive:
            for message in self._channel.receive():
                self._heed(message)
            now = time.monotonic()
            if now >= due:
                due = now + BEAT_S
                self.beat()
            self._channel.flush()

    def _heed(self, message: Message) -> None:
        kind = message["type"]
        if kind == "stop":
            with self._changed:
                self._held = True
                self.tell("held", step=self._begun)
        elif kind == "end_at":
            with self._changed:
                self._last = int(message["step"])
                self._changed.notify_all()
        elif kind == "free_cache":
            self.free_cache.set()


def place_of(frame: FrameType | None) -> str:
    """Where a thread stands: "training.py:12 in step", of the innermost frame that is not torch's own."""
    if frame is None:
        return ""
    innermost, found = frame, frame
    while found.f_back is not None and f"{os.sep}torch{os.sep}" in found.f_code.co_filename:
        found = found.f_back
    shown = found if found.f_back is not None else innermost
    return f"{os.path.basename(shown.f_code.co_filename)}:{shown.f_lineno} in {shown.f_code.co_name}"  # noqa: PTH119
