"""Limits the size of the folders of recordings and reports: the oldest are moved to a trash folder for a while."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpudash.system.files import make_private_folder, written_whole
from gpudash.system.foreign_files import read_regular
from gpudash.system.foreign_text import json_object
from gpudash.telemetry.recording.reading import is_locked
from gpudash.telemetry.recording.recorder import being_written, log_files
from gpudash.telemetry.recording.schema import SUFFIX, traces_of

MOST_INDEX_BYTES = 16 * 2**20
"""Largest index file of the trash: it has a line for each recording."""


@dataclass(frozen=True, slots=True)
class _Stored:
    path: Path
    bytes: int
    changed: float


def trash_folder(folder: Path) -> Path:
    """The trash folder of ``folder``."""
    return folder.parent / "trash"


def prune(folder: Path, max_bytes: int, max_count: int, keep: Path | None = None) -> list[Path]:
    """Move the oldest recordings to the trash until the rest is within both limits.

    A recording stays, and counts, if it is ``keep``, is being written, is not writable, or has the meta key
    ``locked``. A file that cannot be moved stays too.

    Args:
        folder: folder of the recordings; it need not exist.
        max_bytes: largest total size of all recordings with their logs.
        max_count: largest number of recordings.

    Returns:
        The new paths of the moved recordings, oldest first.
    """

    def move(path: Path) -> Path | None:
        return None if _stays(path) else move_to_trash(path, trash_folder(folder))

    return _pruned(_stored(folder), max_bytes, max_count, keep, move)


def prune_reports(folder: Path, max_bytes: int, max_count: int, keep: Path | None = None) -> list[Path]:
    """Move the oldest out-of-memory reports, a folder each, to the trash until the rest is within both limits.

    Args:
        folder: folder of the reports; it need not exist.
        keep: a report that stays, and counts.

    Returns:
        The new paths of the moved reports, oldest first.
    """
    found = []
    for path in folder.glob("[!.]*/"):
        with suppress(OSError):
            size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
            found.append(_Stored(path, size, path.stat().st_mtime))
    return _pruned(found, max_bytes, max_count, keep, lambda path: _folder_to_trash(path, trash_folder(folder)))


def _pruned(
    stored: Sequence[_Stored],
    max_bytes: int,
    max_count: int,
    keep: Path | None,
    move: Callable[[Path], Path | None],
) -> list[Path]:
    """Move the oldest until the rest is within both limits; returns the new paths.

    Args:
        move: moves one and returns its new path; ``None`` if it stays.
    """
    total, count = sum(item.bytes for item in stored), len(stored)
    moved: list[Path] = []
    # By name if the time is the same: names begin with the date.
    for item in sorted(stored, key=lambda item: (item.changed, item.path.name)):
        if total <= max_bytes and count <= max_count:
            break
        # Skip it, but go on: what stays counts towards both limits.
        if keep is not None and _same(item.path, keep):
            continue
        with suppress(OSError):
            target = move(item.path)
            if target is not None:
                moved.append(target)
                total -= item.bytes
                count -= 1
    return moved


def _folder_to_trash(path: Path, trash: Path) -> Path:
    """Move a report, under a name that is free in the trash."""
    make_private_folder(trash)
    target, number = trash / path.name, 2
    while target.exists():
        target = trash / f"{path.name}-{number}"
        number += 1
    return path.replace(target)


def _stored(folder: Path) -> list[_Stored]:
    found: list[_Stored] = []
    # Its logs and traces move with it, so they count too.
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            status = path.stat()
            companions = (*log_files(path), *traces_of(path))
            more = sum(file.stat().st_size for file in companions if file.exists())
            found.append(_Stored(path, status.st_size + more, status.st_mtime))
    return found


def _same(path: Path, other: Path) -> bool:
    return path.resolve() == other.resolve()


def _stays(path: Path) -> bool:
    return being_written(path) or not os.access(path, os.W_OK) or is_locked(path)


def move_to_trash(path: Path, trash: Path) -> Path:
    """Move a recording with its logs, under a name that is free in the trash; returns its new path.

    Raises:
        OSError: if it cannot be moved; it then stays.
    """
    make_private_folder(trash)
    return move_recording(path, trash / path.name)


def move_recording(path: Path, target: Path) -> Path:
    """Move a recording with its logs and the traces of its profiles; returns its new path.

    Args:
        path: the recording.
        target: the new path; numbered from 2 if it is taken.

    Raises:
        OSError: if it cannot be moved; it then stays.
    """
    wanted, number = target, 2
    while target.exists():
        target = wanted.with_name(f"{wanted.stem}-{number}{SUFFIX}")
        number += 1
    path.replace(target)
    # After the recording: it is readable without them, but they are useless without it.
    for log, target_log in zip(log_files(path), log_files(target), strict=True):
        if log.exists():
            log.replace(target_log)
    for trace in traces_of(path):
        with suppress(OSError):  # the recording has moved, and contains the profile's results
            trace.replace(target.with_name(target.stem + trace.name.removeprefix(path.stem)))
    return target


KEPT_S = 30 * 86400.0
"""How long the trash keeps its content: 30 days, in seconds."""

INDEX = "index.json"
"""File in the trash with the time at which each item arrived, in seconds since the epoch. Moved files keep their
date."""


def purge_trash(trash: Path, now_s: float) -> list[str]:
    """Delete what has been in the trash for too long; new items are added to the index, and stay.

    Args:
        trash: the trash folder; it need not exist.
        now_s: seconds since the epoch.

    Returns:
        The names of the deleted items.
    """
    if not trash.is_dir():
        return []
    noted, now = _read(trash), {entry.name for entry in trash.iterdir() if entry.name != INDEX}
    # New items count from now; a clock that was set back must not keep items longer.
    since = {name: min(noted.get(name, now_s), now_s) for name in sorted(now)}
    gone = []
    for name in [name for name, moment in since.items() if now_s - moment > KEPT_S]:
        if _delete(trash / name):
            del since[name]
            gone.append(name)
    if since != noted:
        _write(trash, since)
    return gone


def empty_trash(trash: Path) -> list[str]:
    """Delete everything in the trash; returns the names of items that could not be deleted."""
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
        found = json_object(read_regular(trash / INDEX, MOST_INDEX_BYTES)) or {}
    except (OSError, ValueError):
        return {}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _write(trash: Path, since: Mapping[str, float]) -> None:
    """Store the index; if it cannot be written, everything stays longer."""
    with suppress(OSError), written_whole(trash / INDEX, private=True) as part:
        part.write_text(json.dumps(since, indent=1), encoding="utf-8")
