"""Passes on to the session what a program's agents report: news, ranks, memory, out-of-memory errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import gpudash
from gpudash.agent.guest import LONGEST_FAULT
from gpudash.agent.server import AgentServer, Peer
from gpudash.session.watching.ending import EndedRun
from gpudash.session.watching.memory import WatchedMemory
from gpudash.session.watching.messages.program_news import ProgramNews, command_text
from gpudash.session.watching.messages.ranks import WatchedRanks
from gpudash.session.watching.out_of_memory import OutOfMemoryReports, allocator_environment
from gpudash.session.watching.program import is_running, process_name
from gpudash.session.watching.wiring import Wiring
from gpudash.system.files import PrivateFolder, runtime_folder
from gpudash.telemetry.records import Topic

if TYPE_CHECKING:
    from gpudash.agent.wire import Message

logger = logging.getLogger(__name__)

HISTORY_ENTRIES = 100_000
"""Events that a program keeps in its memory history; older ones are dropped."""

TICK_S = 0.05
"""Interval of the checks on what is due."""

LAST_MESSAGES_S = 1.0
"""How long messages are read after the program's end from processes that are still connected."""

MOST_FAULTS = 50
"""Most kinds of invalid messages; each is reported once."""

SHOWN_KIND, SHOWN_FAULT = 40, 200
"""How many characters of a message's kind, and of the error, are shown."""

NO_GPU_MEMORY = "The program holds no memory of a GPU so far, so that there is nothing to save."

FORGET_S = 0.5
"""Delay before an ended process's memory is reported as free: often the whole program is ending."""


