"""Records the memory history of the simulated cards as torch does for CUDA, and writes its snapshot file.

Stacks are taken at every allocation: they are cheap to take, stored once each, and formatted only when read.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from gpudash.memory.allocator import caching
from gpudash.memory.allocator.layout import Segment
from gpudash.memory.allocator.settings import INTERVALS, LARGE_SEGMENT_SIZE, MIB, AllocatorSettings
from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.tracking import line_of

Frame = dict[str, Any]

OWN_CODE = (str(Path(__file__).parents[1]), str(Path(caching.__file__).parent))
"""Folders with code between the caller and the allocator, which stacks leave out."""

ADDRESS_BITS = 57
"""Bits of an address in a process, at most (five-level paging); an id is an address."""

MOST_KNOWN = 50_000
"""How many stacks are kept for comparison; a program that generates code has no end of them."""


WORKSPACE_FRAME: Frame = {"filename": "??", "line": 0, "name": "at::cuda::getNewWorkspace()"}
"""Innermost frame in the stack of cuBLAS's workspace: torch's C++ function that requests it on CUDA
(ATen/cuda/CublasHandlePool.cpp). Readers of a snapshot identify it by this."""


class Stack:
    """Where the program was: each frame as its code and current instruction, innermost first.

    Attributes:
        number: identifies it among the others of its `Stacks`.
        is_workspace: whether it is a cuBLAS workspace request.
    """

    __slots__ = ("_frames", "_places", "is_workspace", "number")

    def __init__(self, number: int, places: tuple[tuple[CodeType, int], ...], *, is_workspace: bool = False) -> None:
        self.number = number
        self.is_workspace = is_workspace
        self._places = places
        self._frames: list[Frame] | None = None

    def frames(self) -> list[Frame]:
        """Frames in the form of torch's snapshots, without the simulator's own; the same list at every call."""
        if self._frames is None:
            frames: list[Frame] = []
            if self.is_workspace:
                frames.append(WORKSPACE_FRAME)
            for code, place in self._places:
                if not code.co_filename.startswith(OWN_CODE):
                    frames.append({"filename": code.co_filename, "line": line_of(code, place), "name": code.co_name})
            # assigned last, since another thread may call this meanwhile
            self._frames = frames
        return self._frames


class Stacks:
    """Takes stacks, and stores each distinct one once."""

    def __init__(self) -> None:
        self.nothing = Stack(0, ())
        self._known: dict[tuple[int, ...], Stack] = {}
        self._taken = 0

    def take(self, depth: int, *, is_workspace: bool = False) -> Stack:
        """The stack of the running thread, starting ``depth`` frames above."""
        start: Any = sys._getframe(depth + 1)
        places: list[int] = [int(is_workspace)]
        # looked up once: a stack is taken at every allocation
        add = places.append
        frame = start
        while frame is not None:
            # the id stands for the code, whose own hash is slow; the stack holds the code, so the id is not reused
            add(id(frame.f_code) + (frame.f_lasti << ADDRESS_BITS))
            frame = frame.f_back
        key = tuple(places)
        found = self._known.get(key)
        if found is None:
            return self._new(key, start, is_workspace=is_workspace)
        return found

    def _new(self, key: tuple[int, ...], start: FrameType, *, is_workspace: bool) -> Stack:
        places: list[tuple[CodeType, int]] = []
        frame: FrameType | None = start
        while frame is not None:
            places.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        if len(self._known) >= MOST_KNOWN:
            # stacks in use keep their numbers; only the table for comparison is reset
            self._known.clear()
        self._taken += 1
        made = self._known[key] = Stack(self._taken, tuple(places), is_workspace=is_workspace)
        return made


Cards = Callable[[], list[SimulatedGpu]]

ENABLED = (None, "state", "all")
CONTEXTS = (None, "state", "alloc", "all")
ALLOCATING = frozenset(("alloc", "segment_alloc", "segment_map", "oom"))
PROTOCOL = 4
"""The pickle protocol: the viewer on torch's site shows nothing for a newer one."""

ALL_ACTIONS = ALLOCATING | {"free_requested", "free_completed", "segment_free", "segment_unmap", "snapshot"}

BETWEEN = {"alloc": 5}
"""Minimum number of the allocator model's frames between its observer and its caller, by action."""

MOST_EMPTY_GROUPS = 1000
"""How many groups without live blocks are kept: in most programs the next step fills the same ones again."""

Event = tuple[str, int, int, int, int, Stack]
"""Action, address, size, stream, nanoseconds since 1970, stack."""


class HeldBlock(NamedTuple):
    """Live blocks with one stack and step: requested bytes, count, step number, stack."""

    bytes: int
    blocks: int
    step: int
    stack: Stack


class _Group:
    """Live blocks with one stack and step; there may be none left."""

    __slots__ = ("blocks", "bytes", "stack", "step")

    def __init__(self, stack: Stack, step: int) -> None:
        self.stack = stack
        self.step = step
        self.bytes = 0
        self.blocks = 0


