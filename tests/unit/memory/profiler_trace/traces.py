"""Trace files as torch.profiler writes them, of a few events."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def operator(name: str, start: float, duration: float, number: int, **more: Any) -> Event:
    arguments = {"External id": number, "Input Dims": [[2, 3], []]}
    return {"cat": "cpu_op", **_span(name, start, duration, arguments), **more}


def launch(start: float, correlation: int) -> Event:
    arguments = {"External id": correlation, "correlation": correlation}
    return {"cat": "cuda_runtime", **_span("cudaLaunchKernel", start, 1, arguments)}


def kernel(start: float, duration: float, correlation: int, number: int) -> Event:
    arguments = {"External id": number, "correlation": correlation, "device": 0, "stream": 7}
    return {"cat": "kernel", **_span("gemm", start, duration, arguments), "pid": 0, "tid": 7}


def memory(time: float, size: int, address: int, allocated: int, device: int = 0) -> Event:
    arguments = {
        "Total Reserved": 1000,
        "Total Allocated": allocated,
        "Bytes": size,
        "Device Id": device,
        "Device Type": 1,
        "Addr": address,
    }
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": 2,
        "ts": time,
        "args": arguments,
    }


def _span(name: str, start: float, duration: float, arguments: Event) -> Event:
    return {"ph": "X", "name": name, "pid": 1, "tid": 2, "ts": start, "dur": duration, "args": arguments}


ON_A_GPU = (
    operator("aten::linear", 100, 50, 1),
    operator("aten::mm", 110, 30, 2),
    launch(120, 901),
    kernel(160, 40, 901, 901),
    operator("aten::relu", 200, 10, 3),
    kernel(215, 5, 0, 3),
    memory(112, 600, 0xA, 600),
    memory(115, 300, 0xB, 900),
    memory(130, -600, 0xA, 300),
    memory(205, 100, 0xC, 400),
    memory(300, -300, 0xB, 100),
)


def document(events: Sequence[Event] = ON_A_GPU, **facts: Any) -> str:
    return json.dumps({"schemaVersion": 1, **facts, "traceEvents": list(events), "traceName": "t.json"})


def written(folder: Path, text: str | bytes, name: str = "trace.json") -> Path:
    path = folder / name
    data = text.encode() if isinstance(text, str) else text
    if name.endswith(".gz"):
        data = gzip.compress(data)
    path.write_bytes(data)
    return path
