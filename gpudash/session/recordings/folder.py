"""Where sessions are recorded, and how much space that takes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpudash.system.settings import Settings, recordings_folder
from gpudash.telemetry.recording.recorder import log_files
from gpudash.telemetry.recording.retention import prune, purge_trash, trash_folder
from gpudash.telemetry.recording.schema import recording_name


def recording_target(settings: Settings, name: str, *, file: Path | None, record: bool) -> Path | None:
    """Choose where to record a session: the named file, a new one in the recordings folder, or nowhere.

    If the name of the new file is taken, it is numbered when the session starts.
    """
    if file is not None:
        return file
    if not record or not settings.record:
        return None
    return recording_name(recordings_folder(), name)


def tidy(settings: Settings, recording: Path | None) -> str | None:
    """Enforce the limits of the recordings folder if ``recording`` is in it; return a sentence if that failed."""
    if recording is None or recording.parent != recordings_folder():
        return None
    try:
        prune(recording.parent, settings.recordings_bytes, settings.recordings_count, keep=recording)
        purge_trash(trash_folder(recording.parent), time.time())
    except OSError as error:
        return f"Old recordings were not tidied ({error})."
    return None


def size_on_disk(recording: Path | None) -> int:
    """Bytes of a recording, including the log that SQLite keeps beside it while it is written."""
    size = 0
    for file in () if recording is None else (recording, log_files(recording)[0]):
        with suppress(OSError):
            size += file.stat().st_size
    return size


def session_meta(
    began_wall_s: float, settings: Settings, host_product: str, host_capacity_source: str
) -> dict[str, Any]:
    """What a recording says about its session, in ``meta``; `Replay` reads it back."""
    return {
        "wall_clock_origin": datetime.fromtimestamp(began_wall_s, UTC).isoformat(),
        "rate_hz": settings.rate_hz,
        "host_product": host_product,
        "host_cpus": os.cpu_count() or 0,
        "host_capacity_source": host_capacity_source,
    }
