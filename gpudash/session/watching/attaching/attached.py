"""Watches a running process: from inside if it can be entered, else as far as the system and NVML show it."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gpudash.session.watching.attaching.candidates import ranks_of
from gpudash.session.watching.attaching.entry_methods import (
    ENDED,
    HOW,
    Entered,
    WayClosedError,
    enter,
    has_ended,
    require_debugger,
)
from gpudash.session.watching.ending import EndedRun, ending_of
from gpudash.session.watching.messages.hearing import LAST_MESSAGES_S, TICK_S, Hearing, listening
from gpudash.session.watching.program import process_name
from gpudash.session.watching.wiring import Wiring
from gpudash.system.threads import joined, started
from gpudash.telemetry.records import Note, RunStarted, Topic, Warning
from gpudash.units import listed

if TYPE_CHECKING:
    from gpudash.agent.server import AgentServer, Peer
    from gpudash.agent.wire import Message

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""Interval of the check for the process's end."""

DETACH_S = 3.0
"""Longest wait for the program to undo the agent's changes."""

UNSEEN = (
    "From outside, the process's memory on this computer, its processor time and, by the driver, its memory on each "
    "GPU can be seen; its allocator, steps, losses and stacks cannot."
)

LOST_S = 1.0
"""How long a running program may be without a connection before that is reported."""

LOST = (
    "The program has dropped gpudash, as one does that replaces itself (exec) or closes all of its files; it is seen "
    "from outside from now on. Attach again to go inside."
)

INSIDE = {
    "door": "gpudash is inside the program, through the door it has opened",
    "remote_exec": "gpudash is inside the program, by sys.remote_exec",
    "gdb": "gpudash is inside the program, by gdb",
}


def process_to_attach(pid: int) -> psutil.Process:
    """The process ``pid``.

    Raises:
        ValueError: one sentence, if it has ended, is another user's, or is this one.
    """
    if pid == os.getpid():
        raise ValueError(f"Process {pid} is this gpudash itself; name the process of your program.")
    if pid <= 0:
        raise ValueError(f"{pid} is no process number; ps or gpudash monitor lists what runs.")
    try:
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE
        owner = process.uids().real
        name = str(process.username())
    except (psutil.NoSuchProcess, ProcessLookupError):
        raise ValueError(f"There is no process {pid}; it may have ended.") from None
    except (psutil.AccessDenied, PermissionError, KeyError):
        raise ValueError(f"Process {pid} may not be looked at; ask its owner, or watch one of your own.") from None
    if ended:
        raise ValueError(f"There is no process {pid} any more: it has ended, and its parent has not taken note.")
    if owner != os.getuid() and os.getuid() != 0:
        raise ValueError(f"Process {pid} belongs to {name}, not to you; only your own can be watched.")
    return process


MOST_OFFERED = 8
"""Most ranks of a launcher that are named."""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """The process to watch.

    Attributes:
        pid: PID of the process.
        by_gdb: whether to enter it only by a debugger.
        memory_history: whether to record allocations with their stacks from now on.
    """

    pid: int
    by_gdb: bool = False
    memory_history: bool = True


