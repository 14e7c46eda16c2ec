"""Reads the memory snapshots that torch pickles (``torch.cuda.memory._dump_snapshot``), and the same as JSON.

Supported forms: the dictionary of torch 2.0 and later, the plain list of segments that ``memory_snapshot()`` returns,
and older blocks with a history instead of an address. In JSON, which other tools write, each list of frames is written
in full.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpudash.memory.snapshot.history.model import Frame, Snapshot, SnapshotError
from gpudash.memory.snapshot.reading.assembling import FoundInFile, assembled
from gpudash.memory.snapshot.reading.source import LARGEST, Progress, ReadLimits, ShapeError, Source, as_list
from gpudash.memory.snapshot.reading.stacks import UNKNOWN_LINE, StackTable
from gpudash.memory.snapshot.reading.trace_columns import (
    ABSENT_TEXTS,
    AT_ONCE,
    CHUNK,
    Collecting,
    Numbering,
    TraceColumns,
)
from gpudash.memory.snapshot.reading.unpickling import StreamingUnpickler, unpickled
from gpudash.system.garbage import without_collection

ROOM_PER_BYTE = 5
"""Least memory in Python objects for a byte of a file: 5 with shared stacks, 11 without."""

EVENT_BYTES = 384
"""Memory for an event in sparing mode.

Its row twice, while the chunks are joined, the cost of checking it, its place in the memo; and as much for the rest.
"""

PROTO = b"\x80"
"""First byte of a pickle of protocol 2 or later; the next one is the protocol."""

OTHER_TOOLS = {
    "traceEvents": "a trace of torch.profiler or Chrome, which knows times and no memory segments",
    "schemaVersion": "a trace of a profiler, which knows times and no memory segments",
    "cells": "a notebook",
    "state_dict": "a checkpoint",
}

BEGINNINGS = (b"{", b"[", b"\xef\xbb\xbf")
SPACE = b" \t\r\n"


def read_snapshot(path: Path, *, limits: ReadLimits | None = None, progress: Progress | None = None) -> Snapshot:
    """Read a snapshot file; in part if all of it would exceed the memory limit.

    Args:
        path: path of the file: a pickle or JSON, possibly compressed with gzip.
        limits: size limits. The memory limit only holds if the process itself is limited to it, as the child process
            in `gpudash.memory.snapshot.reading.process` is.
        progress: callback with the bytes read and the size of the file.

    Raises:
        SnapshotError: if it is not a snapshot, is too large, truncated or malformed, or requests anything but plain
            data.
        OSError: if it cannot be read.
    """
    limits = limits or ReadLimits()
    with without_collection():
        with Source(path, limits, progress) as source:
            if looks_like_json(source.begin):
                return _shaped(source, "JSON", lambda: _whole(decoded(source), _kind(source, "JSON")), limits)
            kind = "pickle"
            if source.begin[:1] == PROTO < source.begin:
                kind = f"pickle protocol {source.begin[1]}"
            if source.size * ROOM_PER_BYTE < limits.memory_bytes:
                try:
                    return _shaped(source, kind, lambda: _whole(unpickled(source), _kind(source, kind)), limits)
                except MemoryError:
                    pass  # its memory is freed with this exception
        with Source(path, limits, progress) as source:
            return _shaped(source, kind, lambda: _sparingly(source, kind, limits), limits)


def snapshot_of(data: Any) -> Snapshot:
    """A snapshot from the result of ``torch.cuda.memory._snapshot`` in this process; removes the events from it.

    Raises:
        SnapshotError: if its structure is different.
    """
    try:
        return assembled(_whole(data, "this process"), ReadLimits())
    except ShapeError as error:
        raise SnapshotError(f"torch gave no memory snapshot: {error}.") from error


def looks_like_json(begin: bytes) -> bool:
    """Whether a file with this beginning may be JSON; a pickle of protocol 0 begins with neither bracket."""
    return begin.lstrip(SPACE).startswith(BEGINNINGS)


def decoded(source: Source) -> Any:
    """The data, with equal frames as the same tuple.

    Raises:
        SnapshotError: if it is not JSON, truncated, or nested too deeply.
        OSError: if it cannot be read.
        MemoryError: if memory is not sufficient.
    """
    text = source.stream.read()

    def refused(constant: str) -> NoReturn:
        raise SnapshotError(f"{source.name} is no memory snapshot: it holds {constant}, which no size or time is.")

    try:
        return json.loads(text, object_hook=_Frames().kept_once, parse_constant=refused)
    except (SnapshotError, OSError, MemoryError):
        raise
    except RecursionError as error:
        raise SnapshotError(f"{source.name} is no memory snapshot: its JSON is nested without end.") from error
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()) or "Unterminated" in error.msg:
            raise SnapshotError(f"{source.name} is cut off: copy it again, or write it again.") from error
        raise SnapshotError(
            f"{source.name} is not a memory snapshot, since its JSON is wrong at line {error.lineno}."
        ) from error
    except ValueError as error:
        raise SnapshotError(f"{source.name} is not a memory snapshot, since its JSON cannot be read.") from error


def _shaped(source: Source, kind: str, read: Callable[[], FoundInFile], limits: ReadLimits) -> Snapshot:
    form = "a pickle"
    if kind == "JSON":
        form = "JSON"
    try:
        found = read()
        source.finished()
        return assembled(found, limits)
    except ShapeError as error:
        raise SnapshotError(f"{source.name} is {form} but no memory snapshot: {error}.") from error


def _top(data: Any) -> dict[str, Any]:
    """The file's top-level dictionary."""
    if isinstance(data, list):
        return {"segments": data}
    if isinstance(data, dict) and "segments" in data:
        return data
    known = next((text for key, text in OTHER_TOOLS.items() if isinstance(data, dict) and key in data), None)
    raise ShapeError(
        (f"it is {known}; " if known else "")
        + "at the top should be a list of segments or a dictionary with `segments`"
    )