class Hearing:
    """Receives the messages of a program's processes. Belongs to the thread that attends to it.

    Args:
        run_id: number of the run.
        name: name of the program.
        wiring: connections to the session.
        facts: facts about the program, for a report.
        environment: returns the program's environment variables.

    Raises:
        ValueError: one sentence, if no socket can be created.

    Attributes:
        path: path of the socket.
        server: server on that socket.
        reports: reports of its out-of-memory errors.
        news, ranks, memory: process the messages on each subject, from `begin` on.
    """

    news: ProgramNews
    ranks: WatchedRanks
    memory: WatchedMemory

    def __init__(
        self,
        run_id: int,
        name: str,
        wiring: Wiring,
        facts: Callable[[], Mapping[str, Any]],
        environment: Callable[[], Mapping[str, str]],
    ) -> None:
        self._run_id = run_id
        self._name = name
        self._wiring = wiring
        self._facts, self._environment = facts, environment
        self._folder, self.server = listening()
        self.path = self._folder.path / "agent"
        self.reports = OutOfMemoryReports(run_id, name, wiring, self._known)
        self._snapshot_wanted = threading.Event()
        self._allocating: Peer | None = None
        self._pid = 0
        self._names: dict[int, str] = {}
        self._gone: dict[int, float] = {}
        self._faults: set[tuple[str, str]] = set()
        self._taking_since: float | None = None

    def begin(self, pid: int, cards: Sequence[str] = (), others: int = 0, *, as_cuda: bool = False) -> None:
        """Called when the program runs, and the session knows its run.

        Args:
            pid: PID of its first process.
            cards: names of its simulated cards, its ``sim:0`` first.
            others: bytes of simulated other processes on the first one.
            as_cuda: whether it calls them ``cuda:0`` and so on.
        """
        run_id, wiring, self._pid = self._run_id, self._wiring, pid
        self.news = ProgramNews(run_id, pid, wiring.emit, wiring.clock, wiring.began_wall_s)
        self.ranks = WatchedRanks(run_id, wiring.emit, wiring.clock, self.news.time_of, wiring.machine.host.total_bytes)
        self.memory = WatchedMemory(
            run_id,
            wiring.machine,
            wiring.probe,
            wiring.emit,
            wiring.clock,
            cards=cards,
            others=others,
            as_cuda=as_cuda,
            requests=wiring.requests,
        )

    def hear(self, has_ended: Callable[[], bool], tick_s: float = TICK_S) -> None:
        """Process new messages, waiting for them at most ``tick_s``.

        Args:
            has_ended: returns whether the program's first process has ended.
        """
        # Copied before receiving: the server no longer lists those that leave meanwhile.
        peers = list(self.server.peers)
        for peer, message in self.server.receive(tick_s):
            self._taking_since = time.monotonic()
            try:
                self._take(peer, message)
            except Exception as error:  # an invalid message is dropped; watching goes on
                self._left_out(peer, message, error)
            self._taking_since = None
        for peer in peers:
            if peer not in self.server.peers:
                self.news.left(peer)
                self._gone[peer.pid] = time.monotonic()
                if self._allocating is peer:
                    self._allocating = None
        self._forget_gone(has_ended)
        while self.server.troubles:
            self.news.note(Topic.PROCESSES, self.server.troubles.popleft())
        if self._snapshot_wanted.is_set():
            self._ask_for_snapshot()

    @property
    def busy_s(self) -> float:
        """For how long one message has been taken in, 0 between messages; any thread may ask. A file that it names may
        lie on a file system that does not answer.
        """
        since_s = self._taking_since
        if since_s is None:
            return 0.0
        return time.monotonic() - since_s

    def want_snapshot(self) -> None:
        """Have the program asked for a memory snapshot; any thread may call this.

        Raises:
            RuntimeError: one sentence, if it has no GPU memory yet.
        """
        if self._allocating is None:
            raise RuntimeError(NO_GPU_MEMORY)
        self._snapshot_wanted.set()

    def config(self, *, history: bool) -> dict[str, Any]:
        """Settings for an agent; ``history``: whether to record allocations with their stacks."""
        return {
            "history": history,
            "history_entries": HISTORY_ENTRIES,
            "report": self.reports.staging,
            "gpudash": str(Path(gpudash.__file__).parent),
        }

    def peaks(self, device: str) -> dict[str, int | None]:
        """The peaks of the program's memory on a device, as in its result."""
        return {f"peak_{key}": value for key, value in self.memory.peaks.get(device, {}).items()}

    def ended(self, code: int, began_s: float, device: str, *, stopped: bool) -> EndedRun:
        """The agents' part of the result of an ended run."""
        now_s, news = self._wiring.clock(), self.news
        report = self.reports.folder
        return EndedRun(
            name=self._name,
            code=code,
            time_s=now_s,
            run_id=self._run_id,
            seconds=now_s - began_s,
            steps=news.steps,
            device=device,
            stopped=stopped,
            raised=news.raised,
            out_of_memory=self.reports.newest,
            stepped_s=news.stepped_s,
            result={
                "report": None if report is None else str(report),
                "agent_cpu_seconds": news.agent_cpu_s,
                "memory": self.peaks(device),
                **({"processes": processes} if (processes := self.memory.processes) else {}),
                **self.ranks.result(),
            },
            ranks=self.ranks.known(),
            places=self.ranks.places,
            why_full=self.ranks.why_full,
            held_by_others=self.memory.held_by_others,
            held=self.ranks.held,
        )

    def close(self) -> None:
        """Receive no more messages."""
        self.server.close()
        self._folder.remove()
        self.reports.close()

    def _known(self) -> dict[str, Any]:
        torch = self.news.torch or {}
        return {
            **self._facts(),
            "gpudash_version": gpudash.__version__,
            "torch_version": torch.get("version"),
            "cuda_version": torch.get("cuda"),
            "memory_history_recorded": torch.get("history"),
            "allocator": allocator_environment(self._environment()),
        }

    def _take(self, peer: Peer, message: Message) -> None:
        match message["type"]:
            case "hello" if message.get("refused"):
                pass
            case "allocator":
                # The first process that allocates is the one to ask for snapshots, until it ends.
                self._allocating = self._allocating or peer
                self.memory.take_allocator(peer.pid, self._name_of(peer), message)
            case "fault":
                _log_fault(peer, str(message.get("text")))
            case "stacks":
                self.memory.take_stacks(peer.pid, message)
            case "held":
                self.memory.take_held(peer.pid, message)
            case "requests":
                self.memory.take_requests(peer.pid, message, self.news.session_time)
            case "oom":
                self.ranks.refused(peer, message)
                self.reports.refused(self.news, peer, message, self.memory)
            case "snapshot":
                self.reports.saved(self.news, message)
            case _ if self.ranks.take(peer, message):
                pass
            case _:
                self.news.take(peer, message)
        if message["type"] == "hello":
            self._note_command(peer)
        elif message["type"] == "steps":
            self.reports.note_steps(peer.pid, message)

    def _note_command(self, peer: Peer) -> None:
        """Note the command of a process that the program has started."""
        argv = peer.hello.get("argv")
        is_own = peer.pid == self._pid or peer.rank is not None or peer.hello.get("forked")
        if isinstance(argv, list) and argv and not is_own:
            self.memory.note_command(peer.pid, command_text(list(map(str, argv[:8]))))

    def _left_out(self, peer: Peer, message: Message, error: Exception) -> None:
        """Report that a message was dropped, once for each kind of message and error."""
        kind, what = message["type"][:SHOWN_KIND], type(error).__name__
        if (kind, what) in self._faults or len(self._faults) >= MOST_FAULTS:
            return
        self._faults.add((kind, what))
        logger.error("a message of pid %d (%s) was left out", peer.pid, kind, exc_info=error)
        why = f"{what}: {str(error)[:SHOWN_FAULT]}".rstrip(": ")
        self.news.note(Topic.PROCESSES, f"A message of pid {peer.pid} ({kind}) was left out ({why}).")

    def _forget_gone(self, has_ended: Callable[[], bool]) -> None:
        """Free the memory of processes that ended a while ago; at the program's end the last figures stay."""
        for pid, gone_s in list(self._gone.items()):
            if pid == self._pid or time.monotonic() - gone_s < FORGET_S:
                continue
            if not has_ended() and not is_running(pid):
                del self._gone[pid]
                if pid not in (peer.pid for peer in self.server.peers):
                    self.memory.forget(pid)

    def _ask_for_snapshot(self) -> None:
        self._snapshot_wanted.clear()
        peer = self._allocating
        if peer is None:
            return
        try:
            message = self.reports.request()
        except OSError as error:
            self.news.note(Topic.SNAPSHOT, f"There is no room for a snapshot ({error.strerror or error}).")
            return
        if not self.server.send(peer, message):
            self.news.note(Topic.SNAPSHOT, "The program did not take the request for a snapshot; try again.")

    def _name_of(self, peer: Peer) -> str:
        if peer.pid not in self._names:
            known = psutil.pid_exists(peer.pid)
            if known:
                self._names[peer.pid] = process_name(psutil.Process(peer.pid))
            else:
                self._names[peer.pid] = self._name
        return self._names[peer.pid]


def listening() -> tuple[PrivateFolder, AgentServer]:
    """A private folder, and a server on a socket in it.

    Raises:
        ValueError: one sentence, if they cannot be created.
    """
    try:
        folder = PrivateFolder(runtime_folder(), "gpudash-watch-")
        try:
            return folder, AgentServer(folder.path / "agent")
        except OSError:
            folder.remove()
            raise
    except OSError as error:
        raise ValueError(
            f"No socket could be made for the program to talk to ({error.strerror or error}); "
            "let XDG_RUNTIME_DIR or TMPDIR name a folder that can be written."
        ) from None


def _log_fault(peer: Peer, text: str) -> None:
    """Log an exception of the agent in a program; marks each line as not gpudash's own."""
    lines = text[:LONGEST_FAULT].splitlines()
    logger.error("the agent in pid %d met an error\n%s", peer.pid, "\n".join(f"    {line}" for line in lines))
