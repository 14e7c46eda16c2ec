"""What a GPU holds: for a simulated one by the tags of its blocks, for CUDA by torch's own allocation history."""

from __future__ import annotations

import os
import sys
import threading
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import torch

from gpudash.agent.memory import snapshots as cuda_snapshot
from gpudash.memory.allocator import AllocationRefused, AllocatorSettings, BlockView, Segment
from gpudash.memory.allocator.blocks import Rounding, segment_size
from gpudash.memory.allocator.device_memory import addresses_fall
from gpudash.memory.allocator.layout import allocated_blocks
from gpudash.memory.allocator.settings import allocator_text
from gpudash.memory.allocator.trace import ACTIVATIONS, TEMPORARY, WORKSPACE, Trace
from gpudash.memory.explaining.block_map import block_map
from gpudash.memory.explaining.memory_state import (
    OTHER_TENSORS,
    AllocationGroup,
    MemoryState,
    RefusedRequest,
    other_process,
)
from gpudash.memory.frames import Frame, is_installed, is_library, site_of
from gpudash.memory.predicting.architecture import WORKSPACE_VARIABLE, workspace_bytes
from gpudash.memory.snapshot.device_state import Known, held_in
from gpudash.simulator.device.backend import Backend
from gpudash.simulator.device.simulated_gpu import ContextRefused, SimulatedGpu
from gpudash.simulator.device.tracking import FORWARD, Tag, Tracker, line_of
from gpudash.simulator.operations.operations import TORCH_VERSION
from gpudash.telemetry.explanation import BlockMap, Evidence, site_name

MOST_REPLAYED = 2_000_000
"""How many events of a run are kept for a replay, 16 bytes each; a longer run is not replayed."""

OF_PHASES = {FORWARD: ACTIVATIONS, "": OTHER_TENSORS}
"""Category of a block that belongs to nothing known, by the phase of its allocation; other phases are temporary."""


