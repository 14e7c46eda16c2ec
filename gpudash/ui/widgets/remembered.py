"""What the window remembers between starts: the files opened last, the script that was run last."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpudash.system.files import make_private_folder, written_whole
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular
from gpudash.system.foreign_text import json_object

RECENT_FILES = 10
"""Maximum number of files in Open Recent."""

MOST_BYTES = 16 * 2**20
"""Maximum size of the file that is read; what the window remembers takes some KB."""

_RECENT = "recent_files"


def recall(name: str) -> Any:
    """The value stored under ``name``; ``None`` if there is none, or it cannot be read."""
    return _read().get(name)


def remember(name: str, value: Any) -> None:
    """Store ``value``, which must be representable in JSON, under ``name``; does nothing if it cannot be written."""
    target = _state_file()
    with suppress(OSError):
        make_private_folder(target.parent)
        with written_whole(target, private=True) as part:
            part.write_text(
                json.dumps({**_read(), name: value}, indent=2, ensure_ascii=False),
                encoding="utf-8",
                errors="backslashreplace",
            )


def recall_of(name: str, topic: str) -> dict[str, Any]:
    """The values stored for ``topic`` under ``name``, by key; empty if there are none."""
    kept = recall(name)
    of_topic = None
    if isinstance(kept, dict):
        of_topic = kept.get(topic)
    if isinstance(of_topic, dict):
        return of_topic
    return {}


def remember_of(name: str, topic: str, value: dict[str, Any]) -> None:
    """Store ``value`` for ``topic`` under ``name``, beside those of other topics."""
    kept = recall(name)
    remember(name, {**(kept if isinstance(kept, dict) else {}), topic: value})


def recent_files() -> list[Path]:
    """The files opened last, newest first."""
    kept = recall(_RECENT)
    if isinstance(kept, list):
        return [Path(path) for path in kept if isinstance(path, str)][:RECENT_FILES]
    return []


def add_recent(path: Path) -> None:
    """Put ``path`` first among the files opened last."""
    files = [path, *(other for other in recent_files() if other != path)]
    remember(_RECENT, list(map(str, files[:RECENT_FILES])))


def forget_recent(path: Path | None = None) -> None:
    """Remove ``path`` from the files opened last, or remove all of them."""
    if path is None:
        kept = []
    else:
        kept = [file for file in recent_files() if file != path]
    remember(_RECENT, list(map(str, kept)))


def _state_file() -> Path:
    return data_folder() / "state.json"


def _read() -> dict[str, Any]:
    try:
        return json_object(read_regular(_state_file(), MOST_BYTES)) or {}
    except (OSError, ValueError):
        return {}
