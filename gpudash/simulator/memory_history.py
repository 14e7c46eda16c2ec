"""The history of the simulated cards' memory, recorded as torch records that of CUDA, and its snapshot file."""

from __future__ import annotations

import pickle
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpudash.memory.allocator import caching
from gpudash.memory.allocator.segments import Segment
from gpudash.memory.allocator.settings import INTERVALS, LARGE_SEGMENT_SIZE, MIB, AllocatorSettings
from gpudash.simulator.card import Card

Frame = dict[str, Any]
Cards = Callable[[], list[Card]]

ENABLED = (None, "state", "all")
CONTEXTS = (None, "state", "alloc", "all")
ALLOCATING = frozenset(("alloc", "segment_alloc", "segment_map", "oom"))
PROTOCOL = 4
"""Of pickle: the viewer of torch's site shows nothing of a newer one."""

OWN_CODE = (str(Path(__file__).parent), str(Path(caching.__file__).parent))
"""Folders whose code is between the caller and the allocator, and not worth showing."""


class _Recording:
    """The trace of one card, and the stacks of what it holds."""

    def __init__(self, card: Card, history: MemoryHistory, most: int) -> None:
        self.card = card
        self.entries: deque[dict[str, Any]] = deque(maxlen=None if most >= sys.maxsize else most)
        self.stacks: dict[int, list[Frame]] = {}
        self.segment_stacks: dict[int, list[Frame]] = {}
        self._history = history

    def told(self, action: str, address: int, size: int, stream: int) -> None:
        """Called by the card at every event, under its lock."""
        frames = self._history.frames(action)
        if action == "alloc":
            self.stacks[address] = frames
        elif action == "free_completed":
            self.stacks.pop(address, None)
        elif action in ("segment_alloc", "segment_map"):
            self.segment_stacks[address] = frames
        elif action in ("segment_free", "segment_unmap"):
            self.segment_stacks.pop(address, None)
        if self._history.keeps_trace:
            self.entries.append(entry(action, address, size, stream, frames))


def entry(action: str, address: int, size: int, stream: int, frames: list[Frame]) -> dict[str, Any]:
    """One event in the form of torch's trace; an out-of-memory has the free bytes in place of an address."""
    return {
        "action": action,
        "device_free" if action == "oom" else "addr": address,
        "size": size,
        "stream": stream,
        "time_us": time.time_ns() // 1000,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": frames,
    }


class MemoryHistory:
    """What ``_record_memory_history`` of ``torch.cuda.memory`` does, for the simulated cards.

    Args:
        cards: tells the cards of the process.
    """

    def __init__(self, cards: Cards) -> None:
        self._cards = cards
        self._recordings: dict[str, _Recording] = {}
        self._context: str | None = None
        self.keeps_trace = False

    def record(
        self, enabled: str | None, context: str | None, stacks: str, max_entries: int, clear_history: bool = False
    ) -> None:
        """Begin or stop recording; the arguments are torch's.

        Raises:
            ValueError: one sentence, when one is none of torch's.
        """
        _expect("enabled", enabled, ENABLED)
        _expect("context", context, CONTEXTS)
        _expect("stacks", stacks, ("python", "all"))
        for recording in self._recordings.values():
            recording.card.unobserve(recording.told)
        if enabled is None or clear_history:
            self._recordings = {}
        self._context = context
        self.keeps_trace = enabled == "all"
        if enabled is None:
            return
        kept, self._recordings = self._recordings, {}
        for card in self._cards():
            known = kept.get(card.uuid)
            recording = known if known is not None and known.card is card else _Recording(card, self, max_entries)
            self._recordings[card.uuid] = recording
            card.observe(recording.told)

    def frames(self, action: str) -> list[Frame]:
        """The Python stack of the running thread, innermost call first, if it is recorded for ``action``."""
        if self._context is None or (self._context != "all" and action not in ALLOCATING):
            return []
        found: list[Frame] = []
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(OWN_CODE):
                found.append({"filename": code.co_filename, "line": frame.f_lineno or 0, "name": code.co_name})
            frame = frame.f_back  # type: ignore[assignment]
        return found

    def snapshot(self) -> dict[str, Any]:
        """Segments, traces and settings in the form of torch's snapshots (torch/cuda/memory.py, ``_snapshot``)."""
        segments: list[dict[str, Any]] = []
        traces: list[list[dict[str, Any]]] = []
        for card in self._cards():
            recording = self._recordings.get(card.uuid)
            held = card.segments()
            segments += [_segment(card, segment, recording) for segment in held]
            entries = [] if recording is None else list(recording.entries)
            if entries:
                entries.append(entry("snapshot", 0, 0, 0, []))
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
        known = ", ".join(repr(one) for one in allowed)
        raise ValueError(f"{name} of a memory history must be one of {known}, not {value!r}.")


def _segment(card: Card, segment: Segment, recording: _Recording | None) -> dict[str, Any]:
    stacks = {} if recording is None else recording.stacks
    above = {} if recording is None else recording.segment_stacks
    pool = segment.pool_id if isinstance(segment.pool_id, tuple) else (0, 0)
    return {
        "device": card.index,
        "address": segment.address,
        "total_size": segment.total_size,
        "allocated_size": segment.allocated_size,
        "active_size": segment.active_size,
        "requested_size": sum(block.requested_size for block in segment.blocks if block.state != "inactive"),
        "stream": segment.stream,
        "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": pool,
        "is_expandable": segment.is_expandable,
        "frames": above.get(segment.address, []),
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested_size,
                "state": block.state,
                "frames": stacks.get(block.address, []) if block.state != "inactive" else [],
            }
            for block in segment.blocks
        ],
    }


def _settings(cards: list[Card]) -> dict[str, Any]:
    """The allocator's settings under the names of torch's snapshots: one set for all cards, as in torch."""
    settings = cards[0].settings if cards else AllocatorSettings()
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings_text(settings),
        "max_split_size": -1 if settings.max_split_size is None else settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": dict(zip(map(str, INTERVALS), settings.divisions())),
        "graph_capture_record_stream_reuse": False,
    }


def settings_text(settings: AllocatorSettings) -> str:
    """``settings`` as ``PYTORCH_CUDA_ALLOC_CONF`` takes them, torch's defaults left out."""
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
