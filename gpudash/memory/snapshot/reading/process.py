"""The child process that reads a snapshot file under limits, and then answers questions about it.

Its first line of standard input says what to read: ``{"path", "folder", "parent", "memory_bytes"}``. It writes lines of
JSON: ``{"progress": [bytes, bytes]}`` now and then, at the end ``{"refused": sentence}`` or ``{"read": true}`` when the
snapshot is in the folder. Then it takes ``{"question", "device", "capacity", "settings"}``, of which the newest counts,
and writes ``{"answer": number, "result"}`` or ``{"answer": number, "problem": sentence}``.

The file may be hostile: before it is read the process limits its own memory and CPU time, and it ends with its parent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.memory.snapshot.history.model import DeviceSnapshot, Snapshot, SnapshotError
from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.memory.snapshot.reading.source import ReadLimits, name_of
from gpudash.memory.snapshot.reading.stored import store
from gpudash.system.processes import Conversation, die_with, lift_cpu_limit, limit
from gpudash.units import MIB

if TYPE_CHECKING:
    from gpudash.memory.snapshot.replay.what_if import WhatIf

NAME = b"gpudash-reader"
"""Of the process, at most 15 bytes."""

REPORTED_EVERY_S = 0.05
STARTING_CPU_S = 15

CPU_S_PER_MIB = 1
"""Reading takes 0.03 s a MiB at most; a file made to take longer is none of torch's."""

Report = Callable[[Mapping[str, Any]], None]


def main() -> int:
    """Read, tell, and answer until standard input ends."""
    conversation = Conversation()
    conversation.start()
    try:
        request = conversation.next()
    except ValueError:
        return 2
    die_with(request["parent"], NAME)
    snapshot = _read(request, conversation.report)
    if snapshot is not None:
        _answer(snapshot, conversation)
    return 0


def _read(request: Mapping[str, Any], report: Report) -> Snapshot | None:
    path, memory_bytes = Path(request["path"]), int(request["memory_bytes"])
    try:
        size = path.stat().st_size
        limit(memory_bytes, STARTING_CPU_S + CPU_S_PER_MIB * (size // MIB))
        snapshot = read_snapshot(path, limits=ReadLimits(memory_bytes=memory_bytes), progress=_paced(report))
        store(snapshot, Path(request["folder"]))
    except SnapshotError as error:
        report({"refused": str(error)})
    except OSError as error:
        report({"refused": f"{name_of(path)} cannot be read: {error.strerror or error}."})
    except MemoryError:
        report({"refused": f"{name_of(path)} needs more than {memory_bytes:,} bytes of memory: allow more to open it."})
    else:
        lift_cpu_limit()
        report({"read": True})
        return snapshot
    return None


def _paced(report: Report) -> Callable[[int, int], None]:
    next_at = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal next_at
        now = time.monotonic()
        if now >= next_at:
            next_at = now + REPORTED_EVERY_S
            report({"progress": [done, total]})

    return progress


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
    """As long as nothing is asked, replay what is likely to be."""
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
        return  # a trace that cannot be replayed: whoever asks is told


def _result(snapshot: Snapshot, question: Mapping[str, Any], answering: dict[int, Any]) -> Any:
    index = question["device"]
    if index not in answering:
        devices = {device.index: device for device in snapshot.devices}
        if index not in devices:
            raise ValueError(f"The snapshot has no device {index}.")
        answering[index] = _answering(snapshot, devices[index])
    return answering[index].answer(question["capacity"], question["settings"]).to_json()


def _answering(snapshot: Snapshot, device: DeviceSnapshot) -> WhatIf:
    # only those who ask wait for it to be imported
    from gpudash.memory.snapshot.history.history import History
    from gpudash.memory.snapshot.replay.rest_of_step import what_if_of

    return what_if_of(device, lambda: History(device, snapshot.annotations))


if __name__ == "__main__":
    sys.exit(main())
