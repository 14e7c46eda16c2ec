"""The memory of a script's last run: the recorded curve, drawn like a prediction, for the same command.

A thread of its own searches the newest recordings, so that nobody has to wait.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpudash.drawing.ghost import Ghost
from gpudash.drawing.ribbons import by_group
from gpudash.memory.predicting.estimate import CardEstimate, Target
from gpudash.memory.predicting.prediction import HELD_BACK
from gpudash.memory.request_log import RequestLog, RequestLogs
from gpudash.session.predicting.ghosts import BY_LIFE
from gpudash.session.watching.request import WatchRequest
from gpudash.system.newest_request import NewestRequest
from gpudash.telemetry.recording.facts import wall_clock_s
from gpudash.telemetry.recording.reading import Recording, RunRow, open_recording
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.recording.schema import SUFFIX
from gpudash.telemetry.records import StepFinished
from gpudash.telemetry.runs import PEAK_STEPS, WATCH, cut_short_text, has_grown
from gpudash.units import format_bytes

logger = logging.getLogger(__name__)

ALLOCATED = "allocated"
"""Ribbon for tensors whose category is unknown: only the session that ran them knows it."""

RAN_OUT = "ran out with {} reserved and did not show what it needs"

MOST_RECORDINGS = 60
"""How many of the newest recordings are searched."""

COLUMNS = 2048
"""Number of equal time intervals in a drawing, each at its maximum."""

MOST_MARKED = 200
"""Largest number of steps that are marked individually."""

Floats = NDArray[np.float64]
Key = tuple[tuple[str, ...], str]


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A past run.

    Attributes:
        began_s: start, in seconds since the epoch.
        device: torch's name of the device; of several, the one that held most.
        devices: number of devices on which it held memory.
        ghost: its memory as a drawing.
        peak_bytes: the most that its allocator reserved.
        steps: number of its steps.
        ran_out: whether it ended out of memory, so that it needs more than it held.
        cut_short: how it ended before its peak, as "stopped after 0 steps"; "" if its peak is known.
    """

    began_s: float
    device: str
    devices: int
    ghost: Ghost
    peak_bytes: int
    steps: int
    ran_out: bool = False
    cut_short: str = ""

    def on(self, key: str, target: Target) -> CardEstimate:
        """Whether it would fit another card, or this one in its present state.

        The allocator frees its cache before a request fails: if the tensors alone have room, the run may fit.
        """
        allocated = int(self.ghost.edges[self.ghost.top].max())
        fits: bool | None = None
        spare = None
        reason = ""
        if target.free_bytes is not None:
            room = target.free_bytes - target.overhead_bytes
            spare = room - self.peak_bytes
            if self.ran_out and spare > 0:
                reason = RAN_OUT.format(format_bytes(self.peak_bytes))
                spare = None  # its full need is unknown, so the rest is too
            elif self.ran_out:
                fits = False
            elif self.cut_short and room >= allocated:
                # How it ended first: a chip has room for that.
                reason = f"{self.cut_short} and may need more than the {format_bytes(self.peak_bytes)} it held"
                spare = None
            elif spare >= 0:
                fits = True
            else:
                spare = room - allocated
                fits = None if spare >= 0 else False
        return CardEstimate(
            target.device,
            target.capacity_bytes,
            target.free_bytes,
            allocated,
            self.peak_bytes,
            overhead_bytes=target.overhead_bytes,
            fits=fits,
            spare_bytes=spare,
            key=key,
            source="by its last run",
            reason=reason,
        )