class SimulatedBlocks:
    """Tracks the simulated cards of this process; a `Collector`.

    Args:
        index: of the run's card.
        clock: session time in seconds.

    Attributes:
        refused: as in `Collector`.
    """

    def __init__(self, backend: Backend, index: int, clock: Callable[[], float]) -> None:
        self.refused: MemoryState | None = None
        self._trace: Trace | None = Trace(addresses_fall=addresses_fall(torch.__version__))
        self._refused_at = (0, 0)
        self._engine = backend.engine
        self._card = backend.cards[index]
        self._clock = clock
        self._tracker = Tracker(backend.engine)
        self._lines = _Lines()
        self._blocks: dict[int, int] = {}
        self._began_s = clock()
        self._began_events = 0

    @property
    def step(self) -> int:
        return self._tracker.step

    @step.setter
    def step(self, step: int) -> None:
        self._tracker.step = step

    @property
    def stage(self) -> str:
        return self._tracker.stage

    @stage.setter
    def stage(self, stage: str) -> None:
        self._tracker.stage = stage

    def start(self) -> None:
        self._began_s, self._began_events = self._clock(), _events(self._card)
        self._tracker.start()
        self._engine.storages.on_full.append(self._full)
        self._card.observe(self._happened)

    def stop(self) -> None:
        self._card.unobserve(self._happened)
        self._engine.storages.on_full.remove(self._full)
        self._tracker.stop()

    def now(self) -> MemoryState:
        return self._state(self._card, None)

    def sites(self) -> Sequence[AllocationGroup]:
        found: dict[tuple[Frame | None, int], list[int]] = defaultdict(lambda: [0, 0])
        for block in allocated_blocks(self._card.segments()):
            tag = block.owner
            if isinstance(tag, Tag):
                tally = found[self._lines.site(tag), tag.step]
                tally[0] += block.size
                tally[1] += 1
        return [
            AllocationGroup(size, count, step=step, stack=() if site is None else (site,))
            for (site, step), (size, count) in found.items()
        ]

    def trace(self) -> Trace | None:
        # The events up to the refusal, with the refused request itself as the last one.
        whole, (events, size) = self._trace, self._refused_at
        if whole is None or self.refused is None or self.refused.device != f"sim:{self._card.index}":
            return None
        sizes = array("q", [*whole.sizes, size])
        made = array("q", [*whole.events[:events], len(sizes)])
        return Trace(made, sizes, [OTHER_TENSORS] * len(sizes), addresses_fall=whole.addresses_fall)

    def settings(self) -> AllocatorSettings:
        return self._card.settings

    def _full(self, card: SimulatedGpu, refused: AllocationRefused) -> None:
        # Called during an allocation: a failure here must not hide the error being raised.
        with suppress(Exception):  # the out-of-memory error must reach the code that allocated
            self.refused = self._state(card, refused)
        if self._trace is not None:
            self._refused_at = len(self._trace.events), refused.size

    def _happened(self, action: str, address: int, size: int, _stream: int) -> None:
        trace = self._trace
        if trace is None:
            return
        if action == "alloc":
            trace.sizes.append(size)
            block = self._blocks[address] = len(trace.sizes)
            trace.events.append(block)
            # Too long for a replay: nothing is kept from here on.
            if len(trace.events) >= MOST_REPLAYED:
                self._trace = None
        elif action == "free_completed":
            # A block from before `start` is unknown, so its free is ignored.
            block = self._blocks.pop(address, 0)
            if block:
                trace.events.append(-block)

    def _state(self, card: SimulatedGpu, refused: AllocationRefused | None) -> MemoryState:
        segments = card.segments()
        free, capacity = card.free_and_total()
        events = _events(card) - self._began_events
        return MemoryState(
            device=f"sim:{card.index}",
            product=card.product,
            simulated=True,
            capacity=capacity,
            device_free=free,
            reserved=card.reserved_bytes(),
            context_bytes=card.context_bytes,
            processes=tuple(other_process(size, pid, "simulated process") for pid, size in card.others.items() if size),
            groups=self._groups(card, segments),
            allowed=None if refused is None else refused.allowed,
            request=None if refused is None else self._request(card, refused),
            step=self._tracker.step,
            time_s=self._clock(),
            recorded=Evidence(events, events, self._began_s),
            blocks=None if refused is None else self._map(card, segments),
        ).with_segments(segments, None if refused is None else refused.stream)

    def _request(self, card: SimulatedGpu, refused: AllocationRefused) -> RefusedRequest:
        tag = None
        if card.tagger is not None:
            tag = card.tagger()
        request = RefusedRequest(
            refused.size,
            refused.requested,
            is_context=isinstance(refused, ContextRefused),
            is_workspace=refused.label == WORKSPACE,
        )
        if not isinstance(tag, Tag):
            return request
        stack = self._lines.stack(tag)
        return replace(request, step=tag.step, phase=tag.phase, stage=tag.stage, module=tag.module, stack=stack)

    def _groups(self, card: SimulatedGpu, segments: Sequence[Segment]) -> tuple[AllocationGroup, ...]:
        known = self._tracker.categories()
        found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
        tags: dict[tuple[Any, ...], Tag | None] = {}
        for block in allocated_blocks(segments):
            tag = None
            if isinstance(block.owner, Tag):
                tag = block.owner
            category = _category(card, known, block, tag)
            if tag is None:
                key: tuple[Any, ...] = (category,)
            else:
                key = (category, tag.step, tag.phase, tag.stage, tag.module, self._lines.key(tag))
            tags[key] = tag
            found[key][0] += block.size
            found[key][1] += 1
        return tuple(self._group(key[0], tags[key], *tally) for key, tally in found.items())

    def _map(self, card: SimulatedGpu, segments: Sequence[Segment]) -> BlockMap | None:
        known = self._tracker.categories()

        def label_of(block: BlockView) -> tuple[str, str]:
            if not isinstance(block.owner, Tag):
                return _category(card, known, block, None), ""
            site = self._lines.site(block.owner)
            line = ""
            if site is not None:
                line = site_name(site.file, site.line, site.name)
            return _category(card, known, block, block.owner), line

        return block_map(segments, label_of)

    def _group(self, category: str, tag: Tag | None, size: int, count: int) -> AllocationGroup:
        if tag is None:
            return AllocationGroup(size, count, category)
        stack = self._lines.stack(tag)
        return AllocationGroup(size, count, category, tag.step, tag.phase, tag.stage, tag.module, stack)


