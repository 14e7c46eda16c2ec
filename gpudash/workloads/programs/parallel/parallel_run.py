"""A run on several devices, from its first event to its ending, as the worker's thread sees it. Below: torchrun as a
child of this process, and the socket on which it and the ranks report.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpudash.agent.server import AgentServer, Peer
from gpudash.agent.wire import Message
from gpudash.devices.names import kind_of
from gpudash.specs import TrainingSpec
from gpudash.system.files import PrivateFolder, runtime_folder
from gpudash.system.foreign_files import open_regular
from gpudash.telemetry.records import Event, RunEnd, Topic
from gpudash.workloads.programs.parallel.job import LOGS, PRINTED, SOCKET, Job
from gpudash.workloads.programs.parallel.joining import (
    Cause,
    Ended,
    HeldUp,
    Joining,
    cause_of,
    ending_of_cause,
    held_up,
    overdue,
)
from gpudash.workloads.running.run import NOT_EXPLAINED, RequestedRun
from gpudash.workloads.running.run_errors import MemoryKills, Progress, WorkloadError, ending_of
from gpudash.workloads.running.sim_backend import card_fields

logger = logging.getLogger(__name__)

STOP_S = 0.6
"""Seconds for the ranks to leave together after Stop; then they are killed, so that Stop takes less than 1 s."""

POLL_S = 0.02
"""Seconds between two polls for requests while the ranks send nothing."""

LEAVING_S = 10.0
"""Seconds that torchrun may take to end after every rank has sent its last message."""

GRACE_S = 10.0
"""Seconds after the backend's own timeout for its error to arrive; then the run ends without it."""

LINGERS = "A rank's process does not end: a driver holds it, and what it took of its device is not free yet."
NOT_PROFILED = "Steps of a run on several devices are not profiled; profile one on a single device."


