"""Snapshots of programs that run on gpudash's own model of the allocator, so that all about them is known."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings, CachingAllocator, DeviceMemory, Segment
from gpudash.memory.explaining.call_sites import SourceLine, no_source
from gpudash.memory.snapshot.explaining import explain_history
from gpudash.memory.snapshot.history.batch_shapes import SeenTensor
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.model import (
    ACTIONS,
    NONE,
    Annotation,
    Columns,
    DeviceSnapshot,
    EventList,
    Snapshot,
    Stack,
    TraceEntry,
)
from gpudash.telemetry.explanation import Explanation
from gpudash.units import GIB

BEGAN_US = 1_780_000_000_000_000
EVENT_US = 1000

TORCH = "/venv/lib/python3.12/site-packages/torch"
TRAIN = "/home/mia/train.py"


def called(*frames: tuple[str, int, str]) -> Stack:
    """A stack, innermost frame first, below the program's main line."""
    return (*frames, (TRAIN, 90, "<module>"))


FORWARD = called((f"{TORCH}/nn/modules/module.py", 1790, "_call_impl"), (TRAIN, 41, "step"))
BACKWARD = called((f"{TORCH}/autograd/graph.py", 824, "_engine_run_backward"), (TRAIN, 42, "step"))
OPTIMIZER = called((f"{TORCH}/optim/adam.py", 120, "_init_group"), (TRAIN, 43, "step"))
WEIGHTS = called((f"{TORCH}/nn/modules/module.py", 900, "_apply"), (TRAIN, 10, "build"))
MOVED_GRADIENT = called((f"{TORCH}/nn/modules/module.py", 915, "_apply"), (TRAIN, 10, "build"))
KEPT = called((TRAIN, 44, "step"))
EMPTIES = called((f"{TORCH}/cuda/memory.py", 222, "empty_cache"), (TRAIN, 45, "step"))
STACKS = (FORWARD, BACKWARD, OPTIMIZER, WEIGHTS, KEPT, EMPTIES, MOVED_GRADIENT)


def events(trace: Iterable[TraceEntry]) -> EventList:
    """A trace of events that were made one by one."""
    trace = list(trace)
    actions = list(ACTIONS)
    pools: list[tuple[int, ...]] = []
    for entry in trace:
        if entry.action not in actions:
            actions.append(entry.action)
        if entry.pool_id is not None and entry.pool_id not in pools:
            pools.append(entry.pool_id)
    absent = np.full(len(trace), NONE, np.int32)
    columns = Columns(
        action=np.array([actions.index(entry.action) for entry in trace], np.uint8),
        address=_int64(entry.address for entry in trace),
        size=_int64(entry.size for entry in trace),
        stream=_int64(entry.stream for entry in trace),
        time_us=_int64(NONE if entry.time_us is None else entry.time_us for entry in trace),
        stack=_int64(NONE if entry.stack is None else entry.stack for entry in trace).astype(np.int32),
        pool=_int64(NONE if entry.pool_id is None else pools.index(entry.pool_id) for entry in trace).astype(np.int32),
        device_free=_int64(NONE if entry.device_free is None else entry.device_free for entry in trace),
        context=absent,
        metadata=absent,
        actions=tuple(actions),
        pools=tuple(pools),
    )
    return EventList(columns)


def _int64(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, np.int64)


