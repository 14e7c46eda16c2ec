"""What the user says of a recording, kept in the recording: that it is locked, what it is called.

Which marks stand: the user can take one back, and make it again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import RecordingError, being_written
from gpudash.telemetry.records import REMOVED, Marker

BUSY_S = 1.0
"""Longest that is waited for somebody else who has the file open."""

_OTHERS_CODE = (
    "SELECT 1 FROM sqlite_master WHERE lower(tbl_name) = 'meta' AND lower(name) <> 'meta' AND sql IS NOT NULL"
)
"""Finds what SQLite would run when a row of ``meta`` changes; a recording has nothing of the kind."""


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
