"""A run's own process, as seen by the one that started it: the process, and one run in it, from the first event to the
one that ends it, as the worker's thread sees it.
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
"""What a run has to end by itself once it is to stop; then its process is killed, so that Stop takes less than 1 s."""

POLL_S = 0.02
"""How often wishes are looked for while the process tells nothing."""

LINGERS = "The run's process does not end: a driver holds it, and what it took of the device is not free yet."

START_REMEDY = "Try: python -c 'import torch'; or run it with --no-isolate."


@dataclass(eq=False)
class HostedRun(RequestedRun):
    """A run that another process is asked for.

    Attributes:
        torch: what torch is and sees there (`torch_report`); ``None`` when it never got so far.
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
        """Run it, and end its process, with which all it held is given back; every exception becomes an ending.

        Returns:
            the ending, not yet emitted.
        """
        host: Host | None = None
        try:
            # Before the run can begin: readings of that process count as ours from its first one.
            host = find_host()
            if self.request.on_host is not None:
                self.request.on_host(host.pid)
            ending = self._until_its_end(host)
            self.torch = host.torch
        except Exception as error:  # a process that cannot be started, or a callback: every run has an end
            logger.warning("run %d in its own process ended with an error", self.request.run_id, exc_info=True)
            ending = ending_of(error, self._progress(), self.request.spec.name, self.request.device)
        if host is not None:
            try:
                self._release(host)
            except Exception as error:  # nor may a callback keep the end from being told
                logger.exception("the run's own process could not be let go")
                self._note(f"What the run's process held may still be shown ({type(error).__name__}: {error}).")
        return ending

    def _release(self, host: Host) -> None:
        """End the process, and show what it held no longer."""
        host.close()
        if host.lingers:  # it still counts as ours
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
                self._pass_on_requests(host)  # ahead of the request: a short run may be over before the next look
                host.send(message_of(self.request, self.clock))
            for message in host.receive(POLL_S):
                self._take(message, host)
            # A message may have been the end: nothing else is looked at then.
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
        # By identity: the same request is passed on once, and stays set until its note answers.
        if profile is not None and profile is not self._profile:
            self._profile = profile
            host.send({"type": "profile", **asdict(profile)})

    def _stop_is_overdue(self, host: Host) -> bool:
        """Whether the process, once told to stop, has had its time."""
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
        # The profile has been told, and another may be asked for.
        elif isinstance(event, Note) and event.topic == Topic.OPERATORS:
            self.requests.profile = None
        self.emit(event)

    def _read(self, message: Message, pid: int) -> None:
        if self.request.on_cards is not None and message["cards"]:
            self.request.on_cards(pid, message["cards"])
        device = str(message["device"])
        known = self._allocators.get(device)
        # The first reading of a device: the monitor is given what it reads from now on.
        allocator = self._allocators.setdefault(device, PushedReading(time.monotonic))
        allocator.put(message["allocator"])
        if known is None and self.on_probe is not None:
            self.on_probe(device, allocator)

    def _died(self, host: Host) -> Event:
        # A moment for the exit code: the connection ends before the process does.
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
        """How far the run has come by its process's messages; it has begun before it ends, in whatever order."""
        request = self.request
        # A process that died early has told no beginning: every end has one.
        if not self._started:
            self._pass_on(self._begun())
        now = self.clock()
        peaks: Mapping[str, Any] = self._allocators.get(request.device, PushedReading(time.monotonic)).peaks()
        return Progress(now, request.run_id, now - self.began_s, self._steps, {"memory": dict(peaks)})


PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; from gpudash.workloads.running.hosted.host_process import main; main()"
)
"""``python -m`` would put the working directory in front of all packages; the process is to find what this one does."""

SEND_S = 0.5
"""Longest that sending waits for a process that does not read."""

DYING_S = 2.0
"""How long a process that was killed, or has closed its connection, is waited for: a driver may take its time."""

_CHUNK = 1 << 18
_MOST_FAULTS = 20_000


class Host:
    """Starts the process. Only one thread may use it, and must live as long: the process ends with that thread.

    It leads a process group of its own: a Ctrl+C in the terminal does not reach it, and what it starts ends with it.

    Raises:
        OSError: when it cannot be started.

    Attributes:
        gone: whether it has ended, or will never tell anything again.
        ready: whether it waits for a request.
        torch: what torch is and sees there (`torch_report`); ``None`` before it is ready.
    """

    def __init__(self) -> None:
        self.gone = False
        self.ready = False
        self.torch: Mapping[str, Any] | None = None
        self._decoder = Decoder()
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._link, theirs = socket.socketpair()
        try:
            # Numbers of descriptors, which `pass_fds` keeps the same in the child.
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
            # The child has its own: while this one stayed open, its end would never be seen here.
            theirs.close()
        logger.info("process %d began, for a run of its own", self._process.pid)
        self._link.settimeout(SEND_S)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return not self.gone and self._process.poll() is None

    @property
    def lingers(self) -> bool:
        """Whether the process has not ended though it was killed: a driver's call holds it."""
        return self._process.poll() is None

    def send(self, message: Message) -> None:
        """Send one message; a process that does not read is `gone`."""
        try:
            self._link.sendall(encode(message))
        except OSError:
            self.gone = True

    def receive(self, timeout_s: float) -> list[Message]:
        """The messages that have come, waiting for the first at most ``timeout_s``."""
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

    # Set first: nothing more is expected of the connection.
    def end(self, *, patience_s: float = 0.0) -> int | None:
        """End the process with all it has started.

        Args:
            patience_s: how long it may take to end by itself.

        Returns:
            its exit code as `subprocess` has it, or ``None`` when it was killed here.
        """
        self.gone = True
        return end_group(self._process, patience_s=patience_s, dying_s=DYING_S)

    def faults(self) -> str:
        """Where it was when it crashed, innermost line first; "" when it did not say."""
        if self._faults.closed:
            return ""
        self._faults.seek(0)
        return self._faults.read(_MOST_FAULTS).decode(errors="replace").strip()

    def close(self) -> None:
        """`end` it unless that was done, and give back what it took here."""
        if self._process.returncode is None:
            self.end()
        self._close()

    def _close(self) -> None:
        self._link.close()
        self._faults.close()
