"""A TensorBoard log as a recording: each folder with event files is a run, its scalars are losses by step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpudash.session.recordings.loading import Progress
from gpudash.session.recordings.replay import Replay
from gpudash.session.trackers.event_files import EventFileError, EventReader, Scalar, find_event_files
from gpudash.session.trackers.scalar_names import is_loss, is_validation
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import Event, RunEnd, RunStarted, StepFinished
from gpudash.units import listed

LATEST_S = 4e9
"""The latest time at which a scalar may have been written, in seconds since 1970."""

LONGEST_S = 3e7
"""Longest time between the first and the last scalar shown: a year."""

MOST_LOSSES = 20
"""How many losses of a run are shown in addition to the first."""

_OTHERS = ("accuracy", "throughput")
"""Scalars that are shown beside losses if they have these names."""


class TensorBoardReplay(Replay):
    """The scalars at ``place``, an event file or a folder, copied into a private recording.

    Raises:
        RecordingError: one sentence, when there are none.
    """

    def __init__(self, place: Path, progress: Progress = lambda _part: None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpudash-")
        with ExitStack() as unless_read:
            unless_read.callback(self._folder.cleanup)
            self._log_notices = write_recording(place, Path(self._folder.name) / "scalars.gpudash", progress)
            super().__init__(Path(self._folder.name) / "scalars.gpudash")
            unless_read.pop_all()

    @property
    def notices(self) -> list[str]:
        """What could not be read, a sentence each."""
        return [*super().notices, *self._log_notices]

    def close(self) -> bool:
        """Close the recording and remove it; false when a thread did not end in time."""
        ended = super().close()
        if ended:
            self._folder.cleanup()
        return ended


def write_recording(place: Path, target: Path, progress: Progress = lambda _part: None) -> list[str]:
    """Write the scalars at ``place`` to a new recording.

    Returns:
        what could not be read, a sentence each.

    Raises:
        RecordingError: one sentence, when there are none.
    """
    try:
        reader = EventReader()
        runs = _runs(place, reader, progress)
    except EventFileError as error:
        raise RecordingError(str(error)) from None
    except OSError as error:
        raise RecordingError(f"{place.name} cannot be read: {error.strerror or error}") from None
    if not runs:
        raise RecordingError(f"{place.name} has no scalars of TensorBoard")
    notices = [*reader.notices, *(text for run in runs if (text := run.left_out))]
    runs = [run for run in runs if run.shown]
    if not runs:
        raise RecordingError(
            f"{place.name} has no losses: no scalar in it has a name with loss, accuracy or throughput"
        )
    began_s = min(run.points[0].wall_s for run in runs)
    meta = {"wall_clock_origin": datetime.fromtimestamp(began_s, UTC).isoformat()}
    recorder = Recorder(target, meta=meta)
    events = [event for number, run in enumerate(runs, 1) for event in _events(run, number, began_s)]
    for event in sorted(events, key=lambda event: event.time_s):
        recorder.add(event)
        recorder.tick()
    recorder.close()
    return notices


@dataclass(frozen=True, slots=True)
class _TrackedRun:
    """The scalars of one folder, in order of time."""

    name: str
    points: Sequence[Scalar]

    @property
    def losses(self) -> list[str]:
        """The tags that are losses; the first is the training loss."""
        found = dict.fromkeys(point.tag for point in self.points if is_loss(point.tag))
        return sorted(found, key=lambda tag: (is_validation(tag), tag.casefold() != "loss"))

    @property
    def shown(self) -> set[str]:
        """The tags that are shown."""
        return {point.tag for point in self.points} & {*self.losses, *_OTHERS}

    @property
    def left_out(self) -> str:
        """Names the scalars that are not shown, in a sentence; "" if all are."""
        others = sorted({point.tag for point in self.points} - self.shown)
        if not others:
            return ""
        return f"{self.name}: losses are shown, and not {listed(others, 3)}"


def _runs(place: Path, reader: EventReader, progress: Progress) -> list[_TrackedRun]:
    files = find_event_files(place)
    by_folder: dict[Path, list[Scalar]] = {}
    for number, file in enumerate(files):
        progress(number / len(files))
        points = by_folder.setdefault(file.parent, [])
        points += (point for point in reader.scalars(file) if 0 <= point.wall_s < LATEST_S)
    newest = max((point.wall_s for points in by_folder.values() for point in points), default=0.0)
    runs = []
    for folder, points in by_folder.items():
        kept = sorted((point for point in points if newest - point.wall_s < LONGEST_S), key=lambda point: point.wall_s)
        if kept:
            runs.append(_TrackedRun(_name(folder, place), kept))
    return runs


def _name(folder: Path, place: Path) -> str:
    """The name of a run: the path of its folder relative to the opened one, else its name."""
    if place.is_dir() and folder != place:
        return str(folder.relative_to(place))
    return folder.name


def _events(run: _TrackedRun, number: int, began_s: float) -> Iterator[Event]:
    """A run as records; every step becomes one record, with the scalars written at it."""
    first_s, last_s = run.points[0].wall_s - began_s, run.points[-1].wall_s - began_s
    yield RunStarted(time_s=first_s, run_id=number, workload=run.name, device="cpu", spec={"log": "TensorBoard"})
    steps: dict[int, dict[str, Scalar]] = {}
    shown = run.shown
    for point in run.points:
        if point.tag in shown:
            steps.setdefault(point.step, {})[point.tag] = point
    losses = run.losses
    training = [tag for tag in losses if not is_validation(tag)]
    validation = list(filter(is_validation, losses))
    several = [*training[1:], *validation[1:]][:MOST_LOSSES]
    last_step = max(steps)
    for step, at in steps.items():
        yield StepFinished(
            time_s=max(point.wall_s for point in at.values()) - began_s,
            run_id=number,
            step=step,
            steps=last_step,
            seconds=None,
            loss=_value(at, training[:1]),
            val_loss=_value(at, validation[:1]),
            accuracy=_value(at, ["accuracy"]),
            throughput=_value(at, ["throughput"]),
            losses={tag: at[tag].value for tag in several if tag in at} or None,
        )
    yield RunEnd(time_s=last_s, run_id=number, status="finished", seconds=last_s - first_s, steps=last_step, result={})


def _value(at: dict[str, Scalar], tags: Sequence[str]) -> float | None:
    for tag in tags:
        if tag in at:
            return at[tag].value
    return None
