"""The out-of-memory errors of a watched program. Each becomes a report, a folder with everything that explains it; the
last one may be the run's end.
"""

from __future__ import annotations

import csv
import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpudash.agent.server import MOST_CONNECTIONS, Peer
from gpudash.devices.names import kind_of
from gpudash.memory.explaining.explanation_text import report
from gpudash.memory.explaining.memory_state import MemoryState, RefusedRequest, Surroundings
from gpudash.memory.explaining.patches import PATCH_NAME
from gpudash.memory.snapshot.command_line import UNKNOWN_COMMAND, ProgramCommand
from gpudash.memory.snapshot.history.batch_shapes import SeenTensor
from gpudash.session.recordings.file_kinds import SNAPSHOT_NAME
from gpudash.session.recordings.report_folder import (
    EXPLANATION_NAME,
    MOST_STEPS,
    MOST_US,
    SETTINGS_NAME,
    program_command,
    shapes_of,
    write_json,
    write_shapes,
    write_steps,
)
from gpudash.session.watching.ending import REPORTED
from gpudash.session.watching.memory import WatchedMemory
from gpudash.session.watching.messages.program_news import COUNTED, ProgramNews
from gpudash.session.watching.output.log import OutputLog
from gpudash.session.watching.wiring import Wiring
from gpudash.system.files import PrivateFolder, make_private_folder, written_whole
from gpudash.system.foreign_files import source_line
from gpudash.system.foreign_text import harmless
from gpudash.system.settings import reports_folder
from gpudash.system.threads import started
from gpudash.telemetry.explanation import Explanation
from gpudash.telemetry.export.tables import CSV_COLUMNS
from gpudash.telemetry.recording.retention import prune_reports
from gpudash.telemetry.recording.schema import numbered, recording_name
from gpudash.telemetry.records import Note, RunEnd, Topic
from gpudash.telemetry.store import Store
from gpudash.units import format_bytes, format_like

if TYPE_CHECKING:
    from gpudash.agent.wire import Message
    from gpudash.memory.snapshot.history.model import Snapshot

logger = logging.getLogger(__name__)

PATIENCE_S = 90.0
"""Longest time that the end of a run waits for its report."""

CURVES_S = 60.0
"""Length of the stored curves, up to the out-of-memory."""

OUTPUT_LINES = 1000

CURVE_POINTS = 20_000
"""Most points of a curve."""

EXPLAINING_S = 60.0
"""Time limit for reading and explaining a snapshot."""


ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


@dataclass(frozen=True, slots=True)
class Refused:
    """A failed allocation of a watched program.

    Attributes:
        device: torch's name for the device.
        snapshot: file that the program has written; ``None`` for none.
        time_s: session time.
        capacity_bytes, free_bytes: memory of the device; ``None`` if unknown.
        requested_bytes: size of the failed request.
        step: step in progress.
        steps: start of each step in microseconds since 1970, and its number, oldest first.
        product: name of the device.
        around: other memory on the device.
        is_context: whether the context failed, not memory for a tensor.
        allowed_bytes: limit on the process's memory on the device; ``None`` without a limit.
        command: command that started the program.
        shapes: shapes of batches.
    """

    device: str
    snapshot: Path | None
    time_s: float
    capacity_bytes: int | None = None
    requested_bytes: int | None = None
    free_bytes: int | None = None
    step: int = 0
    steps: Sequence[tuple[int, int]] = ()
    product: str = ""
    around: Surroundings = field(default_factory=Surroundings)
    is_context: bool = False
    allowed_bytes: int | None = None
    command: ProgramCommand = UNKNOWN_COMMAND
    shapes: Sequence[SeenTensor] = ()


