"""A recording's memory, stages and marks merged into a trace of PyTorch's profiler, for ui.perfetto.dev.

Perfetto does not show the profiler's ``[memory]`` events; here each becomes a point of a counter, as do the readings
of the recording.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from gpudash.memory.profiler_trace.operators import LARGEST_US, MEMORY, device_of, number_of
from gpudash.memory.profiler_trace.trace_file import TraceError, TraceFile
from gpudash.telemetry.export import trace
from gpudash.telemetry.export.tables import write_list
from gpudash.telemetry.export.writing import atomically
from gpudash.telemetry.recording.facts import wall_clock_s
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.recorder import RecordingError

FIRST_PROCESS = 1_000_000_000
"""Added to the process numbers of a recording: the profiler uses those of the system, and for GPUs those from 0."""

MARGIN_US = 1e6
"""How much of the recording is kept before and after the profile, in microseconds."""

SINCE_1970_US = 1e14
"""Larger event times are microseconds since 1970, as the profiler wrote them before ``baseTimeNanoseconds``."""

Entry = dict[str, Any]


def export_merged(recording: Recording, profile: Path, out: Path, force: bool = False) -> None:
    """Write the events of the trace ``profile``, and those of the recording during it, to ``out``.

    The file is compressed if its name ends in ``.gz``.

    Raises:
        RecordingError: one sentence, when the profile is invalid or of another time, or ``out`` must not be written.
    """
    try:
        with TraceFile(profile) as file, atomically(out, recording.path, force) as part:
            if out.exists() and out.samefile(profile):
                raise RecordingError(f"{out} is the profile itself; choose another name")
            with _text_file(part, compressed=out.suffix == ".gz") as target:
                _write(recording, file, target)
    except TraceError as error:
        raise RecordingError(str(error).removesuffix(".")) from None
    except FileNotFoundError:
        raise RecordingError(f"there is no file {profile}") from None


def _text_file(path: Path, *, compressed: bool) -> TextIO:
    if compressed:
        return TextIOWrapper(gzip.GzipFile(path, "wb", compresslevel=3), encoding="utf-8")
    return path.open("w", encoding="utf-8")


def _write(recording: Recording, file: TraceFile, target: TextIO) -> None:
    target.write('{"schemaVersion": 1,\n"traceEvents": ')
    write_list(_entries(recording, file), target)
    for name, value in file.facts.items():
        if name != "schemaVersion":
            target.write(f",\n{json.dumps(name)}: {json.dumps(value)}")
    target.write("}\n")


def _entries(recording: Recording, file: TraceFile) -> Iterator[Entry]:
    first, last = LARGEST_US, -LARGEST_US
    for event in file.events():
        if not _can_be_written(event):
            continue
        yield event
        start = number_of(event.get("ts"), LARGEST_US)
        if start is None or event.get("ph") == "M":
            continue
        first, last = min(first, start), max(last, start + (number_of(event.get("dur"), LARGEST_US) or 0.0))
        if event.get("name") == MEMORY:
            yield from _counter(event, start)
    if first > last:
        raise TraceError(f"{file.name} has no events: it is no trace of torch.profiler.")
    # Only after the last event is everything known that the file says about its clock.
    yield from _of_recording(recording, file, first, last)


def _can_be_written(event: Entry) -> bool:
    """Whether JSON without NaN can represent an event; Perfetto reads no other."""
    try:
        json.dumps(event, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


def _counter(event: Entry, start: float) -> Iterator[Entry]:
    """The memory of a device after an event of the profiler."""
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        return
    values = {}
    for name in ("Total Allocated", "Total Reserved"):
        value = number_of(arguments.get(name), 2**62)
        if value is not None:
            values[f"{name.removeprefix('Total ').lower()}_bytes"] = int(value)
    if values:
        name = f"allocator of {device_of(arguments)} (profiler)"
        yield {"name": name, "ph": "C", "ts": start, "pid": event.get("pid", 0), "args": values}


def _of_recording(recording: Recording, file: TraceFile, first: float, last: float) -> Iterator[Entry]:
    shift = _origin_us(recording) - _base_us(file, first)
    found = False
    for entry in trace.entries(recording, iter):
        entry["pid"] += FIRST_PROCESS
        if entry["ph"] == "M":
            yield _named(entry)
            continue
        entry["ts"] = round(entry["ts"] + shift, 3)
        if first - MARGIN_US <= entry["ts"] + entry.get("dur", 0.0) and entry["ts"] <= last + MARGIN_US:
            found = True
            yield entry
    if not found:
        profiled = _clock(first + _base_us(file, first))
        raise TraceError(
            f"{file.name} is of another time ({profiled}) than the recording, which began at "
            f"{_clock(_origin_us(recording))}."
        )


def _named(entry: Entry) -> Entry:
    """The entry, with a process name marked as the recording's."""
    arguments: Mapping[str, Any] = entry["args"]
    if entry["name"] == "process_name":
        return {**entry, "args": {"name": f"gpudash: {arguments['name']}"}}
    return entry


def _origin_us(recording: Recording) -> float:
    began = wall_clock_s(str(recording.meta.get("wall_clock_origin", "")))
    if began is None:
        raise RecordingError(f"{recording.path.name} does not say when it began, and cannot be laid beside a profile")
    return began * 1e6


def _base_us(file: TraceFile, first: float) -> float:
    """Microseconds since 1970 at time 0 of the profile."""
    base = number_of(file.facts.get("baseTimeNanoseconds"), LARGEST_US * 1e3)
    if base is not None:
        return base / 1e3
    if first > SINCE_1970_US:
        return 0.0
    raise TraceError(f"{file.name} does not say when it was made (it has no baseTimeNanoseconds).")


def _clock(since_1970_us: float) -> str:
    if since_1970_us < 0:
        return "no time of a calendar"
    return datetime.fromtimestamp(since_1970_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
