"""Recordings of any length for tests, written as a session writes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import (
    EpochFinished,
    Marker,
    Note,
    Record,
    RunEnd,
    RunStarted,
    Sample,
    StageFinished,
    StepFinished,
    Warning,
)
from gpudash.telemetry.store import Store
from tests.unit.telemetry.copies import copied

TICK_S = 0.05
GPU = "GPU-0"
FACTS = {"nvml_index": 0, "uuid": GPU, "pci_bus_id": "41:00.0", "product": "NVIDIA X", "total_bytes": 2**30}


def records(ticks: int, run_from: int = 100, run_until: int | None = None) -> Iterator[Record]:
    """A session of ``ticks`` ticks, six rows each or so, with a run that ends ten ticks before the end."""
    run_until = ticks - 10 if run_until is None else run_until
    details = {"gpus": [FACTS], "torch_names": {"cuda:0": GPU}}
    yield Note(time_s=0.0, topic="gpus", text="", details=details)
    for i in range(ticks):
        t = i * TICK_S
        used = 1000 + i % 977 + (50_000 if i == ticks // 3 else 0)
        host = {"total_bytes": 10**6, "used_bytes": used, "process_bytes": used // 2, "cpu_utilisation": i % 100 / 100}
        yield Sample(t, "host", None, host)
        yield Sample(t, "gpu", GPU, {"used_bytes": used * 2, "total_bytes": 10**6, "process_bytes": used})
        if i % 40 == 0:
            yield Sample(t, "process", GPU, {"pid": 1, "name": "a", "memory_bytes": i})
            yield Sample(t, "process", GPU, {"pid": 2, "name": "b", "memory_bytes": 7})
        if i == run_from:
            yield RunStarted(time_s=t, run_id=1, workload="training", device="cuda:0", spec={"steps": ticks})
            yield StageFinished(time_s=t + 0.001, run_id=1, name="move model", seconds=0.01)
        if run_from < i < run_until:
            yield from _of_run(i, t, run_from, ticks, used)
        if i == run_until:
            memory = {"peak_allocated_bytes": 5, "peak_reserved_bytes": 6}
            result = {"ok": True, "memory": memory}
            steps, seconds = i - run_from - 1, t - run_from * TICK_S
            yield RunEnd(time_s=t + 0.001, run_id=1, status="finished", seconds=seconds, steps=steps, result=result)


def _of_run(i: int, t: float, run_from: int, ticks: int, used: int) -> Iterator[Record]:
    step = i - run_from
    yield Sample(t, "allocator", "cuda:0", {"allocated_bytes": used // 4, "reserved_bytes": used // 2})
    loss = math.nan if i % 1003 == 0 else 5.0 / step + i % 7 / 100
    yield StepFinished(time_s=t, run_id=1, step=step, steps=ticks, seconds=TICK_S, loss=loss, throughput=10.0 + i % 13)
    if i % 10 == 0:
        yield StageFinished(time_s=t, run_id=1, name="forward", seconds=0.01 * (i % 9), count=10, bytes=i)
        yield copied(t, i, 0.01)
    if i % 500 == 0:
        yield EpochFinished(
            time_s=t, run_id=1, epoch=i // 500, device="cuda:0", loss=loss, accuracy=0.5, seconds=1.0, observation=""
        )
        yield Marker(time_s=t, label=f"mark {i}")
    if i % 900 == 0:
        yield Warning(time_s=t, run_id=1, level="warning", device="host", text="full", ratio=0.9, actions=[])


def write(path: Path, found: Iterator[Record], *, summaries: bool = True, close: bool = True) -> tuple[Store, Recorder]:
    """A recording of these records; and the store that took them in, as the live session's did."""
    store = Store()
    store.link("cuda:0", GPU)
    recorder = Recorder(path, meta={"purpose": "test"})
    if summaries:
        recorder.summarise(store)
    for record in found:
        store.apply(record)
        recorder.add(record)
    recorder.commit()
    if close:
        recorder.close()
    return store, recorder
