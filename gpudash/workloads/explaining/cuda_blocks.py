"""What a CUDA device holds, told by torch's own record of its allocator."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Literal

import torch

from gpudash.agent import snapshots as cuda_snapshot
from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.blocks import Rounding, segment_size
from gpudash.memory.allocator.settings import allocator_text
from gpudash.memory.explaining.memory_state import AllocationGroup, Frame, MemoryState, RefusedRequest, site_of
from gpudash.memory.snapshot.device_state import Known, held_in
from gpudash.simulator.device.tracking import Tracker

MOST_EVENTS = 100_000
"""Events that torch keeps: about 2 µs and a few hundred bytes of host memory each, with Python's stacks only."""

MOST_STEPS = 10_000
"""Beginnings of steps that are kept, so that a block's step can be told by its time."""

OBSERVER = "_cuda_attach_out_of_memory_observer"
"""torch's function that calls back when its allocator gives up; there is no public one."""

_attached: list[CudaBlocks | None] = [None]
"""Whom torch's observer tells."""

_observing: list[Callable[..., None]] = []
"""The observer, once torch has it: it is attached only once, since torch has no way to take it back."""


def can_record() -> bool:
    """Whether this torch keeps a history of its CUDA allocator; a CPU build does not."""
    needed = (OBSERVER, "_cuda_record_memory_history")
    return all(hasattr(torch._C, name) for name in needed)  # noqa: SLF001 - torch has no public names for them


class CudaBlocks:
    """Follows one CUDA device; a `Collector`. Keeps torch's allocation history while it does."""

    def __init__(self, index: int, clock: Callable[[], float]) -> None:
        self.refused: MemoryState | None = None
        self.stage = ""
        self._index = index
        self._clock = clock
        self._began_s = clock()
        self._thread = 0
        self._step = 0
        self._steps: deque[tuple[int, int]] = deque(maxlen=MOST_STEPS)
        # Only its knowledge of modules and optimizers is wanted: there are no simulated cards to tag.
        self._tracker = Tracker(SimpleNamespace(cards=[], on_copied_in=[]))  # type: ignore[arg-type]

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self._steps.append((time.time_ns() // 1000, step))

    def start(self) -> None:
        self._began_s = self._clock()
        self._thread = threading.get_ident()
        self._tracker.start()
        _record("all", stacks="python", max_entries=MOST_EVENTS)
        if _full not in _observing:
            getattr(torch._C, OBSERVER)(_full)  # noqa: SLF001 - see there
            _observing.append(_full)
        _attached[0] = self

    def stop(self) -> None:
        _attached[0] = None
        _record(None)
        self._tracker.stop()

    def now(self) -> MemoryState:
        free, total = torch.cuda.mem_get_info(self._index)
        return self._state(None, total, free)

    def sites(self) -> Sequence[AllocationGroup]:
        return [
            AllocationGroup(found.bytes, found.count, step=found.step, stack=() if site is None else (site,))
            for found in self.now().groups
            for site in (site_of(found.stack),)
        ]

    def trace(self) -> None:
        """None: torch's history begins in the midst of things once it is full."""

    def settings(self) -> None:
        """None: nothing is replayed, so they are not asked for."""

    def full(self, size: int, total_or_allowed: int, free: int) -> None:
        """Keep what there is: torch could not allocate ``size`` bytes."""
        settings = AllocatorSettings.parse(allocator_text())  # what torch has accepted
        segment = segment_size(Rounding(settings).rounded(size), settings)
        request = RefusedRequest(size, segment, self._step, stage=self.stage, stack=self._asking())
        self.refused = self._state(request, total_or_allowed, free)

    def _asking(self) -> tuple[Frame, ...]:
        """The lines above torch's call of the observer.

        A backward pass allocates on a thread of torch's own, where Python runs next to nothing: the run's thread, which
        waits for it, tells what it is for.
        """
        asking: Any = sys._getframe()  # noqa: SLF001 - in the midst of torch's call
        while asking is not None and asking.f_code is not _full.__code__:
            asking = asking.f_back
        frames = () if asking is None else _frames(asking.f_back)
        if threading.get_ident() == self._thread:
            return frames
        return (*frames, *_frames(sys._current_frames().get(self._thread)))  # noqa: SLF001 - likewise

    def _state(self, request: RefusedRequest | None, total_or_allowed: int, free: int) -> MemoryState:
        properties = torch.cuda.get_device_properties(self._index)
        capacity = properties.total_memory
        known = Known(
            capacity=capacity,
            device_free=free,
            allowed=total_or_allowed if total_or_allowed < capacity else None,
            categories=self._categories(),
            steps=tuple(self._steps),
            time_s=self._clock(),
            began_s=self._began_s,
            product=properties.name,
        )
        return held_in(cuda_snapshot.take(torch), self._index, known, request)

    def _categories(self) -> dict[int, str]:
        return {
            tensor.untyped_storage().data_ptr(): category
            for tensor, category in self._tracker.roots()
            if tensor.device.type == "cuda" and (tensor.device.index or 0) == self._index
        }


def _record(enabled: Literal["all"] | None, **options: Any) -> None:
    torch.cuda.memory._record_memory_history(enabled, **options)  # noqa: SLF001 - not public


def _full(device: int, size: int, total_or_allowed: int, free: int) -> None:
    """torch's observer: called in the midst of the refused call, whose own error must get through."""
    following = _attached[0]
    if following is not None and device == following._index:  # noqa: SLF001 - of this module
        with suppress(Exception):
            following.full(size, total_or_allowed, free)


def _frames(frame: Any) -> tuple[Frame, ...]:
    found = []
    while frame is not None:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)
