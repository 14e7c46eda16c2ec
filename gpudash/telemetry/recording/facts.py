"""Facts about a recording, found without reading all of it: date, length, and for each run its settings, end, peak
memory and loss. Also what the user adds to it: lock, names, tags, notes, and which marks are valid.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from gpudash.system.foreign_text import json_object
from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.pages import newest_digest
from gpudash.telemetry.recording.reading import LONGEST_S, Recording, open_recording
from gpudash.telemetry.recording.recorder import RecordingError, being_written, recorder_of
from gpudash.telemetry.records import (
    EVENTS,
    LARGEST,
    REMOVED,
    Marker,
    Note,
    RunEnd,
    RunStarted,
    Topic,
)
from gpudash.telemetry.runs import RunView

PEAK_S = 10.0
"""Time limit for finding the peak memory of a recording's runs, which reads all their rows."""

LATEST_S = 2.5e11
"""Latest beginning, in seconds since the epoch, that leaves room for a hundred years: dates end with the year 9999."""

MOST_RUNS = 500
"""Most runs of a recording that are listed, the first ones."""

MOST_NOTES = 64
"""Most notes about GPUs that are read: every simulated card of a program has its own."""

MOST_FIELDS, LONGEST_TEXT = 60, 300
"""Most fields of a spec, and most characters of a field, that are kept: a recording may be untrusted."""

OUTLINE_PARTS = 32
OUTLINE_ROWS = 8192
"""Number of intervals in an outline of a run's memory, and number of rows read for all of them."""

_LENGTHS = ("host", "gpu", "event")
"""Tables whose last row gives the length of a recording."""

_DEVICE = re.compile(r"[\w:.-]{1,80}")
"""Device names that are allowed in a statement."""

_RUN_EVENTS = tuple(name for name, kind in EVENTS.items() if kind in (RunStarted, RunEnd))


BUSY_S = 1.0
"""Longest wait for another process that has locked the file."""

TRIED_AGAIN_S = 0.001
"""Interval at which the lock is tried."""

_OTHERS_CODE = (
    "SELECT 1 FROM sqlite_master WHERE lower(tbl_name) = 'meta' AND lower(name) <> 'meta' AND sql IS NOT NULL"
)
"""Finds triggers, which SQLite would run when a row of ``meta`` changes; a recording has none."""


@dataclass(frozen=True, slots=True)
class RunText:
    """The user's words about a run: its name, tags separated by commas, a note; "" for none."""

    title: str = ""
    tags: str = ""
    note: str = ""


RunWord = Literal["title", "tags", "note"]