@dataclass(eq=False)
class ParallelRun(RequestedRun):
    """A run whose ranks torchrun starts; readings are emitted too."""

    _ended: Ended = field(default_factory=Ended, init=False)
    _peers: dict[int, Peer] = field(default_factory=dict, init=False)
    _held: dict[int, int] = field(default_factory=dict, init=False)
    _cards: dict[int, dict[str, Any]] = field(default_factory=dict, init=False)
    _stop_requested_s: float | None = field(default=None, init=False)
    _end_reported: bool = field(default=False, init=False)
    _refusal: WorkloadError | None = field(default=None, init=False)
    _kills: MemoryKills = field(default_factory=MemoryKills, init=False)
    _torchrun: _Torchrun | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.request.spec, TrainingSpec)
        self._spec = self.request.spec
        self._simulated = kind_of(self._spec.device_names[0]) == "sim"
        self._joining = Joining(self._spec, self.request.devices, self.request.run_id, self.emit, self.clock)

    def perform(self) -> Event:
        """Run it, and end all of its processes; every exception becomes an ending.

        Returns:
            the ending, not yet emitted.
        """
        request = self.request
        self.emit(self._begun())
        folder: PrivateFolder | None = None
        try:
            # Before the first rank can report, and reset after the last one.
            if request.on_ranks is not None:
                request.on_ranks(self._joining.resident_bytes)
            folder = PrivateFolder(runtime_folder(), "gpudash-ranks-")
            self._torchrun = _Torchrun(folder.path, self._job())
            ending = self._until_its_end(self._torchrun)
        except Exception as error:  # a process that cannot be started, or a failing callback: every run has an ending
            logger.warning("a run on several devices ended with an error", exc_info=True)
            ending = ending_of(_as_workload_error(error), self._progress(), self._spec.name, request.device)
        # Even if starting it failed halfway: `close` ends what exists.
        if self._torchrun is not None and not self._torchrun.close():
            self._joining.note(Topic.WORKER, LINGERS)
        if request.on_ranks is not None:
            request.on_ranks(None)
        self._show_no_cards()
        if folder is not None:
            folder.remove()
        return ending

    def _job(self) -> Job:
        request = self.request
        uuids = [device.uuid for device in request.devices] or [None] * self._spec.world_size
        cap = None
        if request.memory_cap is not None:
            cap = asdict(request.memory_cap)
        cards = []
        if self._simulated:
            cards = list(map(card_fields, request.cards))
        return Job(
            fields=self._spec.model_dump(mode="json", exclude_unset=True),
            origin_s=time.monotonic() - self.clock(),
            memory_cap=cap,
            uuids=uuids,
            warn_ratio=request.warn_ratio,
            cards=cards,
        )

    def _until_its_end(self, torchrun: _Torchrun) -> Event:
        while True:
            for peer, message in torchrun.receive(POLL_S):
                self._take(peer, message)
            self._notice_losses(torchrun)
            if self._refusal is not None:
                raise self._refusal
            # before torchrun's own exit is checked: it may end as soon as the last rank has sent its last message
            # All have reported their results; nothing that comes later can change them.
            if len(self._joining.done) == self._spec.world_size:
                return self._whole(torchrun)
            if self.requests.stop.is_set() and self._stop_is_overdue(torchrun):
                ready = all(one.ready for one in self._joining.standings)
                if ready:
                    return self._killed(self._progress(), STOP_S)
                return self._stopped(self._progress())
            # Ended by itself: earlier messages from it and the ranks are still in the sockets.
            if torchrun.code is not None:
                self._hear_out(torchrun)
                if self.requests.stop.is_set():
                    return self._stopped(self._progress())
                return ending_of_cause(self._cause(torchrun.printed()), self._progress())
            hang = self._hang()
            if hang is not None:
                return ending_of_cause(hang, self._progress())
            self._pass_on_requests(torchrun)

    def _hear_out(self, torchrun: _Torchrun) -> None:
        """Handle the messages sent before torchrun ended."""
        heard = True
        while heard:
            heard = False
            # Until nothing arrives: one iteration reads at most a buffer from each connection.
            for peer, message in torchrun.receive(0):
                heard = True
                self._take(peer, message)
        self._notice_losses(torchrun)

    def _take(self, peer: Peer, message: Message) -> None:
        kind = message["type"]
        rank = peer.rank
        # Sent by torchrun's process, which is not a rank.
        if kind == "missing":
            self._refusal = WorkloadError("torch", str(message["message"]), str(message["remedy"]))
        elif kind == "fell":
            self._has_fallen(message)
        elif rank is None or not 0 <= rank < self._spec.world_size:
            return
        elif kind == "failed":
            self._failed_rank(rank, message)
        elif kind == "held":
            self._held[rank] = message["step"]
        else:
            if kind == "hello":
                self._greet(rank, peer, message)
            self._joining.take(rank, message)
            self._show_card(rank, peer, message)

    def _show_card(self, rank: int, peer: Peer, message: Message) -> None:
        """Show the state of a rank's simulated card beside those of the others."""
        if message["type"] != "beat" or message.get("card") is None or self.request.on_cards is None:
            return
        self._cards[rank] = {**message["card"], "pid": peer.pid}
        self.request.on_cards(peer.pid, list(self._cards.values()))

    def _show_no_cards(self) -> None:
        if self._cards and self.request.on_cards is not None:
            self.request.on_cards(next(iter(self._cards.values()))["pid"], ())
        self._cards.clear()

    def _greet(self, rank: int, peer: Peer, message: Message) -> None:
        restart = int(message.get("restart", 0))
        # Reported once, by the first rank that returns, while the causes of the last start are still stored.
        if restart > self._joining.restarts:
            self._report_restart(restart)
        self._peers[rank] = peer

    def _report_restart(self, restart: int) -> None:
        cause = self._cause("")
        self._joining.note(
            Topic.RESTART,
            f"{cause.message} torchrun has restarted all ranks, from step 1 (restart {restart} of "
            f"{self._spec.max_restarts}).",
            restart=restart,
            rank=cause.rank,
            error=cause.error,
        )
        # What ended the previous start is not a cause of this one.
        self._ended = Ended()
        self._peers.clear()
        self._held.clear()
        self._show_no_cards()
        self._joining.begin_again(restart)

    def _failed_rank(self, rank: int, message: Message) -> None:
        standings = self._joining.standings
        standings[rank].memory.update({k: v for k, v in message.items() if k.endswith("_bytes") and v is not None})
        standings[rank].step = message["step"]
        # The first rank that gave up saw the others as they were: later complaints follow from it.
        if message.get("because_of") == "late" and self._ended.late is None:
            self._ended.late = held_up(standings, self.clock())
            self._end_rank(self._ended.late)
        self._ended.failed.append((rank, message))

    def _end_rank(self, late: HeldUp | None) -> None:
        """Kill the rank that hangs: stopped, it does not handle torchrun's signal, and torchrun would wait for it."""
        peer = None
        if late is not None:
            peer = self._peers.get(late.rank)
        if peer is not None and self._torchrun is not None and self._torchrun.hears(peer):
            self._torchrun.kill(peer.pid)

    def _has_fallen(self, message: Message) -> None:
        pid = message["pid"]
        # By process if the rank is known; one that failed before its first message has only torchrun's number.
        rank = next((one.rank for one in self._joining.standings if one.pid == pid), message["local_rank"])
        if 0 <= rank < self._spec.world_size:
            self._ended.failed_ranks.setdefault(rank, message["exit_code"])

    def _notice_losses(self, torchrun: _Torchrun) -> None:
        """Record ranks whose connection closed without a final message."""
        reported = {rank for rank, _ in self._ended.failed} | set(self._joining.done)
        for rank, peer in list(self._peers.items()):
            if not torchrun.hears(peer):
                del self._peers[rank]
                if rank not in reported:
                    self._ended.gone.append(rank)

    def _hang(self) -> Cause | None:
        """Why the run cannot continue, if a rank has been waited for longer than the backend's own timeout."""
        standings = self._joining.standings
        now = self.clock()
        if not overdue(standings, now, self._spec.rank_timeout, GRACE_S):
            return None
        late = held_up(standings, now)
        if late is not None:
            self._ended.late = late
        return self._cause("")

    def _cause(self, printed: str) -> Cause:
        standings = self._joining.standings
        return cause_of(self._ended, standings, memory_was_full=self._kills.rose(), printed=printed)

    def _whole(self, torchrun: _Torchrun) -> Event:
        """Handle the final messages of all ranks."""
        # A digest is computed after the last step: a run that was stopped just after it has finished.
        stopped = self.requests.stop.is_set() and any("digest" not in result for result in self._joining.done.values())
        if stopped:
            return self._stopped(self._progress())
        torchrun.wait(LEAVING_S)
        self._joining.note_findings(at_end=True)
        return RunEnd(status="finished", **self._progress().fields())

    def _stop_is_overdue(self, torchrun: _Torchrun) -> bool:
        """Whether the ranks have used up their time after Stop, or have not come far enough to handle it."""
        now = time.monotonic()
        if self._stop_requested_s is None:
            self._stop_requested_s = now
            # A rank that is still importing handles no messages: waiting for it would only make Stop slow.
            if not all(one.ready for one in self._joining.standings):
                return True
            torchrun.send_to_ranks({"type": "stop"})
        # Each has reported the step at which it waits; no step starts meanwhile (`Link.begin_step`).
        if not self._end_reported and len(self._held) == self._spec.world_size:
            self._end_reported = True
            # a rank that is a step ahead cannot go back: all continue to the latest step that any has started, so that
            # no collective is left unfinished
            torchrun.send_to_ranks({"type": "end_at", "step": max(self._held.values())})
        return now - self._stop_requested_s > STOP_S

    def _pass_on_requests(self, torchrun: _Torchrun) -> None:
        requests = self.requests
        if requests.free_cache.is_set():
            requests.free_cache.clear()
            torchrun.send_to_ranks({"type": "free_cache"})
        if requests.take_explain():
            self._joining.note(Topic.EXPLANATION, NOT_EXPLAINED)
        if requests.profile is not None:
            requests.profile = None
            self._joining.note(Topic.OPERATORS, NOT_PROFILED)

    def _progress(self) -> Progress:
        now = self.clock()
        joining = self._joining
        return Progress(now, self.request.run_id, now - self.began_s, joining.steps, joining.result())


