"""A program to be watched: it is started, what it has started itself is found, it is asked to end by one signal for
each request, and how it ended is put in words.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from gpudash.session.watching.output import relay
from gpudash.session.watching.request import CannotExecuteError, WatchRequest
from gpudash.units import format_left

RELAY_S = 0.5
"""Time for the relay to end once its output is no longer read."""


class Program:
    """A running program, in its own session and process group, so that Ctrl+C in a terminal does not reach it.

    Args:
        request: a request checked by `check_request`.
        environment: all of its environment variables.

    Raises:
        ValueError: one sentence, if the system refuses to start it.

    Attributes:
        pid: PID of the program.
        copies: socket with the packets of `output.relay`; ends when there can be no more output.
    """

    def __init__(self, request: WatchRequest, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = zip(os.pipe(), os.pipe(), strict=True)
        try:
            self._relay = _start_relay(reading, theirs, request)
            try:
                self._process = _start(request, environment, writing)
            except OSError:
                self._relay.kill()
                self._relay.wait()
                raise
        except OSError as error:
            ours.close()
            raise CannotExecuteError(_refusal(request.command[0], error)) from None
        # The children have copies of these: if ours stayed open, neither pipe would ever end.
        finally:
            theirs.close()
            for descriptor in (*reading, *writing):
                os.close(descriptor)
        self.pid = self._process.pid
        self.copies = ours
        self._mark = environment.get("GPUDASH_SOCKET", "")
        self._seen: dict[int, psutil.Process] = {}
        self._resident: Mapping[int, int] = {}
        self._own: tuple[psutil.Process, ...] = ()
        self._behind: Sequence[psutil.Process] = ()
        with suppress(psutil.Error):  # it may already have ended
            self._own = (psutil.Process(self.pid),)

    def poll(self) -> int | None:
        """Exit code, negative for a signal; ``None`` while it runs."""
        return self._process.poll()

    def signal_other_groups(self, number: signal.Signals) -> None:
        """Send a signal to processes that it left outside of its process group, which earlier signals did not
        reach."""
        for process in self._behind:
            with suppress(psutil.Error, OSError):
                if os.getpgid(process.pid) != self.pid:
                    process.send_signal(number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, as a terminal does; once it has ended, to processes that it left."""
        # Not reaped yet as far as we know, so its PID cannot be another group's.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        for process in self._behind:
            with suppress(psutil.Error):
                process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code once it has ended; ``None`` if that takes longer than ``timeout_s``."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def scan(self) -> None:
        """Record its descendants: once a process's parent has ended, it can no longer be found through it."""
        with suppress(psutil.Error):
            for process in self._own:
                for child in process.children(recursive=True):
                    self._seen.setdefault(child.pid, child)
        self._seen = {pid: child for pid, child in self._seen.items() if child.is_running()}
        self._resident = {
            process.pid: size for process in (*self._own, *self._seen.values()) if (size := _resident(process))
        }

    def resident(self) -> Mapping[int, int]:
        """Resident bytes of the program and its descendants, by the last scan."""
        return self._resident

    def left_running(self, ranks: Collection[int] = ()) -> tuple[list[psutil.Process], list[psutil.Process]]:
        """Its processes that still run after its end: those left behind, and those detached on purpose.

        A process with its own session (setsid) is meant to outlive the program, like a daemon. Ranks are not, although
        torchrun gives each of them a session.

        Args:
            ranks: PIDs of its ranks.
        """
        found = {child.pid: child for child in self._seen.values() if runs(child)}
        # Processes started between two scans, and without a parent, are found by session or by the mark in their
        # environment.
        for process in psutil.process_iter():
            if process.pid not in found and process.pid != os.getpid() and self._is_ours(process):
                found[process.pid] = process
        found.pop(self._relay.pid, None)
        sessions = {process.pid: _session(process.pid) for process in found.values()}
        own = {self.pid, *ranks}
        self._behind = behind = [process for pid, process in found.items() if sessions[pid] in own]
        return behind, [process for pid, process in found.items() if sessions[pid] not in (*own, None)]

    def end_relay(self) -> None:
        """End the process that relays the output; it has ended by itself if everything has been read."""
        with suppress(subprocess.TimeoutExpired):
            self._relay.wait(RELAY_S)
        if self._relay.poll() is None:
            self._relay.kill()
            self._relay.wait()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if not runs(process):
                return False
            return _session(process.pid) == self.pid or (
                bool(self._mark) and process.environ().get("GPUDASH_SOCKET") == self._mark
            )
        except (psutil.Error, OSError):
            return False


def process_name(process: psutil.Process) -> str:
    """What a process is called."""
    try:
        return str(process.name())
    except psutil.Error:
        return "a process"


