"""Reruns a program that ran out of memory on a simulated GPU, on a larger one, to find its need.

Nothing that the program writes is kept (`gpudash.system.sandbox`), and it has no network, the lowest priority and no
output. It is ended as soon as enough is known, or on request.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gpudash.devices.names import size_of
from gpudash.memory.allocator.device_memory import addresses_fall
from gpudash.memory.explaining.patches import PATCH_NAME, patching
from gpudash.memory.explaining.whole_need import CardRequests, need_of
from gpudash.session.predicting.attempt import KILLED_S, OFFLINE, TRACKERS_OFF, send_in_turn
from gpudash.session.watching.messages.hearing import TICK_S, listening
from gpudash.session.watching.messages.program_news import COUNTED
from gpudash.session.watching.need.failed_run import (
    LEAST_S,
    LEFT,
    MOST_TIMES,
    REQUESTED_S,
    STEADY_STEPS,
    WRITES_AGAIN,
    FailedRun,
    NeedUnknownError,
    ProgramRerun,
    RemedyFailsError,
    check_own_cards,
    unknown,
)
from gpudash.session.watching.request import WatchRequest
from gpudash.simulator.device.process_table import VARIABLE
from gpudash.system import sandbox
from gpudash.system.files import PrivateFolder
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular
from gpudash.system.processes import waited_seconds
from gpudash.telemetry.explanation import Need, Remedy
from gpudash.units import format_bytes, format_duration

if TYPE_CHECKING:
    from gpudash.agent.server import AgentServer, Peer
    from gpudash.agent.wire import Message

logger = logging.getLogger(__name__)

MOST_WAITING = 3.0
"""Time limit by the clock, as a multiple: waiting for processors that others use does not count up to this."""

LONGEST_FAILED_S = 300.0
"""A run that took longer to fail is only rerun on request: its user would have to wait as long again."""

ANSWER_S = 20.0
"""Longest wait for the program to write its requests: it may be inside a long operation."""

MOST_TRACE_BYTES = 256 * 2**20


@dataclass(slots=True)
class _Heard:
    """The messages of the rerun's processes.

    Attributes:
        step: highest number of a step in progress.
        files: request files of the processes.
        refused: report of a failed allocation.
        raised: the last uncaught exception, in words.
        problem: why requests could not be written.
    """

    step: int = 0
    files: dict[int, str] = field(default_factory=dict)
    refused: Mapping[str, Any] | None = None
    raised: str = ""
    problem: str = ""


class WholeRun(ProgramRerun):
    """A rerun with numbers, on a larger simulated card, or with a remedy on one of the original size.

    Args:
        request, environment, failed, requested, remedy: as in `ProgramRerun`.
        spent_s: part of its time used by earlier attempts.
    """

    def __init__(
        self,
        request: WatchRequest,
        environment: Mapping[str, str],
        failed: FailedRun,
        *,
        requested: bool,
        spent_s: float = 0.0,
        remedy: Remedy | None = None,
    ) -> None:
        super().__init__(request, environment, failed, requested=requested, remedy=remedy)
        self._spent_s = spent_s
        self._waited_s = 0.0
        self._heard = _Heard()

    @property
    def limit_s(self) -> float:
        """Time limit of a search that the user did not ask for, not counting time spent waiting for a processor."""
        return max(LEAST_S, MOST_TIMES * self._failed.seconds - self._spent_s)

    @property
    def waited_s(self) -> float:
        """Seconds for which it has waited for a processor."""
        return self._waited_s

    def find(self) -> Need:
        """Run the program again, and determine its need.

        Raises:
            NeedUnknownError: why it found nothing.
        """
        # The user waited that long for the failure, and did not ask to wait again.
        if not self.is_requested and self._failed.seconds > LONGEST_FAILED_S:
            after = format_duration(self._failed.seconds)
            raise NeedUnknownError(
                unknown(f"it failed after {after}, and only --find-need runs it for so long again to find out")
            )
        held_back = sandbox.can_hold_back()
        if not held_back and self._remedy is not None:
            raise NeedUnknownError("No edit is tried where the files of the program would stay edited.")
        if not held_back and not self.is_requested:
            raise NeedUnknownError(WRITES_AGAIN)
        try:
            return self._measured(held_back=held_back)
        except OSError as error:
            raise NeedUnknownError(unknown(f"it could not be run again ({error.strerror or error})")) from None

    def _measured(self, *, held_back: bool) -> Need:
        """Raises: NeedUnknownError: why nothing was found; OSError: if the program cannot be run again."""
        scratch = PrivateFolder(data_folder(), ".rerun-")
        try:
            folder, server = listening()
        except ValueError as error:
            scratch.remove()
            raise NeedUnknownError(unknown(str(error))) from None
        process: subprocess.Popen[bytes] | None = None
        try:
            # Create the socket's folder first: its path is in the program's environment.
            process = self._start(scratch.path, folder.path, held_back=held_back)
            code = self._attend(server, process)
            return self._need(code)
        finally:
            if process is not None:
                send_in_turn(process, [(signal.SIGKILL, KILLED_S)])  # it has nothing to save
            server.close()
            folder.remove()
            # overlayfs and the program may leave folders without permissions until `clear` has opened them.
            for name in os.listdir(scratch.path):  # noqa: PTH208 - names
                sandbox.clear(str(scratch.path / name))
            scratch.remove()

    def _start(self, scratch: Path, heard: Path, *, held_back: bool) -> subprocess.Popen[bytes]:
        for name in ("layers", "traces"):
            (scratch / name).mkdir()
        cards = self._request.simulate
        config = json.loads(self._environment["GPUDASH_AGENT"]) | {
            "history": False,
            "report": "",
            "trace": {"folder": str(scratch / "traces"), "capacity": self._capacity(max(map(size_of, cards)))},
        }
        remedy = self._remedy
        command, variables = self._changed()
        environment = {
            **variables,
            **TRACKERS_OFF,
            **OFFLINE,
            "GPUDASH_SOCKET": str(heard / "agent"),
            "GPUDASH_AGENT": json.dumps(config),
        }
        # A rerun has its own cards: do not use the failed run's table.
        environment.pop(VARIABLE, None)
        if remedy is not None and remedy.patch:
            (scratch / "traces" / PATCH_NAME).write_text(remedy.patch, encoding="utf-8")
            command = patching(command, scratch / "traces" / PATCH_NAME)
        layers = ""
        if held_back:
            layers = str(scratch / "layers")
        kept = [str(scratch / "traces"), str(heard)]
        return subprocess.Popen(
            sandbox.command_in_sandbox(command, layers, kept),
            cwd=self._request.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _capacity(self, size: int) -> int:
        if self._remedy is None:
            return larger_capacity(size)
        return size

    def _attend(self, server: AgentServer, process: subprocess.Popen[bytes]) -> int | None:
        """Process the rerun's messages until enough is known; returns its exit code, ``None`` if it is still
        running."""
        logger.info("process %d began: the program once more, to learn what it needs", process.pid)
        while (code := process.poll()) is None:
            self._hear(server)
            if self._left.is_set():
                raise NeedUnknownError(LEFT)
            # With a remedy the card has its original size, and a program may catch the failure and continue with less.
            if self._heard.refused is not None and self._remedy is None:
                break
            if not self._is_over(process.pid):
                continue
            if self._is_steady:
                self._collect(server, process)
                return None
            raise NeedUnknownError(self._too_slow())
        # The process has ended: its last messages are still in the socket.
        deadline = time.monotonic() + 1.0
        while server.peers and time.monotonic() < deadline and (self._heard.refused is None or self._remedy):
            self._hear(server)
        self._hear(server)
        return code

    def _is_over(self, pid: int) -> bool:
        """Whether its time has run out."""
        if self.is_requested:
            return self.seconds > max(REQUESTED_S, self.limit_s)
        # Waiting for processors does not count against the rerun, up to a limit: the user's own work has priority.
        self._waited_s = waited_seconds(pid)
        return self.seconds - self._waited_s > self.limit_s or self.seconds > MOST_WAITING * self.limit_s

    @property
    def _is_steady(self) -> bool:
        return self._heard.step > self._failed.step + STEADY_STEPS

    def _collect(self, server: AgentServer, process: subprocess.Popen[bytes]) -> None:
        """Ask every process for its requests so far, and wait for them."""
        waiting = [peer for peer in server.peers if server.send(peer, {"type": "trace"})]
        # Files of an earlier answer have fewer requests: ask each process again.
        self._heard.files.clear()
        deadline = time.monotonic() + ANSWER_S
        pids = {peer.pid for peer in waiting}
        while time.monotonic() < deadline and process.poll() is None and not self._left.is_set():
            pids -= {peer.pid for peer, message in self._messages(server) if message["type"] == "trace"}
            if not pids:
                return

    def _hear(self, server: AgentServer) -> None:
        for _ in self._messages(server):
            pass

    def _messages(self, server: AgentServer) -> Iterator[tuple[Peer, Message]]:
        for peer, message in server.receive(TICK_S):
            self._take(peer, message)
            yield peer, message

    def _take(self, peer: Peer, message: Message) -> None:
        heard = self._heard
        match message["type"]:
            case "steps":
                rows = message.get("steps")
                numbers = []
                if isinstance(rows, list):
                    numbers = [row[0] for row in rows if row and isinstance(row[0], int)]
                begun = 1
                if message.get("source") == COUNTED:
                    begun = 0
                heard.step = max([heard.step, *(number + begun for number in numbers)])
            case "trace":
                if isinstance(message.get("step"), int):
                    heard.step = max(heard.step, message["step"])
                if isinstance(message.get("path"), str):
                    heard.files[peer.pid] = message["path"]
                heard.problem = str(message.get("problem") or heard.problem)
            case "oom":
                heard.refused = message
            case "raised":
                heard.raised = str(message.get("error") or "")

    def _need(self, code: int | None) -> Need:
        """Raises: NeedUnknownError: why nothing was found."""
        heard = self._heard
        # A failure, or still running after a failed request (which a program may handle): the remedy does not work.
        if self._remedy is not None and code != 0 and (code is not None or heard.refused is not None):
            raise RemedyFailsError(self._remedy)
        if heard.refused is not None and self._remedy is None:
            capacity = heard.refused.get("capacity_bytes")
            more = format_bytes(capacity) if isinstance(capacity, int) else "what this computer can simulate"
            raise NeedUnknownError(unknown(f"it is more than {more}, as much as was tried"))
        if code == sandbox.NOT_HELD_BACK:
            raise NeedUnknownError(unknown("what it writes could not be held back while it was run again"))
        if code and not self._is_steady:
            why = "failed"
            if heard.raised:
                why = f"ended with {heard.raised}"
            raise NeedUnknownError(unknown(f"run again without network and lasting files, the program {why}"))
        if heard.problem:
            raise NeedUnknownError(unknown(f"what it asked for could not be written ({heard.problem})"))
        cards = [card for path in heard.files.values() for card in self._read(path)]
        if not cards:
            raise NeedUnknownError(unknown("run again, the program asked for nothing"))
        check_own_cards(cards)
        # If the program has not ended, the current step is incomplete.
        steps = heard.step if code == 0 else max(0, heard.step - 1)
        needs = [need_of(card, steps=steps, is_whole=code == 0, seconds=self.seconds) for card in cards]
        return max(needs, key=lambda need: need.capacity_bytes)

    def _read(self, path: str) -> list[CardRequests]:
        falls = addresses_fall(self._failed.torch)
        try:
            # torch's version decides which of two free blocks of a size the allocator uses (`addresses_fall`).
            data = json.loads(read_regular(Path(path), MOST_TRACE_BYTES))
            return [CardRequests.from_json(card, addresses_fall=falls) for card in data]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NeedUnknownError(unknown(f"what it asked for could not be read ({error})")) from None

    def _too_slow(self) -> str:
        took = format_duration(self.seconds)
        longer = "; --find-need takes longer"
        if self.is_requested:
            longer = ""
        return unknown(
            f"run again for {took}, the program did not come to its end or {STEADY_STEPS} steps past the one that "
            f"failed{longer}"
        )


def larger_capacity(size: int) -> int:
    """Bytes of the larger card: twice as many, plus what fits in half of this computer's free memory."""
    free = int(psutil.virtual_memory().available)
    return max(2 * size, size + free // 2)