def _as_workload_error(error: Exception) -> Exception:
    """A failure to create a process or folder, as an error of the run."""
    if not isinstance(error, OSError):
        return error
    found: Any = error.strerror or error
    return WorkloadError("torchrun", f"torchrun cannot be started ({found}).", "Close other programs, or try again.")


LAUNCHER = (
    # torchrun reads its arguments from `sys.argv`: the search path is removed first.
    "import sys; sys.path[:] = sys.argv[3:{end}]; del sys.argv[3:{end}]; "
    "from gpudash.workloads.programs.parallel.launch_process import main; main()"
)
RANK = (
    "import sys; sys.path[:] = sys.argv[2:]; from gpudash.workloads.programs.parallel.rank_program import main; main()"
)
"""``python -m`` would search the working directory first; the ranks must find the same packages as this process."""

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2",
}
"""Set unless the user has set them: all ranks are on this machine, which may not know its own host name; a rank that
hangs gets two seconds to handle torchrun's SIGTERM instead of thirty."""

DYING_S = 2.0
"""Longest wait in seconds for killed processes: a driver may delay them."""

MOST_PRINTED = 20_000
"""The most bytes of torchrun's and the ranks' output in an ending; they may print without limit."""


class _Torchrun:
    """Starts torchrun. Use it in a single thread that lives as long: torchrun and the ranks end with that thread.

    It leads a process group of its own, so a Ctrl+C in the terminal does not reach it.

    Args:
        folder: the run's private folder.
        job: what each rank runs.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, folder: Path, job: Job) -> None:
        self._folder = folder
        job.write(folder)
        self._server = AgentServer(folder / SOCKET)
        try:
            # torchrun and ranks print to a file: a pipe without a reader would block them.
            with (folder / PRINTED).open("wb") as printed:
                self._process = subprocess.Popen(
                    self._command(job),
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    start_new_session=True,
                    env={**ENVIRONMENT, **os.environ},
                )
        except OSError:
            self._server.close()
            raise

        logger.info("process %d began: torchrun", self._process.pid)

    @property
    def code(self) -> int | None:
        """torchrun's exit code, as in `subprocess`; ``None`` while it is running."""
        return self._process.poll()

    def receive(self, timeout_s: float) -> Iterator[tuple[Peer, Message]]:
        """The messages that have arrived; waits up to ``timeout_s`` for the first."""
        return self._server.receive(timeout_s)

    def hears(self, peer: Peer) -> bool:
        """Whether a process is still connected."""
        return peer in self._server.peers

    def send_to_ranks(self, message: Message) -> None:
        """Send a message to every rank."""
        for peer in self._server.peers:
            if peer.rank is not None:
                self._server.send(peer, message)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; ``None`` if it is still running."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(0.0, timeout_s))
        return None

    def printed(self) -> str:
        """The end of its and the ranks' output."""
        return end_of(self._folder / PRINTED)

    def close(self) -> bool:
        """End torchrun and all ranks, and close the socket; false if one survives being killed."""
        self.kill(self._process.pid)
        # Before the ranks: while it lives it would restart them.
        ended = self.wait(DYING_S) is not None
        until = time.monotonic() + DYING_S
        while self._server.peers and time.monotonic() < until:
            # ranks lead groups of their own, so killing torchrun's group leaves them running
            for peer in self._server.peers:
                self.kill(peer.pid)
            for _ in self._server.receive(0.05):
                pass
        ended = ended and not self._server.peers
        logger.info("process %d, torchrun, ended with code %s", self._process.pid, self._process.returncode)
        self._server.close()
        return ended

    def kill(self, pid: int) -> None:
        """Kill a process with its process group; ranks lead groups of their own, as torchrun starts them."""
        # Its process ID may have been reused.
        if self._process.returncode is not None and pid == self._process.pid:
            return
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)

    def _command(self, job: Job) -> list[str]:
        spec = job.spec
        search = list(sys.path)
        return [
            sys.executable,
            "-c",
            # the child must find the same packages as this process: pass its whole search path
            LAUNCHER.format(end=3 + len(search)),
            str(self._folder),
            str(os.getpid()),
            *search,
            "--standalone",
            f"--nproc-per-node={spec.world_size}",
            f"--max-restarts={spec.max_restarts}",
            "--local-addr=127.0.0.1",
            f"--log-dir={self._folder / LOGS}",
            "--no-python",
            sys.executable,
            "-c",
            RANK,
            str(self._folder),
            *search,
        ]


def end_of(path: Path) -> str:
    """The last `MOST_PRINTED` bytes of a file as text; "" if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_PRINTED))
            return file.read(MOST_PRINTED).decode(errors="replace").strip()
    except OSError:
        return ""
