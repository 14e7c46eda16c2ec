"""What was read of the recordings the last time, so that a folder of a hundred is shown at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import gpudash
from gpudash.settings import data_folder
from gpudash.telemetry.facts import Facts


@dataclass(frozen=True, slots=True)
class Stamp:
    """Tells whether a file is still the one that was read: nanoseconds of its last writing and last change, bytes."""

    changed_ns: int
    status_ns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What a recording was about when its file had this stamp."""

    stamp: Stamp
    facts: Facts


def load_cache() -> dict[Path, Kept]:
    """What was kept; nothing where it cannot be read or another version of gpudash kept it."""
    try:
        found = json.loads(_file().read_text(encoding="utf-8"))
        if found["version"] != gpudash.__version__:
            return {}
        return {Path(path): Kept(Stamp(*kept["stamp"]), _facts(kept["facts"])) for path, kept in found["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def save_cache(kept: Mapping[Path, Kept]) -> None:
    """Keep what was read; where nothing can be written, it is read again the next time."""
    files = {
        str(path): {"stamp": list(asdict(one.stamp).values()), "facts": asdict(one.facts)} for path, one in kept.items()
    }
    target = _file()
    temporary = target.with_suffix(".part")
    with suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"version": gpudash.__version__, "files": files}), encoding="utf-8")
        temporary.replace(target)


def _facts(kept: Mapping[str, Any]) -> Facts:
    """The facts of one file.

    Raises:
        KeyError: when one is missing.
    """
    values: dict[str, Any] = {field.name: kept[field.name] for field in fields(Facts)}
    for name in ("workloads", "devices"):
        values[name] = tuple(values[name])
    return Facts(**values)


def _file() -> Path:
    return data_folder() / "library.json"