class _Recording:
    """The trace of one card, and the stacks of the blocks it holds."""

    def __init__(self, card: SimulatedGpu, history: MemoryHistory, most: int) -> None:
        self.card = card
        # torch's default is the largest integer, for which a deque takes None
        limit: int | None = most
        if most >= sys.maxsize:
            limit = None
        self.entries: deque[Event] = deque(maxlen=limit)
        self.live: dict[int, tuple[_Group, int]] = {}
        self.segment_stacks: dict[int, Stack] = {}
        self.groups: dict[tuple[Stack, int], _Group] = {}
        self.seen = 0
        self._history = history

    def on_event(self, action: str, address: int, size: int, stream: int) -> None:
        """Called by the card at every event, holding its lock."""
        history = self._history
        stack = history.no_stack
        if action in history.with_stack:
            stack = history.stack(action, is_workspace=self.card.allocating == WORKSPACE)
        if action == "alloc":
            key = stack, history.step
            group = self.groups.get(key)
            if group is None:
                group = self._new_group(key)
            group.bytes += size
            group.blocks += 1
            self.live[address] = group, size
        elif action == "free_completed":
            found = self.live.pop(address, None)
            if found is not None:
                group, held = found
                group.bytes -= held
                group.blocks -= 1
        elif action in ("segment_alloc", "segment_map"):
            self.segment_stacks[address] = stack
        elif action in ("segment_free", "segment_unmap"):
            self.segment_stacks.pop(address, None)
        if history.keeps_trace:
            self.entries.append((action, address, size, stream, time.time_ns(), stack))
            self.seen += 1

    def _new_group(self, key: tuple[Stack, int]) -> _Group:
        # each live block has at most one group, so above this number at least half the groups are empty: the cost of a
        # sweep is spread over as many new groups
        if len(self.groups) > MOST_EMPTY_GROUPS + 2 * len(self.live):
            self.groups = {known: group for known, group in self.groups.items() if group.blocks}
        made = self.groups[key] = _Group(*key)
        return made


def entry(action: str, address: int, size: int, stream: int, time_ns: int, frames: list[Frame]) -> dict[str, Any]:
    """One event in the form of torch's trace; an out-of-memory event has the free bytes in place of an address."""
    place = "addr"
    if action == "oom":
        place = "device_free"
    return {
        "action": action,
        place: address,
        "size": size,
        "stream": stream,
        "time_us": time_ns // 1000,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": frames,
    }


class MemoryHistory:
    """What ``_record_memory_history`` of ``torch.cuda.memory`` does, for the simulated cards.

    Args:
        cards: returns the cards of the process.

    Attributes:
        step: number of the program's current step, set from outside.
        with_stack, no_stack: actions whose stack is recorded, and what the others get in its place.
    """

    def __init__(self, cards: Cards) -> None:
        self._cards = cards
        self._recordings: dict[str, _Recording] = {}
        self._taken = Stacks()
        self.no_stack = self._taken.nothing
        self.with_stack: frozenset[str] = frozenset()
        self.keeps_trace = False
        self.step = 0

    @property
    def recording(self) -> bool:
        """Whether every card of the process is being recorded."""
        found = [self._recordings.get(card.uuid) for card in self._cards()]
        return any(found) and all(one is not None and one.card is card for one, card in zip(found, self._cards()))

    def record(
        self, enabled: str | None, context: str | None, stacks: str, max_entries: int, clear_history: bool = False
    ) -> None:
        """Start or stop recording; the arguments are torch's.

        Raises:
            ValueError: in one sentence, for a value that torch does not accept.
        """
        _expect("enabled", enabled, ENABLED)
        _expect("context", context, CONTEXTS)
        _expect("stacks", stacks, ("python", "all"))
        for recording in self._recordings.values():
            recording.card.unobserve(recording.on_event)
        if enabled is None or clear_history:
            self._recordings = {}
        if context is None:
            self.with_stack = frozenset()
        elif context == "all":
            self.with_stack = ALL_ACTIONS
        else:
            self.with_stack = ALLOCATING
        self.keeps_trace = enabled == "all"
        if enabled is None:
            return
        # recordings of replaced cards are dropped; those of the others continue
        kept = self._recordings
        self._recordings = {}
        for card in self._cards():
            known = kept.get(card.uuid)
            if known is not None and known.card is card:
                recording = known
            else:
                recording = _Recording(card, self, max_entries)
            self._recordings[card.uuid] = recording
            card.observe(recording.on_event)

    def stack(self, action: str, *, is_workspace: bool = False) -> Stack:
        """The Python stack of the running thread at an event."""
        return self._taken.take(2 + BETWEEN.get(action, 0), is_workspace=is_workspace)

    def held(self, card: SimulatedGpu) -> list[HeldBlock]:
        """The live blocks on ``card`` allocated since recording began; thread-safe."""
        recording = self._recordings.get(card.uuid)
        if recording is None:
            return []
        # copying is atomic, whatever another thread allocates
        groups = [group for group in recording.groups.copy().values() if group.blocks]
        return [HeldBlock(group.bytes, group.blocks, group.step, group.stack) for group in groups]

    def since(self, card: SimulatedGpu, number: int) -> tuple[list[Event], int]:
        """The events on ``card`` after the first ``number`` of them, as far as they are kept, and the number of events
        so far; thread-safe.
        """
        recording = self._recordings.get(card.uuid)
        if recording is None:
            return [], number
        # the number first: an event in between then appears in the next answer too, rather than in none
        seen = recording.seen
        # copying is atomic, whatever another thread allocates
        entries = recording.entries.copy()
        missed = len(entries) - (recording.seen - number)
        return list(entries)[max(0, missed) :], seen

    def live_blocks(self, card: SimulatedGpu) -> list[tuple[int, int, Stack]]:
        """Address, requested bytes and stack of what is live on ``card``; thread-safe."""
        recording = self._recordings.get(card.uuid)
        if recording is None:
            return []
        # copying is atomic, whatever another thread allocates
        return [(address, size, group.stack) for address, (group, size) in recording.live.copy().items()]

    def snapshot(self) -> dict[str, Any]:
        """Segments, traces and settings in the form of torch's snapshots (torch/cuda/memory.py, ``_snapshot``)."""
        segments: list[dict[str, Any]] = []
        traces: list[list[dict[str, Any]]] = []
        for card in self._cards():
            recording = self._recordings.get(card.uuid)
            held = card.segments()
            segments += [_segment(card, segment, recording) for segment in held]
            events: list[Event] = []
            if recording is not None:
                events = list(recording.entries)
            entries = [entry(*event[:5], event[5].frames()) for event in events]
            if entries:
                entries.append(entry("snapshot", 0, 0, 0, time.time_ns(), []))
            traces.append(entries)
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": _settings(self._cards()),
            "external_annotations": [],
        }

    def dump(self, filename: str) -> None:
        """Write `snapshot` to a file in torch's format."""
        with Path(filename).open("wb") as file:
            pickle.dump(self.snapshot(), file, protocol=PROTOCOL)


