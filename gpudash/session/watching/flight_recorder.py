"""What an out-of-memory of a watched program leaves behind: one folder with everything that explains it."""

from __future__ import annotations

import csv
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpudash.devices.names import kind_of
from gpudash.memory.explaining.explanation_text import report
from gpudash.memory.explaining.memory_state import RefusedRequest, Surroundings
from gpudash.memory.watching.growth_notice import source_line
from gpudash.session.recordings.file_kinds import SNAPSHOT_NAME
from gpudash.session.watching.output_log import OutputLog
from gpudash.session.watching.report_folder import EXPLANATION_NAME, write_json, write_steps
from gpudash.telemetry.cells import harmless
from gpudash.telemetry.explanation import Explanation
from gpudash.telemetry.export.tables import CSV_COLUMNS
from gpudash.telemetry.recording.naming import recording_name
from gpudash.telemetry.store import Store

if TYPE_CHECKING:
    from gpudash.memory.snapshot.history.model import Snapshot

CURVES_S = 60.0
"""Of all curves that are kept, up to the out-of-memory."""

OUTPUT_LINES = 1000

CURVE_POINTS = 20_000
"""Of one curve at most."""

EXPLAINING_S = 60.0
"""Longest that reading and explaining a snapshot may take."""

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


@dataclass(frozen=True, slots=True)
class Refused:
    """An allocation that a watched program was refused.

    Attributes:
        device: torch's name of it.
        snapshot: the file that the program has written, ``None`` without one.
        time_s: session time.
        capacity_bytes, free_bytes: of the device, ``None`` when they are not known.
        requested_bytes: that could not be had.
        step: that was going on.
        steps: when each step began, in microseconds since 1970, and its number, oldest first.
        product: what the device is called.
        around: what else held memory of the device.
        is_context: whether it was the context that was refused, and not memory for a tensor.
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


class FlightRecorder:
    """Writes the report of one run; a later out-of-memory of the run takes the place of the one before.

    Args:
        reports: the folder of all reports.
        name: of the program.
        store: the curves and the processes.
        output: what was printed.
        facts: what is known of the program: its command, folder, versions.

    Attributes:
        folder: of this run's report, ``None`` before there is one.
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
        """Write the report of an out-of-memory; what filled the memory, where the snapshot tells.

        Args:
            ended: whether nobody waits for the explanation any more.

        Raises:
            OSError: when the folder cannot be written.
            ValueError: one sentence, when the snapshot cannot be explained; the rest is written then.
        """
        folder = self._folder()
        if refused.snapshot is not None:
            shutil.move(refused.snapshot, folder / SNAPSHOT_NAME)
        for name in (EXPLANATION_NAME, "report.txt"):  # of an out-of-memory before, they would not tell of this one
            (folder / name).unlink(missing_ok=True)
        write_steps(folder, refused.steps)
        self._write_curves(folder / "curves.csv", refused.time_s)
        write_json(folder / "settings.json", {**self._facts(), "out_of_memory": _told(refused)})
        write_json(folder / "processes.json", self._processes())
        self.write_output()
        if refused.snapshot is None:
            raise ValueError("The program left no memory snapshot, so that what filled the memory is not known.")
        explanation = explained(folder / SNAPSHOT_NAME, refused, ended)
        if explanation is not None:
            write_json(folder / EXPLANATION_NAME, explanation.to_json())
            text = "\n".join(report(explanation))
            (folder / "report.txt").write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
        return explanation

    def write_output(self) -> None:
        """Write the last lines that were printed into the report, if there is one."""
        if self.folder is not None:
            lines = (line.text for line in self._output.newest(OUTPUT_LINES))
            text = "".join(f"{line}\n" for line in lines)
            (self.folder / "output.txt").write_text(text, encoding="utf-8", errors="replace")

    def _folder(self) -> Path:
        if self.folder is None:
            self.folder = new_report(self._reports, self._name)
        return self.folder

    def _write_curves(self, path: Path, until_s: float) -> None:
        """The columns of an export, so that both are read alike."""
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(CSV_COLUMNS)
            with self._store.lock:
                rows = list(self._rows(until_s - CURVES_S, until_s + 1.0))
            writer.writerows(rows)

    def _rows(self, since_s: float, until_s: float) -> Iterator[tuple[Any, ...]]:
        for (table, metric, device), series in self._store.curves():
            times, values = series.window(since_s, until_s, CURVE_POINTS)
            for time_s, value in zip(times.tolist(), values.tolist(), strict=True):
                if since_s <= time_s <= until_s:
                    number = "" if np.isnan(value) else int(value) if metric.endswith("bytes") else value
                    yield f"{time_s:.6f}", table, harmless(device or ""), harmless(metric), number, "", ""

    def _processes(self) -> list[dict[str, Any]]:
        with self._store.lock:
            devices = self._store.process_devices()
            return [{"device": device or "host", **row} for device in devices for row in self._store.processes(device)]


def new_report(reports: Path, name: str) -> Path:
    """A new folder ``YYYY-MM-DD-HHMMSS-name`` among the reports.

    Raises:
        OSError: when it cannot be made.
    """
    reports.mkdir(parents=True, exist_ok=True)
    first = recording_name(reports, Path(name).stem).with_suffix("")
    for number in itertools.count(1):
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            break
    return folder


def explained(snapshot: Path, refused: Refused, ended: Callable[[], bool]) -> Explanation | None:
    """What filled the memory, by a snapshot that is read in a process of its own; ``None`` when nobody waits any more.

    Raises:
        ValueError: one sentence, when the file is refused, or holds no such device.
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
    """The snapshot's explanation, with what the file does not know: the card's size, and who else is on it.

    Raises:
        ValueError: one sentence, when the snapshot holds nothing of the device.
    """
    from gpudash.memory.snapshot.sidecar import OutsideView, Sidecar

    index = int(refused.device.partition(":")[2] or 0)
    device = next((device for device in snapshot.devices if device.index == index), None)
    if device is None:
        raise ValueError(f"The snapshot holds nothing of {refused.device}.")
    asked = refused.requested_bytes
    card = OutsideView(
        device=refused.device,
        product=refused.product,
        simulated=kind_of(refused.device) == "sim",
        time_s=refused.time_s,
        capacity=refused.capacity_bytes or 0,
        around=refused.around,
        request=None
        if asked is None
        else RefusedRequest(asked, asked, step=refused.step, is_context=refused.is_context),
        free=refused.free_bytes or 0,
    )
    known = Sidecar(tuple(refused.steps), {index: card})
    return known.explained(known.history(snapshot, device), source=source_line)


def _told(refused: Refused) -> dict[str, Any]:
    return {
        "device": refused.device,
        "time_s": refused.time_s,
        "capacity_bytes": refused.capacity_bytes,
        "requested_bytes": refused.requested_bytes,
        "step": refused.step,
    }


def allocator_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer torch's allocator and which GPUs it sees."""
    return {name: environment[name] for name in ALLOCATOR_VARIABLES if name in environment}
