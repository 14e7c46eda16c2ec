"""The trash folder: how long what lies in it has been there, and when it goes for good."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpudash.files import written_whole

KEPT_S = 30 * 86400.0
"""How long the trash keeps what is in it: 30 days, in seconds."""

INDEX = "index.json"
"""In the trash: since when each thing in it is there, seconds since the epoch. A moved file keeps its own date."""


def purge_trash(trash: Path, now_s: float, kept_s: float = KEPT_S) -> list[str]:
    """Delete what has been in the trash for too long; what is seen there for the first time is noted, and stays.

    Args:
        trash: nothing happens when it does not exist.
        now_s: seconds since the epoch.
        kept_s: how long things are kept.

    Returns:
        The names of what was deleted.
    """
    if not trash.is_dir():
        return []
    noted, now = _read(trash), {entry.name for entry in trash.iterdir() if entry.name != INDEX}
    since = {name: min(noted.get(name, now_s), now_s) for name in sorted(now)}
    gone = []
    for name in [name for name, moment in since.items() if now_s - moment > kept_s]:
        if _delete(trash / name):
            del since[name]
            gone.append(name)
    if since != noted:
        _write(trash, since)
    return gone


def empty_trash(trash: Path) -> list[str]:
    """Delete everything in the trash; returns the names of what could not be deleted."""
    if not trash.is_dir():
        return []
    kept = [entry.name for entry in sorted(trash.iterdir()) if not _delete(entry)]
    return [name for name in kept if name != INDEX]


def _delete(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False
    return True


def _read(trash: Path) -> Mapping[str, float]:
    try:
        found = json.loads((trash / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    numbers = found.items() if isinstance(found, dict) else ()
    return {name: float(value) for name, value in numbers if isinstance(value, int | float)}


def _write(trash: Path, since: Mapping[str, float]) -> None:
    """Keep the index; where it cannot be written, everything stays longer."""
    with suppress(OSError), written_whole(trash / INDEX) as part:
        part.write_text(json.dumps(since, indent=1), encoding="utf-8")