def _category(card: SimulatedGpu, known: Mapping[tuple[int, int], str], block: BlockView, tag: Tag | None) -> str:
    # What is known about an address comes first: parameters and state outlive the phase that created them.
    category = known.get((card.index, block.address)) or card.label_of(block.address)
    if category:
        return category
    if tag is None:
        return OTHER_TENSORS
    return OF_PHASES.get(tag.phase, TEMPORARY)


class _Lines:
    """Lines of stacks, each resolved once. Code is identified by identity, since hashing it reads all of it."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, int], tuple[Any, Frame, bool]] = {}
        self._stacks: dict[tuple[tuple[int, int], ...], tuple[Frame, ...]] = {}

    def key(self, tag: Tag) -> tuple[tuple[int, int], ...]:
        # By identity: hashing a code object reads all of its bytecode.
        return tuple((id(code), place) for code, place in tag.stack)

    def stack(self, tag: Tag) -> tuple[Frame, ...]:
        """The stack from the innermost line that belongs neither to the simulator nor to this module."""
        key = self.key(tag)
        found = self._stacks.get(key)
        if found is None:
            frames = [self._frame(code, place)[1] for code, place in tag.stack]
            first = next(
                (at for at, frame in enumerate(frames) if not (frame.file == __file__ or is_simulator(frame.file))), 0
            )
            found = self._stacks[key] = tuple(frames[first:])
        return found

    def site(self, tag: Tag) -> Frame | None:
        """The innermost line of the program; ``None`` if there is none."""
        found = None
        for code, place in tag.stack:
            _code, frame, library = self._frame(code, place)
            if not library and not is_installed(frame):
                return frame
            if found is None and not library:
                found = frame
        return found

    def _frame(self, code: Any, place: int) -> tuple[Any, Frame, bool]:
        key = id(code), place
        found = self._frames.get(key)
        if found is None:
            frame = Frame(code.co_filename, line_of(code, place), code.co_name)
            # The code is kept as well, so that its id is not reused.
            found = self._frames[key] = code, frame, is_library(frame)
        return found


def is_simulator(file: str) -> bool:
    """Whether a file is part of the simulated GPU."""
    return "/gpudash/simulator/" in file.replace("\\", "/")


def _events(card: SimulatedGpu) -> int:
    statistics = card.statistics()
    return statistics["allocation.all.allocated"] + statistics["allocation.all.freed"]


MOST_EVENTS = 100_000
"""How many events torch keeps: each takes 2 µs and a few hundred bytes of host memory with Python stacks only."""

MOST_STEPS = 10_000
"""How many step starts are kept, from which a block's step is found by its time."""

OBSERVER = "_cuda_attach_out_of_memory_observer"
"""torch's function that registers a callback for out-of-memory errors; there is no public one."""

_attached: list[CudaBlocks | None] = [None]
"""The object that torch's observer reports to."""

_observing: list[Callable[..., None]] = []
"""The observer once it is registered with torch: only once, because torch cannot unregister it."""


def can_record() -> bool:
    """Whether this torch records a history of its CUDA allocator; a CPU build does not."""
    needed = (OBSERVER, "_cuda_record_memory_history")
    return all(hasattr(torch._C, name) for name in needed)  # noqa: SLF001 - torch has no public names for them


