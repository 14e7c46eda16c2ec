"""The model of a memory snapshot: events in columns, each stack once.

A million events take some 50 MB; as Python objects they would take ten times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import AllocatorSettings, Segment

Frame = tuple[str, int, str]
"""File, line, function."""

Stack = tuple[Frame, ...]
"""Innermost frame first, as in torch."""

NONE = -1
"""Value in a column for a missing field."""

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
"""torch's names of actions, in the order of the codes in `Columns.action`; unknown ones follow."""

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SNAPSHOT, OOM = range(9)


def is_python(frame: Frame) -> bool:
    """Whether a frame is Python's: torch also records C++ frames, and generated code without a file."""
    return frame[0].endswith(".py")


class SnapshotError(ValueError):
    """A file is not a memory snapshot, or cannot be opened: one sentence, with a remedy."""


class TraceEntry(NamedTuple):
    """An event of an allocator, sizes in bytes.

    Attributes:
        action: torch's name; unknown ones are kept.
        address: 0 if the event has none.
        size: requested size, not rounded.
        time_us: microseconds since 1970; ``None`` in files without times.
        stack: index into the snapshot's stacks; ``None`` without frames.
        pool_id: identity of the private pool; ``None`` if unknown.
        device_free: free bytes of the card at an ``oom``.
    """

    action: str
    address: int
    size: int
    stream: int
    time_us: int | None = None
    stack: int | None = None
    pool_id: tuple[int, ...] | None = None
    device_free: int | None = None


class Annotation(NamedTuple):
    """The beginning (``START``) or end (``END``) of a named phase."""

    stage: str
    name: str
    device: int
    time_us: int


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The events of one device, oldest first: arrays of one length.

    Attributes:
        action: code, an index into `actions`.
        address, size, stream: as in `TraceEntry`; bytes.
        time_us, stack, device_free: as in `TraceEntry`, `NONE` for ``None``.
        pool: index into `pools`, or `NONE`.
        context, metadata: ``compile_context`` and ``user_metadata``, indices into `texts`, or `NONE`.
        actions: `ACTIONS`, followed by unknown ones in the file.
    """

    action: NDArray[np.uint8]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    stream: NDArray[np.int64]
    time_us: NDArray[np.int64]
    stack: NDArray[np.int32]
    pool: NDArray[np.int32]
    device_free: NDArray[np.int64]
    context: NDArray[np.int32]
    metadata: NDArray[np.int32]
    actions: tuple[str, ...] = ACTIONS
    pools: tuple[tuple[int, ...], ...] = ()
    texts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.action)


EVENT_COLUMNS: Mapping[str, type[np.generic]] = {
    "action": np.uint8,
    **dict.fromkeys(("address", "size", "stream", "time_us", "device_free"), np.int64),
    **dict.fromkeys(("stack", "pool", "context", "metadata"), np.int32),
}
"""The arrays of `Columns` and their types."""


class EventList(Sequence[TraceEntry]):
    """The events in `columns` as objects, created on access."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    @overload
    def __getitem__(self, place: int) -> TraceEntry: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[TraceEntry]: ...
    def __getitem__(self, place: int | slice) -> TraceEntry | Sequence[TraceEntry]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        columns = self.columns
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self._entry(
            int(columns.action[place]),
            int(columns.address[place]),
            int(columns.size[place]),
            int(columns.stream[place]),
            int(columns.time_us[place]),
            int(columns.stack[place]),
            int(columns.pool[place]),
            int(columns.device_free[place]),
        )

    def __iter__(self) -> Iterator[TraceEntry]:
        found = self.columns
        kept = (
            found.action,
            found.address,
            found.size,
            found.stream,
            found.time_us,
            found.stack,
            found.pool,
            found.device_free,
        )
        return map(self._entry, *(column.tolist() for column in kept))

    def _entry(
        self, action: int, address: int, size: int, stream: int, time_us: int, stack: int, pool: int, free: int
    ) -> TraceEntry:
        return TraceEntry(
            self.columns.actions[action],
            address,
            size,
            stream,
            None if time_us == NONE else time_us,
            None if stack == NONE else stack,
            None if pool == NONE else self.columns.pools[pool],
            None if free == NONE else free,
        )


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """A device of a snapshot.

    Attributes:
        index: index in the file.
        segments: final segments, by address; a block's `owner` is the index of its stack or ``None``.
        trace: events, oldest first.
        settings: allocator settings.
        stacks: stacks of the whole snapshot.
        stated_allocated: allocated bytes by the file's segments, which their blocks may contradict; ``None`` if not
            stated, or if this is not the end of the trace.
    """

    index: int
    segments: tuple[Segment, ...]
    trace: EventList
    settings: AllocatorSettings
    stacks: Sequence[Stack] = field(repr=False)
    stated_allocated: int | None = None

    @property
    def reserved_bytes(self) -> int:
        """Memory that PyTorch had reserved on the device at the time of the snapshot."""
        return sum(segment.total_size for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as read from a file.

    Attributes:
        devices: devices with segments or events; the first one if there are neither.
        settings: allocator settings, as torch writes them; empty if the file has none.
        annotations: annotations in the file's order.
        stacks: distinct stacks.
        kind: format of the file in words: "pickle protocol 4", "JSON", either with ", gzip".
        events_in_file: number of events in the file; the traces have fewer if it was read in part.
        warnings: one sentence for each omission or inconsistency.
    """

    devices: tuple[DeviceSnapshot, ...]
    settings: Mapping[str, object]
    annotations: tuple[Annotation, ...]
    stacks: Sequence[Stack] = field(repr=False)
    kind: str = ""
    events_in_file: int = 0
    warnings: tuple[str, ...] = ()

    def device(self, index: int) -> DeviceSnapshot | None:
        """The device with an index in torch's numbering; ``None`` where the file has nothing of it."""
        return next((device for device in self.devices if device.index == index), None)

    def device_called(self, name: str) -> DeviceSnapshot:
        """The device that torch calls so ("cuda:1"); the first one where there is none."""
        number = name.partition(":")[2]
        return next((device for device in self.devices if str(device.index) == number), self.devices[0])