def _expect(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        known = ", ".join(map(repr, allowed))
        raise ValueError(f"{name} of a memory history must be one of {known}, not {value!r}.")


def _segment(card: SimulatedGpu, segment: Segment, recording: _Recording | None) -> dict[str, Any]:
    live: dict[int, tuple[_Group, int]] = {}
    frames: list[Frame] = []
    if recording is not None:
        live = recording.live
        # what was there before recording started has no stack
        if segment.address in recording.segment_stacks:
            frames = recording.segment_stacks[segment.address].frames()
    pool: Any = (0, 0)
    if isinstance(segment.pool_id, tuple):
        pool = segment.pool_id
    kind = "large"
    if segment.is_small:
        kind = "small"
    blocks = []
    for block in segment.blocks:
        found: list[Frame] = []
        if block.state != "inactive":
            found = _frames(live.get(block.address))
        one = {
            "address": block.address,
            "size": block.size,
            "requested_size": block.requested_size,
            "state": block.state,
            "frames": found,
        }
        blocks.append(one)
    return {
        "device": card.index,
        "address": segment.address,
        "total_size": segment.total_size,
        "allocated_size": segment.allocated_size,
        "active_size": segment.active_size,
        "requested_size": sum(block.requested_size for block in segment.blocks if block.state != "inactive"),
        "stream": segment.stream,
        "segment_type": kind,
        "segment_pool_id": pool,
        "is_expandable": segment.is_expandable,
        "frames": frames,
        "blocks": blocks,
    }


def _frames(known: tuple[_Group, int] | None) -> list[Frame]:
    if known is None:
        return []
    return known[0].stack.frames()


def _settings(cards: list[SimulatedGpu]) -> dict[str, Any]:
    """The allocator's settings under the names of torch's snapshots: as in torch, one set for all cards."""
    settings = AllocatorSettings()
    if cards:
        settings = cards[0].settings
    limit = settings.max_split_size
    if limit is None:
        limit = -1
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings_text(settings),
        "max_split_size": limit,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": dict(zip(map(str, INTERVALS), settings.divisions())),
        "graph_capture_record_stream_reuse": False,
    }


def settings_text(settings: AllocatorSettings) -> str:
    """``settings`` in the format of ``PYTORCH_CUDA_ALLOC_CONF``, without torch's defaults."""
    usual = AllocatorSettings(large_segment_size=settings.large_segment_size)
    sizes = ("max_split_size", "max_non_split_rounding")
    given = {f"{name}_mb": getattr(settings, name) // MIB for name in sizes if _differs(settings, usual, name)}
    if settings.large_segment_size != LARGE_SEGMENT_SIZE:
        given["large_segment_size_mb"] = settings.large_segment_size // MIB
    plain = ("garbage_collection_threshold", "per_process_memory_fraction", "expandable_segments")
    given.update((name, getattr(settings, name)) for name in plain if _differs(settings, usual, name))
    if any(settings.divisions()):
        parts = ",".join(f"{interval}:{parts}" for interval, parts in zip(INTERVALS, settings.divisions()))
        given["roundup_power2_divisions"] = f"[{parts}]"
    return ",".join(f"{key}:{value}" for key, value in {**given, **settings.ignored}.items())


def _differs(settings: AllocatorSettings, usual: AllocatorSettings, name: str) -> bool:
    return bool(getattr(settings, name) != getattr(usual, name))