class Attached:
    """A process that was already running. It gets no signals: stopping means detaching, and undoing the agent's
    changes.

    Args:
        request: the process to watch.
        run_id: number of the run.
        wiring: connections to the session.

    Raises:
        ValueError: one sentence, if it cannot be watched.
    """

    def __init__(self, request: AttachRequest, run_id: int, wiring: Wiring) -> None:
        self._request = request
        self._process = process_to_attach(request.pid)
        if request.by_gdb:
            require_debugger()
        self._run_id = run_id
        self._wiring = wiring
        self._stop = threading.Event()
        self._entered = Entered()
        self._peak = 0
        self._resident: dict[int, int] = {}
        self._polled_s = 0.0
        # Infinite while connected; then the time of the loss; None once that has been reported.
        self._lost_s: float | None = math.inf
        self._runs()
        try:
            self._command = list(map(str, self._process.cmdline()))
        except psutil.Error:
            self._command = []
        self._hearing = Hearing(run_id, process_name(self._process), wiring, self._facts, self._environment)
        wiring.follow(lambda: self._resident)
        self._began_s = wiring.clock()
        wiring.output.begin()  # what it prints stays elsewhere; the lines of the program before are not its own
        wiring.emit(
            RunStarted(
                time_s=self._began_s,
                run_id=run_id,
                workload="watch",
                device=wiring.machine.program_device(),
                spec={"pid": request.pid, "command": self._command},
            )
        )
        self._hearing.begin(request.pid)
        self._thread = started("gpudash-attached", self._watch)

    stopping = None
    """It is never asked to end."""

    finding_need_s = None
    """It is not run again."""

    after_end = ""
    """Nothing is found out about it once it has ended."""

    def stop(self, when: str) -> None:
        """Detach; the process keeps running."""
        self._stop.set()

    @property
    def busy_s(self) -> float:
        """How long the current message has been processed, as in `Hearing`."""
        return self._hearing.busy_s

    def shut_down(self, when: str) -> None:
        """Detach; the process keeps running."""
        self._stop.set()

    def wait_left(self) -> None:
        """Nothing to wait for: it is left running."""

    def save_snapshot(self) -> None:
        """Request a memory snapshot.

        Raises:
            RuntimeError: one sentence, if it is watched from outside, or has no GPU memory yet.
        """
        if not self._entered.way:
            raise RuntimeError(
                "A process that is watched from outside cannot be asked for a snapshot; start it with gpudash watch."
            )
        self._hearing.want_snapshot()

    def close(self, timeout_s: float) -> bool:
        """Detach; false if that took longer than ``timeout_s``."""
        self._stop.set()
        self._hearing.reports.give_up()
        return joined(self._thread, timeout_s)

    def _watch(self) -> None:
        try:
            self._entered = self._enter()
            self._report_entered()
            self._offer_ranks()
            while not self._stop.is_set() and self._runs():
                self._hear()
                self._notice_arrival()
                self._notice_loss()
            # If the loop ended with the process, there is no connection by which to undo changes.
            ended = not self._stop.is_set()
            if ended:
                self._hear_the_rest()
            else:
                release(self._hearing.server, self._hear)
        except Exception as error:  # the run must end in any case: others wait for it
            logger.exception("watching an attached process failed")
            ended = False
            self._note(f"Watching the process failed ({type(error).__name__}: {error}); it runs on.")
        ending = ending_of(self._ended_run(stopped=not ended))
        ending = self._hearing.reports.explained(ending)
        # Before the end is emitted: a waiter may then start another run, with a socket of its own.
        self._hearing.close()
        self._wiring.emit(ending)
        self._hearing.memory.close()
        self._wiring.follow(None)

    def _enter(self) -> Entered:
        config = self._hearing.config(history=self._request.memory_history)
        path, by_gdb = self._hearing.path, self._request.by_gdb
        return enter(self._process, path, json.dumps(config), self._has_come, by_gdb=by_gdb)

    def _has_come(self, seconds: float) -> bool:
        def given_up() -> bool:
            return self._stop.is_set() or not self._runs()

        return arrived(self._hearing.server, self._process.pid, seconds, self._hear, given_up)

    def _report_entered(self) -> None:
        way, why_not = self._entered.way, self._entered.why_not
        if way:
            sentences = [f"{INSIDE[way]}.", why_not]
        else:
            sentences = [UNSEEN, why_not, f"{HOW}."]
        # "any" means a reason that rules out all methods, so that advice on starting it differently would not help.
        if "any" in self._entered.closed:  # no way of starting it would have helped
            if self._entered.closed["any"] == ENDED:
                sentences = [why_not]
            else:
                sentences = [UNSEEN, why_not]
        details = {"way": way or "outside", "closed": self._entered.closed}
        self._hearing.news.note(Topic.PROGRAM, " ".join(filter(None, sentences)), **details)

    def _offer_ranks(self) -> None:
        """Report immediately how to watch a launcher's ranks, which are separate processes."""
        ranks = ranks_of(self._process)
        if not ranks:
            return
        named = listed([f"{pid} is rank {rank}" for rank, pid in ranks.items()], MOST_OFFERED)
        first = next(iter(ranks.values()))
        text = (
            f"Process {self._process.pid} is a launcher; its ranks have steps and memory of their own: {named}. "
            f"Watch one with gpudash watch --attach {first}."
        )
        time_s = self._wiring.clock()
        self._wiring.emit(Warning(time_s=time_s, run_id=self._run_id, level="note", device="session", text=text))

    def _notice_arrival(self) -> None:
        """Report that the program was entered after all, late because it was inside a long call."""
        if self._entered.awaited and any(
            peer.pid == self._process.pid and peer.hello and not peer.hello.get("refused")
            for peer in self._hearing.server.peers
        ):
            self._entered = self._entered.late()
            self._report_entered()

    def _notice_loss(self) -> None:
        """Report that the program is watched from outside again: it called exec, or closed our connection."""
        if not self._entered.way or self._lost_s is None or self._hearing.news.said_goodbye:
            return
        if any(peer.pid == self._process.pid for peer in self._hearing.server.peers):
            self._lost_s = math.inf
        elif self._lost_s is math.inf:
            self._lost_s = time.monotonic()  # if it was killed, its connections end first
        elif time.monotonic() - self._lost_s > LOST_S:
            self._lost_s = None
            self._hearing.news.note(Topic.PROGRAM, LOST)

    def _hear(self) -> None:
        if self._hearing.server.peers or not self._entered.way:
            # Without a connection there is nothing to wait for on the socket, and the end is checked less often.
            self._hearing.hear(self._has_ended, TICK_S if self._hearing.server.peers else POLL_S)
        else:
            self._stop.wait(POLL_S)

    def _has_ended(self) -> bool:
        return not self._runs()

    def _hear_the_rest(self) -> None:
        deadline = time.monotonic() + LAST_MESSAGES_S
        while self._hearing.server.peers and time.monotonic() < deadline and not self._stop.is_set():
            self._hear()
        self._note(f"Process {self._process.pid} has ended; its exit code cannot be seen from outside.")
        self._hearing.reports.finish()

    def _ended_run(self, *, stopped: bool) -> EndedRun:
        hearing = self._hearing
        code = 0
        # The exit code of a process that is not our child is unavailable; use 1 after an uncaught exception.
        if any(not one.who for one in hearing.news.raised):
            code = 1
        device = hearing.memory.device or self._wiring.machine.program_device()
        ran = hearing.ended(code, self._began_s, device, stopped=stopped)
        result: dict[str, Any] = {
            "exit_code": None,
            "peak_resident_bytes": self._peak or None,
            "attached": {"way": self._entered.way or "outside", "closed": self._entered.closed},
        }
        # If it was only watched from outside, the agents' part of the result would be zeros that look like readings.
        return replace(ran, result={**result, **ran.result} if self._entered.way else result)

    def _facts(self) -> dict[str, Any]:
        return {"pid": self._process.pid, "command": self._command}

    def _environment(self) -> dict[str, str]:
        try:
            return dict(self._process.environ())
        except psutil.Error:
            return {}

    def _runs(self) -> bool:
        try:
            if time.monotonic() - self._polled_s >= POLL_S:
                self._polled_s = time.monotonic()
                resident = int(self._process.memory_info().rss)
                self._peak, self._resident = max(self._peak, resident), {self._process.pid: resident}
            return bool(self._process.is_running()) and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        # A refusal does not mean that it has ended: the system may no longer allow to read it.
        except psutil.Error:
            return True

    def _note(self, text: str) -> None:
        self._wiring.emit(Note(time_s=self._wiring.clock(), run_id=self._run_id, topic=Topic.PROGRAM, text=text))


