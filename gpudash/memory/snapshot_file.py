"""Reader of the memory snapshots torch pickles (``torch.cuda.memory._dump_snapshot``).

Known forms: the dictionary of torch 2.0 and later, the bare list of segments that ``memory_snapshot()`` returns,
and the older blocks that carry a history instead of an address. A real snapshot is made of dicts, lists, tuples,
strings and numbers; a pickle that asks for anything else is refused before it can do anything.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from gpudash.memory.allocator import AllocatorSettings, BlockView, Segment
from gpudash.units import GIB

MAX_BYTES = 2 * GIB

Frame = tuple[str, int, str]
"""File, line, function."""

Stack = tuple[Frame, ...]
"""Innermost frame first, as torch writes them."""

ARCHIVE = b"PK\x03\x04"

STATES = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}


class SnapshotError(ValueError):
    """A file is not a memory snapshot, or not one that can be opened: one sentence, with the way out."""


class TraceEntry(NamedTuple):
    """One event of an allocator, sizes in bytes.

    Attributes:
        action: torch's word; unknown ones are kept.
        address: 0 where the event has none.
        time_us: microseconds since 1970, ``None`` in files that keep no times.
        stack: index into the snapshot's stacks, ``None`` without frames.
        pool_id: of the private pool, ``None`` where the file does not tell.
        device_free: bytes the card had free at an ``oom``.
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
    """A named phase begins (``START``) or ends (``END``)."""

    stage: str
    name: str
    device: int
    time_us: int


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """One device of a snapshot.

    Attributes:
        index: in the file.
        segments: at the time of the snapshot, by address; a block's `owner` is the index of its stack or ``None``.
        trace: oldest event first.
        settings: the allocator's.
        stacks: those of the whole snapshot.
    """

    index: int
    segments: tuple[Segment, ...]
    trace: tuple[TraceEntry, ...]
    settings: AllocatorSettings
    stacks: Sequence[Stack] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as read.

    Attributes:
        devices: those with segments or events; the first one where there are neither.
        settings: the allocator's, as torch writes them; empty where the file has none.
        annotations: in the order of the file.
        stacks: each different one once.
    """

    devices: tuple[DeviceSnapshot, ...]
    settings: Mapping[str, object]
    annotations: tuple[Annotation, ...]
    stacks: Sequence[Stack] = field(repr=False)


def read_snapshot(path: Path, max_bytes: int = MAX_BYTES) -> Snapshot:
    """Read a snapshot file.

    Args:
        path: of the file.
        max_bytes: a larger file is not opened.

    Raises:
        SnapshotError: it is too large, no pickle, cut off, asks for anything but plain data, or has another shape.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size > max_bytes:
            raise SnapshotError(
                f"{path.name} has {size:,} bytes, more than the {max_bytes:,} that are opened: record a shorter trace."
            )
        file.seek(0)
        with _no_collection():
            return _Reader(path.name).snapshot(_load(file, path.name, size))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector, which a million new objects would start again and again for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _PlainUnpickler(pickle.Unpickler):
    """Makes dicts, lists, tuples, strings and numbers, and nothing else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise SnapshotError(
            f"The file asks for the Python object {module}.{name}, which no memory snapshot does: it is not opened, "
            "since such a file can run anything."
        )

    def persistent_load(self, identity: object) -> NoReturn:
        raise SnapshotError(
            "The file is no memory snapshot: it refers to objects outside itself, which no snapshot does."
        )


def _load(file: BinaryIO, name: str, size: int) -> Any:
    if size == 0:
        raise SnapshotError(f"{name} is empty: record the snapshot again.")
    begin = file.read(len(ARCHIVE))
    file.seek(0)
    if begin == ARCHIVE:
        raise SnapshotError(f"{name} is an archive, as torch.save writes them, and no memory snapshot.")
    try:
        return _PlainUnpickler(file).load()
    except SnapshotError:
        raise
    except Exception as error:  # the unpickler raises whatever the bytes make it stumble over
        if isinstance(error, EOFError) or "truncated" in str(error):
            raise SnapshotError(f"{name} is cut off: copy it again, or record the snapshot again.") from error
        raise SnapshotError(f"{name} is not a memory snapshot, since it is no pickle ({_words(error)}).") from error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(". ")[:120]


def _from_environment(text: object) -> AllocatorSettings:
    try:
        return AllocatorSettings.parse(text) if isinstance(text, str) else AllocatorSettings()
    except ValueError:
        # other versions of torch know other keys
        return AllocatorSettings()


class _Reader:
    """Turns the unpickled data of one file into a `Snapshot`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stacks: list[Stack] = []
        self._index_by_content: dict[Stack, int] = {}
        # by identity: the pickle shares each list among all events that have it, and the data outlives this reader
        self._index_by_list: dict[int, int] = {}
        self._frame_by_dict: dict[int, Frame] = {}

    def snapshot(self, data: Any) -> Snapshot:
        if isinstance(data, list):
            data = {"segments": data}
        if not isinstance(data, dict) or "segments" not in data:
            self._refuse("at the top, where a list of segments or a dictionary with `segments` should be")
        traces = self._list(data.get("device_traces", []), "device_traces")
        segments: dict[int, list[Segment]] = {}
        for number, raw in enumerate(self._list(data["segments"], "segments")):
            device, segment = self._segment(raw, f"segments[{number}]")
            segments.setdefault(device, []).append(segment)
        read = [self._trace(raw, f"device_traces[{device}]") for device, raw in enumerate(traces)]
        present = sorted(segments.keys() | {device for device, trace in enumerate(read) if trace}) or [0]
        annotations = self._list(data.get("external_annotations", []), "external_annotations")
        recorded = self._dict(data.get("allocator_settings", {}), "allocator_settings")
        settings = self._settings(recorded)
        return Snapshot(
            devices=tuple(
                DeviceSnapshot(
                    index=device,
                    segments=tuple(sorted(segments.get(device, []), key=lambda segment: segment.address)),
                    trace=read[device] if device < len(read) else (),
                    settings=settings,
                    stacks=self._stacks,
                )
                for device in present
            ),
            settings=recorded,
            annotations=tuple(
                self._annotation(raw, f"external_annotations[{number}]") for number, raw in enumerate(annotations)
            ),
            stacks=self._stacks,
        )

    def _settings(self, recorded: dict[str, Any]) -> AllocatorSettings:
        """The recorded settings; torch's defaults where the file tells none.

        Torch writes the text of the environment and the values of some keys, which win: a program can change them.
        """
        found = _from_environment(recorded.get("PYTORCH_CUDA_ALLOC_CONF"))
        divisions = self._dict(recorded.get("roundup_power2_divisions", {}), "roundup_power2_divisions")
        limit = self._int(recorded, "max_split_size", "allocator_settings", -1)
        try:
            divided = {int(interval): int(parts) for interval, parts in divisions.items() if parts}
            return replace(
                found,
                max_split_size=None if limit < 0 else limit,
                roundup_power2_divisions=divided or 0,
                garbage_collection_threshold=float(recorded.get("garbage_collection_threshold", 0.0)),
                expandable_segments=recorded.get("expandable_segments") is True,
            )
        except (TypeError, ValueError) as error:
            self._refuse(f"its allocator settings cannot be right: {error}".rstrip("."))

    def _refuse(self, where: str) -> NoReturn:
        raise SnapshotError(f"{self._name} is a pickle but no memory snapshot: {where}.")

    def _list(self, value: object, where: str) -> list[Any] | tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            self._refuse(f"{where} is a {type(value).__name__}, not a list")
        return value

    def _dict(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._refuse(f"{where} is a {type(value).__name__}, not a dictionary")
        return value

    def _int(self, raw: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
        value = raw.get(key, default)
        if type(value) is not int:
            self._refuse(f"`{key}` of {where} is {value!r:.60}, not an integer")
        return value

    def _size(self, raw: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
        value = self._int(raw, key, where, default)
        if value < 0:
            self._refuse(f"`{key}` of {where} is negative")
        return value

    def _text(self, raw: Mapping[str, Any], key: str, where: str) -> str:
        value = raw.get(key)
        if not isinstance(value, str):
            self._refuse(f"`{key}` of {where} is {value!r:.60}, not a text")
        return value

    def _pool_id(self, value: object, where: str) -> tuple[int, ...]:
        if not isinstance(value, list | tuple) or not all(type(part) is int for part in value):
            self._refuse(f"the pool of {where} is {value!r:.60}, not two integers")
        return tuple(value)

    def _segment(self, value: object, where: str) -> tuple[int, Segment]:
        raw = self._dict(value, where)
        address = self._int(raw, "address", where)
        blocks, place = [], address
        for number, block in enumerate(self._list(raw.get("blocks"), f"the blocks of {where}")):
            blocks.append(self._block(self._dict(block, where), place, f"{where}, block {number}"))
            place = blocks[-1].address + blocks[-1].size
        return self._int(raw, "device", where, 0), Segment(
            address=address,
            total_size=self._size(raw, "total_size", where),
            stream=self._int(raw, "stream", where, 0),
            is_small=raw.get("segment_type") == "small",
            pool_id=self._pool_id(raw.get("segment_pool_id", (0, 0)), where),
            is_expandable=raw.get("is_expandable") is True,
            blocks=tuple(blocks),
        )

    def _block(self, raw: dict[str, Any], place: int, where: str) -> BlockView:
        state = STATES.get(self._text(raw, "state", where))
        if state is None:
            self._refuse(f"the state of {where} is {raw['state']!r:.60}")
        size = self._size(raw, "size", where)
        frames, requested = raw.get("frames"), size
        history = self._list(raw.get("history", ()), f"the history of {where}")
        if history:
            last = self._dict(history[-1], f"the history of {where}")
            frames, requested = last.get("frames"), self._size(last, "real_size", where, size)
        return BlockView(
            address=self._int(raw, "address", where, place),
            size=size,
            requested_size=0 if state == "inactive" else self._size(raw, "requested_size", where, requested),
            state=state,
            owner=self._stack(frames, where),
        )

    def _trace(self, value: object, where: str) -> tuple[TraceEntry, ...]:
        return tuple(
            self._entry(self._dict(raw, where), f"{where}[{number}]")
            for number, raw in enumerate(self._list(value, where))
        )

    def _entry(self, raw: dict[str, Any], where: str) -> TraceEntry:
        pool = raw.get("pool_id")
        return TraceEntry(
            action=self._text(raw, "action", where),
            address=self._int(raw, "addr", where, 0),
            size=self._size(raw, "size", where, 0),
            stream=self._int(raw, "stream", where, 0),
            time_us=self._int(raw, "time_us", where) if "time_us" in raw else None,
            stack=self._stack(raw.get("frames"), where),
            pool_id=None if pool is None else self._pool_id(pool, where),
            device_free=self._size(raw, "device_free", where) if "device_free" in raw else None,
        )

    def _annotation(self, value: object, where: str) -> Annotation:
        raw = self._dict(value, where)
        return Annotation(
            self._text(raw, "stage", where),
            self._text(raw, "name", where),
            self._int(raw, "device", where, 0),
            self._int(raw, "time_us", where, 0),
        )

    def _stack(self, frames: object, where: str) -> int | None:
        if not frames:
            return None
        found = self._index_by_list.get(id(frames))
        if found is None:
            stack = tuple(self._frame(frame, where) for frame in self._list(frames, f"the frames of {where}"))
            found = self._index_by_content.setdefault(stack, len(self._stacks))
            if found == len(self._stacks):
                self._stacks.append(stack)
            self._index_by_list[id(frames)] = found
        return found

    def _frame(self, value: object, where: str) -> Frame:
        found = self._frame_by_dict.get(id(value))
        if found is None:
            raw = self._dict(value, f"a frame of {where}")
            line = raw.get("line", 0)
            if not isinstance(line, int):
                self._refuse(f"a frame of {where} has the line {line!r:.60}")
            found = (self._text(raw, "filename", where), line, self._text(raw, "name", where))
            self._frame_by_dict[id(value)] = found
        return found
