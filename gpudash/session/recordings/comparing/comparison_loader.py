"""Loads the runs to compare from recordings."""

from __future__ import annotations

import array
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gpudash.session.recordings.replay import Replay
from gpudash.session.recordings.run_names import given_name
from gpudash.session.recordings.session_runs import uuid_of
from gpudash.system.settings import recording_path
from gpudash.telemetry.comparing import ComparedRun, Curve, RunMark, StepColumns
from gpudash.telemetry.comparing.curves import STEPPED
from gpudash.telemetry.comparing.noise import crowding
from gpudash.telemetry.recording.facts import run_title, standing_marks, wall_clock_s
from gpudash.telemetry.recording.reading import Recording, open_recording
from gpudash.telemetry.recording.recorder import RecordingError, being_written
from gpudash.telemetry.records import Event, Note, StageFinished, StepFinished, Topic
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store
from gpudash.units import format_bytes

MEMORY_COLUMNS = 20_000
"""Columns to which a memory curve is thinned: more than any screen has, so that zooming in shows more."""

_NUMBER = re.compile(r"[0-9]{1,9}")

CHECK_EVENTS = 1000
"""Events between two checks for cancellation."""

_COLUMNS = ("number", "time_s", "seconds", *STEPPED)

_MACHINE = {"host": "computer", "host_product": "processor", "system": "system", "gpudash_version": "gpudash"}
"""Facts of a recording that identify a machine, and their names in the comparison."""


class CancelledError(Exception):
    """Nobody waits for the run any more."""


@dataclass(slots=True)
class _Gathered:
    """What the events of one run add to its figures."""

    steps: dict[str, array.array[float]] = field(default_factory=lambda: {name: array.array("d") for name in _COLUMNS})
    reported: dict[str, array.array[int]] = field(default_factory=lambda: {name: array.array("b") for name in STEPPED})
    stages: dict[str, array.array[float]] = field(default_factory=lambda: defaultdict(lambda: array.array("d")))
    torch: str | None = None

    def take(self, event: Event, run_id: int | None) -> None:
        """Take in an event of the recording."""
        if isinstance(event, Note) and event.topic == Topic.TORCH:
            self.torch = event.text
        elif event.run_id != run_id:
            return
        elif isinstance(event, StepFinished):
            metrics = {name: getattr(event, name) for name in STEPPED}
            for name, value in zip(_COLUMNS, (event.step, event.time_s, event.seconds, *metrics.values()), strict=True):
                self.steps[name].append(math.nan if value is None else float(value))
            for name, value in metrics.items():
                self.reported[name].append(value is not None)
        elif isinstance(event, StageFinished) and event.count > 0:
            self.stages[event.name].append(event.seconds / event.count)


def split_run(text: str) -> tuple[Path, int | None]:
    """Split ``FILE`` or ``FILE#2`` into a recording and the number of the selected run.

    If a file with that whole name exists, it is that file. A bare name may be that of a file in the recordings folder.

    Raises:
        RecordingError: one sentence, when the part after the last # is not a number.
    """
    path = recording_path(Path(text).expanduser())
    file, mark, number = text.rpartition("#")
    if not mark or path.exists():
        return path, None
    if not (_NUMBER.fullmatch(number) and int(number) > 0):
        raise RecordingError(f"{text} does not exist; to pick a run, write its number behind the file: {file}#1")
    return recording_path(Path(file).expanduser()), int(number)