def save_snapshot_of(pid: int, path: Path, *, by_gdb: bool = False) -> Entered:
    """Enter a running program, let it write a memory snapshot, and undo all changes.

    Args:
        pid: PID of the process.
        path: path of the file, which is replaced.
        by_gdb: whether to enter it only by a debugger.

    Returns:
        How it was entered.

    Raises:
        ValueError: one sentence, if it cannot be entered or has no snapshot to write.
    """
    process = process_to_attach(pid)
    if by_gdb:
        require_debugger()
    folder, server = listening()
    answers: list[Message] = []

    def hear() -> None:
        answers.extend(message for _, message in server.receive(TICK_S) if message["type"] == "snapshot")

    def has_come(seconds: float) -> bool:
        return arrived(server, pid, seconds, hear, lambda: has_ended(process))

    try:
        entered = enter(process, folder.path / "agent", json.dumps({"history": False}), has_come, by_gdb=by_gdb)
        peer = next((peer for peer in server.peers if peer.pid == pid), None)
        if not entered.way or peer is None:
            raise ValueError(f"No snapshot of process {pid} can be taken. {entered.why_not} {HOW}.")
        server.send(peer, {"type": "snapshot", "path": str(path.absolute()), "reason": "asked"})
        while not answers and peer in server.peers:
            hear()
        release(server, hear)
    finally:
        server.close()
        folder.remove()
    if answers:
        problem = answers[0].get("problem")
    else:
        problem = f"Process {pid} has ended before it had written one."
    if problem:
        raise ValueError(str(problem))
    return entered


def arrived(
    server: AgentServer, pid: int, seconds: float, hear: Callable[[], None], given_up: Callable[[], bool]
) -> bool:
    """Whether the agent of ``pid`` has connected within the given time.

    Args:
        hear: processes incoming messages.
        given_up: returns whether the caller has stopped waiting.

    Raises:
        WayClosedError: if another gpudash is watching it already.
    """
    deadline = time.monotonic() + seconds
    while True:
        # Before the deadline is checked: an agent that connected in time counts even if reading took long.
        hear()
        peer = next((peer for peer in server.peers if peer.pid == pid and peer.hello), None)
        if peer is not None and peer.hello.get("refused"):
            raise WayClosedError("another gpudash is inside already; stop that one first")
        if peer is not None:
            return True
        if time.monotonic() >= deadline or given_up():
            return False


def release(server: AgentServer, hear: Callable[[], None]) -> None:
    """Ask all processes to undo the agent's changes, and wait for that."""
    deadline = time.monotonic() + DETACH_S
    detaching: list[Peer] = []
    while server.peers and time.monotonic() < deadline:
        # Includes those that connect meanwhile, such as children forked before their agent got the message.
        for peer in server.peers:
            if peer not in detaching:
                detaching.append(peer)
                server.send(peer, {"type": "detach"})
        hear()