class CudaBlocks:
    """Tracks one CUDA device; a `Collector`. torch records its allocation history meanwhile."""

    def __init__(self, index: int, clock: Callable[[], float]) -> None:
        self.refused: MemoryState | None = None
        self.stage = ""
        self._index = index
        self._clock = clock
        self._began_s = clock()
        self._thread = 0
        self._step = 0
        self._steps: deque[tuple[int, int]] = deque(maxlen=MOST_STEPS)
        # Only its knowledge of modules and optimizers is needed: there are no simulated cards to tag.
        self._tracker = Tracker(SimpleNamespace(cards=[], on_copied_in=[]))  # type: ignore[arg-type]

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        # Times in torch's history are µs since 1970: they determine a block's step.
        self._steps.append((time.time_ns() // 1000, step))

    def start(self) -> None:
        self._began_s = self._clock()
        self._thread = threading.get_ident()
        self._tracker.start()
        _record("all", stacks="python", max_entries=MOST_EVENTS)
        # Once per process: torch cannot unregister it.
        if _full not in _observing:
            getattr(torch._C, OBSERVER)(_full)  # noqa: SLF001 - see there
            _observing.append(_full)
        # After recording has started: an observer without a history would find nothing.
        _attached[0] = self

    def stop(self) -> None:
        _attached[0] = None
        _record(None)
        self._tracker.stop()

    def now(self) -> MemoryState:
        free, total = torch.cuda.mem_get_info(self._index)
        return self._state(None, total, free)

    def sites(self) -> Sequence[AllocationGroup]:
        groups = []
        for found in self.now().groups:
            site = site_of(found.stack)
            stack = () if site is None else (site,)
            groups.append(AllocationGroup(found.bytes, found.count, step=found.step, stack=stack))
        return groups

    def trace(self) -> None:
        """``None``: torch's history starts in the middle of the run once it is full."""

    def settings(self) -> None:
        """``None``: nothing is replayed, so they are not needed."""

    def full(self, size: int, total_or_allowed: int, free: int) -> None:
        """Keep the current state: torch could not allocate ``size`` bytes."""
        # Like torch when it rounds a request to a segment (c10/cuda/CUDACachingAllocator.cpp).
        settings = AllocatorSettings.parse(allocator_text())  # what torch has accepted
        segment = segment_size(Rounding(settings).rounded(size), settings)
        request = RefusedRequest(size, segment, self._step, stage=self.stage, stack=self._asking())
        self.refused = self._state(request, total_or_allowed, free)

    def _asking(self) -> tuple[Frame, ...]:
        """The stack above torch's call of the observer.

        A backward pass allocates in a thread of torch's, which runs little Python: the stack of the run's thread,
        which waits for it, shows the reason.
        """
        asking: Any = sys._getframe()  # noqa: SLF001 - called from within torch
        # Above the observer's own frame: what is below it is gpudash's.
        while asking is not None and asking.f_code is not _full.__code__:
            asking = asking.f_back
        frames = () if asking is None else _frames(asking.f_back)
        if threading.get_ident() == self._thread:
            return frames
        return (*frames, *_frames(sys._current_frames().get(self._thread)))  # noqa: SLF001 - likewise

    def _state(self, request: RefusedRequest | None, total_or_allowed: int, free: int) -> MemoryState:
        properties = torch.cuda.get_device_properties(self._index)
        capacity = properties.total_memory
        capability = properties.major, properties.minor
        known = Known(
            capacity=capacity,
            device_free=free,
            # torch passes the process's limit instead of the card's size if one is set.
            allowed=total_or_allowed if total_or_allowed < capacity else None,
            categories=self._categories(),
            steps=tuple(self._steps),
            time_s=self._clock(),
            began_s=self._began_s,
            product=properties.name,
            workspace_bytes=workspace_bytes(os.environ.get(WORKSPACE_VARIABLE), capability, TORCH_VERSION),
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
    """torch's observer: called within the failing call, whose own error must be raised."""
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