def load_run(
    path: Path, number: int | None = None, *, named: bool = False, cancelled: Callable[[], bool] = lambda: False
) -> ComparedRun:
    """Load a run of a recording, the last one unless ``number`` (from 1) selects another.

    Blocks while the file is read; use it in a command or on a thread.

    Args:
        path: the recording, which is not changed.
        number: the run, in the order they began.
        named: name the run as the list of runs does, rather than by its file.
        cancelled: called now and then; reading stops once it returns true.

    Raises:
        RecordingError: one sentence, when the file cannot be read or has no run, or no such run.
        CancelledError: as soon as ``cancelled`` returns true.
    """
    replay = Replay(path)
    try:
        with replay.store.lock:
            runs = list(replay.store.runs)
        view = _chosen(path, runs, number)
        with open_recording(path) as recording:
            gathered = _gather(recording, view, cancelled)
            unread = dict.fromkeys(f"{text.rstrip('.')}." for text in (*recording.notices, *replay.notices))
            notes = [*_notes(path, runs, view, number), *unread]
            machine = _machine(recording, gathered, replay, view)
            cores = recording.meta.get("host_cpus", "")
            origin = wall_clock_s(recording.meta.get("wall_clock_origin", ""))
            title = run_title(recording.meta, runs.index(view) + 1, len(runs))
        with replay.store.lock:
            end = _end(view, replay.store)
            memory = dict(_memory(replay.store, view, end))
            marks = [
                RunMark(mark.label, mark.time_s)
                for mark in standing_marks(replay.store.markers)
                if view.began_s <= mark.time_s <= end and mark.category != "warning"
            ]
            taken = 0.0
            if _NUMBER.fullmatch(cores) and int(cores):
                taken = _crowding(replay.store, view, end, int(cores))
    finally:
        replay.close()
    reported = {name: np.array(mask, dtype=bool) for name, mask in gathered.reported.items()}
    steps = StepColumns(**{name: np.array(column) for name, column in gathered.steps.items()}, reported=reported)
    stages = {name: np.array(column) for name, column in gathered.stages.items()}
    if number is None:
        file = path.name
    else:
        file = f"{path.name}#{number}"
    name = file
    if named:
        name = title or given_name(view.workload, view.device, view.spec)
    began = None
    if origin is not None:
        began = origin + view.began_s
    return ComparedRun(name, str(path), view, steps, stages, memory, marks, machine, taken, notes, began)


def _chosen(path: Path, runs: Sequence[RunView], number: int | None) -> RunView:
    if not runs:
        raise RecordingError(f"{path} holds no run, so there is nothing to compare")
    if number is None:
        return runs[-1]
    if number > len(runs):
        if len(runs) == 1:
            there = "one run"
        else:
            there = f"{len(runs)} runs"
        raise RecordingError(f"{path} holds {there}; there is no run {number}")
    return runs[number - 1]


def _gather(recording: Recording, view: RunView, cancelled: Callable[[], bool]) -> _Gathered:
    gathered = _Gathered()
    for count, event in enumerate(recording.events()):
        if count % CHECK_EVENTS == 0 and cancelled():
            raise CancelledError
        gathered.take(event, view.run_id)
    return gathered


def _notes(path: Path, runs: Sequence[RunView], view: RunView, number: int | None) -> Iterator[str]:
    if number is None and len(runs) > 1:
        yield f"{path.name} holds {len(runs)} runs; this is the last one, {path.name}#1 would be the first."
    if view.status == "running" and not being_written(path):
        yield f"{path.name} was never closed; the program that wrote it was ended from outside."


def _machine(recording: Recording, gathered: _Gathered, replay: Replay, view: RunView) -> dict[str, str]:
    facts = {title: recording.meta[key] for key, title in _MACHINE.items() if key in recording.meta}
    product = next((device.product for device in replay.devices() if device.name == view.device != "cpu"), None)
    if product is not None:
        facts["GPU"] = product
    if product is not None and view.memory.capacity_bytes is not None:
        facts["GPU memory"] = format_bytes(view.memory.capacity_bytes)
    if gathered.torch is not None:
        facts["torch"] = gathered.torch.removeprefix("torch ")
    return facts


def _end(view: RunView, store: Store) -> float:
    if view.ended_s is None:
        return store.newest_s
    return view.ended_s


def _memory(store: Store, view: RunView, end: float) -> Iterator[tuple[str, Curve]]:
    """Curves of the memory that the run's figures describe, in session time."""
    if view.device == "cpu":
        wanted: list[tuple[str, str, str, str | None]] = [("used", "host", "process_bytes", None)]
    else:
        uuid = uuid_of(store, view.device)
        wanted = [
            ("allocated", "allocator", "allocated_bytes", view.device),
            ("reserved", "allocator", "reserved_bytes", view.device),
        ]
        if uuid is not None:
            wanted.append(("used", "gpu", "used_bytes", uuid))
    for name, table, metric, device in wanted:
        series = store.series(table, metric, device)
        if series is not None and view.began_s < end:
            times, values = series.window(view.began_s, end, MEMORY_COLUMNS)
            inside = (times >= view.began_s) & (times <= end)
            if inside.any():
                yield name, Curve(times[inside], values[inside])


def _crowding(store: Store, view: RunView, end: float, cores: int) -> float:
    """Share of the processor that other programs used during the run; 0 without readings."""
    means = [_mean(store, metric, view.began_s, end) for metric in ("cpu_utilisation", "process_cpu_utilisation")]
    if means[0] is None or means[1] is None:
        return 0.0
    return crowding(means[0], means[1], cores)


def _mean(store: Store, metric: str, start: float, end: float) -> float | None:
    known = store.statistics(("host", metric, None), start, end)
    if known is None:
        return None
    return known.mean
