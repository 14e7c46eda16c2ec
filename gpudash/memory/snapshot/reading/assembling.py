"""Assembles a snapshot from the content of a file.

Also checks, for all addresses together and without a replay, whether a trace is consistent with the segments at its
end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import AllocatorSettings, BlockView, Segment
from gpudash.memory.snapshot.history.model import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NONE,
    Annotation,
    Columns,
    DeviceSnapshot,
    EventList,
    Snapshot,
)
from gpudash.memory.snapshot.reading.source import (
    LARGEST,
    ReadLimits,
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
from gpudash.memory.snapshot.reading.trace_columns import Numbering, TraceColumns
from gpudash.units import format_bytes, listed

STATES = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}

MOST_SETTINGS = 200
MOST_CHARACTERS = 10_000


def segments_of(found: object, stacks: StackTable) -> dict[int, list[Segment]]:
    """The segments by device and address.

    Raises:
        ShapeError: if they are malformed.
    """
    by_device: dict[int, list[Segment]] = {}
    for number, raw in enumerate(as_list(found, "segments")):
        device, segment = _segment(raw, f"segments[{number}]", stacks)
        by_device.setdefault(device, []).append(segment)
    for segments in by_device.values():
        segments.sort(key=lambda segment: segment.address)
    return by_device


def stated_allocated(found: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Allocated bytes by device, as stated by the segments, for devices on which all segments state them.

    Raises:
        ShapeError: if one states something that is not a size.
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
    """The annotations, in the file's order.

    Raises:
        ShapeError: if they are malformed.
    """
    read = []
    for number, value in enumerate(as_list(found, "external_annotations")):
        where = f"external_annotations[{number}]"
        raw = as_dict(value, where)
        stage, name = readable(text(raw, "stage", where)), readable(text(raw, "name", where))
        read.append(Annotation(stage, name, integer(raw, "device", where, 0), count(raw, "time_us", where, 0)))
    return tuple(read)


def allocator_settings_of(recorded: Mapping[str, Any]) -> AllocatorSettings:
    """The recorded settings; torch's defaults if the file has none.

    torch writes the environment variable's text and the values of some keys; the latter win, as programs can change
    them.

    Raises:
        ShapeError: if no allocator can have them.
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
            oldest_first="max_cached_size" in recorded,  # a key written since torch 2.13
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ShapeError(f"its allocator settings cannot be right: {error}".rstrip(".")) from error


def _small(value: object) -> int:
    """A number of an interval or of divisions, which torch writes as text if it is a key."""
    if type(value) is int and 0 <= value < 2**32:
        return value
    if isinstance(value, str) and len(value) < 10 and value.isdecimal():
        return int(value)
    raise ValueError(f"roundup_power2_divisions cannot hold {shown(value)}")


def _from_environment(text: object) -> AllocatorSettings:
    try:
        if isinstance(text, str):
            return AllocatorSettings.parse(text)
        return AllocatorSettings()
    except (ValueError, OverflowError):
        # Other versions of torch have other keys.
        return AllocatorSettings()


