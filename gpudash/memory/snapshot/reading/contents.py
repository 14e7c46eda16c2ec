"""The parts of a snapshot beside its events: segments, the allocator's settings, annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpudash.memory.allocator import AllocatorSettings, BlockView, Segment
from gpudash.memory.snapshot.history.model import NONE, Annotation
from gpudash.memory.snapshot.reading.shape import (
    LARGEST,
    ShapeError,
    as_dict,
    as_list,
    count,
    integer,
    pool_id,
    readable,
    shown,
    text,
)
from gpudash.memory.snapshot.reading.stacks import StackTable

STATES = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}

MOST_SETTINGS = 200
MOST_CHARACTERS = 10_000


def segments_of(found: object, stacks: StackTable) -> dict[int, list[Segment]]:
    """The segments by device, by address.

    Raises:
        ShapeError: they are not what segments are.
    """
    by_device: dict[int, list[Segment]] = {}
    for number, raw in enumerate(as_list(found, "segments")):
        device, segment = _segment(raw, f"segments[{number}]", stacks)
        by_device.setdefault(device, []).append(segment)
    for segments in by_device.values():
        segments.sort(key=lambda segment: segment.address)
    return by_device


def stated_allocated(found: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """By device, the bytes that the segments themselves say are allocated, where all of them do.

    Raises:
        ShapeError: one says something that is no size.
    """
    stated: dict[int, int] = {}
    silent: set[int] = set()
    for number, raw in enumerate(found):
        where = f"segments[{number}]"
        device = count(raw, "device", where, 0)
        if raw.get("allocated_size") is None:
            silent.add(device)
        else:
            stated[device] = stated.get(device, 0) + count(raw, "allocated_size", where)
    return {device: size for device, size in stated.items() if device not in silent and size <= LARGEST}


def _segment(value: object, where: str, stacks: StackTable) -> tuple[int, Segment]:
    raw = as_dict(value, where)
    address = count(raw, "address", where)
    blocks: list[BlockView] = []
    place = address
    for number, found in enumerate(as_list(raw.get("blocks"), f"the blocks of {where}")):
        block_where = f"{where}, block {number}"
        block = _block(as_dict(found, block_where), place, block_where, stacks)
        blocks.append(block)
        place = block.address + block.size
    return count(raw, "device", where, 0), Segment(
        address=address,
        total_size=count(raw, "total_size", where),
        stream=integer(raw, "stream", where, 0),
        is_small=raw.get("segment_type") == "small",
        pool_id=pool_id(raw.get("segment_pool_id", (0, 0)), where),
        is_expandable=raw.get("is_expandable") is True,
        blocks=tuple(blocks),
    )


def _block(raw: dict[str, Any], place: int, where: str, stacks: StackTable) -> BlockView:
    name = text(raw, "state", where)
    state = STATES.get(name)
    if state is None:
        raise ShapeError(f"the state of {where} is {shown(name)}")
    size = count(raw, "size", where)
    frames, requested = raw.get("frames"), size
    history = as_list(raw.get("history", ()), f"the history of {where}")
    if history:
        last = as_dict(history[-1], f"the history of {where}")
        frames, requested = last.get("frames"), count(last, "real_size", where, size)
    stack = stacks.index(frames, lambda: where)
    address = count(raw, "address", where, place)
    if address > LARGEST - size:
        raise ShapeError(f"{where} ends beyond what 64 bits hold")
    return BlockView(
        address=address,
        size=size,
        requested_size=0 if state == "inactive" else count(raw, "requested_size", where, requested),
        state=state,
        owner=None if stack == NONE else stack,
    )


def annotations_of(found: object) -> tuple[Annotation, ...]:
    """The annotations, as they stand.

    Raises:
        ShapeError: they are not what annotations are.
    """
    read = []
    for number, value in enumerate(as_list(found, "external_annotations")):
        where = f"external_annotations[{number}]"
        raw = as_dict(value, where)
        stage, name = readable(text(raw, "stage", where)), readable(text(raw, "name", where))
        read.append(Annotation(stage, name, integer(raw, "device", where, 0), count(raw, "time_us", where, 0)))
    return tuple(read)


def allocator_settings_of(recorded: Mapping[str, Any]) -> AllocatorSettings:
    """The recorded settings; torch's defaults where the file tells none.

    Torch writes the text of the environment and the values of some keys, which win: a program can change them.

    Raises:
        ShapeError: no allocator can have them.
    """
    found = _from_environment(recorded.get("PYTORCH_ALLOC_CONF") or recorded.get("PYTORCH_CUDA_ALLOC_CONF"))
    divisions = as_dict(recorded.get("roundup_power2_divisions", {}), "roundup_power2_divisions")
    limit = integer(recorded, "max_split_size", "allocator_settings", -1)
    threshold = recorded.get("garbage_collection_threshold", 0.0)
    if type(threshold) not in (int, float):
        raise ShapeError(f"`garbage_collection_threshold` of allocator_settings is {shown(threshold)}, not a number")
    try:
        divided = {_small(interval): _small(parts) for interval, parts in divisions.items() if parts}
        return replace(
            found,
            max_split_size=None if limit < 0 else limit,
            roundup_power2_divisions=divided or 0,
            garbage_collection_threshold=float(threshold),
            expandable_segments=recorded.get("expandable_segments") is True,
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ShapeError(f"its allocator settings cannot be right: {error}".rstrip(".")) from error


def _small(value: object) -> int:
    """A number of an interval or of parts, which torch writes as a text where it is a key."""
    if type(value) is int and 0 <= value < 2**32:
        return value
    if isinstance(value, str) and len(value) < 10 and value.isdecimal():
        return int(value)
    raise ValueError(f"roundup_power2_divisions cannot hold {shown(value)}")


def _from_environment(text: object) -> AllocatorSettings:
    try:
        return AllocatorSettings.parse(text) if isinstance(text, str) else AllocatorSettings()
    except (ValueError, OverflowError):
        # other versions of torch know other keys
        return AllocatorSettings()


def plain_settings(recorded: Mapping[Any, Any]) -> tuple[dict[str, object], int]:
    """The settings as far as they are plain values or one dictionary of such, and how many are not.

    A file can nest and repeat values without end; what is shown and handed on must not.
    """
    kept: dict[str, object] = {}
    for key, value in recorded.items():
        if not isinstance(key, str) or len(key) > MOST_CHARACTERS or len(kept) >= MOST_SETTINGS:
            continue
        if isinstance(value, dict):
            inner = {k: v for k, v in list(value.items())[:MOST_SETTINGS] if _plain(k) and _plain(v)}
            if len(inner) == len(value):
                kept[readable(key)] = {readable(str(k)): _readable(v) for k, v in inner.items()}
        elif _plain(value):
            kept[readable(key)] = _readable(value)
    return kept, len(recorded) - len(kept)


def _readable(value: object) -> object:
    return readable(value) if isinstance(value, str) else value


def _plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MOST_CHARACTERS
    if type(value) is int:
        return abs(value) <= LARGEST
    return value is None or type(value) in (bool, float)
