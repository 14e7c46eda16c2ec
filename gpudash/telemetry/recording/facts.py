"""What a recording is about, read without reading it whole: date, length, and of each run what it was asked, how it
ended, its peak memory and its loss; and what the user says of it, kept in it: that it is locked, names, tags, notes,
which marks stand.
"""

from __future__ import annotations

import json
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
"""Longest that is looked for the peak memory of a recording's runs; every row of their time is read for that."""

LATEST_S = 2.5e11
"""The latest beginning, in seconds since the epoch, to which a hundred years can be added: dates end with year 9999."""

MOST_RUNS = 500
"""Most runs of a recording that are listed, the first ones."""

MOST_NOTES = 64
"""Most notes about GPUs that are read: every simulated card of a program has a note of its own."""

MOST_FIELDS, LONGEST_TEXT = 60, 300
"""Fields of a spec that are kept, and characters of one: a recording may come from anybody."""

OUTLINE_PARTS = 32
OUTLINE_ROWS = 8192
"""Parts of a run's time of which an outline of its memory tells the highest, and rows that are read for all of them."""

_LENGTHS = ("host", "gpu", "event")
"""Tables whose last row tells how long a recording is."""

_DEVICE = re.compile(r"[\w:.-]{1,80}")
"""What may stand in a statement as the name of a device."""

_RUN_EVENTS = tuple(name for name, kind in EVENTS.items() if kind in (RunStarted, RunEnd))


BUSY_S = 1.0
"""Longest wait for another process that has the file open."""

TRIED_AGAIN_S = 0.001
"""How often it is looked whether they let go of it."""

_OTHERS_CODE = (
    "SELECT 1 FROM sqlite_master WHERE lower(tbl_name) = 'meta' AND lower(name) <> 'meta' AND sql IS NOT NULL"
)
"""Finds what SQLite would run when a row of ``meta`` changes; a recording has nothing of the kind."""


@dataclass(frozen=True, slots=True)
class RunText:
    """What the user says of a run: what it is called, tags with commas between them, a note; "" where nothing."""

    title: str = ""
    tags: str = ""
    note: str = ""


RunWord = Literal["title", "tags", "note"]

LONGEST_NOTE = 2000
"""Characters that are kept, and read, of each of a run's words."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run of a recording in a line.

    Attributes:
        number: in the order the runs began, from 1; as in ``FILE#2``.
        workload: its name; "watch" of a program of the user's.
        device: as torch names it; "" where the recording does not tell.
        spec: what was asked: numbers, texts, truths, and lists of texts.
        simulated: whether it was on a simulated device.
        status: how it ended ("finished", "out_of_memory" ...); "running" where it was not closed.
        began_s: seconds since the session's beginning.
        seconds: how long it took; ``None`` where it was not closed.
        peak_bytes: highest use of its GPU, or of this process's memory on the CPU, while it ran; never more than the
            GPU has; ``None`` where unknown.
        own_peak_bytes: most that PyTorch's allocator had allocated for it; ``None`` where nothing tells, as on the CPU.
        loss: the last one; ``None`` without one.
        outline: its memory over its time: the highest of each part, in hundredths of the highest of all; ``None`` where
            a part has no reading; empty where nothing was read.
        label: what the user says of it.
        of_demo: whether the demo ran it, and not the user.
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
    loss: float | None = None
    outline: tuple[int | None, ...] = ()
    label: RunText = field(default_factory=RunText)
    of_demo: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """A recording in a line.

    Attributes:
        began_wall_s: seconds since the epoch at its beginning; ``None`` where it does not say.
        title: what the user calls it, or "".
        runs: in the order they began; empty when the machine was only watched.
        duration_s: from its beginning to its last row; ``None`` where there is none.
        locked: whether the user protects it.
        damage: what cannot be read, in one sentence, or "".
    """

    began_wall_s: float | None = None
    title: str = ""
    runs: tuple[RunFacts, ...] = ()
    duration_s: float | None = None
    locked: bool = False
    damage: str = ""


def read_facts(path: Path, peak_s: float = PEAK_S, stopped: Callable[[], bool] = lambda: False) -> Facts:
    """What the recording at ``path`` is about; one that cannot be opened says so in `Facts.damage`.

    Args:
        path: the file; it is not changed.
        peak_s: longest that peaks are looked for.
        stopped: whether the answer is no longer wanted; then what has not been found is left out.
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
    # A damaged table of events costs what runs held, not that they were.
    if not views:  # what began the runs cannot be read: their own table still tells of them
        return tuple(
            RunFacts(number, run.workload, spec=_spec(run.spec), status=run.status, began_s=run.began_s)
            for number, run in enumerate(recording.runs[:MOST_RUNS], 1)
        )
    uuids = _uuids(recording)
    last = recording.last_rows()
    found = []
    for number, view in enumerate(views, 1):
        uuid = uuids.get(view.device)
        loss = view.metrics.get("loss")
        facts = RunFacts(
            number=number,
            workload=view.workload,
            device=view.device,
            spec=_spec(view.spec),
            simulated=view.simulated,
            status=view.status,
            began_s=view.began_s,
            seconds=view.seconds,
            peak_bytes=_peak(recording, view, uuid, last, stopped),
            own_peak_bytes=view.peak_allocated_bytes,
            loss=None if loss is None else loss.last,
            outline=_outline(recording, view, uuid, last, stopped),
            label=run_text(recording.meta, number),
            of_demo=view.of_demo,
        )
        found.append(facts)
    return tuple(found)