def _lists_of_events(top: dict[str, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """The list of each device, and its position in the file; removes them from the dictionary."""
    lists = as_list(top.pop("device_traces", None) or [], "device_traces")
    place_of: dict[int, int] = {}
    for device, value in enumerate(lists):
        where = f"device_traces[{device}]"
        if place_of.setdefault(id(value), device) != device:
            raise ShapeError(f"{where} is the same list as device_traces[{place_of[id(value)]}]")
        yield where, as_list(value, where)


def _whole(data: Any, kind: str) -> FoundInFile:
    """The content of data that are in memory as a whole; removes the events from them."""
    top = _top(data)
    stacks, texts = StackTable(), Numbering((), (None, *ABSENT_TEXTS))
    traces = []
    for where, entries in _lists_of_events(top):
        trace = TraceColumns(stacks, texts, where)
        for begin in range(0, len(entries), CHUNK):
            trace.add(entries[begin : begin + CHUNK])
            if isinstance(entries, list):
                entries[begin : begin + CHUNK] = [None] * len(entries[begin : begin + CHUNK])
        traces.append(trace)
    return FoundInFile(top, traces, stacks, texts, kind)


def _sparingly(source: Source, kind: str, limits: ReadLimits) -> FoundInFile:
    """The content of a pickle that is read opcode by opcode, with as many events as fit in memory."""
    stacks, texts = StackTable(), Numbering((), (None, *ABSENT_TEXTS))
    collecting = Collecting(stacks, texts, max(AT_ONCE, limits.memory_bytes // EVENT_BYTES))
    try:
        top = _top(StreamingUnpickler(source, limits, collecting).load())
        collecting.flush()
    except MemoryError:
        raise SnapshotError(
            f"{source.name} needs more than {limits.memory_bytes:,} bytes of memory even in part: "
            "allow more, or record a shorter trace."
        ) from None
    traces = []
    for where, entries in _lists_of_events(top):
        traces.append(collecting.traces.get(id(entries)) or TraceColumns(stacks, texts, where))
    return FoundInFile(top, traces, stacks, texts, _kind(source, kind), is_whole=not collecting.dropped)


def _kind(source: Source, kind: str) -> str:
    if source.is_compressed:
        return f"{kind}, gzip"
    return kind


class _Frames:
    """Replaces dictionaries of frames while the text is parsed, so that a million copies need no memory."""

    def __init__(self) -> None:
        self._known: dict[Frame, Frame] = {}

    def kept_once(self, value: dict[str, Any]) -> Any:
        """The frame for a dictionary, or the dictionary itself."""
        name, file, line = value.get("name"), value.get("filename"), value.get("line")
        if type(name) is not str or type(file) is not str or type(line) is not int or not 0 <= line <= LARGEST:
            return value
        frame = (file, line if line < UNKNOWN_LINE else 0, name)
        return self._known.setdefault(frame, frame)
