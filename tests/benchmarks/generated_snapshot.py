"""A snapshot as a long training run leaves it, of any number of events, with the stacks that real ones have.

A decoder of some layers is trained step after step; every placement is that of gpudash's own model of the allocator, so
that trace and segments agree. In each step one small tensor is kept, as a list of losses would.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from gpudash.memory.allocator import CachingAllocator, DeviceMemory
from gpudash.units import GIB, KIB, MIB

LAYERS = 24
OPERATIONS = ("norm", "query_key_value", "scores", "softmax", "attend", "project", "feed_up", "gelu", "feed_down")
SIZES = (4 * MIB, 12 * MIB, 16 * MIB, 16 * MIB, 4 * MIB, 4 * MIB, 16 * MIB, 16 * MIB, 4 * MIB)
WEIGHT = 3 * MIB + 17 * KIB
KEPT = 40 * KIB + 24
BEGAN_US = 1_780_000_000_000_000
VERSION = 2
PROTOCOL = 4
"""Of pickle, as torch writes."""


def generated(events: int = 1_000_000, folder: Path | None = None) -> Path:
    """A snapshot file of that many events; made once and then found again.

    Args:
        events: at the least; whole steps are written.
        folder: where the file is kept, that for temporary files unless given.
    """
    path = (folder or Path(tempfile.gettempdir())) / f"gpudash-generated-{VERSION}-{events}.pickle"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        with part.open("wb") as file:
            pickle.dump(data(events), file, PROTOCOL)
        part.rename(path)
    return path


def data(events: int) -> dict[str, Any]:
    """What the file holds."""
    run = _Training()
    while len(run.trace) < events:
        run.step()
    return run.snapshot()


def _frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


NATIVE = [
    _frame("??", 0, name)
    for name in (
        "torch::unwind::unwind()",
        "torch::CapturedTraceback::gather(bool, bool, bool)",
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long, CUstream_st*)",
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(void**, signed char, unsigned long)",
        "at::detail::empty_generic(c10::ArrayRef<long>, c10::Allocator*, c10::DispatchKeySet)",
        "at::detail::empty_cuda(c10::ArrayRef<long>, c10::ScalarType, std::optional<c10::Device>)",
        "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)",
        "torch::autograd::VariableType::(anonymous namespace)::call(c10::DispatchKeySet)",
    )
]
CALLS = [_frame("torch/nn/modules/module.py", line, name) for line, name in ((1784, "_call_impl"), (1773, "_wrapped"))]
MAIN = [_frame("/home/user/train.py", 88, "main"), _frame("/home/user/train.py", 97, "<module>")]


class _Stacks:
    """Frames of each call site, one list each: the trace shares it, as torch's does."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
        self._frames: dict[tuple[str, int, str], dict[str, Any]] = {}

    def of(self, phase: str, operation: str, layer: int = 0) -> list[dict[str, Any]]:
        """The stack of an operation of a layer."""
        key = phase, operation, layer
        if key not in self._known:
            self._known[key] = [*NATIVE, *self._inner(*key), *MAIN]
        return self._known[key]

    def _once(self, file: str, line: int, name: str) -> dict[str, Any]:
        return self._frames.setdefault((file, line, name), _frame(file, line, name))

    def _inner(self, phase: str, operation: str, layer: int) -> Iterator[dict[str, Any]]:
        if phase == "optimizer":
            yield self._once("torch/optim/adamw.py", 500, "_multi_tensor_adamw")
            yield self._once("torch/optim/optimizer.py", 520, "wrapper")
        elif phase == "backward":
            native = f"torch::autograd::generated::{operation.title()}Backward{layer % 8}::apply()"
            yield self._once("??", 0, native)
            yield from (self._once("??", 0, f"torch::autograd::Engine::frame_{depth}") for depth in range(10 + layer))
            yield self._once("torch/autograd/graph.py", 865, "_engine_run_backward")
        elif phase == "forward":
            place = OPERATIONS.index(operation)
            yield self._once("/home/user/model.py", 40 + place, operation)
            for depth in range(4 + place):
                yield from CALLS
                yield self._once("/home/user/model.py", 100 + layer * 10 + depth, f"block_{layer}")
        yield self._once("/home/user/train.py", {"forward": 61, "backward": 64, "optimizer": 66}.get(phase, 40), phase)


class _Training:
    """The run: what it holds, and what was recorded of it."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        self._stacks = _Stacks()
        self._frames: list[dict[str, Any]] = []
        self._by_address: dict[int, list[dict[str, Any]]] = {}
        self._clock = count(BEGAN_US, 7)
        self._allocator = CachingAllocator(DeviceMemory(512 * GIB), observer=self._reported)
        self._kept: list[int] = []
        self._gradients: list[int] = []
        self._state = [self._take("start", "weight", layer, WEIGHT) for layer in range(LAYERS * 3)]

    def _reported(self, action: str, address: int, size: int, stream: int) -> None:
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": next(self._clock),
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": self._frames,
            }
        )

    def _take(self, phase: str, operation: str, layer: int, size: int) -> int:
        self._frames = self._stacks.of(phase, operation, layer)
        address = self._allocator.malloc(size)
        self._by_address[address] = self._frames
        return address

    def _give(self, address: int) -> None:
        self._allocator.free(address)
        del self._by_address[address]

    def _annotate(self, stage: str, name: str) -> None:
        self._annotations.append({"stage": stage, "name": name, "device": 0, "time_us": next(self._clock)})

    def step(self) -> None:
        """Forward, backward, optimizer."""
        saved = []
        for layer in range(LAYERS):
            for operation, size in zip(OPERATIONS, SIZES, strict=True):
                workspace = self._take("forward", operation, layer, size // 8 + 512 * layer)
                saved.append((operation, layer, size, self._take("forward", operation, layer, size)))
                self._give(workspace)
        self._kept.append(self._take("forward", "norm", LAYERS, KEPT))
        for operation, layer, size, address in reversed(saved):
            gradient = self._take("backward", operation, layer, size)
            if operation == OPERATIONS[0]:
                self._gradients.append(self._take("backward", "weight", layer, WEIGHT))
            self._give(address)
            self._give(gradient)
        self._annotate("START", "Optimizer.step#AdamW.step")
        for layer in range(LAYERS):
            self._give(self._take("optimizer", "update", layer, WEIGHT))
        self._annotate("END", "Optimizer.step#AdamW.step")
        while self._gradients:
            self._give(self._gradients.pop())

    def snapshot(self) -> dict[str, Any]:
        """The file's data as of now."""
        segments = [
            {
                "device": 0,
                "address": segment.address,
                "total_size": segment.total_size,
                "allocated_size": segment.allocated_size,
                "active_size": segment.active_size,
                "requested_size": sum(block.requested_size for block in segment.blocks),
                "stream": segment.stream,
                "segment_type": "small" if segment.is_small else "large",
                "segment_pool_id": segment.pool_id,
                "is_expandable": segment.is_expandable,
                "frames": [],
                "blocks": [
                    {
                        "address": block.address,
                        "size": block.size,
                        "requested_size": block.requested_size,
                        "state": block.state,
                        "frames": self._by_address.get(block.address, []),
                    }
                    for block in segment.blocks
                ],
            }
            for segment in self._allocator.segments()
        ]
        return {
            "segments": segments,
            "device_traces": [self.trace],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False},
            "external_annotations": self._annotations,
        }
