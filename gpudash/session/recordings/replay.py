"""A recording in place of a live session: the same store at any moment, without anything to command.

A recording that is still being written, by whatever process, is followed. A short part of a long one is read again,
sample by sample, while the window keeps drawing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpudash.devices.names import Device, Gpu, shown_name
from gpudash.memory.request_log import RequestLogs
from gpudash.session.recordings.loading import Progress, load, take_links
from gpudash.session.recordings.snapshot_requests import SnapshotRequests
from gpudash.session.watching.output.log import OutputLine, OutputLog
from gpudash.system.files import written_whole
from gpudash.system.foreign_files import copy_regular
from gpudash.system.settings import Settings
from gpudash.system.threads import joined, started
from gpudash.telemetry.readings import NEVER_READ
from gpudash.telemetry.recording.backend import RecordingBackend
from gpudash.telemetry.recording.facts import run_title, wall_clock_s
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import RecordingError, being_written, copy_recording
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.records import (
    Note,
    Output,
    Record,
    RunStarted,
    Topic,
)
from gpudash.telemetry.runs import WATCH

logger = logging.getLogger(__name__)


class Replay:
    """A recording, in a store that answers as of any moment: the end, until `seek` selects another one.

    A `DashboardSource` that cannot run anything.

    Reading takes up to a second or two, so do it on a thread. Close it after use.

    Args:
        path: the file.
        progress: called now and then, on the reading thread, with the fraction read, from 0 to 1.

    Raises:
        RecordingError: one sentence, when it cannot be read.

    Attributes:
        store: everything the recording holds, at `position_s`.
        output: the newest lines of the last watched program, or of the one that `show_output` chose.
    """

    live = None
    running = False
    gpus: tuple[Gpu, ...] = ()

    def __init__(self, path: Path, progress: Progress = lambda _part: None) -> None:
        self.recording_path = path
        self.settings = Settings()
        self.output = OutputLog()
        self._outputs: dict[int | None, OutputLog] = {}
        self._snapshots: SnapshotRequests | None = None
        self._following: Following | None = None
        # Checked before reading: a recording that ends in between is still followed, and its last rows are read.
        written = being_written(path)
        self._backend = RecordingBackend(path, lambda: self.following)
        recording = self._backend.recording
        assert recording is not None
        try:
            self.began_wall_s = origin(recording.meta.get("wall_clock_origin"), path)
            self._meta = dict(recording.meta)
            self._product = recording.meta.get("host_product", "CPU")
            self.host_capacity_source = recording.meta.get("host_capacity_source", "RAM")
            loaded = load(self._backend, recording, progress, growing=written)
        except BaseException:
            recording.close()
            raise
        self._first_s = loaded.first_s
        self._odd = loaded.odd
        self._backend.note(*recording.notices)
        self.store = loaded.store
        self._snapshots = SnapshotRequests(self.began_wall_s, self._device_of)
        self._news(loaded.news)
        if written:
            # If it stayed open, its writer could not leave a tidy file.
            self._backend.release()
            self._following = Following(path, self._backend.rows, self._take)

    @property
    def extent_s(self) -> tuple[float, float]:
        """Session times of the first record and of the newest."""
        return self._first_s, max(self._first_s, self.store.end.newest_s)

    @property
    def position_s(self) -> float:
        """The moment that the store answers for, in session time."""
        return self.store.newest_s

    @property
    def at_end(self) -> bool:
        """Whether the position is the end, and moves on with it."""
        return self.store.position_s is None

    @property
    def following(self) -> bool:
        """Whether the recording is still being written and may grow."""
        return self._following is not None and self._following.on

    @property
    def notices(self) -> list[str]:
        """What could not be read, a sentence each."""
        odd = []
        if self._odd:
            odd = [f"{self._odd} rows of {self.recording_path.name} make no sense and are left out"]
        if self._following is None or not self._following.problem:
            late = []
        else:
            late = [self._following.problem]
        return [*self._backend.notices, *odd, *late]

    @property
    def requests(self) -> RequestLogs:
        """See `gpudash.session.source.DashboardSource`: from the snapshots that the recording points to."""
        if self._snapshots is None:
            return RequestLogs()
        return self._snapshots.logs

    def _device_of(self, run_id: int | None) -> str | None:
        return next((run.device for run in reversed(self.store.runs) if run.run_id == run_id), None)

    def seek(self, time_s: float | None) -> None:
        """Let the store answer as of ``time_s``; ``None``, or a time past the end, means the end.

        Takes some milliseconds, however long the recording is.
        """
        # The end is None and not a time: it moves on while the recording grows.
        low, high = self.extent_s
        try:
            self.store.seek(None if time_s is None or time_s >= high else max(time_s, low))
        except RecordingError as error:
            self._backend.note(str(error))

    def show_output(self, run_id: int | None) -> bool:
        """Let `output` be what the program of a run printed; false if no program was that run."""
        found = self._outputs.get(run_id)
        if found is not None:
            self.output = found
        return found is not None

    def settle(self, timeout_s: float) -> bool:
        """Wait until every part that the store's series have requested is read; false if the time ran out first."""
        return self._backend.wait(timeout_s)

    def close(self) -> bool:
        """Release the file and end the threads that read it; false if one did not end in time."""
        ended = self._following is None or self._following.close()
        if self._snapshots is not None:
            self._snapshots.close()
        return self._backend.close(self.store) and ended

    def _take(self, records: Sequence[Record], rows: Rows) -> None:
        """Take in new records of a recording that is being written; on the thread that follows it."""
        self._backend.rows = rows  # before anybody can seek to a moment that is known from now on
        for record in records:
            if isinstance(record, Note):
                take_links(self.store, record)  # the bands and peaks of its readings need them
        self.store.apply_all(records)
        self._news(records)

    def _news(self, records: Sequence[Record]) -> None:
        """Handle records of interest beyond the store."""
        for record in records:
            if isinstance(record, Note) and record.topic == Topic.GPUS:
                self._devices(record)
            elif isinstance(record, Note) and self._snapshots is not None:
                self._snapshots.take(record)
            elif isinstance(record, Output):
                self._outputs.get(record.run_id, self.output).add(
                    [OutputLine(record.stream, line) for line in record.lines]
                )
            elif isinstance(record, RunStarted) and record.workload == WATCH:
                self.output = self._outputs[record.run_id] = OutputLog()

    def _devices(self, note: Note) -> None:
        found, listed = [], note.details.get("gpus", ())
        for facts in listed if isinstance(listed, list | tuple) else ():
            try:
                found.append(_gpu(facts))
            except (TypeError, AttributeError):
                self._odd += 1
        known = {gpu.uuid: gpu for gpu in (*self.gpus, *found)}  # a program's simulated card may no longer be listed
        # A damaged recording may list any number of them.
        self.gpus = tuple(known.values())[:MOST_GPUS]
        take_links(self.store, note)

    @property
    def host_name(self) -> str:
        """The name of the machine that was recorded; the file's name if not known."""
        return self._meta.get("host_name") or self.recording_path.stem

    def devices(self) -> list[Device]:
        """The devices in the recording."""
        total = self.store.end.readings.get(("host", "total_bytes", None), NEVER_READ)
        found = [Device("cpu", self._product, total.size)]
        for gpu in self.gpus:
            name = self.store.torch_name(gpu.uuid)
            if name is not None:
                found.append(Device(name, gpu.product, gpu.total_bytes, gpu.uuid))
        return found

    def default_device(self) -> str:
        """The device of the last run."""
        run = self.store.end.run
        if run is None:
            return "cpu"
        return run.device

    def device_text(self, device: str) -> str:
        """The name of a reading's device."""
        if device == "host":
            return "cpu"
        return shown_name(self.store.torch_name(device) or device)

    def run_title(self, number: int) -> str:
        """The user's title of run ``number``, counted from 1, when the recording was opened."""
        return run_title(self._meta, number, len(self.store.end.runs))

    def set_settings(self, settings: Settings) -> None:
        """Apply other settings to the recording."""
        self.settings = settings

    def save_recording(self, target: Path) -> None:
        """Copy the recording.

        Raises:
            RecordingError: when the target is the recording itself or cannot be written.
        """
        recording = self._backend.recording
        if recording is None or recording.database.path != self.recording_path:
            copy_recording(self.recording_path if recording is None else recording.database.path, target)
            return
        if target.resolve() == self.recording_path.resolve():
            raise RecordingError(f"{target} is the recording itself; choose another name")
        try:
            with written_whole(target, private=True) as part:
                copy_regular(self.recording_path, part)  # byte by byte: also one that is damaged
        except OSError as error:
            raise RecordingError(f"{target} cannot be written ({error.strerror}); choose another place") from None


