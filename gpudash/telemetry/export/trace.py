"""A recording as a trace for ui.perfetto.dev and chrome://tracing: the Trace Event Format in its JSON object form.

Process 0 is the machine: memory as counters; marks, warnings and lost devices as instants. Every run is a process,
with a thread for the run, its epochs, its steps, each of its stages and each direction of its copies; loss and
accuracy are its counters. Times are microseconds since the session began. The format has no gaps: a counter keeps its
last value where a reading is missing, and a NaN loss becomes an instant event.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from gpudash.devices.names import SIMULATED, shown_name
from gpudash.telemetry.export.tables import Passing, write_list
from gpudash.telemetry.ranks.ranks import ENVELOPE
from gpudash.telemetry.recording.facts import standing_marks
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.records import (
    EpochFinished,
    Marker,
    Note,
    Record,
    RunEnd,
    RunStarted,
    Sample,
    SourceFailed,
    SourceRecovered,
    StageFinished,
    StepFinished,
    Transfer,
    Warning,
    plain,
)

MACHINE = 0
"""Process id of the machine; runs are 1, 2, ... in the order they began."""

RUN_THREAD = "run"

_COUNTED = {
    "host": ("used_bytes", "process_bytes", "total_bytes"),
    "gpu": ("used_bytes", "process_bytes", "total_bytes"),
    "allocator": ("allocated_bytes", "reserved_bytes"),
    "rank": ("used_bytes", "allocated_bytes", "reserved_bytes"),
}

_STEP_PARTS = ("compute_s", "communication_s", "waiting_s", "input_s")

Entry = dict[str, Any]

_Key = tuple[float, str, str]


def write(recording: Recording, file: TextIO, passing: Passing) -> None:
    """Write the trace piece by piece, in order of end times."""
    file.write('{"displayTimeUnit": "ms",\n"otherData": ')
    json.dump({"recorded with": "gpudash", **recording.meta}, file)
    file.write(',\n"traceEvents": ')
    write_list(entries(recording, passing), file)
    file.write("}\n")


def entries(recording: Recording, passing: Passing) -> Iterator[Entry]:
    """The trace events of a recording."""
    return _Trace(_taken_back(recording)).entries(passing(recording.records()))


def _taken_back(recording: Recording) -> Counter[_Key]:
    """The marks that the user removed again, and how often."""
    rows = recording.select("SELECT json FROM event WHERE kind = 'Marker' ORDER BY rowid")
    markers = [event for event in recording.events_of(rows) if isinstance(event, Marker)]
    return Counter(map(_key, markers)) - Counter(map(_key, standing_marks(markers)))


def _key(marker: Marker) -> _Key:
    return marker.time_s, marker.label, marker.category


class _Run:
    """A run as a process: its threads, and the time up to which each is filled."""

    def __init__(self, pid: int, event: RunStarted) -> None:
        self.pid = pid
        self.began = event
        self.ended = False
        self._threads: dict[str, int] = {}
        self._taken_us: dict[str, float] = {}

    def thread(self, name: str) -> tuple[int, list[Entry]]:
        """The number of a thread, and the entries that name it if it is new."""
        number = self._threads.get(name)
        if number is not None:
            return number, []
        number = self._threads[name] = len(self._threads) + 1
        return number, [
            _meta("thread_name", self.pid, number, {"name": name}),
            _meta("thread_sort_index", self.pid, number, {"sort_index": number}),
        ]

    def slice(
        self, thread: str, name: str, ended_s: float, seconds: float, facts: Mapping[str, Any]
    ) -> Iterator[Entry]:
        """A slice that ended at ``ended_s``. It starts no earlier than the previous one in its thread ended: slices of
        a thread must not overlap, but host and device clocks differ by microseconds."""
        number, named = self.thread(thread)
        yield from named
        taken = self._taken_us.get(thread, 0.0)
        end = max(_us(ended_s), taken)
        begin = min(max(_us(ended_s - max(seconds, 0.0)), taken), end)
        self._taken_us[thread] = end
        yield {
            "name": name,
            "cat": thread.split(" ", 1)[0],
            "ph": "X",
            "ts": begin,
            "dur": round(end - begin, 3),
            "pid": self.pid,
            "tid": number,
            "args": _arguments(facts),
        }


class _Trace:
    """Converts records, in order of time, to entries."""

    def __init__(self, taken_back: Counter[_Key]) -> None:
        self._taken_back = taken_back
        self._runs: dict[int | None, _Run] = {}
        self._count = 0
        self._newest_s = 0.0

    def entries(self, records: Iterator[Record]) -> Iterator[Entry]:
        yield _meta("process_name", MACHINE, 0, {"name": "machine"})
        yield _meta("process_sort_index", MACHINE, 0, {"sort_index": MACHINE})
        yield _meta("thread_name", MACHINE, 0, {"name": "marks and warnings"})
        for record in records:
            self._newest_s = max(self._newest_s, record.time_s)
            yield from self._of(record)
        for run in self._runs.values():
            if not run.ended:
                yield from self._end(run, self._newest_s, "running", {})

    def _of(self, record: Record) -> Iterator[Entry]:
        run = None
        if not isinstance(record, Sample):
            run = self._runs.get(record.run_id)
        match record:
            case Sample():
                yield from _counters(record)
            case RunStarted():
                yield from self._begin(record)
            case Marker() if self._taken_back[_key(record)] > 0:
                self._taken_back[_key(record)] -= 1
            case Marker(label=label, category=category):
                yield _instant(label, record.time_s, MACHINE, 0, {"category": category})
            case Warning():
                facts = {"level": record.level, "device": record.device, "ratio": record.ratio}
                yield _instant(record.text, record.time_s, MACHINE, 0, facts)
            case SourceFailed() | SourceRecovered():
                yield _instant(record.text, record.time_s, MACHINE, 0, {"source": record.source})
            case _ if run is not None:
                yield from self._of_run(run, record)

    def _of_run(self, run: _Run, event: Record) -> Iterator[Entry]:
        match event:
            case StepFinished():
                yield from _step(run, event)
            case StageFinished():
                yield from _stage(run, event)
            case EpochFinished():
                facts = {"loss": event.loss, "accuracy": event.accuracy, "observation": event.observation}
                yield from run.slice("epochs", f"epoch {event.epoch}", event.time_s, event.seconds, facts)
            case Transfer():
                name = f"{shown_name(event.from_device)} → {shown_name(event.to_device)}"
                facts = {"bytes": event.bytes, "memory": event.memory, "blocking": event.blocking}
                yield from run.slice(f"copies {event.direction.upper()}", name, event.time_s, event.seconds, facts)
            case Note(topic=topic, text=text):
                yield _instant(f"{topic}: {text}", event.time_s, run.pid, run.thread(RUN_THREAD)[0], {})
            case RunEnd():
                facts = {}
                if event.ended_badly:
                    facts = {"error": event.error, "message": event.message}
                yield from self._end(run, event.time_s, event.status, facts)

    def _begin(self, event: RunStarted) -> Iterator[Entry]:
        self._count += 1
        run = self._runs[event.run_id] = _Run(self._count, event)
        device = shown_name(event.device)
        mark = ""
        if event.simulated and SIMULATED not in device:
            mark = f" ({SIMULATED})"
        yield _meta("process_name", run.pid, 0, {"name": f"{event.workload} on {device}{mark}"})
        yield _meta("process_sort_index", run.pid, 0, {"sort_index": run.pid})
        yield from run.thread(RUN_THREAD)[1]

    def _end(self, run: _Run, ended_s: float, status: str, facts: Mapping[str, Any]) -> Iterator[Entry]:
        if run.ended:
            return
        run.ended = True
        began = run.began
        arguments = {
            "status": status,
            "device": began.device,
            "simulated": began.simulated,
            "spec": began.spec,
            **facts,
        }
        yield from run.slice(RUN_THREAD, began.workload, ended_s, ended_s - began.time_s, arguments)
        if status == "out_of_memory":
            yield _instant("out of memory", ended_s, run.pid, run.thread(RUN_THREAD)[0], facts)


def _step(run: _Run, event: StepFinished) -> Iterator[Entry]:
    facts = {"step": event.step, "seconds": event.seconds, "throughput": event.throughput}
    yield from run.slice("steps", f"step {event.step}", event.time_s, event.seconds or 0.0, facts)
    for name, value in event.metrics():
        if name == "throughput":
            continue
        if math.isfinite(value):
            yield _counter(name, event.time_s, run.pid, {name: value})
        else:
            yield _instant(f"{name} is {plain(value)}", event.time_s, run.pid, run.thread("steps")[0], {})


def _stage(run: _Run, event: StageFinished) -> Iterator[Entry]:
    """A stage, or the sum of several quick executions, placed at the end of the last one."""
    if event.count == 1:
        name = event.name
    else:
        name = f"{event.name} × {event.count}"
    facts = {
        "seconds": event.seconds,
        "count": event.count,
        "bytes": event.bytes,
        "from": event.from_device,
        "to": event.to_device,
        "shape": event.shape,
        "dtype": event.dtype,
        "remark": event.remark,
    }
    yield from run.slice(f"stage {event.name}", name, event.time_s, event.seconds, facts)


def _counters(sample: Sample) -> Iterator[Entry]:
    if sample.table == "rank" and sample.device in ENVELOPE:
        return
    if values := _finite(sample, _COUNTED.get(sample.table, ())):
        owner = _owner(sample)
        if sample.table == "allocator":
            title = f"allocator of {shown_name(owner)}"
        else:
            title = f"memory of {owner}"
        yield _counter(title, sample.time_s, MACHINE, values)
    if sample.table == "rank" and (parts := _finite(sample, _STEP_PARTS)):
        yield _counter(f"step of {_owner(sample)}", sample.time_s, MACHINE, parts)


def _finite(sample: Sample, names: Sequence[str]) -> dict[str, float]:
    values = ((name, sample.values.get(name)) for name in names)
    return {name: value for name, value in values if isinstance(value, int | float) and math.isfinite(value)}


def _owner(sample: Sample) -> str:
    if sample.table == "rank":
        return f"rank {sample.device}"
    if sample.device is None:
        return "host"
    return sample.device


def _us(time_s: float) -> float:
    """Microseconds, rounded to a thousandth and not negative."""
    return round(max(time_s, 0.0) * 1e6, 3)


def _meta(name: str, pid: int, tid: int, args: Mapping[str, Any]) -> Entry:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _counter(name: str, time_s: float, pid: int, values: Mapping[str, float]) -> Entry:
    return {"name": name, "ph": "C", "ts": _us(time_s), "pid": pid, "tid": 0, "args": dict(values)}


def _instant(name: str, time_s: float, pid: int, tid: int, facts: Mapping[str, Any]) -> Entry:
    scope = "t"
    if pid == MACHINE:
        scope = "g"
    return {"name": name, "ph": "i", "s": scope, "ts": _us(time_s), "pid": pid, "tid": tid, "args": _arguments(facts)}


def _arguments(facts: Mapping[str, Any]) -> Any:
    return plain({key: value for key, value in facts.items() if value is not None})
