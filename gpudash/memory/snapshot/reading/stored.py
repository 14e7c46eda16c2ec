"""Passes a snapshot between processes: its columns as memory-mapped files, the rest as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import AllocatorSettings, BlockView, Segment
from gpudash.memory.allocator.blocks import STATE_NAMES
from gpudash.memory.snapshot.history.model import (
    EVENT_COLUMNS,
    NONE,
    Annotation,
    Columns,
    DeviceSnapshot,
    EventList,
    Snapshot,
)
from gpudash.memory.snapshot.reading.stacks import StackList, frames_of

DOCUMENT = "snapshot.json"


def store(snapshot: Snapshot, folder: Path) -> None:
    """Write a snapshot to a folder that contains no other.

    Raises:
        OSError: if it cannot be written.
    """
    stacks = snapshot.stacks
    assert isinstance(stacks, StackList)
    np.save(folder / "stacks.npy", stacks.flat)
    np.save(folder / "ends.npy", stacks.ends)
    document = {
        "frames": stacks.frames,
        "settings": snapshot.settings,
        "annotations": snapshot.annotations,
        "kind": snapshot.kind,
        "events_in_file": snapshot.events_in_file,
        "warnings": snapshot.warnings,
        "devices": [_store_device(device, folder) for device in snapshot.devices],
    }
    (folder / DOCUMENT).write_text(json.dumps(document), "utf-8", "surrogatepass")


def _store_device(device: DeviceSnapshot, folder: Path) -> dict[str, Any]:
    columns = device.trace.columns
    for name in EVENT_COLUMNS:
        np.save(folder / f"{device.index}-{name}.npy", getattr(columns, name))
    blocks = []
    for b in chain.from_iterable(segment.blocks for segment in device.segments):
        owner = b.owner
        if owner is None:
            owner = NONE
        blocks.append((b.address, b.size, b.requested_size, STATE_NAMES.index(b.state), owner))
    np.save(folder / f"{device.index}-blocks.npy", np.array(blocks, np.int64).reshape(-1, 5))
    return {
        "index": device.index,
        "actions": columns.actions,
        "pools": columns.pools,
        "texts": columns.texts,
        "stated_allocated": device.stated_allocated,
        "settings": {**asdict(device.settings), "ignored": dict(device.settings.ignored)},
        "segments": [
            (s.address, s.total_size, s.stream, s.is_small, s.pool_id, s.is_expandable, len(s.blocks))
            for s in device.segments
        ],
    }


def load(folder: Path) -> Snapshot:
    """Map the files written by `store`; they may be deleted immediately afterwards.

    Raises:
        OSError, ValueError, LookupError, TypeError: if it is incomplete.
    """
    document = json.loads((folder / DOCUMENT).read_text("utf-8", "surrogatepass"))
    stacks = StackList(frames_of(document["frames"]), _mapped(folder / "stacks.npy"), _mapped(folder / "ends.npy"))
    return Snapshot(
        devices=tuple(_load_device(found, folder, stacks) for found in document["devices"]),
        settings=document["settings"],
        annotations=tuple(Annotation(*found) for found in document["annotations"]),
        stacks=stacks,
        kind=document["kind"],
        events_in_file=document["events_in_file"],
        warnings=tuple(document["warnings"]),
    )


def _load_device(found: Mapping[str, Any], folder: Path, stacks: StackList) -> DeviceSnapshot:
    index = found["index"]
    columns = Columns(
        **{name: _mapped(folder / f"{index}-{name}.npy") for name in EVENT_COLUMNS},
        actions=tuple(found["actions"]),
        pools=tuple(map(tuple, found["pools"])),
        texts=tuple(found["texts"]),
    )
    blocks = _mapped(folder / f"{index}-blocks.npy").tolist()
    segments, place = [], 0
    for address, size, stream, is_small, pool, is_expandable, count in found["segments"]:
        held = _blocks(blocks[place : place + count])
        segments.append(Segment(address, size, stream, is_small, tuple(pool), is_expandable, held))
        place += count
    settings = found["settings"]
    if isinstance(settings["roundup_power2_divisions"], dict):
        divisions = settings["roundup_power2_divisions"].items()
        settings["roundup_power2_divisions"] = {int(interval): parts for interval, parts in divisions}
    return DeviceSnapshot(
        index, tuple(segments), EventList(columns), AllocatorSettings(**settings), stacks, found["stated_allocated"]
    )


def _blocks(rows: Sequence[Sequence[int]]) -> tuple[BlockView, ...]:
    return tuple(
        BlockView(address, size, requested, STATE_NAMES[state], None if owner == NONE else owner)
        for address, size, requested, state, owner in rows
    )


def _mapped(path: Path) -> NDArray[Any]:
    found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found
