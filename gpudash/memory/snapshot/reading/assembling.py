"""Puts a snapshot together from what was found in a file.

On the way it looks, for all addresses at once and without replaying, whether a trace and the segments at its end agree,
and cuts the stretch out that was asked for, with the segments at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import AllocatorSettings, Segment
from gpudash.memory.allocator.blocks import Rounding
from gpudash.memory.snapshot.history.model import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NONE,
    Columns,
    DeviceSnapshot,
    EventList,
    Snapshot,
    SnapshotError,
)
from gpudash.memory.snapshot.history.reverse_replay import ReverseReplay
from gpudash.memory.snapshot.reading.contents import (
    allocator_settings_of,
    annotations_of,
    plain_settings,
    segments_of,
    stated_allocated,
)
from gpudash.memory.snapshot.reading.limits import ReadLimits, TimeRange
from gpudash.memory.snapshot.reading.shape import ShapeError, as_dict, readable, shown
from gpudash.memory.snapshot.reading.stacks import StackTable
from gpudash.memory.snapshot.reading.trace_columns import Numbering, TraceColumns
from gpudash.units import format_bytes

KNOWN = frozenset(("segments", "device_traces", "allocator_settings", "external_annotations"))
MOST_NAMES = 5

MOST_BYTES = 2**62
"""That sizes of one device add up to: a trace of ten million requests of 100 GiB stays far below."""

_BEFORE = {ALLOC: FREE_COMPLETED, FREE_REQUESTED: ALLOC, FREE_COMPLETED: FREE_REQUESTED}
"""What has to have happened at an address before; nothing, at the first event, is always right."""

_STATES = {"active_allocated": ALLOC, "active_pending_free": FREE_REQUESTED}


@dataclass(slots=True)
class FoundInFile:
    """What a file holds.

    Attributes:
        data: its dictionary; the events are elsewhere.
        traces: by device.
        stacks, texts: of all of them.
        kind: of file, in words.
        is_whole: whether no event was dropped for want of room.
    """

    data: dict[str, Any]
    traces: Sequence[TraceColumns]
    stacks: StackTable
    texts: Numbering
    kind: str
    is_whole: bool = True
    warnings: list[str] = field(default_factory=list)


def assembled(found: FoundInFile, limits: ReadLimits, times: TimeRange | None) -> Snapshot:
    """The snapshot.

    Raises:
        ShapeError: segments, settings or annotations are not what they should be.
    """
    return _Assembling(found).snapshot(limits, times)


def contradictions(
    device: int, columns: Columns, segments: Sequence[Segment], stated_allocated: int | None = None
) -> list[str]:
    """In one sentence each, in what segments and trace contradict themselves and each other.

    Args:
        device: index in the file, for the sentence.
        columns: the events.
        segments: after the last of them.
        stated_allocated: bytes that the segments themselves say are allocated.
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
    return found if disagreement is None else [*found, disagreement]


class Stretch(NamedTuple):
    """Events `begin` to before `end`."""

    begin: int
    end: int


def stretch_of(columns: Columns, times: TimeRange | None) -> Stretch:
    """Where the wanted times are; the whole where there are none, or the file keeps none."""
    count = len(columns)
    if times is None or count == 0:
        return Stretch(0, count)
    known = columns.time_us != NONE
    begin, end = 0, count
    if times.from_us is not None:
        late = known & (columns.time_us >= times.from_us)
        begin = int(late.argmax()) if late.any() else (count if known.any() else 0)
    if times.to_us is not None:
        early = known & (columns.time_us <= times.to_us)
        end = count - int(early[::-1].argmax()) if early.any() else (0 if known.any() else count)
    return Stretch(begin, max(begin, end))


def cut(columns: Columns, begin: int, end: int) -> Columns:
    """The events ``begin`` to before ``end``, copied, so that those around them need not be kept."""
    kept: dict[str, Any] = {column.name: getattr(columns, column.name) for column in fields(columns)}
    cut_out: dict[str, Any] = {
        name: value[begin:end].copy() for name, value in kept.items() if isinstance(value, np.ndarray)
    }
    return replace(columns, **cut_out)