def is_running(pid: int) -> bool:
    """Whether there is a process with this PID that has not ended."""
    try:
        return runs(psutil.Process(pid))
    except psutil.Error:
        return False


def _session(pid: int) -> int | None:
    """The session of a process; ``None`` once it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def runs(process: psutil.Process) -> bool:
    """Whether a process is running; false for a zombie."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _start(request: WatchRequest, environment: Mapping[str, str], writing: Sequence[int]) -> subprocess.Popen[bytes]:
    """Raises: OSError: if the system refuses."""
    environment = {**environment, "GPUDASH_STDOUT": str(os.fstat(writing[0]).st_ino)}
    return subprocess.Popen(
        list(request.command),
        cwd=request.folder,
        stdin=subprocess.DEVNULL if request.echo == "nowhere" else None,
        env=environment,
        stdout=writing[0],
        stderr=writing[1],
        start_new_session=True,
    )


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _start_relay(reading: Sequence[int], connection: socket.socket, request: WatchRequest) -> subprocess.Popen[bytes]:
    """Raises: OSError: if there is no room for another process."""
    descriptors = [*reading, connection.fileno()]
    targets: tuple[int | IO[Any], int | IO[Any]] = (subprocess.DEVNULL, subprocess.DEVNULL)
    if request.echo != "nowhere":
        targets = (1 if request.echo == "in place" else 2, 2)
    modes = []
    if request.echo == "stderr":
        modes = ["lines"]
    if request.status is not None:
        descriptors.append(request.status)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", relay.__file__, *map(str, descriptors), *modes],
        stdin=subprocess.DEVNULL,
        stdout=targets[0],
        stderr=targets[1],
        pass_fds=descriptors,
        # Ctrl+C in the terminal must not reach it: it relays what the program prints while it ends.
        start_new_session=True,
        cwd="/",
    )


