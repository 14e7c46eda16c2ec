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
"""Time the relay has to end once its output is no longer read."""


class Program:
    """A program that runs, in a session and process group of its own, so that a Ctrl+C in a terminal passes it by.

    Args:
        request: a request that `check_request` has passed.
        environment: all of its variables.

    Raises:
        ValueError: one sentence, when the system refuses to start it.

    Attributes:
        pid: its process number.
        copies: brings packets of `output.relay` as it prints, and ends when nothing more can come.
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
        # The children have copies of these: while ours stayed open, neither pipe would ever come to its end.
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
        with suppress(psutil.Error):  # it may have ended already
            self._own = (psutil.Process(self.pid),)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; ``None`` while it runs."""
        return self._process.poll()

    def signal_other_groups(self, number: signal.Signals) -> None:
        """Send a signal to what it has left behind outside its process group, which those before have passed by."""
        for process in self._behind:
            with suppress(psutil.Error, OSError):
                if os.getpgid(process.pid) != self.pid:
                    process.send_signal(number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, as a terminal does; once it has ended, to what it has left behind."""
        # Not reaped yet, as far as this process knows: so its number cannot be another group's by now.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        for process in self._behind:
            with suppress(psutil.Error):
                process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code once it has ended, ``None`` where that takes longer than ``timeout_s``."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def scan(self) -> None:
        """Take note of what it has started: once its parent is gone a process can no longer be found by it."""
        with suppress(psutil.Error):
            for process in self._own:
                for child in process.children(recursive=True):
                    self._seen.setdefault(child.pid, child)
        self._seen = {pid: child for pid, child in self._seen.items() if child.is_running()}
        self._resident = {
            process.pid: size for process in (*self._own, *self._seen.values()) if (size := _resident(process))
        }

    def resident(self) -> Mapping[int, int]:
        """Resident bytes of it and of what it has started, at the last look."""
        return self._resident

    def left_running(self, ranks: Collection[int] = ()) -> tuple[list[psutil.Process], list[psutil.Process]]:
        """Processes it has started that run though it has ended: what it left behind, and what it set free on purpose.

        A process with a session of its own (setsid) was made to outlive the program, as daemons are. Ranks are not,
        though torchrun gives each of them a session.

        Args:
            ranks: process numbers of its ranks.
        """
        found = {child.pid: child for child in self._seen.values() if runs(child)}
        # What was started between two scans, and whose parent is gone, is found by its session or by the mark in its
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
        """End what passes on the output; it has ended by itself where everything has been read."""
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
    """Whether there is such a process, and it has not ended."""
    try:
        return runs(psutil.Process(pid))
    except psutil.Error:
        return False


def _session(pid: int) -> int | None:
    """The session of a process, ``None`` once it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def runs(process: psutil.Process) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _start(request: WatchRequest, environment: Mapping[str, str], writing: Sequence[int]) -> subprocess.Popen[bytes]:
    """Raises: OSError: when the system refuses."""
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
    """Raises: OSError: when there is no room for another process."""
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
        # A Ctrl+C in the terminal must not reach it: it passes on what the program prints as it ends.
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
    """Processes that the kernel has killed so far because memory was full: ``oom_kill`` of /proc/vmstat (proc(5))."""
    facts: Mapping[str, str] = {}
    with suppress(OSError):
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        facts = dict(line.split(None, 1) for line in lines if " " in line)
    return int(facts.get("oom_kill", "0"))


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""What ends a program: one for each request, and no other by itself."""

SHUTDOWN_S = 10.0
"""A program has this long after SIGINT where gpudash itself is ended: its window or terminal closed, or by SIGTERM."""

TERMINATE_S = 3.0
"""And then so long after SIGTERM."""


@dataclass(frozen=True, slots=True)
class SentSignal:
    """A signal that was sent to the program.

    Attributes:
        name: "SIGINT".
        when: what it was sent after, in words that follow it: "after your second Ctrl+C".
        time_s: of the monotonic clock.
    """

    name: str
    when: str
    time_s: float


@dataclass(frozen=True, slots=True)
class StopProgress:
    """A program that has been asked to end and has not ended.

    Attributes:
        program: its name, or what is left of it.
        sent: the newest signal.
        when: what it was sent after, as of `SentSignal`.
        waited_s: seconds since it was sent.
        next: the signal that a further request sends, "" after the last.
        left_s: seconds until that is sent by itself; ``None`` where it is sent on request only.
    """

    program: str
    sent: str
    when: str
    waited_s: float
    next: str
    left_s: float | None = None

    @property
    def deadline(self) -> str:
        """What is sent by itself, and when: "SIGTERM follows in 10 s."; "" where nothing is."""
        if self.left_s is None:
            return ""
        return f"{self.next} follows in {format_left(self.left_s)}."


class Stopping:
    """Ends a program: SIGINT on the first request, and as long as it takes after that; SIGTERM on the second, SIGKILL
    on the third. Only where gpudash itself is ended do they follow one another by themselves, after `SHUTDOWN_S` and
    `TERMINATE_S`. Any thread may request; `tick` belongs to the one that attends to the program.

    Args:
        program: its name.
        send: sends it a signal.

    Attributes:
        requests: how often the user asked it to end.
        refused: whether it is ended because it could not run as it was asked for.
        shutting_down: whether it is ended because gpudash is.
        sent: every signal, in order.
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
        """How far it has come, ``None`` before the first request."""
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
        """Send the next signal; SIGKILL once more where that was the last.

        Args:
            when: what it is sent after, as of `SentSignal`.
        """
        with self._lock:
            self.requests += 1
            number = self._next()
            if number is None:
                self._send_signal(SIGNALS[-1])
            else:
                self._send(number, when)

    def refuse(self, when: str) -> None:
        """It cannot run as it was asked for: SIGTERM, and soon SIGKILL."""
        with self._lock:
            if self.refused:
                return
            self.refused = True
            self._began = (time.monotonic(), when)
            if not self.sent:
                self._send(signal.SIGTERM, when)  # an interruption would leave a traceback that says nothing

    def shut_down(self, when: str) -> None:
        """gpudash is ended: a signal now, unless one was sent already, and the next ones after their deadlines."""
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
        """Send the next signal where its deadline has passed."""
        with self._lock:
            number = self._next()
            if number is None or self._deadline_s is None or time.monotonic() < self._deadline_s:
                return
            began_s, when = self._began
            self._send(number, f"{round(time.monotonic() - began_s)} s {when}")

    def leave_to(self, what: str) -> None:
        """The program has ended, and what it has started has not; requests and signals are about that from now on."""
        with self._lock:
            self._program = what

    def _next(self) -> signal.Signals | None:
        """The signal that comes next, ``None`` after SIGKILL."""
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
        """When the next signal is due: never, unless gpudash is ended or the program cannot run."""
        self._deadline_s = None
        if self.shutting_down or self.refused:
            patience_s = TERMINATE_S
            if self.sent[-1].name == "SIGINT":
                patience_s = SHUTDOWN_S
            self._deadline_s = time.monotonic() + patience_s


def stop_text(code: int, sent: Sequence[SentSignal]) -> str:
    """How a program ended that was sent signals: "Ended by SIGTERM, sent by gpudash after your second Ctrl+C."

    Args:
        code: its exit code, negative for a signal.
        sent: what gpudash has sent, at least one.
    """
    own = next((one for one in sent if signal.Signals[one.name] == -code), None)
    if own is not None:
        return f"Ended by {own.name}, sent by gpudash {own.when}."
    signals = " and ".join(f"{one.name} {one.when}" for one in sent)
    text = exit_text(code)
    return f"{text[:1].upper()}{text[1:]}; gpudash had sent {signals}."