LONGEST_NOTE = 2000
"""Longest text of each kind, in characters."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run of a recording, in one row of a list.

    Attributes:
        number: position in the order of beginning, from 1; as in ``FILE#2``.
        workload: name of the workload; "watch" for a user's program.
        device: torch's name; "" if unknown.
        spec: settings: numbers, strings, booleans, and lists of strings.
        simulated: whether the device was simulated.
        status: how it ended ("finished", "out_of_memory" ...); "running" if the recording was not closed.
        began_s: seconds since the session's beginning.
        seconds: duration; ``None`` if the recording was not closed.
        peak_bytes: peak use of its GPU, or on the CPU of this process's memory; at most the GPU's capacity; ``None``
            if unknown.
        own_peak_bytes: peak of memory allocated by PyTorch; ``None`` if unknown, as on the CPU.
        reserved_peak_bytes: peak of what its allocator took from the device, likewise.
        grew: whether its memory was still growing when it ended.
        steps: number of steps it finished.
        loss: last loss; ``None`` if there is none.
        outline: memory over time: the maximum of each interval, in hundredths of the overall maximum; ``None`` for an
            interval without a reading; empty if nothing was read.
        label: the user's words about it.
        of_demo: whether the demo ran it, not the user.
    """

    number: int
    workload: str
    device: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    simulated: bool = False
    status: str = "running"
    began_s: float = 0.0
    seconds: float | None = None
    peak_bytes: int | None = None
    own_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    grew: bool = False
    steps: int = 0
    loss: float | None = None
    outline: tuple[int | None, ...] = ()
    label: RunText = field(default_factory=RunText)
    of_demo: bool = False

    @classmethod
    def of(
        cls,
        number: int,
        view: RunView,
        *,
        spec: Mapping[str, Any],
        peak_bytes: int | None,
        outline: tuple[int | None, ...],
        label: RunText,
    ) -> RunFacts:
        """A run that is in view; what is not in the view is given."""
        loss = view.metrics.get("loss")
        return cls(
            number=number,
            workload=view.workload,
            device=view.device,
            spec=spec,
            simulated=view.simulated,
            status=view.status,
            began_s=view.began_s,
            seconds=view.seconds,
            peak_bytes=peak_bytes,
            own_peak_bytes=view.peak_allocated_bytes,
            reserved_peak_bytes=view.peak_reserved_bytes,
            grew=view.memory.grew,
            steps=view.step,
            loss=None if loss is None else loss.last,
            outline=outline,
            label=label,
            of_demo=view.of_demo,
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """A recording, in one row of a list.

    Attributes:
        began_wall_s: its beginning, in seconds since the epoch; ``None`` if unknown.
        title: the user's name for it, or "".
        runs: the runs in order of beginning; empty if the machine was only watched.
        duration_s: time from its beginning to its last row; ``None`` if there are no rows.
        locked: whether the user has protected it.
        damage: what cannot be read, in one sentence, or "".
    """

    began_wall_s: float | None = None
    title: str = ""
    runs: tuple[RunFacts, ...] = ()
    duration_s: float | None = None
    locked: bool = False
    damage: str = ""


def read_facts(path: Path, peak_s: float = PEAK_S, stopped: Callable[[], bool] = lambda: False) -> Facts:
    """Facts about the recording at ``path``; if it cannot be opened, `Facts.damage` says so.

    Args:
        path: the file, which is not changed.
        peak_s: time limit for finding peaks.
        stopped: whether the caller has cancelled; remaining facts are then left out.
    """
    until = time.monotonic() + peak_s
    try:
        with open_recording(path) as recording:
            return Facts(
                began_wall_s=wall_clock_s(recording.meta.get("wall_clock_origin", "")),
                title=recording.meta.get("title", ""),
                runs=_runs(recording, lambda: stopped() or time.monotonic() > until),
                duration_s=_duration(recording),
                locked=recording.meta.get("locked", "") not in ("", "0", "false"),
                damage=_sentence(recording.notices),
            )
    except RecordingError as error:
        return Facts(damage=f"{error}.")


def _runs(recording: Recording, stopped: Callable[[], bool]) -> tuple[RunFacts, ...]:
    views = _views(recording)
    # A damaged table of events costs the runs' figures, but not their list.
    if not views:  # their start events cannot be read: use the table of runs
        return tuple(
            RunFacts(number, run.workload, spec=_spec(run.spec), status=run.status, began_s=run.began_s)
            for number, run in enumerate(recording.runs[:MOST_RUNS], 1)
        )
    uuids = _uuids(recording)
    last = recording.last_rows()
    found = []
    for number, view in enumerate(views, 1):
        uuid = uuids.get(view.device)
        facts = RunFacts.of(
            number,
            view,
            spec=_spec(view.spec),
            peak_bytes=_peak(recording, view, uuid, last, stopped),
            outline=_outline(recording, view, uuid, last, stopped),
            label=run_text(recording.meta, number),
        )
        found.append(facts)
    return tuple(found)


def _views(recording: Recording) -> list[RunView]:
    """The runs that began, with their ends and their newest digests."""
    kinds = ", ".join(map(repr, (*_RUN_EVENTS, Note.__name__)))
    statement = (
        # The index of rare events finds these without reading steps (`schema.RARE_INDEX`).
        f"SELECT time_s, run_id, kind, json FROM event WHERE {schema.RARE} AND kind IN ({kinds}) "
        f"AND (kind <> '{Note.__name__}' OR json LIKE '%\"{Topic.DEVICE}\"%' OR json LIKE '%\"{Topic.DEMO}\"%') "
        "ORDER BY time_s, rowid"
    )
    views: list[RunView] = []
    for event in recording.events_of(recording.select(statement)):
        if isinstance(event, RunStarted):
            if len(views) == MOST_RUNS:
                break
            view = RunView.of(event)
            found = newest_digest(recording, event.run_id)
            if found is not None:
                with suppress(ValueError):
                    # Use the newest digest, as reading every step of the run would take seconds.
                    view.restore(found, stages=False)
            views.append(view)
            continue
        view_of_it = next((view for view in reversed(views) if view.run_id == event.run_id), None)
        if view_of_it is not None:
            with suppress(Exception):  # a damaged row can contain anything
                view_of_it.apply(event)
    return views


def _peak(
    recording: Recording, view: RunView, uuid: str | None, last: schema.Rows, stopped: Callable[[], bool]
) -> int | None:
    """The peak that the run itself reported, as in its report; without a recorded end, the highest reading."""
    if view.device == "cpu":
        table, column = ("host", "process_bytes")
    else:
        table, column = ("gpu", "used_bytes")
    peak_bytes = view.memory.used_bytes
    # More than the card has means a reading of another card, or damage.
    if peak_bytes is not None and view.ended_s is not None and peak_bytes <= (view.memory.capacity_bytes or LARGEST):
        return peak_bytes
    if table == "gpu" and uuid is None:
        return None
    after = recording.rows_at(view.began_s, last)[table]
    if view.ended_s is None:
        until = last[table]
    else:
        until = recording.rows_at(view.ended_s, last)[table]
    statement = f"SELECT max({column}) FROM {table} WHERE rowid BETWEEN {after} AND {until}"
    if table == "gpu":
        statement += f" AND device = '{uuid}' AND (total_bytes IS NULL OR used_bytes <= total_bytes)"
    found = [row[0] for row in recording.select(statement, stopped)]
    if found and isinstance(found[0], int):
        return found[0]
    return None


def _outline(
    recording: Recording, view: RunView, uuid: str | None, last: schema.Rows, stopped: Callable[[], bool]
) -> tuple[int | None, ...]:
    """An outline of the run's memory: allocated by PyTorch, else all memory in use on its GPU."""
    if view.device == "cpu":
        wanted: list[tuple[str, str, str | None]] = [("host", "process_bytes", None)]
    else:
        wanted = [("allocator", "allocated_bytes", view.device), ("gpu", "used_bytes", uuid)]
    for table, column, device in wanted:
        # It becomes part of a statement's text, and comes from an untrusted file.
        if device is not None and not _DEVICE.fullmatch(device):
            continue
        if table == "gpu" and device is None:
            continue
        highest = _highest_of_parts(recording, view, (table, column, device), last, stopped)
        known = [value for value in highest if value is not None]
        if known and max(known) > 0:
            # Hundredths are enough for such a small picture.
            return tuple(None if value is None else round(100 * value / max(known)) for value in highest)
    return ()


def _highest_of_parts(
    recording: Recording,
    view: RunView,
    key: tuple[str, str, str | None],
    last: schema.Rows,
    stopped: Callable[[], bool],
) -> list[int | None]:
    """The highest reading in each interval of a run's rows. In a long run, only each interval's first rows are
    read."""
    table, column, device = key
    rows = {table: last.get(table, 0)}
    first = recording.rows_at(view.began_s, rows)[table] + 1
    until = rows[table]
    if view.ended_s is not None:
        until = recording.rows_at(view.ended_s, rows)[table]
    count = until - first + 1
    if count < 1:
        return []
    if device is None:
        of_device = ""
    else:
        of_device = f"AND device = '{device}'"
    if count <= OUTLINE_ROWS:
        statement = f"SELECT count(*) FROM {table} WHERE rowid BETWEEN {first} AND {until} {of_device}"
        readings = [row[0] for row in recording.select(statement, stopped)]
        # No more intervals than readings: empty ones would look like gaps.
        parts = min(OUTLINE_PARTS, *readings, count)
        if parts < 1:
            return []
        highest: list[int | None] = [None] * parts
        statement = (
            f"SELECT (rowid - {first}) * {parts} / {count}, max({column}) FROM {table} "
            f"WHERE rowid BETWEEN {first} AND {until} {of_device} GROUP BY 1"
        )
        for part, value in map(tuple, recording.select(statement, stopped)):
            if isinstance(part, int) and 0 <= part < parts and isinstance(value, int):
                highest[part] = value
        return highest
    parts = OUTLINE_PARTS
    highest = [None] * parts
    for part in range(parts):
        begin = first + part * count // parts
        statement = (
            f"SELECT max({column}) FROM {table} "
            f"WHERE rowid BETWEEN {begin} AND {begin + OUTLINE_ROWS // parts - 1} {of_device}"
        )
        # A sample of each interval: a long run has millions of rows.
        found = [row[0] for row in recording.select(statement, stopped)]
        if found and isinstance(found[0], int):
            highest[part] = found[0]
    return highest


def _uuids(recording: Recording) -> dict[str, str]:
    """torch's name for a device → the key of its readings."""
    found: dict[str, str] = {}
    notes = f"SELECT json FROM event WHERE kind = 'Note' AND json LIKE '%torch_names%' LIMIT {MOST_NOTES}"
    for row in recording.select(notes):
        details = (json_object(row[0]) or {}).get("details")
        names = None
        if isinstance(details, dict):
            names = details.get("torch_names")
        for name, uuid in names.items() if isinstance(names, dict) else ():
            if isinstance(uuid, str) and uuid.replace("-", "").isalnum():
                found.setdefault(name, uuid)
    return found


COMPARED_FIELDS = "fields"
"""Field of a comparison that contains the fields of the compared runs."""


def _spec(spec: object, *, nested: bool = False) -> dict[str, Any]:
    """The fields that fit in a line; nested ones, such as an environment, are left out.

    Args:
        spec: the recorded spec.
        nested: whether it is itself a field.
    """
    kept: dict[str, Any] = {}
    for name, value in spec.items() if isinstance(spec, Mapping) else ():
        if len(kept) == MOST_FIELDS:
            break
        if isinstance(value, bool | int | float):
            kept[str(name)[:LONGEST_TEXT]] = value
        elif isinstance(value, str):
            kept[str(name)[:LONGEST_TEXT]] = value[:LONGEST_TEXT]
        elif isinstance(value, list | tuple):
            kept[str(name)[:LONGEST_TEXT]] = [str(part)[:LONGEST_TEXT] for part in value[:MOST_FIELDS]]
        elif name == COMPARED_FIELDS and not nested:
            kept[name] = _spec(value, nested=True)
    return kept


def _duration(recording: Recording) -> float | None:
    ends = []
    for table in _LENGTHS:
        for (time_s,) in recording.select(f"SELECT time_s FROM {table} ORDER BY rowid DESC LIMIT 1"):
            if isinstance(time_s, int | float) and time_s < LONGEST_S:
                ends.append(float(time_s))
    return max(ends, default=None)


def wall_clock_s(text: str) -> float | None:
    """Seconds since the epoch for a date and time; ``None`` if it is malformed, or not between 1970 and about 9800."""
    try:
        found = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
    if 0 <= found < LATEST_S:
        return found
    return None


def _sentence(notices: list[str]) -> str:
    if not notices:
        return ""
    more = ""
    if len(notices) > 1:
        more = f" (and {len(notices) - 1} more)"
    return f"{notices[0]}{more}."


def set_locked(path: Path, locked: bool) -> None:
    """Protect a recording from deletion and cleanup, or undo that.

    Raises:
        RecordingError: one sentence, if it cannot be changed.
    """
    annotate(path, "locked", "1" if locked else "")


def set_title(path: Path, title: str) -> None:
    """Name a recording ``title``; "" restores the file's name.

    Raises:
        RecordingError: one sentence, if it cannot be changed.
    """
    annotate(path, "title", title.strip())


def set_run_text(path: Path, number: int, what: RunWord, text: str) -> None:
    """Set a text of the run ``number``, counted from 1; "" removes it.

    Raises:
        RecordingError: one sentence, if it cannot be changed.
    """
    annotate(path, f"run {number} {what}", text.strip()[:LONGEST_NOTE])


def run_text(meta: Mapping[str, str], number: int) -> RunText:
    """The user's words about the run ``number`` of the recording with this ``meta``."""
    return RunText(*(meta.get(f"run {number} {what}", "")[:LONGEST_NOTE] for what in get_args(RunWord)))


def run_title(meta: Mapping[str, str], number: int, runs: int) -> str:
    """The user's name for the run ``number`` of ``runs``; a session's only run may have the session's name."""
    return run_text(meta, number).title or (meta.get("title", "")[:LONGEST_NOTE] if runs == 1 else "")


def annotate(path: Path, key: str, value: str) -> None:
    """Set a key of the table ``meta``; "" removes it. Keeps the file's date, which is the date of the session.

    If this process is writing the recording, its recorder makes the change; if another gpudash is, the change is made
    between two of its commits.

    Raises:
        RecordingError: one sentence, if the file is missing, not a recording, damaged or not writable, or if its
            writer keeps it locked.
    """
    # Only one thread writes a file: if this process records it, that is the recorder's.
    recorder = recorder_of(path)
    if recorder is not None and recorder.annotate(key, value):
        return
    # Check first: changing a damaged file may destroy what is still readable.
    with open_recording(path) as recording:
        damaged = bool(recording.notices)
    if damaged:
        raise RecordingError(f"{path.name} is damaged and is left as it is.")
    if not os.access(path, os.W_OK):
        raise RecordingError(f"{path.name} is read-only; make it writable to change it.")
    # Restore the file's date, by which lists are sorted.
    status, written = path.stat(), being_written(path)
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            if written:  # its writer merges the log
                connection.execute("PRAGMA wal_autocheckpoint = 0")
            if connection.execute(_OTHERS_CODE).fetchone() is not None:
                raise RecordingError(f"{path.name} holds triggers or indexes of its own and is left as it is.")
            _begin(connection)
            schema.annotate(connection, key, value)
            connection.execute("COMMIT")
        # While it is being written, its date changes anyway.
        if not written:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    except (sqlite3.Error, OSError) as error:
        if written:
            raise RecordingError(f"{path.name} is being recorded by another gpudash; try again ({error}).") from None
        raise RecordingError(f"{path.name} cannot be changed ({error}).") from None


def _begin(connection: sqlite3.Connection) -> None:
    """Begin a transaction within `BUSY_S`. A recorder writes nearly all the time, and SQLite's own retries become as
    rare as every 100 ms, longer than the time between two commits."""
    connection.execute("PRAGMA busy_timeout = 0")
    latest = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > latest:
                raise
            time.sleep(TRIED_AGAIN_S)


def standing_marks(markers: Iterable[Marker]) -> list[Marker]:
    """The marks that remain after ``markers``, which are in the order of creation."""
    standing: list[Marker] = []
    for marker in markers:
        if marker.category != REMOVED:
            standing.append(marker)
        elif (taken := next((mark for mark in standing if _takes_back(marker, mark)), None)) is not None:
            standing.remove(taken)
    return standing


def _takes_back(removed: Marker, mark: Marker) -> bool:
    return (mark.time_s, mark.label, mark.category) == (removed.time_s, removed.label, "user")
