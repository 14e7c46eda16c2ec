"""Small snapshots in all forms, to be changed into hostile ones."""

from __future__ import annotations

import gzip
import json
import pickle
from typing import Any

FRAMES = [{"filename": "train.py", "line": 3, "name": "step"}, {"filename": "main.py", "line": 9, "name": "main"}]
BASE = 0x7F0000000000


def event(action: str, **changes: object) -> dict[str, Any]:
    """An event of a trace."""
    found = {"action": action, "addr": BASE, "size": 1000, "stream": 0, "time_us": 5, "frames": FRAMES}
    return {**found, "compile_context": "N/A", "user_metadata": "", **changes}


def segment(**changes: object) -> dict[str, Any]:
    """A segment of two blocks."""
    blocks = [
        {"address": BASE, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": FRAMES},
        {"address": BASE + 1024, "size": 2**21 - 1024, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    found = {"device": 0, "address": BASE, "total_size": 2**21, "allocated_size": 1024, "stream": 0}
    kind = {"segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "frames": FRAMES}
    return {**found, **kind, "blocks": blocks, **changes}


def modern() -> dict[str, Any]:
    """A snapshot of a torch of today."""
    trace = [
        event("free_requested", pool_id=(0, 1)),
        event("free_completed"),
        event("segment_alloc", size=2**21),
        event("alloc", user_metadata="step 1"),
        {"action": "oom", "size": 77, "stream": 0, "time_us": 6, "device_free": 12, "frames": FRAMES[:1]},
        event("something new"),
    ]
    return {
        "segments": [segment()],
        "device_traces": [trace, []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "roundup_power2_divisions": {"1": 4, "2": 0}},
        "external_annotations": [{"stage": "START", "name": "step", "device": 0, "time_us": 4}],
    }


def legacy() -> dict[str, Any]:
    """A snapshot with blocks that have a history."""
    history = [{"addr": BASE, "real_size": 1000, "frames": FRAMES}]
    blocks = [
        {"size": 1024, "state": "active_pending_free", "history": history},
        {"size": 2**21 - 1024, "state": "inactive"},
    ]
    return {"segments": [segment(blocks=blocks)], "device_traces": [[{"action": "alloc", "addr": BASE, "size": 9}]]}


def seeds() -> list[bytes]:
    """Files in every form."""
    found = [pickle.dumps(data, protocol) for data in (modern(), legacy(), [segment()]) for protocol in range(6)]
    texts = [json.dumps(data).encode() for data in (modern(), legacy(), [segment()])]
    return [*found, *texts, *(gzip.compress(data, 1) for data in (found[4], texts[0]))]
