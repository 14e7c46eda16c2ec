"""Recordings of a few rows, made as a session makes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Note, Record, RunStarted, Sample
from gpudash.units import GIB, MIB
from tests.unit.telemetry.run_ends import FAILED, RAN_OUT

ORIGIN = "2025-03-04T12:05:06+00:00"
ORIGIN_S = 1741089906.0
UUID = "GPU-1"


def ending(status: str) -> Record:
    """The end of run 1 after 8 s, at 9 s."""
    if status == "failed":
        return replace(FAILED, time_s=9.0, seconds=8.0)
    if status == "out_of_memory":
        return replace(RAN_OUT, time_s=9.0, message="full", seconds=8.0)
    assert status in ("finished", "cancelled")
    return replace(RAN_OUT, time_s=9.0, status=status, error="", message="", seconds=8.0)


def record(
    path: Path,
    *,
    workload: str = "training",
    device: str = "cpu",
    status: str = "finished",
    meta: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """A recording of one run of 8 s and readings of 10 s; status "" records no run, "running" leaves it open."""
    recorder = begin(path, workload=workload, device=device, status=status, meta=meta)
    recorder.close()
    return path


def begin(
    path: Path,
    *,
    workload: str = "training",
    device: str = "cpu",
    status: str = "finished",
    meta: Mapping[str, Any] = MappingProxyType({}),
) -> Recorder:
    """As `record`, still being written."""
    recorder = Recorder(path, meta={"wall_clock_origin": ORIGIN, **meta})
    recorder.add(
        Note(
            time_s=0.1,
            topic="gpus",
            text="",
            details={"gpus": [], "torch_names": {device: UUID} if device != "cpu" else {}},
        )
    )
    if status:
        simulated = device.startswith("sim")
        recorder.add(RunStarted(time_s=1.0, run_id=1, workload=workload, device=device, spec={}, simulated=simulated))
    for second in range(11):
        recorder.add(
            Sample(float(second), "host", None, {"process_bytes": (100 + second) * MIB, "total_bytes": 8 * GIB})
        )
        recorder.add(Sample(float(second), "gpu", UUID, {"used_bytes": (1 + second) * GIB, "total_bytes": 24 * GIB}))
        recorder.add(Sample(float(second), "gpu", "GPU-2", {"used_bytes": 20 * GIB, "total_bytes": 24 * GIB}))
    if status not in ("", "running"):
        recorder.add(ending(status))
    recorder.commit()
    return recorder


def dated(path: Path, seconds: float) -> Path:
    """``path``, last written at ``seconds`` since the epoch."""
    os.utime(path, (seconds, seconds))
    return path
