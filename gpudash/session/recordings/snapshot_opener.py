"""Snapshot files, each opened by a child process, which stays to answer what-if questions."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.memory.snapshot.history.model import Snapshot, SnapshotError
from gpudash.memory.snapshot.reading.source import ReadLimits
from gpudash.memory.snapshot.reading.stored import load
from gpudash.system.child_process import ChildProcess
from gpudash.system.files import PrivateFolder
from gpudash.system.opened_file import OpenedFile

if TYPE_CHECKING:
    from gpudash.memory.snapshot.replay.what_if import WhatIfAnswer

KEPT_ANSWERS = 100


class OpenedSnapshot(OpenedFile[Snapshot]):
    """A snapshot file that is being read, or has been; a refusal is a `SnapshotError`.

    Args:
        path: of the file.
        memory_bytes: limit for the process; a larger file is read in part. That of `ReadLimits` by default.
        process: program and arguments to run instead of `command`.
    """

    KIND = "snapshot"
    MODULE = "gpudash.memory.snapshot.reading.process"
    REFUSAL = SnapshotError

    def __init__(self, path: Path, *, memory_bytes: int | None = None, process: tuple[str, ...] | None = None) -> None:
        super().__init__(path, memory_bytes or ReadLimits().memory_bytes, process)
        self._requested = 0
        self._question: dict[str, Any] | None = None
        self._answers: dict[int, WhatIfAnswer | str] = {}
        self._folder: PrivateFolder | None = None

    def ask(self, device_index: int, capacity_bytes: int | None, settings_text: str | None) -> int:
        """Ask what would have happened; only the newest question is certain to be answered.

        Args:
            device_index: index in the file.
            capacity_bytes: limit for the allocator; ``None``: no limit.
            settings_text: as in ``PYTORCH_CUDA_ALLOC_CONF``; ``None``: the recorded ones.

        Returns:
            The number of the question.
        """
        with self._changed:
            self._requested += 1
            self._question = {
                "question": self._requested,
                "device": device_index,
                "capacity": capacity_bytes,
                "settings": settings_text,
            }
            self._rouse()
            return self._requested

    def answer(self, number: int) -> WhatIfAnswer | None:
        """The answer to a question, or ``None`` until there is one.

        Raises:
            ValueError: it could not be answered, in one sentence.
        """
        with self._changed:
            found = self._answers.get(number)
            if found is None and number <= self._requested and self._refusal is not None:
                raise ValueError(self._refusal)
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def _prepare(self) -> Mapping[str, Any]:
        self._folder = PrivateFolder(Path(tempfile.gettempdir()), "gpudash-snapshot-")
        return {"folder": str(self._folder.path)}

    def _read(self, found: Any) -> Snapshot:
        assert self._folder is not None
        snapshot = load(self._folder.path)
        self._clean_up()
        return snapshot

    def _ask(self, process: ChildProcess) -> None:
        with self._changed:
            question = self._question
            self._question = None
        if question is not None:
            process.send(question)

    def _take(self, message: Mapping[str, Any]) -> None:
        from gpudash.memory.snapshot.replay.what_if import WhatIfAnswer

        if "problem" in message:
            found: WhatIfAnswer | str = str(message["problem"])
        else:
            found = WhatIfAnswer.from_json(message["result"])
        with self._changed:
            self._answers[int(message["answer"])] = found
            while len(self._answers) > KEPT_ANSWERS:
                del self._answers[min(self._answers)]
            self._changed.notify_all()

    def _ending(self, how: str) -> str:
        if how.startswith(("killed", "signal")) and how != "signal SIGXCPU":
            return f"{self._name} made the process that read it end ({how}): torch has not written it so."
        return super()._ending(how)

    def _clean_up(self) -> None:
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