def _views(recording: Recording) -> list[RunView]:
    """The runs that began, with what their ends and their newest digests tell."""
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
                    # Of the newest digest, as reading every step of the run would take seconds.
                    view.restore(found, stages=False)
            views.append(view)
            continue
        view_of_it = next((view for view in reversed(views) if view.run_id == event.run_id), None)
        if view_of_it is not None:
            with suppress(Exception):  # a damaged row can hold anything
                view_of_it.apply(event)
    return views


def _peak(
    recording: Recording, view: RunView, uuid: str | None, last: schema.Rows, stopped: Callable[[], bool]
) -> int | None:
    """What the run itself told, as its report says too; of one that was not closed the highest reading since."""
    if view.device == "cpu":
        table, column = ("host", "process_bytes")
    else:
        table, column = ("gpu", "used_bytes")
    peak_bytes = view.memory.used_bytes
    # More than the card has: a reading of another card, or damage.
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
    """What the run's own memory was, in outline: what PyTorch had allocated, else all that its GPU had in use."""
    if view.device == "cpu":
        wanted: list[tuple[str, str, str | None]] = [("host", "process_bytes", None)]
    else:
        wanted = [("allocator", "allocated_bytes", view.device), ("gpu", "used_bytes", uuid)]
    for table, column, device in wanted:
        # It goes into a statement as text, and comes from a file that anybody may have made.
        if device is not None and not _DEVICE.fullmatch(device):
            continue
        if table == "gpu" and device is None:
            continue
        highest = _highest_of_parts(recording, view, (table, column, device), last, stopped)
        known = [value for value in highest if value is not None]
        if known and max(known) > 0:
            # In hundredths: enough for a picture as small as this.
            return tuple(None if value is None else round(100 * value / max(known)) for value in highest)
    return ()


def _highest_of_parts(
    recording: Recording,
    view: RunView,
    key: tuple[str, str, str | None],
    last: schema.Rows,
    stopped: Callable[[], bool],
) -> list[int | None]:
    """The highest reading of each part of a run's rows. Each part of a long run is represented by its first rows."""
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
        # No more parts than there are readings: empty ones would look like gaps.
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
        # A sample of each part: a long run has millions of rows.
        found = [row[0] for row in recording.select(statement, stopped)]
        if found and isinstance(found[0], int):
            highest[part] = found[0]
    return highest


def _uuids(recording: Recording) -> dict[str, str]:
    """torch's name of a device → the key of its readings."""
    found: dict[str, str] = {}
    notes = f"SELECT json FROM event WHERE kind = 'Note' AND json LIKE '%torch_names%' LIMIT {MOST_NOTES}"
    for row in recording.select(notes):
        details = _read(row).get("details")
        names = None
        if isinstance(details, dict):
            names = details.get("torch_names")
        for name, uuid in names.items() if isinstance(names, dict) else ():
            if isinstance(uuid, str) and uuid.replace("-", "").isalnum():
                found.setdefault(name, uuid)
    return found


COMPARED_FIELDS = "fields"
"""Field of a comparison with those of what is compared."""