def origin(text: str | None, recording: Path) -> float:
    """Seconds since the epoch at session time 0; if not recorded, when the file was last written."""
    found = wall_clock_s(text or "")
    if found is None:
        return recording.stat().st_mtime
    return found


def _gpu(facts: Mapping[str, Any]) -> Gpu:
    known = {field.name: facts[field.name] for field in fields(Gpu) if field.name in facts}
    sizes = (known.get("total_bytes"), known.get("nvml_index", 0))
    if not all(isinstance(known.get(name, ""), str) for name in ("uuid", "product", "pci_bus_id", "parent")) or not all(
        isinstance(size, int | None) for size in sizes
    ):
        raise TypeError("not the facts of a GPU")
    capability = known.get("cuda_capability")
    return Gpu(**{**known, "cuda_capability": None if capability is None else tuple(capability)})


MOST_GPUS = 1024
"""How many GPUs of a recording are listed."""

POLL_S = 0.25
"""Seconds between two polls: as often as the recorder commits."""

MOST_RECORDS = 5000
"""Records handed over at a time."""


class Following:
    """A thread that hands over new records until the writer ends.

    It reopens the file for every poll: a reader that stayed would keep the writer from leaving one tidy file.

    Args:
        path: the recording.
        rows: how far each table is known.
        take: called with new records, in order of time, and how far each table is known after them.

    Attributes:
        on: whether the recording may still grow.
        problem: why following ended early, in one sentence.
    """

    def __init__(self, path: Path, rows: Rows, take: Callable[[Sequence[Record], Rows], None]) -> None:
        self.on = True
        self.problem = ""
        self._path = path
        self._rows = rows
        self._take = take
        self._stop = threading.Event()
        self._thread = started("gpudash-follow", self._follow)

    def close(self, timeout_s: float = 2.0) -> bool:
        """End the thread; false if it did not end in time."""
        self._stop.set()
        return joined(self._thread, timeout_s)

    def _follow(self) -> None:
        try:
            while not self._stop.wait(POLL_S):
                # Before the poll: if the writer ends after it, the next poll reads its last rows.
                written = being_written(self._path)
                self._poll()
                if not written:
                    break
        except RecordingError as error:
            self.problem = str(error)
        except Exception as error:  # a damaged row can hold anything
            logger.exception("a recording cannot be followed any more")
            self.problem = f"{self._path} cannot be followed any more ({type(error).__name__}: {error})"
        finally:
            self.on = False

    def _poll(self) -> None:
        with open_recording(self._path) as recording:
            last = recording.last_rows()
            waiting: list[Record] = []
            # Handed over in portions, so that the store is never locked for long.
            for record in recording.records(self._rows, last):
                waiting.append(record)
                if len(waiting) >= MOST_RECORDS:
                    self._take(waiting, last)
                    waiting = []
            self._rows = last
            # Also without new records: how far each table is known may have moved on.
            self._take(waiting, last)
