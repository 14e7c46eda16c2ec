"""What a recording is about, read without reading it whole: date, runs, device, peak memory, length; and what the user
says of it, kept in it: that it is locked, what it is called, which marks stand."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpudash.telemetry.recording.reading import LONGEST_S, Recording, RecordingError, open_recording
from gpudash.telemetry.recording.recorder import being_written
from gpudash.telemetry.records import REMOVED, Marker

PEAK_S = 10.0
"""Longest that is looked for the peak memory in a recording; every row of its table is read for that."""

LATEST_S = 2.5e11
"""The latest beginning, in seconds since the epoch, to which a hundred years can be added: dates end with year 9999."""

_LENGTHS = ("host", "gpu", "event")
"""Tables whose last row tells how long a recording is."""

BUSY_S = 1.0
"""Longest that is waited for somebody else who has the file open."""

_OTHERS_CODE = (
    "SELECT 1 FROM sqlite_master WHERE lower(tbl_name) = 'meta' AND lower(name) <> 'meta' AND sql IS NOT NULL"
)
"""Finds what SQLite would run when a row of ``meta`` changes; a recording has nothing of the kind."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A recording in a line.

    Attributes:
        began_wall_s: seconds since the epoch at its beginning; ``None`` where it does not say.
        title: what the user calls it, or "".
        workloads: of its runs, each once, in order; empty when the machine was only watched.
        devices: that its runs used, as torch names them; "cpu" where nothing ran.
        simulated: whether a run was on a simulated device.
        status: how its last run ended ("finished", "out_of_memory" ...); "watched" without a run.
        peak_bytes: highest use of the last run's GPU, or of this process's memory on the CPU; ``None`` where unknown.
        duration_s: from its beginning to its last row; ``None`` where there is none.
        locked: whether the user protects it.
        damage: what cannot be read, in one sentence, or "".
    """

    began_wall_s: float | None = None
    title: str = ""
    workloads: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    simulated: bool = False
    status: str = ""
    peak_bytes: int | None = None
    duration_s: float | None = None
    locked: bool = False
    damage: str = ""


def read_facts(path: Path, peak_s: float = PEAK_S, stopped: Callable[[], bool] = lambda: False) -> Facts:
    """What the recording at ``path`` is about; one that cannot be opened says so in `Facts.damage`.

    Args:
        path: the file; it is not changed.
        peak_s: longest that the peak memory is looked for.
        stopped: whether nobody waits for it any more; then what has not been found is left out.
    """
    until = time.monotonic() + peak_s
    try:
        with open_recording(path) as recording:
            return _facts(recording, lambda: stopped() or time.monotonic() > until)
    except RecordingError as error:
        return Facts(damage=f"{error}.")


def _facts(recording: Recording, stopped: Callable[[], bool]) -> Facts:
    runs = recording.runs
    beginnings = f"SELECT json FROM event WHERE kind = 'RunStarted' LIMIT {len(runs)}"
    started = [_read(row) for row in recording.select(beginnings)]
    devices = _distinct(_word(run.get("device")) for run in started)
    return Facts(
        began_wall_s=wall_clock_s(recording.meta.get("wall_clock_origin", "")),
        title=recording.meta.get("title", ""),
        workloads=_distinct(_word(run.workload) for run in runs),
        devices=devices or ("cpu",),
        simulated=any(bool(run.get("simulated")) for run in started),
        status=(_word(runs[-1].status) or "unknown") if runs else "watched",
        peak_bytes=_peak(recording, devices[-1] if devices else "cpu", stopped),
        duration_s=_duration(recording),
        locked=recording.meta.get("locked", "") not in ("", "0", "false"),
        damage=_sentence(recording.notices),
    )


def _peak(recording: Recording, device: str, stopped: Callable[[], bool]) -> int | None:
    if device == "cpu":
        statement = "SELECT max(process_bytes) FROM host"
    else:
        uuid = _uuid(recording, device)
        named = f" WHERE device = '{uuid}'" if uuid is not None else ""
        statement = f"SELECT max(used_bytes) FROM gpu{named}"
    for row in recording.select(statement, stopped):
        if isinstance(row[0], int):
            return row[0]
    return None


def _uuid(recording: Recording, device: str) -> str | None:
    """The key of the readings of ``device``; ``None`` where the recording does not tell, so that every GPU counts."""
    for row in recording.select("SELECT json FROM event WHERE kind = 'Note' AND json LIKE '%torch_names%' LIMIT 8"):
        details = _read(row).get("details")
        names = details.get("torch_names") if isinstance(details, dict) else None
        found = names.get(device) if isinstance(names, dict) else None
        if isinstance(found, str) and found.replace("-", "").isalnum():
            return found
    return None


def _duration(recording: Recording) -> float | None:
    ends = [
        float(row[0])
        for table in _LENGTHS
        for row in recording.select(f"SELECT time_s FROM {table} ORDER BY rowid DESC LIMIT 1")
        if isinstance(row[0], int | float) and row[0] < LONGEST_S
    ]
    return max(ends, default=None)


def _read(row: sqlite3.Row) -> dict[str, Any]:
    try:
        found = json.loads(row[0])
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _distinct(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if word))


def wall_clock_s(text: str) -> float | None:
    """Seconds since the epoch of a date and time; ``None`` where it is none of the years from 1970 to some 9800."""
    try:
        found = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < LATEST_S else None


def _sentence(notices: list[str]) -> str:
    if not notices:
        return ""
    more = f" (and {len(notices) - 1} more)" if len(notices) > 1 else ""
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


def annotate(path: Path, key: str, value: str) -> None:
    """Set a key of the table ``meta``, "" removes it. The file's date stays: it says when the session was.

    Raises:
        RecordingError: one sentence, when the file is gone, no recording, damaged, being written or not writable.
    """
    with open_recording(path) as recording:
        damaged = bool(recording.notices)
    if damaged:
        raise RecordingError(f"{path.name} is damaged and is left as it is.")
    if being_written(path):
        raise RecordingError(f"{path.name} is being recorded; it can be changed when its session has ended.")
    if not os.access(path, os.W_OK):
        raise RecordingError(f"{path.name} is read-only; make it writable to change it.")
    status = path.stat()
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            if connection.execute(_OTHERS_CODE).fetchone() is not None:
                raise RecordingError(f"{path.name} holds triggers or indexes of its own and is left as it is.")
            if value:
                connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
            else:
                connection.execute("DELETE FROM meta WHERE key = ?", (key,))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    except (sqlite3.Error, OSError) as error:
        raise RecordingError(f"{path.name} cannot be changed ({error}).") from None


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
