"""A snapshot file that is read when a test says so."""

from __future__ import annotations

from pathlib import Path

from gpudash.memory.snapshot.history.model import Snapshot, SnapshotError
from gpudash.memory.snapshot.replay.what_if import WhatIfAnswer


class FakeOpened:
    """Has the methods of `OpenedSnapshot`, and no process.

    Attributes:
        snapshot: what was read; ``None`` until then.
        refusal: why it was not; "" when it was.
        asked: questions so far.
        answers: by the number of the question.
        closings: how often it was closed.
    """

    def __init__(self, path: Path = Path("run7.pickle"), snapshot: Snapshot | None = None) -> None:
        self.path = path
        self.snapshot = snapshot
        self.refusal = ""
        self.progress = (0, 0)
        self.starts = 0
        self.closings = 0
        self.requested: list[tuple[int, int | None, str | None]] = []
        self.answers: dict[int, WhatIfAnswer | str] = {}

    def start(self) -> None:
        self.starts += 1

    def poll(self) -> Snapshot | None:
        if self.refusal:
            raise SnapshotError(self.refusal)
        return self.snapshot

    def ask(self, device_index: int, capacity_bytes: int | None, settings_text: str | None) -> int:
        self.requested.append((device_index, capacity_bytes, settings_text))
        return len(self.requested)

    def answer(self, number: int) -> WhatIfAnswer | None:
        found = self.answers.get(number)
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def close(self) -> None:
        self.closings += 1