def segments_before(
    later: Columns, segments: Sequence[Segment], settings: AllocatorSettings
) -> tuple[Segment, ...] | None:
    """The segments before the first of some events, from those after the last; ``None`` where they disagree."""
    try:
        undoing = ReverseReplay(segments, Rounding(settings))
        for entry in reversed([*EventList(later)]):
            undoing.undo(entry)
    except SnapshotError:
        return None
    return tuple(undoing.segments())


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
        self._reaches_end = True

    def snapshot(self, limits: ReadLimits, times: TimeRange | None) -> Snapshot:
        """All devices, and what is to be said of them."""
        traces = self._found.traces
        settings, left_out = plain_settings(self._recorded)
        if left_out:
            self._warnings.append(f"{left_out} of the allocator's settings are of a kind that is not known here.")
        _tell_unknown(self._found)
        in_file = sum(trace.seen for trace in traces)
        first_us = next((trace.first_us for trace in traces if trace.first_us is not None), None)
        present = sorted(self._segments.keys() | {n for n, trace in enumerate(traces) if trace.seen}) or [0]
        pairs = [self._device(number, times) for number in present]
        kept = [columns for _device, columns in pairs]
        if sum(map(len, kept)) < in_file:
            limit = None if self._found.is_whole else limits.memory_bytes
            self._warnings.insert(0, _part(kept, in_file, _span(kept, first_us, self._reaches_end), limit))
        devices = tuple(device for device, _columns in pairs)
        warnings = tuple(map(readable, self._warnings))
        return Snapshot(devices, settings, self._annotations, self._stacks, self._found.kind, in_file, warnings)

    def _device(self, number: int, times: TimeRange | None) -> tuple[DeviceSnapshot, Columns]:
        found = self._found
        trace = found.traces[number] if number < len(found.traces) else TraceColumns(found.stacks, found.texts, "")
        columns, segments = trace.columns(), tuple(self._segments.get(number, ()))
        _check_sums(number, columns, segments)
        stated = self._stated.get(number)
        self._warnings += contradictions(number, columns, segments, stated)
        stretch = stretch_of(columns, times)
        if stretch.end < len(columns):
            self._reaches_end = False
            segments, stated = self._undone(number, cut(columns, stretch.end, len(columns)), segments), None
        if stretch != Stretch(0, len(columns)):
            columns = cut(columns, *stretch)
        device = DeviceSnapshot(number, segments, EventList(columns), self._settings, self._stacks, stated)
        return device, columns

    def _undone(self, number: int, later: Columns, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """The segments before some events that are not kept."""
        before = segments_before(later, segments, self._settings)
        if before is not None:
            return before
        self._warnings.append(
            f"What happened on device {number} after the part that was read cannot be undone, since the file "
            "contradicts itself: its segments are those of the end of the file."
        )
        return segments


def _check_sums(number: int, columns: Columns, segments: Sequence[Segment]) -> None:
    """Refuse sizes with which levels cannot be told: they are added up as 64-bit integers."""
    blocks = [block for segment in segments for block in segment.blocks]
    for sizes in (
        columns.size,
        [segment.total_size for segment in segments],
        [block.size for block in blocks],
        [block.requested_size for block in blocks],
    ):
        if float(np.sum(sizes, dtype=np.float64)) > MOST_BYTES:
            raise ShapeError(f"the sizes of device {number} add up to more than 64 bits hold")


def _tell_unknown(found: FoundInFile) -> None:
    unknown: dict[str, int] = {}
    for trace in found.traces:
        for key, count in trace.unknown.items():
            unknown[key] = unknown.get(key, 0) + count
    if unknown:
        found.warnings.append(f"Events have keys that are not known here: {_names(unknown)}.")
    others = [key if isinstance(key, str) else shown(key) for key in found.data.keys() - KNOWN]
    if others:
        found.warnings.append(f"The file has parts that are not known here: {_names(sorted(others))}.")


def _names(names: Sequence[str] | Mapping[str, int]) -> str:
    listed = ", ".join(shown(name)[1:-1] if len(name) > 40 else name for name in list(names)[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return listed if more <= 0 else f"{listed} and {more} more"


def _part(kept: Sequence[Columns], in_file: int, span: str, memory_bytes: int | None) -> str:
    """What of the file was read, in a sentence; without a limit of memory, because it was asked for."""
    whole = "as asked for"
    if memory_bytes is not None:
        whole = f"since the whole needs more than {format_bytes(memory_bytes)} of memory"
    return f"Read in part: {sum(map(len, kept)):,} of {in_file:,} events, {span}{whole}."


def _span(kept: Sequence[Columns], first_us: int | None, reaches_end: bool) -> str:
    """From when to when, counted from the first event of the file; nothing without times."""
    timed = [column for column in (columns.time_us[columns.time_us != NONE] for columns in kept) if len(column)]
    if not timed or first_us is None:
        return ""
    begin = min(int(column[0]) for column in timed) - first_us
    end = max(int(column[-1]) for column in timed) - first_us
    return f"{_clock(begin)} to {'the end' if reaches_end else _clock(end)}, "


def _clock(time_us: int) -> str:
    """Time since the first event of the file."""
    sign, tenths = ("−", -time_us) if time_us < 0 else ("", time_us)
    tenths //= 100_000
    minutes, hours = tenths // 600 % 60, tenths // 36_000
    shown_hours = f"{hours}:" if hours else ""
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
    """Which events, the last ones at their address, leave it in another state than the segments have it."""
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


def _sentence(device: int, columns: Columns, event: int, words: str) -> str:
    return (
        f"The trace and the segments of device {device} disagree: event {event:,}, "
        f"`{columns.actions[columns.action[event]]}` of {int(columns.size[event]):,} bytes at "
        f"{int(columns.address[event]):#x}, {words}; levels and owners are shown as far as they can be known."
    )
