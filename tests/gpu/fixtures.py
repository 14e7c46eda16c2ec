"""A snapshot's device as columns of small numbers, without stacks, for keeping as a compact file.

Addresses count units of 512 bytes above a base; addresses and sizes are kept sorted, as differences, and told by index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpudash.memory.allocator import AllocatorSettings, BlockView, Segment
from gpudash.memory.snapshot.history.model import DeviceSnapshot, TraceEntry
from tests.unit.memory.snapshot.made import events

UNIT = 512

BASE = 0x7F0000000000

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
)

STATES = ("inactive", "active_allocated", "active_pending_free")

STACKS = ((("somewhere.py", 1, "step"),), (("memory.py", 2, "empty_cache"),))
"""What stands for the stacks: all that a replay asks of them is whether the program emptied the cache."""

SETTINGS = ("max_split_size", "garbage_collection_threshold", "expandable_segments", "oldest_first")


def columns(device: DeviceSnapshot) -> dict[str, np.ndarray[Any, Any]]:
    """The device in columns; unknown events are left out."""
    trace = [entry for entry in device.trace if entry.action in ACTIONS]
    base = min((address for address in _addresses(device, trace) if address), default=0) // UNIT * UNIT
    addresses = sorted({(address - base) // UNIT for address in _addresses(device, trace) if address})
    blocks = [block for segment in device.segments for block in segment.blocks]
    sizes = sorted({entry.size for entry in trace} | {block.requested_size for block in blocks})
    streams = sorted({entry.stream for entry in trace} | {segment.stream for segment in device.segments} | {0})
    pools = _pools(device, trace)
    place = {address: index for index, address in enumerate(addresses)}
    size_at = {size: index for index, size in enumerate(sizes)}
    found = {
        "addresses": np.diff(addresses, prepend=0),
        "sizes": np.diff(sizes, prepend=0),
        "action": [ACTIONS.index(entry.action) for entry in trace],
        "address": [place.get((entry.address - base) // UNIT, -1) if entry.address else -1 for entry in trace],
        "size": [size_at[entry.size] for entry in trace],
        "stream": [streams.index(entry.stream) for entry in trace],
        "pool": [-1 if entry.pool_id is None else pools.index(entry.pool_id) for entry in trace],
        "device_free": [entry.device_free or 0 for entry in trace if entry.action == "oom"],
        "emptied": [n for n, entry in enumerate(trace) if _empties_cache(device, entry)],
        "segment_address": [(segment.address - base) // UNIT for segment in device.segments],
        "segment_blocks": [len(segment.blocks) for segment in device.segments],
        "segment_small": [segment.is_small for segment in device.segments],
        "segment_stream": [streams.index(segment.stream) for segment in device.segments],
        "segment_pool": [pools.index(tuple(segment.pool_id)) for segment in device.segments],
        "segment_expandable": [segment.is_expandable for segment in device.segments],
        "block_size": [block.size // UNIT for block in blocks],
        "block_state": [STATES.index(block.state) for block in blocks],
        "block_requested": [size_at[block.requested_size] for block in blocks],
        "pools": [number for pool in pools for number in pool],
        "divisions": device.settings.divisions(),
        "settings": [getattr(device.settings, name) or 0 for name in SETTINGS],
    }
    return {name: _smallest(np.asarray(column)) for name, column in found.items()}


def rebuilt(c: Mapping[str, np.ndarray[Any, Any]]) -> DeviceSnapshot:
    """The device that `columns` took apart; streams are numbered anew."""
    addresses = (BASE + UNIT * np.cumsum(c["addresses"], dtype=np.int64)).tolist()
    sizes = np.cumsum(c["sizes"], dtype=np.int64).tolist()
    numbers = c["pools"].tolist()
    pools = list(zip(numbers[::2], numbers[1::2], strict=True))
    emptied, free = set(c["emptied"].tolist()), iter(c["device_free"].tolist())
    rows = zip(*(c[name].tolist() for name in ("action", "address", "size", "stream", "pool")), strict=True)
    trace = []
    for number, (action, address, size, stream, pool) in enumerate(rows):
        name = ACTIONS[action]
        trace.append(
            TraceEntry(
                name,
                0 if address < 0 else addresses[address],
                sizes[size],
                stream,
                stack=int(number in emptied),
                pool_id=None if pool < 0 else pools[pool],
                device_free=next(free) if name == "oom" else None,
            )
        )
    return DeviceSnapshot(0, _segments(c, sizes, pools), events(trace), _settings(c), STACKS)


def _segments(
    c: Mapping[str, np.ndarray[Any, Any]], sizes: list[int], pools: list[tuple[int, int]]
) -> tuple[Segment, ...]:
    blocks = iter(zip(*(c[f"block_{name}"].tolist() for name in ("size", "state", "requested")), strict=True))
    names = ("address", "blocks", "small", "stream", "pool", "expandable")
    found = []
    for begin, count, small, stream, pool, expandable in zip(*(c[f"segment_{n}"].tolist() for n in names), strict=True):
        first = address = BASE + UNIT * begin
        held = []
        for _ in range(count):
            size, state, requested = next(blocks)
            held.append(BlockView(address, UNIT * size, sizes[requested], STATES[state]))
            address += UNIT * size
        found.append(Segment(first, address - first, stream, bool(small), pools[pool], bool(expandable), tuple(held)))
    return tuple(found)


def _settings(c: Mapping[str, np.ndarray[Any, Any]]) -> AllocatorSettings:
    limit, threshold, expandable, oldest_first = c["settings"].tolist()
    divisions = {2**power: int(parts) for power, parts in enumerate(c["divisions"].tolist()) if parts}
    return AllocatorSettings(
        max_split_size=int(limit) or None,
        garbage_collection_threshold=float(threshold),
        expandable_segments=bool(expandable),
        oldest_first=bool(oldest_first),
        roundup_power2_divisions=divisions or 0,
    )


def _addresses(device: DeviceSnapshot, trace: list[TraceEntry]) -> list[int]:
    return [entry.address for entry in trace if entry.action != "oom"] + [s.address for s in device.segments]


def _pools(device: DeviceSnapshot, trace: list[TraceEntry]) -> list[tuple[int, int]]:
    named = {entry.pool_id for entry in trace if entry.pool_id is not None}
    held = {tuple(segment.pool_id) for segment in device.segments}
    return sorted(named | held | {(0, 0)})


def _empties_cache(device: DeviceSnapshot, entry: TraceEntry) -> bool:
    if entry.stack is None or entry.action not in ("segment_free", "segment_unmap"):
        return False
    names = (name.lower() for _file, _line, name in device.stacks[entry.stack])
    return any("empty_cache" in name or "emptycache" in name for name in names)


def _smallest(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The column in the smallest type that holds it; a column without rows in one of integers."""
    if column.size == 0:
        return np.zeros(0, np.int8)
    if column.dtype == np.bool_:
        return column.astype(np.int8)
    if column.dtype.kind == "f":
        return column
    for kind in (np.int8, np.int16, np.int32):
        if column.min() >= np.iinfo(kind).min and column.max() <= np.iinfo(kind).max:
            return column.astype(kind)
    return column.astype(np.int64)
