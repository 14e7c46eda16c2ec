"""The child process that reads a snapshot file under limits, and then answers questions about it.

Its first line of standard input also names a ``"folder"``, which contains the snapshot after ``{"read": true}``
(`gpudash.system.opened_file`). It then reads ``{"question", "device", "capacity", "settings"}``, of which the newest
counts, and writes ``{"answer": number, "result"}`` or ``{"answer": number, "problem": sentence}``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.memory.snapshot.history.model import DeviceSnapshot, Snapshot, SnapshotError
from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.memory.snapshot.reading.source import ReadLimits
from gpudash.memory.snapshot.reading.stored import store
from gpudash.system.opened_file import FileReader
from gpudash.system.processes import Conversation, lift_cpu_limit

if TYPE_CHECKING:
    from gpudash.memory.snapshot.replay.what_if import WhatIf

STARTING_CPU_S = 15

CPU_S_PER_MIB = 1
"""Reading takes at most 0.03 s for each MiB; a file that takes much longer is malicious, not torch's."""


def main() -> int:
    """Read the file, report, and answer until standard input ends."""
    reader = FileReader(b"gpudash-reader")

    def read() -> Snapshot:
        limits = ReadLimits(memory_bytes=reader.memory_bytes)
        snapshot = read_snapshot(reader.path, limits=limits, progress=reader.progress)
        store(snapshot, Path(reader.request["folder"]))
        return snapshot

    snapshot = reader.read(
        read,
        SnapshotError,
        cpu_s=STARTING_CPU_S,
        cpu_s_per_mib=CPU_S_PER_MIB,
        remedy="allow more to open it",
    )
    if snapshot is not None:
        lift_cpu_limit()
        reader.report({"read": True})
        _answer(snapshot, reader)
    return 0


def _answer(snapshot: Snapshot, conversation: Conversation) -> None:
    answering: dict[int, Any] = {}
    while True:
        _prepare(snapshot, conversation, answering)
        question = conversation.newest()
        number = question["question"]
        try:
            conversation.report({"answer": number, "result": _result(snapshot, question, answering)})
        except (SnapshotError, ValueError, LookupError) as error:
            conversation.report({"answer": number, "problem": str(error)})
        except MemoryError:
            answering.clear()
            conversation.report({"answer": number, "problem": "There is not enough memory to replay this trace."})


def _prepare(snapshot: Snapshot, conversation: Conversation, answering: dict[int, Any]) -> None:
    """While there are no questions, replay what is likely to be asked."""
    try:
        for device in snapshot.devices:
            if device.index not in answering:
                answering[device.index] = _answering(snapshot, device)
            known = answering[device.index]
            while not conversation.waits and known.prepare():
                pass
    except MemoryError:
        answering.clear()
    except (ValueError, LookupError):
        return  # a trace that cannot be replayed: answers report it


def _result(snapshot: Snapshot, question: Mapping[str, Any], answering: dict[int, Any]) -> Any:
    index = question["device"]
    if index not in answering:
        devices = {device.index: device for device in snapshot.devices}
        if index not in devices:
            raise ValueError(f"The snapshot has no device {index}.")
        answering[index] = _answering(snapshot, devices[index])
    return answering[index].answer(question["capacity"], question["settings"]).to_json()


def _answering(snapshot: Snapshot, device: DeviceSnapshot) -> WhatIf:
    # Imported late: only questions need it.
    from gpudash.memory.snapshot.history.history import History
    from gpudash.memory.snapshot.replay.rest_of_step import what_if_of

    return what_if_of(device, lambda: History(device, snapshot.annotations))


if __name__ == "__main__":
    sys.exit(main())