class Made:
    """A program under recording.

    Attributes:
        model: where its memory comes from.
        stack: that of what it does now.
        entries: what was recorded, once `record` was called.
    """

    def __init__(self, capacity: int = 64 * GIB, settings: AllocatorSettings | None = None) -> None:
        self.model = CachingAllocator(DeviceMemory(capacity), settings, observer=self._reported)
        self.settings = settings or AllocatorSettings()
        self.stack: Stack | None = FORWARD
        self.entries: list[TraceEntry] = []
        self._records = True
        self.annotations: list[Annotation] = []

    def before(self, *sizes: int) -> list[int]:
        """Addresses of blocks from before the recording."""
        self._records = False
        found = [self.model.malloc(size) for size in sizes]
        self._records = True
        return found

    @property
    def now_us(self) -> int:
        return BEGAN_US + EVENT_US * len(self.entries)

    def _reported(self, action: str, address: int, size: int, stream: int) -> None:
        if not self._records:
            return
        stack = None if self.stack is None else STACKS.index(self.stack)
        refused = action == "oom"
        self.entries.append(
            TraceEntry(
                action,
                0 if refused else address,
                size,
                stream,
                self.now_us,
                stack,
                device_free=address if refused else None,
            )
        )

    def malloc(self, size: int, stack: Stack | None = FORWARD, stream: int = 0) -> int:
        self.stack = stack
        owner = None if stack is None else STACKS.index(stack)
        return self.model.malloc(size, stream, owner=owner)

    def free(self, address: int, stack: Stack | None = FORWARD) -> None:
        self.stack = stack
        self.model.free(address)

    def empty_cache(self) -> None:
        self.stack = EMPTIES
        self.model.empty_cache()

    def step(self, activations: int, keeps: int = 0, layers: int = 3) -> None:
        """A training step that forgets what it made, but for ``keeps`` bytes."""
        loss = self.malloc(512, KEPT)
        made = [self.malloc(activations, FORWARD) for _ in range(layers)]
        if keeps:
            self.malloc(keeps, KEPT)
        for address in reversed(made):
            gradient = self.malloc(activations // 2, BACKWARD)
            self.free(address, BACKWARD)
            self.free(gradient, BACKWARD)
        for _ in range(4):
            self.free(self.malloc(activations // 4, OPTIMIZER), OPTIMIZER)
        self.free(loss, OPTIMIZER)

    def until_full(self, activations: int, keeps: int) -> None:
        """Steps until one of them is refused memory."""
        with suppress(AllocationRefused):
            while True:
                self.step(activations, keeps)

    def device(self) -> DeviceSnapshot:
        segments: tuple[Segment, ...] = tuple(self.model.segments())
        return DeviceSnapshot(0, segments, events(self.entries), self.settings, STACKS)

    def snapshot(self) -> Snapshot:
        device = self.device()
        return Snapshot((device,), {}, tuple(self.annotations), STACKS, "made", len(device.trace))

    def data(self) -> dict[str, Any]:
        """The same in torch's form."""
        frames = [[{"filename": file, "line": line, "name": name} for file, line, name in stack] for stack in STACKS]

        def of(stack: object) -> list[dict[str, Any]]:
            return frames[stack] if isinstance(stack, int) else []

        return {
            "segments": [
                {
                    "device": 0,
                    "address": segment.address,
                    "total_size": segment.total_size,
                    "allocated_size": segment.allocated_size,
                    "stream": segment.stream,
                    "segment_type": "small" if segment.is_small else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": segment.is_expandable,
                    "blocks": [
                        {
                            "address": block.address,
                            "size": block.size,
                            "requested_size": block.requested_size,
                            "state": block.state,
                            "frames": of(block.owner),
                        }
                        for block in segment.blocks
                    ],
                }
                for segment in self.model.segments()
            ],
            "device_traces": [
                [
                    {
                        "action": entry.action,
                        "size": entry.size,
                        "stream": entry.stream,
                        "time_us": entry.time_us,
                        "frames": of(entry.stack),
                        **({"device_free": entry.device_free} if entry.action == "oom" else {"addr": entry.address}),
                    }
                    for entry in self.entries
                ]
            ],
        }

    def written(self, path: Path) -> Path:
        """The same as a file."""
        path.write_bytes(pickle.dumps(self.data(), protocol=4))
        return path


def explained(
    snapshot: Snapshot,
    moment: int | None = None,
    *,
    source: SourceLine = no_source,
    steps: Sequence[tuple[int, int]] = (),
    shapes: Sequence[SeenTensor] = (),
) -> Explanation:
    """The explanation of a snapshot's only device."""
    (device,) = snapshot.devices
    return explain_history(History(device, snapshot.annotations, steps), moment, source=source, shapes=shapes)
