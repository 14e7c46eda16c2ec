"""A program to be watched: it is started, what it has started itself is found, it is asked to end, each time more
firmly, and how it ended is put in words.
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
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from gpudash.session.watching import output_relay
from gpudash.session.watching.request import Echo, WatchRequest

RELAY_S = 0.5
"""What passes on the output has for its own end once nobody reads it."""


class Program:
    """A program that runs, in a session and process group of its own, so that a Ctrl+C in a terminal passes it by.

    Args:
        request: a request that `check_request` has passed.
        environment: all of its variables.

    Raises:
        ValueError: one sentence, when the system refuses to start it.

    Attributes:
        pid: its process number.
        copies: brings packets of `output_relay` as it prints, and ends when nothing more can come.
    """

    def __init__(self, request: WatchRequest, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = zip(os.pipe(), os.pipe(), strict=True)
        try:
            self._relay = _start_relay(reading, theirs, request.echo)
            try:
                self._process = _start(request, environment, writing)
            except OSError:
                self._relay.kill()
                self._relay.wait()
                raise
        except OSError as error:
            ours.close()
            raise ValueError(_refusal(request.command[0], error)) from None
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
        with suppress(psutil.Error):  # it may have ended already
            self._own = (psutil.Process(self.pid),)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; ``None`` while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it and its process group at once."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def look(self) -> None:
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
        found = {child.pid: child for child in self._seen.values() if _runs(child)}
        for process in psutil.process_iter():
            if process.pid not in found and process.pid != os.getpid() and self._is_ours(process):
                found[process.pid] = process
        found.pop(self._relay.pid, None)
        sessions = {process.pid: _session(process.pid) for process in found.values()}
        own = {self.pid, *ranks}
        behind = [process for pid, process in found.items() if sessions[pid] in own]
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
            if not _runs(process):
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
        return _runs(psutil.Process(pid))
    except psutil.Error:
        return False


def _session(pid: int) -> int | None:
    """The session of a process, ``None`` once it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _runs(process: psutil.Process) -> bool:
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


def _start_relay(reading: Sequence[int], connection: socket.socket, echo: Echo) -> subprocess.Popen[bytes]:
    """Raises: OSError: when there is no room for another process."""
    descriptors = (*reading, connection.fileno())
    targets: tuple[int | IO[Any], int | IO[Any]] = (subprocess.DEVNULL, subprocess.DEVNULL)
    if echo != "nowhere":
        targets = (1 if echo == "in place" else 2, 2)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", output_relay.__file__, *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        stdout=targets[0],
        stderr=targets[1],
        pass_fds=descriptors,
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


def exit_words(code: int) -> str:
    """How a program ended, in words that follow "it": "ended with exit code 3", "was killed by SIGSEGV"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    words = {
        "SIGKILL": "was killed by SIGKILL, perhaps because this computer's memory was full",
        "SIGSEGV": "was killed by SIGSEGV, an invalid memory access",
        "SIGABRT": "was killed by SIGABRT: it, or a library, gave up",
        "SIGBUS": "was killed by SIGBUS, perhaps because shared memory (/dev/shm) was full",
    }
    return words.get(name, f"was killed by {name}")


def oom_kills() -> int:
    """Processes that the kernel has killed so far because memory was full: ``oom_kill`` of /proc/vmstat (proc(5))."""
    facts: Mapping[str, str] = {}
    with suppress(OSError):
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        facts = dict(line.split(None, 1) for line in lines if " " in line)
    return int(facts.get("oom_kill", "0"))


STEPS = ((signal.SIGINT, 3.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0))
"""Signals to its process group, and how long each has before the next."""

HURRY = (0.4, 0.4)
"""Parts of the time left that the first two have when the dashboard is being closed."""


class Stopping:
    """The wish that a program ends. Any thread may wish; `tick` belongs to the one that attends to the program.

    Attributes:
        asks: how often the user wished it.
        refused: whether it is ended because it could not run as it was asked for.
        hurried: whether the dashboard is being closed.
    """

    def __init__(self, program: Program) -> None:
        self.asks = 0
        self.refused = self.hurried = False
        self._program = program
        self._lock = threading.Lock()
        self._sent = 0
        self._next_s = 0.0
        self._patience = [patience_s for _, patience_s in STEPS]

    def ask(self) -> None:
        """The user wishes it; wished again, the next firmer signal goes at once."""
        with self._lock:
            self.asks += 1
            self._send()

    def refuse(self) -> None:
        """It cannot run as it was asked for."""
        with self._lock:
            if not self.refused:
                self.refused = True
                self._sent = max(self._sent, 1)  # an interruption would leave a traceback that says nothing
                self._send()

    def hurry(self, timeout_s: float) -> None:
        """The dashboard is being closed: it is to have ended within ``timeout_s``."""
        with self._lock:
            self.asks += 1
            self.hurried = True
            self._patience = [part * timeout_s for part in HURRY] + [timeout_s]
            if self._sent:
                self._next_s = min(self._next_s, time.monotonic() + self._patience[0])
            else:
                self._send()

    def tick(self) -> None:
        """Send the next signal when it is time."""
        with self._lock:
            if self._sent and time.monotonic() >= self._next_s:
                self._send()

    def _send(self) -> None:
        place = min(self._sent, len(STEPS) - 1)
        self._sent += 1
        self._next_s = time.monotonic() + self._patience[place]
        self._program.signal(STEPS[place][0])
