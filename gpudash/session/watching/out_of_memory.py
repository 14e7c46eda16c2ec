"""The out-of-memory errors of a watched program: each becomes a report, the last one perhaps the run's end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.agent.server import MOST_CONNECTIONS, Peer
from gpudash.session.recordings.file_kinds import SNAPSHOT_NAME
from gpudash.session.watching.ending import REPORTED
from gpudash.session.watching.flight_recorder import FlightRecorder, Refused, allocator_environment, new_report
from gpudash.session.watching.memory import WatchedMemory
from gpudash.session.watching.private_folder import PrivateFolder
from gpudash.session.watching.program_news import COUNTED, ProgramNews
from gpudash.session.watching.report_folder import MOST_STEPS, write_steps
from gpudash.session.watching.wiring import Wiring
from gpudash.settings import reports_folder
from gpudash.telemetry.explanation import Explanation
from gpudash.telemetry.recording.retention import prune_reports
from gpudash.telemetry.records import Note, OutOfMemory, RunEnded, Topic
from gpudash.units import format_bytes

if TYPE_CHECKING:
    from gpudash.agent.wire import Message

PATIENCE_S = 90.0
"""Longest that the end of a run waits for its report."""


class OutOfMemoryReports:
    """Collects the out-of-memory errors of one run. Belongs to the thread that attends to the program.

    Args:
        run_id: of the run.
        name: of the program.
        wiring: the session.
        facts: what is known of the program, for the report.

    Attributes:
        newest: the newest message of a refused allocation, with ``who`` and ``time_s``; ``None`` without one.
        staging: the folder into which the program writes snapshots, "" where there can be none.
    """

    def __init__(self, run_id: int, name: str, wiring: Wiring, facts: Callable[[], Mapping[str, Any]]) -> None:
        self.newest: dict[str, Any] | None = None
        self.staging = ""
        self._run_id = run_id
        self._name = name
        self._wiring = wiring
        self._recorder = FlightRecorder(reports_folder(), name, wiring.store, wiring.output, facts)
        self._steps: dict[int, deque[tuple[int, int]]] = {}
        self._explanation: Explanation | None = None
        self._waiting: Refused | None = None
        self._requested: Path | None = None
        self._given_up = threading.Event()
        self._thread: threading.Thread | None = None
        self._folder: PrivateFolder | None = None
        with suppress(OSError):  # then an out-of-memory is told without a snapshot
            self._folder = PrivateFolder(reports_folder(), ".pending-")
            self.staging = str(self._folder.path)

    @property
    def folder(self) -> Path | None:
        """The report's, ``None`` when there is none."""
        return self._recorder.folder

    def allocator_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables that steer torch's allocator."""
        return allocator_environment(environment)

    def note_steps(self, pid: int, message: Message) -> None:
        """Keep when the steps of a process were."""
        kept = self._steps.setdefault(pid, deque(maxlen=MOST_STEPS))
        if len(self._steps) > MOST_CONNECTIONS:
            del self._steps[next(iter(self._steps))]
        next_ = 0 if message.get("source") == COUNTED else 1  # a block's step is numbered as the agent does
        rows = message.get("steps")
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, list) and len(row) >= 2 and isinstance(row[0], int) and isinstance(row[1], int):
                kept.append((row[1], row[0] + next_))  # told at its end, which is where the next begins

    def refused(self, news: ProgramNews, peer: Peer, message: Message, memory: WatchedMemory) -> None:
        """A process was refused an allocation: begin to write its report."""
        device = str(message.get("device"))
        time_s = news.time_of(message)
        self.newest = {**message, "who": news.who(peer), "rank": peer.rank, "time_s": time_s}
        asked, free = message.get("requested_bytes"), message.get("free_bytes")
        words = "" if not isinstance(asked, int) else f": {format_bytes(asked)} were asked for"
        words += f" and {format_bytes(free)} were free" if words and isinstance(free, int) else ""
        problem = f" {message['problem']}" if message.get("problem") else ""
        news.note(Topic.OUT_OF_MEMORY, f"Memory of {device} ran out{words}.{problem}", device=device, pid=peer.pid)
        snapshot = self._staged(message.get("snapshot"))
        uuid = self._wiring.machine.memory_of(device)
        gpu = next((gpu for gpu in self._wiring.machine.gpus if gpu.uuid == uuid), None)
        capacity, step = message.get("capacity_bytes"), message.get("step")
        around, context = memory.surroundings(device), message.get("context_bytes")
        if isinstance(context, int):  # it may come before any other figures of the process
            around = replace(around, context_bytes=context)
        self._waiting = Refused(
            device=device,
            snapshot=snapshot,
            time_s=time_s,
            capacity_bytes=capacity if isinstance(capacity, int) else None,
            requested_bytes=asked if isinstance(asked, int) else None,
            free_bytes=free if isinstance(free, int) else None,
            step=step if isinstance(step, int) else 0,
            steps=tuple(self._steps.get(peer.pid, ())),
            product="" if gpu is None else gpu.product,
            around=around,
            is_context=context == 0,
        )
        self._begin()

    def request(self) -> Message:
        """The message that asks the program for a snapshot now.

        Raises:
            OSError: when there is no room for it.
        """
        self._drop_request()
        self._requested = folder = new_report(reports_folder(), f"{Path(self._name).stem}-snapshot")
        return {"type": "snapshot", "path": str(folder / SNAPSHOT_NAME), "reason": "asked"}

    def saved(self, news: ProgramNews, message: Message) -> None:
        """The program has answered a request."""
        path, problem = message.get("path"), message.get("problem")
        if problem or not isinstance(path, str):
            why = problem or "it did not say why"
            news.note(Topic.SNAPSHOT, f"The program could not save a snapshot: {why}", path=None)
            self._drop_request()
        else:
            news.note(Topic.SNAPSHOT, f"A memory snapshot was saved: {path}", path=path)
            folder = Path(path).parent
            if folder == self._requested and len(self._steps) == 1:
                with suppress(OSError):  # the snapshot is there, which is what was asked for
                    write_steps(folder, tuple(next(iter(self._steps.values()))))
            self._tidy(folder)

    def finish(self) -> None:
        """Wait until the report is written."""
        until_s = time.monotonic() + PATIENCE_S
        while not self._given_up.is_set() and time.monotonic() < until_s:
            self._begin()
            if self._thread is None or not self._thread.is_alive():
                break
            self._thread.join(0.1)
        with suppress(OSError):
            self._recorder.write_output()

    def give_up(self) -> None:
        """Nobody waits for an explanation any more."""
        self._given_up.set()

    def explained(self, ending: RunEnded) -> RunEnded:
        """``ending`` with what filled the memory, where it was an out-of-memory of a GPU."""
        if isinstance(ending, OutOfMemory) and ending.error != "host" and self._explanation is not None:
            return replace(ending, remedy=REPORTED, explanation=self._explanation)
        return ending

    def close(self) -> None:
        """Remove what nobody needs any more."""
        self._given_up.set()
        if self._thread is not None:
            self._thread.join(1.0)
        self._drop_request()
        if self._folder is not None:
            self._folder.remove()

    def _drop_request(self) -> None:
        """Remove the folder of a snapshot that never came; one with a snapshot stays."""
        folder, self._requested = self._requested, None
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()

    def _tidy(self, keep: Path | None) -> None:
        settings = self._wiring.settings
        with suppress(OSError):
            prune_reports(reports_folder(), settings.reports_bytes, settings.reports_keep, keep=keep)

    def _staged(self, path: Any) -> Path | None:
        """A snapshot where one may be: the program has no say in what else is moved."""
        if not isinstance(path, str) or not self.staging:
            return None
        found = Path(path)
        return found if found.parent == Path(self.staging) and found.is_file() and not found.is_symlink() else None

    def _begin(self) -> None:
        """Write the report of the newest out-of-memory, one at a time, on a thread of its own."""
        if self._waiting is None or (self._thread is not None and self._thread.is_alive()):
            return
        refused, self._waiting = self._waiting, None
        self._thread = threading.Thread(target=self._write, args=(refused,), name="gpudash-report", daemon=True)
        self._thread.start()

    def _write(self, refused: Refused) -> None:
        problem = ""
        try:
            self._explanation = self._recorder.record(refused, self._given_up.is_set)
            self._tidy(self.folder)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            problem = f"Its report could not be written: {error.strerror or error}{where}."
        except ValueError as error:
            problem = f"What filled the memory could not be explained: {error}"
        except Exception as error:  # a fault of ours must not take the rest of the report with it
            problem = f"What filled the memory could not be explained: {type(error).__name__}: {error}."
        if problem:
            self._note(problem)
        if self.folder is not None:
            verdict = None if self._explanation is None else self._explanation.verdict
            self._note(f"The report of the out-of-memory: {self.folder}", folder=str(self.folder), verdict=verdict)

    def _note(self, text: str, **details: Any) -> None:
        time_s = self._wiring.clock()
        self._wiring.emit(Note(time_s=time_s, run_id=self._run_id, topic=Topic.REPORT, text=text, details=details))