def plain_settings(recorded: Mapping[Any, Any]) -> tuple[dict[str, object], int]:
    """The settings that are plain values or one dictionary of such, and the number of others.

    A file can nest and repeat values endlessly; what is displayed and passed on must not.
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
    if isinstance(value, str):
        return readable(value)
    return value


def _plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MOST_CHARACTERS
    if type(value) is int:
        return abs(value) <= LARGEST
    return value is None or type(value) in (bool, float)


KNOWN = frozenset(("segments", "device_traces", "allocator_settings", "external_annotations"))
MOST_NAMES = 5

MOST_BYTES = 2**62
"""Largest sum of sizes on one device: a trace of ten million requests of 100 GiB stays far below."""

_BEFORE = {ALLOC: FREE_COMPLETED, FREE_REQUESTED: ALLOC, FREE_COMPLETED: FREE_REQUESTED}
"""The previous action required at an address; at the first event, none is always valid."""

_STATES = {"active_allocated": ALLOC, "active_pending_free": FREE_REQUESTED}


@dataclass(slots=True)
class FoundInFile:
    """The content of a file.

    Attributes:
        data: its dictionary, without the events.
        traces: events by device.
        stacks, texts: stacks and strings of all events.
        kind: format of the file, in words.
        is_whole: whether all events fit in memory.
    """

    data: dict[str, Any]
    traces: Sequence[TraceColumns]
    stacks: StackTable
    texts: Numbering
    kind: str
    is_whole: bool = True
    warnings: list[str] = field(default_factory=list)


def assembled(found: FoundInFile, limits: ReadLimits) -> Snapshot:
    """The snapshot of a file's content.

    Raises:
        ShapeError: if segments, settings or annotations are malformed.
    """
    return _Assembling(found).snapshot(limits)


def contradictions(
    device: int, columns: Columns, segments: Sequence[Segment], stated_allocated: int | None = None
) -> list[str]:
    """Inconsistencies within and between segments and trace, one sentence each.

    Args:
        device: index in the file, for the sentences.
        columns: events of the trace.
        segments: segments after the last event.
        stated_allocated: allocated bytes as stated by the segments.
    """
    found = []
    overlap = _overlap(segments)
    if overlap is not None:
        found.append(f"The segments of device {device} cannot all be there: {overlap}")
    allocated = sum(segment.allocated_size for segment in segments)
    if stated_allocated is not None and stated_allocated != allocated:
        found.append(
            f"The segments of device {device} say that {stated_allocated:,} bytes are allocated, their blocks that "
            f"{allocated:,} are."
        )
    disagreement = _disagreement(device, columns, segments)
    if disagreement is None:
        return found
    return [*found, disagreement]


class _Assembling:
    def __init__(self, found: FoundInFile) -> None:
        data = found.data
        self._found = found
        self._segments = segments_of(data["segments"], found.stacks)
        self._stated = stated_allocated(data["segments"])
        self._recorded = as_dict(data.get("allocator_settings") or {}, "allocator_settings")
        self._settings = allocator_settings_of(self._recorded)
        self._annotations = annotations_of(data.get("external_annotations") or [])
        self._stacks = found.stacks.stacks()
        self._warnings = found.warnings

    def snapshot(self, limits: ReadLimits) -> Snapshot:
        """All devices, with warnings about them."""
        traces = self._found.traces
        settings, left_out = plain_settings(self._recorded)
        if left_out:
            self._warnings.append(f"{left_out} of the allocator's settings are of a kind that is not known here.")
        _report_unknown(self._found)
        in_file = sum(trace.seen for trace in traces)
        present = sorted(self._segments.keys() | {n for n, trace in enumerate(traces) if trace.seen}) or [0]
        pairs = list(map(self._device, present))
        if not self._found.is_whole:
            first_us = next((trace.first_us for trace in traces if trace.first_us is not None), None)
            kept = [columns for _device, columns in pairs]
            self._warnings.insert(0, _part(kept, in_file, first_us, limits.memory_bytes))
        devices = tuple(device for device, _columns in pairs)
        warnings = tuple(map(readable, self._warnings))
        return Snapshot(devices, settings, self._annotations, self._stacks, self._found.kind, in_file, warnings)

    def _device(self, number: int) -> tuple[DeviceSnapshot, Columns]:
        found = self._found
        if number < len(found.traces):
            trace = found.traces[number]
        else:
            trace = TraceColumns(found.stacks, found.texts, "")
        columns, segments = trace.columns(), tuple(self._segments.get(number, ()))
        _check_sums(number, columns, segments)
        stated = self._stated.get(number)
        self._warnings += contradictions(number, columns, segments, stated)
        device = DeviceSnapshot(number, segments, EventList(columns), self._settings, self._stacks, stated)
        return device, columns


def _check_sums(number: int, columns: Columns, segments: Sequence[Segment]) -> None:
    """Refuse sizes whose sums do not fit in 64-bit integers."""
    blocks = [block for segment in segments for block in segment.blocks]
    for sizes in (
        columns.size,
        [segment.total_size for segment in segments],
        [block.size for block in blocks],
        [block.requested_size for block in blocks],
    ):
        if float(np.sum(sizes, dtype=np.float64)) > MOST_BYTES:
            raise ShapeError(f"the sizes of device {number} add up to more than 64 bits hold")


def _report_unknown(found: FoundInFile) -> None:
    unknown: dict[str, int] = {}
    for trace in found.traces:
        for key, events in trace.unknown.items():
            unknown[key] = unknown.get(key, 0) + events
    if unknown:
        found.warnings.append(f"Events have keys that are not known here: {_names(unknown)}.")
    others = [key if isinstance(key, str) else shown(key) for key in found.data.keys() - KNOWN]
    if others:
        found.warnings.append(f"The file has parts that are not known here: {_names(sorted(others))}.")


def _names(names: Sequence[str] | Mapping[str, int]) -> str:
    return listed([shown(name)[1:-1] if len(name) > 40 else name for name in names], MOST_NAMES)


def _part(kept: Sequence[Columns], in_file: int, first_us: int | None, memory_bytes: int) -> str:
    """Which events fit in memory, in a sentence: the newest, and since when, relative to the first in the file."""
    timed = list(filter(len, (columns.time_us[columns.time_us != NONE] for columns in kept)))
    since = ""
    if timed and first_us is not None:
        since = f"{_clock(min(int(column[0]) for column in timed) - first_us)} to the end, "
    return (
        f"Read in part: {sum(map(len, kept)):,} of {in_file:,} events, {since}since the whole needs more than "
        f"{format_bytes(memory_bytes)} of memory."
    )


def _clock(time_us: int) -> str:
    """Time since the file's first event, in words."""
    if time_us < 0:
        sign, tenths = ("−", -time_us)
    else:
        sign, tenths = ("", time_us)
    tenths //= 100_000
    minutes, hours = tenths // 600 % 60, tenths // 36_000
    shown_hours = ""
    if hours:
        shown_hours = f"{hours}:"
    return f"{sign}{shown_hours}{minutes:02d}:{tenths // 10 % 60:02d}.{tenths % 10}"