def _spec(spec: object, *, nested: bool = False) -> dict[str, Any]:
    """The fields that fit in a line; nested ones, such as an environment, are left out.

    Args:
        spec: as it was recorded.
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


def _read(row: sqlite3.Row) -> dict[str, Any]:
    try:
        found = json.loads(row[0])
    except (ValueError, TypeError, RecursionError):
        return {}
    if isinstance(found, dict):
        return found
    return {}


def wall_clock_s(text: str) -> float | None:
    """Seconds since the epoch of a date and time; ``None`` where it is none of the years from 1970 to some 9800."""
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
    """Protect a recording from being deleted and tidied away, or no longer.

    Raises:
        RecordingError: one sentence, when it cannot be changed.
    """
    annotate(path, "locked", "1" if locked else "")


def set_title(path: Path, title: str) -> None:
    """Call a recording ``title``; "" gives it back its file's name.

    Raises:
        RecordingError: one sentence, when it cannot be changed.
    """
    annotate(path, "title", title.strip())


def set_run_text(path: Path, number: int, what: RunWord, text: str) -> None:
    """Say something of the run ``number``, counted from 1; "" takes it back.

    Raises:
        RecordingError: one sentence, when it cannot be changed.
    """
    annotate(path, f"run {number} {what}", text.strip()[:LONGEST_NOTE])


def run_text(meta: Mapping[str, str], number: int) -> RunText:
    """What the user says of the run ``number`` of the recording that has this ``meta``."""
    return RunText(*(meta.get(f"run {number} {what}", "")[:LONGEST_NOTE] for what in get_args(RunWord)))


def run_title(meta: Mapping[str, str], number: int, runs: int) -> str:
    """What the user calls the run ``number`` of ``runs``; the name of a session's only run may be the session's."""
    return run_text(meta, number).title or (meta.get("title", "")[:LONGEST_NOTE] if runs == 1 else "")


def annotate(path: Path, key: str, value: str) -> None:
    """Set a key of the table ``meta``, "" removes it. The file's date stays: it says when the session was.

    Of a recording that this process writes its recorder does it; of one that another gpudash writes, it is done between
    two of its commits.

    Raises:
        RecordingError: one sentence, when the file is gone, no recording, damaged or not writable, or when whoever
            writes it lets nobody else write.
    """
    # Only one writes a file: what records it in this process does it itself.
    recorder = recorder_of(path)
    if recorder is not None and recorder.annotate(key, value):
        return
    # Looked at first: changing a damaged file may cost what can still be read of it.
    with open_recording(path) as recording:
        damaged = bool(recording.notices)
    if damaged:
        raise RecordingError(f"{path.name} is damaged and is left as it is.")
    if not os.access(path, os.W_OK):
        raise RecordingError(f"{path.name} is read-only; make it writable to change it.")
    # The file's date is put back, as lists are ordered by it.
    status, written = path.stat(), being_written(path)
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            if written:  # whoever writes the file moves its log
                connection.execute("PRAGMA wal_autocheckpoint = 0")
            if connection.execute(_OTHERS_CODE).fetchone() is not None:
                raise RecordingError(f"{path.name} holds triggers or indexes of its own and is left as it is.")
            _begin(connection)
            schema.annotate(connection, key, value)
            connection.execute("COMMIT")
        # While it is written its date changes anyway.
        if not written:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    except (sqlite3.Error, OSError) as error:
        if written:
            raise RecordingError(f"{path.name} is being recorded by another gpudash; try again ({error}).") from None
        raise RecordingError(f"{path.name} cannot be changed ({error}).") from None


def _begin(connection: sqlite3.Connection) -> None:
    """Begin to write, within `BUSY_S`: a recorder writes nearly all the time, and SQLite's own waiting grows to
    100 ms, longer than the moment between two of its commits."""
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
    """The marks that stand behind ``markers``, which are in the order they were made."""
    standing: list[Marker] = []
    for marker in markers:
        if marker.category != REMOVED:
            standing.append(marker)
        elif (taken := next((mark for mark in standing if _takes_back(marker, mark)), None)) is not None:
            standing.remove(taken)
    return standing


def _takes_back(removed: Marker, mark: Marker) -> bool:
    return (mark.time_s, mark.label, mark.category) == (removed.time_s, removed.label, "user")