class MeasuredRuns:
    """Finds the last run of a command that held GPU memory.

    Args:
        folder: folder of the recordings.
        own: the file that the session records to, in any folder; ``None`` for none.
        requests: allocator requests of the session's programs, in session time.
    """

    def __init__(
        self, folder: Callable[[], Path], own: Callable[[], Path | None], requests: RequestLogs | None = None
    ) -> None:
        self._folder = folder
        self._own = own
        self._requests_of_runs = requests or RequestLogs()
        self._found: dict[Key, MeasuredRun | None] = {}
        self._requests: NewestRequest[Key] = NewestRequest("gpudash-measured", self._answer)

    def request(self, request: WatchRequest) -> None:
        """Start to look for the last run of this command in this folder; returns immediately."""
        self._requests.submit(_key(request), retry=True)

    def forget(self, request: WatchRequest) -> None:
        """Forget what was found for this command, which runs again: until the next search its memory is unknown."""
        self._found.pop(_key(request), None)

    def of(self, request: WatchRequest) -> MeasuredRun | None:
        """The run that was found; ``None`` if there is none, or the search is still going on."""
        return self._found.get(_key(request))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the search; false on timeout."""
        return self._requests.wait(timeout_s)

    def close(self, timeout_s: float = 1.0) -> bool:
        """Stop searching; false if the thread has not ended in time."""
        self._requests.close()
        return self._requests.wait(timeout_s)

    def _answer(self, key: Key) -> bool:
        try:
            self._found[key] = next(self._runs_of(key), None)
        except Exception:
            logger.exception("what a script took before could not be read")
        return True

    def _runs_of(self, key: Key) -> Iterator[MeasuredRun]:
        """The runs of a command that held any memory, newest first."""
        for path in self._recordings():
            try:
                with open_recording(path) as recording:
                    for run in reversed(recording.runs):
                        if run.workload != WATCH or run.ended_s is None or _key_of(run) != key:
                            continue
                        logs = RequestLogs()
                        if path == self._own():
                            logs = self._requests_of_runs
                        found = _measured(recording, run, run.ended_s, logs)
                        if found is not None:
                            yield found
            except (RecordingError, OSError):
                continue  # deleted meanwhile, or not a recording

    def _recordings(self) -> list[Path]:
        paths = set(self._folder().glob(f"*{SUFFIX}"))
        own = self._own()
        if own is not None:
            paths.add(own)
        changed: list[tuple[float, Path]] = []
        for path in paths:
            try:
                changed.append((path.stat().st_mtime, path))
            except OSError:
                continue
        return [path for _time, path in sorted(changed, reverse=True)[:MOST_RECORDINGS]]


def _key(request: WatchRequest) -> Key:
    return tuple(request.command), str(request.folder or Path.cwd())


def _key_of(run: RunRow) -> Key:
    # A run with a change is another program.
    if run.spec.get("edit") or run.spec.get("pid"):
        return (), ""
    request = WatchRequest.from_spec(run.spec)
    return tuple(request.command), os.fspath(request.folder or "")


def _measured(recording: Recording, run: RunRow, ended_s: float, logs: RequestLogs) -> MeasuredRun | None:
    """The run's memory on the device where it held most; ``None`` if it held none.

    Args:
        logs: the known allocator requests.
    """
    last = recording.last_rows()
    first = recording.rows_at(run.began_s, last)
    until = recording.rows_at(ended_s, last)
    readings: dict[str, list[tuple[float, float, float]]] = {}
    for sample in recording.samples("allocator", first.get("allocator", 0), until.get("allocator")):
        allocated = _most(sample.values.get("allocated_bytes"), sample.values.get("peak_allocated_bytes"))
        reserved = _most(sample.values.get("reserved_bytes"), sample.values.get("peak_reserved_bytes"))
        if sample.device is not None and sample.device != "cpu" and allocated is not None:
            readings.setdefault(sample.device, []).append((sample.time_s, allocated, max(allocated, reserved or 0.0)))
    held = {device: max(row[2] for row in rows) for device, rows in readings.items()}
    if not any(held.values()):
        return None
    fullest = max(held, key=lambda device: held[device])
    events = recording.events(first.get("event", 0), until.get("event"))
    # Several records may be about one step: its loss may follow its end.
    ended: dict[int, float] = {}
    for event in events:
        if isinstance(event, StepFinished):
            ended.setdefault(event.step, event.time_s)
    ends = sorted(ended.values())
    times, allocated_at, reserved_at = np.array(readings[fullest], np.float64).T
    began = (wall_clock_s(recording.meta.get("wall_clock_origin", "")) or 0.0) + run.began_s
    ghost = drawn(times, allocated_at, reserved_at, ends, logs.of(fullest))
    count = sum(1 for size in held.values() if size)
    ran_out = run.status == "out_of_memory"
    cut_short = ""
    if not ran_out:
        grew = False
        if len(ends) >= PEAK_STEPS:
            half_way_s = ends[max(PEAK_STEPS, len(ends) // 2) - 1]
            grew = has_grown(allocated_at.max(), allocated_at[times <= half_way_s].max(initial=0.0))
        cut_short = cut_short_text(run.status, run.spec, len(ends), grew=grew)
    return MeasuredRun(began, fullest, count, ghost, int(held[fullest]), len(ends), ran_out, cut_short)


def _most(*values: object) -> float | None:
    """The larger of the current reading and the maximum since the reading before."""
    known = [float(value) for value in values if isinstance(value, (int, float))]
    return max(known, default=None)


def drawn(
    times: Floats, allocated: Floats, reserved: Floats, ends: Sequence[float], requests: RequestLog | None = None
) -> Ghost:
    """A run as a ghost: evenly in time, at most `COLUMNS` intervals, each at its maximum.

    Args:
        times: times of the readings, in seconds, ascending.
        allocated, reserved: bytes.
        ends: times at which its steps ended, in seconds.
        requests: the requests that divide allocated memory into categories; ``None`` if unknown.
    """
    count = min(COLUMNS, len(times))
    span = max(times[-1] - times[0], 1e-9)
    columns = np.minimum((times - times[0]) / span * count, count - 1).astype(int)
    # Memory is held until the next reading: an interval without a reading has the value of the one before.
    held = np.stack([_by_column(allocated, columns, count), _by_column(reserved, columns, count)])
    marks: list[tuple[int, int, str]] = []
    if len(ends) <= MOST_MARKED:
        starts = [times[0], *ends[:-1]]
        marks = [
            (min(count - 1, max(0, int((start - times[0]) / span * count))), step, "")
            for step, start in enumerate(starts[: len(ends)], 1)
        ]
    known = _by_category(requests, (times[0], times[-1]), held[0])
    rest = held[0] - np.sum([*known.values(), np.zeros(count)], axis=0)
    ribbons = {**known, ALLOCATED: rest, HELD_BACK: held[1] - held[0]}
    ghost = Ghost.of(ribbons, marks, kept=HELD_BACK)
    ghost.prepare()
    return ghost


def _by_category(requests: RequestLog | None, span: tuple[float, float], allocated: Floats) -> dict[str, Floats]:
    """``allocated`` divided into categories, for each of as many intervals of a span; empty without known requests."""
    if requests is None or requests.extent is None:
        return {}
    found = requests.allocations()
    of_line = [BY_LIFE.index(line.category) if line.category in BY_LIFE else len(BY_LIFE) for line in requests.lines]
    sizes = by_group(found, *span, len(allocated), np.array([*of_line, len(BY_LIFE)], np.int64))
    # A reading and the requests around it are not simultaneous; scale to the readings, which are shown.
    share = np.minimum(1.0, allocated / np.maximum(sizes.sum(axis=0), 1.0))
    # Whole bytes, so that the ribbons add up to the readings exactly.
    return {name: np.floor(size * share) for name, size in zip(BY_LIFE, sizes, strict=False)}


def _by_column(values: Floats, columns: NDArray[np.intp], count: int) -> Floats:
    found = np.full(count, np.nan)
    np.fmax.at(found, columns, values)
    known = np.flatnonzero(~np.isnan(found))
    filled: Floats = found[known[np.searchsorted(known, np.arange(count), "right") - 1]]
    return filled