def _disagreement(device: int, columns: Columns, segments: Sequence[Segment]) -> str | None:
    events = np.flatnonzero(columns.action <= FREE_COMPLETED)
    order = events[np.argsort(columns.address[events], kind="stable")]
    action, address = columns.action[order], columns.address[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = address[1:] != address[:-1]
    expected = np.array([_BEFORE[ALLOC], _BEFORE[FREE_REQUESTED], _BEFORE[FREE_COMPLETED]])[action]
    wrong = ~is_first
    wrong[1:] &= action[:-1] != expected[1:]
    if wrong.any():
        return _sentence(device, columns, int(order[wrong].min()), "does not follow from what was there before it")
    wrong = _differs_at_end(action, address, is_first, segments)
    if wrong.any():
        return _sentence(device, columns, int(order[wrong].max()), "is not what the segments at the end show")
    return None


def _differs_at_end(
    action: NDArray[np.uint8], address: NDArray[np.int64], is_first: NDArray[np.bool_], segments: Sequence[Segment]
) -> NDArray[np.bool_]:
    """Which events, each the last one at its address, leave a state that differs from the segments'."""
    blocks = [block for segment in segments for block in segment.blocks if block.state in _STATES]
    begins = np.array(sorted(block.address for block in blocks), np.int64)
    state_at = {block.address: _STATES[block.state] for block in blocks}
    states = np.array([state_at[begin] for begin in begins.tolist()], np.int64)
    is_last = np.ones(len(action), bool)
    is_last[:-1] = is_first[1:]
    place = np.searchsorted(begins, address)
    there = np.zeros(len(action), bool)
    inside = place < len(begins)
    there[inside] = begins[place[inside]] == address[inside]
    now = np.full(len(action), FREE_COMPLETED)
    now[there] = states[place[there]]
    differs: NDArray[np.bool_] = is_last & (now != action)
    return differs


def _overlap(segments: Sequence[Segment]) -> str | None:
    end = 0
    for segment in sorted(segments, key=lambda segment: segment.address):
        if segment.address < end:
            return f"the one at {segment.address:#x} begins within another."
        place = segment.address
        for block in segment.blocks:
            if block.address != place:
                return f"the blocks of the one at {segment.address:#x} do not lie one after the other."
            place += block.size
        end = segment.address + segment.total_size
        if segment.blocks and place != end:
            return f"the blocks of the one at {segment.address:#x} do not add up to its size."
    return None


def _sentence(device: int, columns: Columns, event: int, text: str) -> str:
    return (
        f"The trace and the segments of device {device} disagree: event {event:,}, "
        f"`{columns.actions[columns.action[event]]}` of {int(columns.size[event]):,} bytes at "
        f"{int(columns.address[event]):#x}, {text}; levels and owners are shown as far as they can be known."
    )