class FlightRecorder:
    """Writes the report of a run; a later out-of-memory of the run replaces the earlier one.

    Args:
        reports: folder of all reports.
        name: name of the program.
        store: curves and processes.
        output: the program's output.
        facts: facts about the program: command, folder, versions.

    Attributes:
        folder: folder of this run's report; ``None`` before there is one.
    """

    def __init__(
        self, reports: Path, name: str, store: Store, output: OutputLog, facts: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.folder: Path | None = None
        self._reports = reports
        self._name = name
        self._store = store
        self._output = output
        self._facts = facts

    def record(self, refused: Refused, ended: Callable[[], bool]) -> Explanation | None:
        """Write the report of an out-of-memory; returns what filled the memory, if the snapshot shows it.

        Args:
            ended: returns whether the explanation is no longer needed.

        Raises:
            OSError: if the folder cannot be written.
            ValueError: one sentence, if the snapshot cannot be explained; the rest has then been written.
        """
        folder = self._folder()
        if refused.snapshot is not None:
            shutil.move(refused.snapshot, folder / SNAPSHOT_NAME)
            (folder / SNAPSHOT_NAME).chmod(0o600)  # the program wrote it with its own umask
        for name in (
            EXPLANATION_NAME,
            "report.txt",
            PATCH_NAME,
        ):  # of an out-of-memory before, they would not tell of this one
            (folder / name).unlink(missing_ok=True)
        write_steps(folder, refused.steps)
        write_shapes(folder, refused.shapes)
        # Curves, settings, processes and output do not depend on the snapshot: write them even if it explains nothing.
        self._write_curves(folder / "curves.csv", refused.time_s)
        write_json(folder / SETTINGS_NAME, {**self._facts(), "out_of_memory": _facts_of(refused)})
        write_json(folder / "processes.json", self._processes())
        self.write_output()
        if refused.snapshot is None:
            raise ValueError("The program left no memory snapshot, so that what filled the memory is not known.")
        refused = replace(refused, command=program_command(self._facts()))
        explanation = explained(folder / SNAPSHOT_NAME, refused, ended)
        if explanation is not None:
            self.write_explanation(explanation)
        return explanation

    def write_explanation(self, explanation: Explanation) -> None:
        """Write the explanation and the remedies into the report.

        Raises:
            OSError: if the folder cannot be written.
        """
        folder = self._folder()
        patch = explanation.patch
        if patch:
            with written_whole(folder / PATCH_NAME, private=True) as part:
                part.write_bytes(patch.encode())
        write_json(folder / EXPLANATION_NAME, explanation.to_json())
        text = "\n".join(report(explanation))
        with written_whole(folder / "report.txt", private=True) as part:
            part.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")

    def write_output(self) -> None:
        """Write the last lines of output into the report, if there is one."""
        if self.folder is not None:
            lines = (line.text for line in self._output.newest(OUTPUT_LINES))
            text = "".join(f"{line}\n" for line in lines)
            with written_whole(self.folder / "output.txt", private=True) as part:
                part.write_text(text, encoding="utf-8", errors="replace")

    def _folder(self) -> Path:
        if self.folder is None:
            self.folder = new_report(self._reports, self._name)
        return self.folder

    def _write_curves(self, path: Path, until_s: float) -> None:
        """Uses the columns of an export, so that both can be read in the same way."""
        with (
            written_whole(path, private=True) as part,
            part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(CSV_COLUMNS)
            # Only reading needs the lock; writing a file may take long.
            with self._store.lock:
                rows = list(self._rows(until_s - CURVES_S, until_s + 1.0))
            writer.writerows(rows)

    def _rows(self, since_s: float, until_s: float) -> Iterator[tuple[Any, ...]]:
        for (table, metric, device), series in self._store.curves():
            times, values = series.window(since_s, until_s, CURVE_POINTS)
            for time_s, value in zip(times.tolist(), values.tolist(), strict=True):
                if since_s <= time_s <= until_s:
                    shown = _shown_number(metric, value)
                    yield f"{time_s:.6f}", table, harmless(device or ""), harmless(metric), shown, "", ""

    def _processes(self) -> list[dict[str, Any]]:
        with self._store.lock:
            devices = self._store.process_devices()
            return [{"device": device or "host", **row} for device in devices for row in self._store.processes(device)]


def new_report(reports: Path, name: str) -> Path:
    """A new folder ``YYYY-MM-DD-HHMMSS-name`` among the reports.

    Raises:
        OSError: if it cannot be created.
    """
    # `mkdir` decides: two gpudash processes may have found the same name free.
    make_private_folder(reports)
    names = numbered(recording_name(reports, Path(name).stem))
    while True:
        folder = next(names).with_suffix("")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


def explained(snapshot: Path, refused: Refused, ended: Callable[[], bool]) -> Explanation | None:
    """What filled the memory, by a snapshot that is read in a child process; ``None`` once it is no longer needed.

    Raises:
        ValueError: one sentence, if the file is refused, or does not contain the device.
    """
    from gpudash.session.recordings.snapshot_opener import OpenedSnapshot

    opened = OpenedSnapshot(snapshot)
    opened.start()
    try:
        deadline, found = time.monotonic() + EXPLAINING_S, None
        while found is None and not ended():
            found = opened.wait(0.1)
            if found is None and time.monotonic() > deadline:
                raise ValueError(f"The snapshot could not be read within {EXPLAINING_S:.0f} s.")
        if found is None:
            return None
        return explanation_of(found, refused)
    finally:
        opened.close()


def explanation_of(snapshot: Snapshot, refused: Refused) -> Explanation:
    """The snapshot's explanation, with facts that the file lacks: the card's size, its other users, the command.

    Raises:
        ValueError: one sentence, if the snapshot contains nothing about the device.
    """
    from gpudash.memory.snapshot.sidecar import Sidecar

    index = int(refused.device.partition(":")[2] or 0)
    device = snapshot.device(index)
    if device is None:
        raise ValueError(f"The snapshot holds nothing of {refused.device}.")
    requested = refused.requested_bytes
    request = None
    if requested is not None:
        request = RefusedRequest(requested, requested, step=refused.step, is_context=refused.is_context)
    card = MemoryState(
        device=refused.device,
        product=refused.product,
        simulated=kind_of(refused.device) == "sim",
        time_s=refused.time_s,
        capacity=refused.capacity_bytes or 0,
        device_free=refused.free_bytes or 0,
        reserved=0,
        context_bytes=refused.around.context_bytes,
        processes=refused.around.processes,
        request=request,
        allowed=refused.allowed_bytes,
    )
    known = Sidecar(tuple(refused.steps), {index: card}, command=refused.command, shapes=refused.shapes)
    return known.explained(known.history(snapshot, device), source=source_line)


def _shown_number(metric: str, value: float) -> float | int | str:
    """A reading as a cell of the file; a gap in the curve is an empty cell."""
    if np.isnan(value):
        return ""
    if metric.endswith("bytes"):
        return int(value)
    return value


def _facts_of(refused: Refused) -> dict[str, Any]:
    return {
        "device": refused.device,
        "time_s": refused.time_s,
        "capacity_bytes": refused.capacity_bytes,
        "requested_bytes": refused.requested_bytes,
        "step": refused.step,
    }


def _is_step(found: Any) -> bool:
    """Whether a step's number or time is one that can be stored with a snapshot."""
    return isinstance(found, int) and 0 <= found < MOST_US - 1


def allocator_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that configure torch's allocator and select its GPUs."""
    return {name: environment[name] for name in ALLOCATOR_VARIABLES if name in environment}


class OutOfMemoryReports:
    """Collects the out-of-memory errors of a run. Belongs to the thread that attends to the program.

    Args:
        run_id: of the run.
        name: name of the program.
        wiring: connections to the session.
        facts: facts about the program, for the report.

    Attributes:
        newest: newest report of a failed allocation, with ``who`` and ``time_s``; ``None`` for none.
        staging: folder in which the program writes snapshots; "" if that is impossible.
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
        # One entry is enough: a later out-of-memory replaces one that still waits for the thread.
        self._waiting: Refused | None = None
        self._requested: Path | None = None
        self._given_up = threading.Event()
        self._thread: threading.Thread | None = None
        self._folder: PrivateFolder | None = None
        with suppress(OSError):  # then there are no snapshots
            self._folder = PrivateFolder(reports_folder(), ".pending-")
            self.staging = str(self._folder.path)

    @property
    def folder(self) -> Path | None:
        """Folder of the report; ``None`` if there is none."""
        return self._recorder.folder

    def note_steps(self, pid: int, message: Message) -> None:
        """Store the times of a process's steps."""
        kept = self._steps.setdefault(pid, deque(maxlen=MOST_STEPS))
        if len(self._steps) > MOST_CONNECTIONS:
            del self._steps[next(iter(self._steps))]
        # A block's step is numbered as in the agent.
        next_ = 1
        if message.get("source") == COUNTED:
            next_ = 0
        rows = message.get("steps")
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, list) and len(row) >= 2 and _is_step(row[0]) and _is_step(row[1]):
                kept.append((row[1], row[0] + next_))  # reported at its end, where the next one begins

    def refused(self, news: ProgramNews, peer: Peer, message: Message, memory: WatchedMemory) -> None:
        """A process's allocation failed: start to write its report."""
        device = str(message.get("device"))
        time_s = news.time_of(message)
        self.newest = {**message, "who": news.who(peer), "rank": peer.rank, "time_s": time_s}
        requested, free = message.get("requested_bytes"), message.get("free_bytes")
        text = ""
        if isinstance(requested, int):
            text = f": a segment of {format_bytes(requested)} was asked for"
            if isinstance(free, int):
                text += f" and {format_like(free, requested)} were free"
        problem = ""
        if message.get("problem"):
            # Before anything can fail: note it even if no report can be written.
            problem = f" {message['problem']}"
        news.note(Topic.OUT_OF_MEMORY, f"Memory of {device} ran out{text}.{problem}", device=device, pid=peer.pid)
        snapshot = self._staged(message.get("snapshot"))
        uuid = self._wiring.machine.memory_of(memory.name_of(device))
        gpu = self._wiring.machine.gpu(uuid)
        capacity, step = message.get("capacity_bytes"), message.get("step")
        allowed = message.get("allowed_bytes")
        around = memory.surroundings(device, peer.pid, message.get("others"))
        context = message.get("context_bytes")
        if isinstance(context, int):  # it may precede all other figures of the process
            around = replace(around, context_bytes=context)
        shapes: Sequence[SeenTensor] = ()
        with suppress(ValueError):  # an older agent sends none
            shapes = shapes_of(message.get("shapes"))
        self._waiting = Refused(
            device=device,
            snapshot=snapshot,
            time_s=time_s,
            capacity_bytes=capacity if isinstance(capacity, int) else None,
            requested_bytes=requested if isinstance(requested, int) else None,
            free_bytes=free if isinstance(free, int) else None,
            step=step if isinstance(step, int) else 0,
            steps=tuple(self._steps.get(peer.pid, ())),
            product="" if gpu is None else gpu.product,
            around=around,
            is_context=context == 0,
            allowed_bytes=allowed if isinstance(allowed, int) and allowed >= 0 else None,
            shapes=shapes,
        )
        self._begin()

    def request(self) -> Message:
        """The message that requests a snapshot from the program.

        Raises:
            OSError: if there is no disk space for it.
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
            if folder == self._requested:
                self._complete(Path(path))
            self._tidy(folder)

    def _complete(self, snapshot: Path) -> None:
        """Complete the folder of a requested snapshot; if that fails, the snapshot remains."""
        with suppress(OSError):
            snapshot.chmod(0o600)  # the program wrote it with its own umask
            if len(self._steps) == 1:
                write_steps(snapshot.parent, tuple(next(iter(self._steps.values()))))

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
        """The explanation is no longer needed."""
        self._given_up.set()

    def explained(self, ending: RunEnd) -> RunEnd:
        """``ending`` with what filled the memory, if it was an out-of-memory of a GPU."""
        # There is no snapshot of host memory: do not attach the explanation of an earlier out-of-memory on the GPU.
        if ending.status == "out_of_memory" and ending.error != "host" and self._explanation is not None:
            return replace(ending, remedy=REPORTED, explanation=self._explanation)
        return ending

    def rewrite(self, explanation: Explanation) -> None:
        """Write an improved explanation of the out-of-memory into the report."""
        try:
            self._recorder.write_explanation(explanation)
        except OSError as error:
            self._note(f"Its report could not be written: {error.strerror or error}.")

    def close(self) -> None:
        """Delete what is no longer needed."""
        self._given_up.set()
        if self._thread is not None:
            self._thread.join(1.0)
        self._drop_request()
        if self._folder is not None:
            self._folder.remove()

    def _drop_request(self) -> None:
        """Delete the folder of a snapshot that never came; one with a snapshot stays."""
        folder, self._requested = self._requested, None
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()

    def _tidy(self, keep: Path | None) -> None:
        settings = self._wiring.settings
        with suppress(OSError):
            prune_reports(reports_folder(), settings.reports_bytes, settings.reports_keep, keep=keep)

    def _staged(self, path: Any) -> Path | None:
        """A snapshot, if it is in the allowed folder: the program must not choose other files to be moved."""
        if not isinstance(path, str) or not self.staging:
            return None
        found = Path(path)
        # Check `is_symlink` too: we move and read the file, but the program chooses a link's target.
        if found.parent == Path(self.staging) and found.is_file() and not found.is_symlink():
            return found
        return None

    def _begin(self) -> None:
        """Write the report of the newest out-of-memory on a separate thread, one at a time."""
        if self._waiting is None or (self._thread is not None and self._thread.is_alive()):
            return
        refused, self._waiting = self._waiting, None
        self._thread = started("gpudash-report", self._write, refused)

    def _write(self, refused: Refused) -> None:
        problem = ""
        try:
            self._explanation = self._recorder.record(refused, self._given_up.is_set)
            self._tidy(self.folder)
        except OSError as error:
            where = ""
            if error.filename:
                where = f" ({error.filename})"
            problem = f"Its report could not be written: {error.strerror or error}{where}."
        except ValueError as error:
            problem = f"What filled the memory could not be explained: {error}"
        except Exception as error:  # our own error must not cost the rest of the report
            logger.exception("an out-of-memory could not be explained")
            problem = f"What filled the memory could not be explained: {type(error).__name__}: {error}."
        if problem:
            self._note(problem)
        if self.folder is not None:
            verdict = None
            if self._explanation is not None:
                verdict = self._explanation.verdict
            self._note(f"The report of the out-of-memory: {self.folder}", folder=str(self.folder), verdict=verdict)

    def _note(self, text: str, **details: Any) -> None:
        time_s = self._wiring.clock()
        self._wiring.emit(Note(time_s=time_s, run_id=self._run_id, topic=Topic.REPORT, text=text, details=details))
