"""What the agents inside a program tell, passed on to the session: its news, ranks, memory, out-of-memory errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psutil

from gpudash.agent.server import AgentServer, Peer
from gpudash.devices.names import SimulatedCard
from gpudash.session.watching.memory import WatchedMemory
from gpudash.session.watching.out_of_memory import OutOfMemoryReports
from gpudash.session.watching.program import is_running, process_name
from gpudash.session.watching.program_news import ProgramNews
from gpudash.session.watching.ranks import WatchedRanks
from gpudash.session.watching.wiring import Wiring
from gpudash.system.private_folder import PrivateFolder, runtime_folder
from gpudash.telemetry.records import Topic

if TYPE_CHECKING:
    from gpudash.agent.wire import Message

HISTORY_ENTRIES = 100_000
"""Events of the memory history that a program keeps; older ones go."""

TICK_S = 0.05
"""How often what is due by time is looked at."""

FORGET_S = 0.5
"""After the end of a process before its memory is told to be free: often it is the end of the program."""


class Hearing:
    """Hears the processes of one program. Belongs to the thread that attends to it.

    Args:
        run_id: number of the run.
        name: of the program.
        wiring: the session.
        facts: what is known of the program, for a report.

    Raises:
        ValueError: one sentence, when no socket can be made.

    Attributes:
        path: of the socket.
        server: listens there.
        reports: of its out-of-memory errors.
        news, ranks, memory: what is told of each, from `begin` on.
        snapshot_wanted: set by any thread that wants one.
        allocating: the process that told of memory on a GPU first, ``None`` without one.
    """

    news: ProgramNews
    ranks: WatchedRanks
    memory: WatchedMemory

    def __init__(self, run_id: int, name: str, wiring: Wiring, facts: Callable[[], Mapping[str, Any]]) -> None:
        self._run_id = run_id
        self._name = name
        self._wiring = wiring
        self._folder, self.server = listening()
        self.path = self._folder.path / "agent"
        self.reports = OutOfMemoryReports(run_id, name, wiring, facts)
        self.snapshot_wanted = threading.Event()
        self.allocating: Peer | None = None
        self._pid = 0
        self._names: dict[int, str] = {}
        self._gone: dict[int, float] = {}

    def begin(
        self, pid: int, simulate: Sequence[SimulatedCard] = (), others: int = 0, *, as_cuda: bool = False
    ) -> None:
        """The program runs, and the session knows of its run.

        Args:
            pid: of its first process.
            simulate: the GPUs that it is given.
            others: bytes of the first that simulated other processes hold.
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
            simulate=simulate,
            others=others,
            as_cuda=as_cuda,
        )

    def hear(self, has_ended: Callable[[], bool], tick_s: float = TICK_S) -> None:
        """Take in what has come; waits no longer than ``tick_s`` for it.

        Args:
            has_ended: tells whether the program's first process has.
        """
        peers = list(self.server.peers)
        for peer, message in self.server.receive(tick_s):
            try:
                self._take(peer, message)
            except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
                what = f"A message of pid {peer.pid} ({message['type'][:40]}) was not understood"
                self.news.note(Topic.PROCESSES, f"{what}: {type(error).__name__}: {error}.")
        for peer in peers:
            if peer not in self.server.peers:
                self.news.left(peer)
                self._gone[peer.pid] = time.monotonic()
                if self.allocating is peer:
                    self.allocating = None
        self._forget_gone(has_ended)
        while self.server.troubles:
            self.news.note(Topic.PROCESSES, self.server.troubles.popleft())
        if self.snapshot_wanted.is_set():
            self._ask_for_snapshot()

    def close(self) -> None:
        """Hear nobody any more."""
        self.server.close()
        self._folder.remove()
        self.reports.close()

    def _take(self, peer: Peer, message: Message) -> None:
        match message["type"]:
            case "hello" if message.get("refused"):
                pass
            case "allocator":
                self.allocating = self.allocating or peer
                self.memory.take_allocator(peer.pid, self._name_of(peer), message)
            case "stacks":
                self.memory.take_stacks(peer.pid, message)
            case "held":
                self.memory.take_held(peer.pid, message)
            case "oom":
                self.reports.refused(self.news, peer, message, self.memory)
            case "snapshot":
                self.reports.saved(self.news, message)
            case _ if self.ranks.take(peer, message):
                pass
            case _:
                self.news.take(peer, message)
        if message["type"] == "steps":
            self.reports.note_steps(peer.pid, message)

    def _forget_gone(self, has_ended: Callable[[], bool]) -> None:
        """Take back what processes held that have ended a while ago; at the program's end the last figures stay."""
        for pid, gone_s in list(self._gone.items()):
            if pid == self._pid or time.monotonic() - gone_s < FORGET_S:
                continue
            if not has_ended() and not is_running(pid):
                del self._gone[pid]
                if pid not in (peer.pid for peer in self.server.peers):
                    self.memory.forget(pid)

    def _ask_for_snapshot(self) -> None:
        self.snapshot_wanted.clear()
        peer = self.allocating
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
            self._names[peer.pid] = process_name(psutil.Process(peer.pid)) if known else self._name
        return self._names[peer.pid]


def listening() -> tuple[PrivateFolder, AgentServer]:
    """A private folder, and a server at a socket in it.

    Raises:
        ValueError: one sentence, when there can be none.
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
