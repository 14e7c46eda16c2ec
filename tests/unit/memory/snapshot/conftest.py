"""A file to read, and the reader in both its ways."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.memory.snapshot.reading import reader as reading
from gpudash.memory.snapshot.reading.reader import read_snapshot

Read = Callable[..., Snapshot]
Write = Callable[[object], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(data: object) -> Path:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(data if isinstance(data, bytes) else pickle.dumps(data))
        return path

    return write


@pytest.fixture(params=["fast", "sparing"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Read:
    """The reader, once with CPython's unpickler and once without."""
    if request.param == "sparing":
        monkeypatch.setattr(reading, "ROOM_PER_BYTE", 2**40)
    return read_snapshot
