"""A run's own process, from the view of the process that started it: the process, and one run in it, from the first
event to its ending, as the worker's thread sees it.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpudash.agent.wire import PROTOCOL, Decoder, Message, WireError, encode
from gpudash.memory.watching.pushed_reading import PushedReading
from gpudash.system.processes import TORCH_IMPORT_S, end_group
from gpudash.telemetry.records import (
    Event,
    Note,
    RunEnd,
    RunStarted,
    StepFinished,
    Topic,
    event_from_json,
)
from gpudash.workloads.profiling import ProfileRequest
from gpudash.workloads.running.card_requests import RequestReceiver
from gpudash.workloads.running.hosted.request import answer, message_of
from gpudash.workloads.running.run import RequestedRun
from gpudash.workloads.running.run_errors import MemoryKills, Progress, died, ending_of

logger = logging.getLogger(__name__)

STOP_S = 0.6
"""Seconds for a run to end by itself after Stop; then its process is killed, so that Stop takes less than 1 s."""

POLL_S = 0.02
"""Seconds between two polls for requests while the process sends nothing."""

LINGERS = "The run's process does not end: a driver holds it, and what it took of the device is not free yet."

START_REMEDY = "Try: python -c 'import torch'; or run it with --no-isolate."


@dataclass(eq=False)
class HostedRun(RequestedRun):
    """A run in another process.

    Attributes:
        torch: what torch is and sees there (`torch_report`); ``None`` if it never got that far.
    """

    torch: Mapping[str, Any] | None = field(default=None, init=False)
    _started: bool = field(default=False, init=False)
    _steps: int = field(default=0, init=False)
    _allocators: dict[str, PushedReading] = field(default_factory=dict, init=False)
    _stop_requested_s: float | None = field(default=None, init=False)
    _profile: ProfileRequest | None = field(default=None, init=False)
    _ending: Event | None = field(default=None, init=False)
    _card_requests: RequestReceiver | None = field(default=None, init=False)
    _kills: MemoryKills = field(default_factory=MemoryKills, init=False)

    def perform(self, find_host: Callable[[], Host]) -> Event:
        """Run it, and end its process, which frees all it held; every exception becomes an ending.

        Returns:
            the ending, not yet emitted.
        """
        host: Host | None = None
        try:
            # Before the run can start: readings of that process count as ours from its first one.
            host = find_host()
            if self.request.on_host is not None:
                self.request.on_host(host.pid)
            ending = self._until_its_end(host)
            self.torch = host.torch
        except Exception as error:  # a process that cannot be started, or a failing callback: every run has an ending
            logger.warning("run %d in its own process ended with an error", self.request.run_id, exc_info=True)
            ending = ending_of(error, self._progress(), self.request.spec.name, self.request.device)
        if host is not None:
            try:
                self._release(host)
            except Exception as error:  # a failing callback must not prevent reporting the end
                logger.exception("the run's own process could not be let go")
                self._note(f"What the run's process held may still be shown ({type(error).__name__}: {error}).")
        return ending

    def _release(self, host: Host) -> None:
        """End the process, and stop showing what it held."""
        host.close()
        if host.lingers:  # its memory still counts as ours
            self._note(LINGERS)
            return
        if self.request.on_host is not None:
            self.request.on_host(None)
        for allocator in self._allocators.values():
            allocator.end()
        if self.request.on_cards is not None:
            self.request.on_cards(host.pid, ())

    def _note(self, text: str) -> None:
        self.emit(Note(time_s=self.clock(), run_id=self.request.run_id, topic=Topic.WORKER, text=text))

    def _until_its_end(self, host: Host) -> Event:
        requested, start_until = False, time.monotonic() + TORCH_IMPORT_S
        while self._ending is None:
            if host.ready and not requested:
                requested = True
                self._pass_on_requests(host)  # first, as a short run may be over before the next poll
                host.send(message_of(self.request, self.clock))
            for message in host.receive(POLL_S):
                self._take(message, host)
            # The message may have been the end: check nothing else then.
            if self._ending is not None:
                break
            # What it sent before it ended has been received by now.
            if host.gone:
                return self._died(host)
            if self.requests.stop.is_set() and not requested:
                return self._stopped(self._progress())
            if self.requests.stop.is_set() and self._stop_is_overdue(host):
                return self._killed(self._progress(), STOP_S)
            if not requested and time.monotonic() > start_until:
                return self._never_ready()
            if requested:
                self._pass_on_requests(host)
        return self._ending

    def _pass_on_requests(self, host: Host) -> None:
        if self.requests.take_explain():
            host.send({"type": "explain"})
        if self.requests.free_cache.is_set():
            self.requests.free_cache.clear()
            host.send({"type": "free_cache"})
        profile = self.requests.profile
        # By identity: the same request is passed on once, and stays set until its note arrives.
        if profile is not None and profile is not self._profile:
            self._profile = profile
            host.send({"type": "profile", **asdict(profile)})

    def _stop_is_overdue(self, host: Host) -> bool:
        """Whether the process has used up its time after Stop."""
        now = time.monotonic()
        if self._stop_requested_s is None:
            # Sent once; from then on only time counts.
            self._stop_requested_s = now
            host.send({"type": "stop", "because": self.requests.because})
        return now - self._stop_requested_s > STOP_S

    def _take(self, message: Message, host: Host) -> None:
        kind = message["type"]
        if kind == "events":
            for text in message["events"]:
                self._pass_on(event_from_json(text))
        elif kind == "ending":
            self._ending = event_from_json(message["event"])
        elif kind == "reading":
            self._read(message, host.pid)
        elif kind == "requests":
            if self._card_requests is None and self.request.on_requests is not None:
                self._card_requests = RequestReceiver(self.request.on_requests)
            if self._card_requests is not None:
                self._card_requests.take(message)
        elif kind == "ask":
            value = answer(self.request, message, host.pid)
            host.send({"type": "answer", "number": message["number"], "value": value})

    def _pass_on(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._started = True
        elif isinstance(event, StepFinished):
            self._steps = event.step
        # The profile has been reported, and another may be requested.
        elif isinstance(event, Note) and event.topic == Topic.OPERATORS:
            self.requests.profile = None
        self.emit(event)

    def _read(self, message: Message, pid: int) -> None:
        if self.request.on_cards is not None and message["cards"]:
            self.request.on_cards(pid, message["cards"])
        device = str(message["device"])
        known = self._allocators.get(device)
        # The first reading of a device: the monitor gets what it reads from now on.
        allocator = self._allocators.setdefault(device, PushedReading(time.monotonic))
        allocator.put(message["allocator"])
        if known is None and self.on_probe is not None:
            self.on_probe(device, allocator)

    def _died(self, host: Host) -> Event:
        # Wait briefly for the exit code: the connection closes before the process ends.
        code = host.end(patience_s=DYING_S)
        if self.requests.stop.is_set():
            return self._stopped(self._progress())
        full, details = self._kills.rose(), host.faults()
        name = self.request.spec.name
        return died(code, self._progress(), name, memory_was_full=full, details=details)

    def _never_ready(self) -> Event:
        message = (
            "The run's own process was not ready within two minutes, which is how long importing PyTorch may take."
        )
        return RunEnd(status="failed", error="host", message=message, remedy=START_REMEDY, **self._progress().fields())

    def _progress(self) -> Progress:
        """The run's progress by its messages; every run starts before it ends, whatever order they arrive in."""
        request = self.request
        # A process that died early reported no start, but every end needs one.
        if not self._started:
            self._pass_on(self._begun())
        now = self.clock()
        peaks: Mapping[str, Any] = self._allocators.get(request.device, PushedReading(time.monotonic)).peaks()
        return Progress(now, request.run_id, now - self.began_s, self._steps, {"memory": dict(peaks)})


PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; from gpudash.workloads.running.hosted.host_process import main; main()"
)
"""``python -m`` would search the working directory first; the process must find the same packages as this one."""

SEND_S = 0.5
"""Longest time in seconds to wait for a process that does not read."""

DYING_S = 2.0
"""Longest wait in seconds for a process that was killed or closed its connection: a driver may delay it."""

_CHUNK = 1 << 18
_MOST_FAULTS = 20_000


class Host:
    """Starts the process. Use it in a single thread that lives as long: the process ends with that thread.

    It leads a process group of its own: a Ctrl+C in the terminal does not reach it, and what it starts ends with it.

    Raises:
        OSError: it cannot be started.

    Attributes:
        gone: whether it has ended, or will send nothing more.
        ready: whether it waits for a request.
        torch: what torch is and sees there (`torch_report`); ``None`` until it is ready.
    """

    def __init__(self) -> None:
        self.gone = False
        self.ready = False
        self.torch: Mapping[str, Any] | None = None
        self._decoder = Decoder()
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._link, theirs = socket.socketpair()
        try:
            # Descriptor numbers, which `pass_fds` keeps the same in the child.
            numbers = str(theirs.fileno()), str(os.getpid()), str(self._faults.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *numbers, *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._faults.fileno()),
                start_new_session=True,
            )
        except OSError:
            self._close()
            raise
        finally:
            # The child has its own: while this one is open, the child's end would not be noticed.
            theirs.close()
        logger.info("process %d began, for a run of its own", self._process.pid)
        self._link.settimeout(SEND_S)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return not self.gone and self._process.poll() is None

    @property
    def lingers(self) -> bool:
        """Whether the process was killed but has not ended, because a driver call blocks it."""
        return self._process.poll() is None

    def send(self, message: Message) -> None:
        """Send one message; a process that does not read counts as `gone`."""
        try:
            self._link.sendall(encode(message))
        except OSError:
            self.gone = True

    def receive(self, timeout_s: float) -> list[Message]:
        """The messages that have arrived; waits up to ``timeout_s`` for the first."""
        if self.gone or not select.select([self._link], [], [], timeout_s)[0]:
            return []
        try:
            data = self._link.recv(_CHUNK)
            messages = self._decoder.feed(data)
        except (OSError, WireError):
            data, messages = b"", []
        self.gone = not data
        for message in messages:
            if message["type"] == "ready":
                self.ready, self.torch = message.get("protocol") == PROTOCOL, message["torch"]
                self.gone = self.gone or not self.ready
        return messages

    # Set first: nothing more is expected from the connection.
    def end(self, *, patience_s: float = 0.0) -> int | None:
        """End the process and everything it has started.

        Args:
            patience_s: how long it may take to end by itself.

        Returns:
            its exit code as in `subprocess`, or ``None`` if it was killed here.
        """
        self.gone = True
        return end_group(self._process, patience_s=patience_s, dying_s=DYING_S)

    def faults(self) -> str:
        """Where it was when it crashed, innermost line first; "" if unknown."""
        if self._faults.closed:
            return ""
        self._faults.seek(0)
        return self._faults.read(_MOST_FAULTS).decode(errors="replace").strip()

    def close(self) -> None:
        """`end` it unless that was done, and release its resources here."""
        if self._process.returncode is None:
            self.end()
        self._close()

    def _close(self) -> None:
        self._link.close()
        self._faults.close()
