"""What CUDA contexts took on the GPUs of this machine, kept for the predictions of later sessions."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from gpudash.settings import data_folder
from gpudash.units import GIB, MIB

PLAUSIBLE_BYTES = range(32 * MIB, 8 * GIB)
"""A context outside of this was not measured but mixed up with a reading of another instant."""


def measured_context(uuid: str) -> int | None:
    """Bytes that the context of an earlier run took on a GPU; ``None`` when none was measured."""
    return _read().get(uuid)


def remember_context(uuid: str, size: int) -> None:
    """Keep what a context took; a size that cannot be one is not kept."""
    known = _read()
    if size not in PLAUSIBLE_BYTES or known.get(uuid) == size:
        return
    with suppress(OSError):  # it only makes later predictions a little better
        _file().parent.mkdir(parents=True, exist_ok=True)
        _file().write_text(json.dumps({**known, uuid: size}, indent=2), encoding="utf-8")


def _file() -> Path:
    return data_folder() / "contexts.json"


def _read() -> dict[str, int]:
    try:
        found = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {uuid: size for uuid, size in found.items() if isinstance(size, int) and size in PLAUSIBLE_BYTES}