def _refusal(name: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"{name} may not be executed (permission denied); have its permissions changed."
    if error.errno == errno.ENOEXEC:
        return (
            f"{name} is not a program this system can run; begin it with a line such as #!/bin/sh, or name the program."
        )
    return f"{name} could not be started ({error.strerror or error}); check its name and its arguments."


def exit_text(code: int) -> str:
    """How a program ended, in words that follow "it": "ended with exit code 3", "was killed by SIGSEGV"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    text = {
        "SIGKILL": "was killed by SIGKILL, perhaps because this computer's memory was full",
        "SIGSEGV": "was killed by SIGSEGV, an invalid memory access",
        "SIGABRT": "was killed by SIGABRT: it, or a library, gave up",
        "SIGBUS": "was killed by SIGBUS, perhaps because shared memory (/dev/shm) was full",
    }
    return text.get(name, f"was killed by {name}")


def oom_kills() -> int:
    """Number of processes that the kernel has killed because memory was full: ``oom_kill`` of /proc/vmstat
    (proc(5))."""
    facts: Mapping[str, str] = {}
    with suppress(OSError):
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        facts = dict(line.split(None, 1) for line in lines if " " in line)
    return int(facts.get("oom_kill", "0"))


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""The signals that end a program: one for each request, none automatically."""

SHUTDOWN_S = 10.0
"""Time for a program after SIGINT when gpudash itself is ending: its window or terminal closed, or by SIGTERM."""

TERMINATE_S = 3.0
"""Time after SIGTERM in that case."""


@dataclass(frozen=True, slots=True)
class SentSignal:
    """A signal that was sent to the program.

    Attributes:
        name: name, such as "SIGINT".
        when: reason, in words after the signal: "after your second Ctrl+C".
        time_s: time on the monotonic clock.
    """

    name: str
    when: str
    time_s: float


@dataclass(frozen=True, slots=True)
class StopProgress:
    """The state of a program that was asked to end and is still running.

    Attributes:
        program: its name, or those of its remaining processes.
        sent: newest signal.
        when: reason for the signal, as in `SentSignal`.
        waited_s: seconds since it was sent.
        next: signal for the next request; "" after the last.
        left_s: seconds until that is sent automatically; ``None`` if it is only sent on request.
    """

    program: str
    sent: str
    when: str
    waited_s: float
    next: str
    left_s: float | None = None

    @property
    def deadline(self) -> str:
        """The next automatic signal: "SIGTERM follows in 10 s."; "" if there is none."""
        if self.left_s is None:
            return ""
        return f"{self.next} follows in {format_left(self.left_s)}."


class Stopping:
    """Ends a program: SIGINT on the first request, without a time limit; SIGTERM on the second, SIGKILL on the third.
    Only when gpudash itself is ending do they follow automatically, after `SHUTDOWN_S` and `TERMINATE_S`. Any thread
    may request; `tick` belongs to the thread that attends to the program.

    Args:
        program: its name.
        send: sends the program a signal.

    Attributes:
        requests: number of the user's requests.
        refused: whether it is ended because it could not run as requested.
        shutting_down: whether it is ended because gpudash is ending.
        sent: all signals, in order.
    """

    def __init__(self, program: str, send: Callable[[signal.Signals], None]) -> None:
        self.requests = 0
        self.refused = self.shutting_down = False
        self.sent: list[SentSignal] = []
        self._program = program
        self._send_signal = send
        self._lock = threading.Lock()
        self._deadline_s: float | None = None
        self._began: tuple[float, str] = (0.0, "")

    @property
    def progress(self) -> StopProgress | None:
        """The state; ``None`` before the first request."""
        with self._lock:
            if not self.sent:
                return None
            newest, now_s = self.sent[-1], time.monotonic()
            following = self._next()
            waited_s = now_s - newest.time_s
            if following is None:
                return StopProgress(self._program, newest.name, newest.when, waited_s, "")
            left_s = None
            if self._deadline_s is not None:
                left_s = max(0.0, self._deadline_s - now_s)
            return StopProgress(self._program, newest.name, newest.when, waited_s, following.name, left_s)

    def request(self, when: str) -> None:
        """Send the next signal; SIGKILL again if that was the last.

        Args:
            when: reason, as in `SentSignal`.
        """
        with self._lock:
            self.requests += 1
            number = self._next()
            if number is None:
                self._send_signal(SIGNALS[-1])
            else:
                self._send(number, when)

    def refuse(self, when: str) -> None:
        """End a program that cannot run as requested: SIGTERM, and soon SIGKILL."""
        with self._lock:
            if self.refused:
                return
            self.refused = True
            self._began = (time.monotonic(), when)
            if not self.sent:
                self._send(signal.SIGTERM, when)  # SIGINT would only cause a meaningless traceback

    def shut_down(self, when: str) -> None:
        """gpudash is ending: send a signal now, unless one was sent already, and the next ones after their
        deadlines."""
        with self._lock:
            self.requests += 1
            if self.shutting_down:
                return
            self.shutting_down = True
            self._began = (time.monotonic(), when)
            if self.sent:
                self._set_deadline()
            else:
                self._send(signal.SIGINT, when)

    def tick(self) -> None:
        """Send the next signal if its deadline has passed."""
        with self._lock:
            number = self._next()
            if number is None or self._deadline_s is None or time.monotonic() < self._deadline_s:
                return
            began_s, when = self._began
            self._send(number, f"{round(time.monotonic() - began_s)} s {when}")

    def leave_to(self, what: str) -> None:
        """The program has ended, but not its descendants; requests and signals now apply to those."""
        with self._lock:
            self._program = what

    def _next(self) -> signal.Signals | None:
        """The next signal; ``None`` after SIGKILL."""
        place = 0
        if self.sent:
            place = SIGNALS.index(signal.Signals[self.sent[-1].name]) + 1
        if place < len(SIGNALS):
            return SIGNALS[place]
        return None

    def _send(self, number: signal.Signals, when: str) -> None:
        self.sent.append(SentSignal(number.name, when, time.monotonic()))
        self._set_deadline()
        self._send_signal(number)

    def _set_deadline(self) -> None:
        """Set the next signal's deadline: none, unless gpudash is ending or the program cannot run."""
        self._deadline_s = None
        if self.shutting_down or self.refused:
            patience_s = TERMINATE_S
            if self.sent[-1].name == "SIGINT":
                patience_s = SHUTDOWN_S
            self._deadline_s = time.monotonic() + patience_s


BY_USER = ("after your Ctrl+C", "after Stop was pressed in the window")
"""Reasons for a signal after which a program was simply stopped by its user."""


def stop_text(code: int, sent: Sequence[SentSignal]) -> str:
    """How a program ended after signals: "Ended by SIGTERM, sent by gpudash after your second Ctrl+C."

    Args:
        code: its exit code, negative for a signal.
        sent: one or more signals sent by gpudash.
    """
    own = next((one for one in sent if signal.Signals[one.name] == -code), None)
    if own is not None and own.name == "SIGINT" and own.when in BY_USER:
        return "Stopped by you (SIGINT)."
    if own is not None:
        return f"Ended by {own.name}, sent by gpudash {own.when}."
    signals = " and ".join(f"{one.name} {one.when}" for one in sent)
    text = exit_text(code)
    return f"{text[:1].upper()}{text[1:]}; gpudash had sent {signals}."
