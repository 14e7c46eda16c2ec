"""What a trace of torch.profiler says: its operators, its timeline and the memory of every device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gpudash.devices.names import shown_name
from gpudash.memory.profiler_trace.operators import Collected, TracedMemory, memory_of, nested, rows, timeline
from gpudash.memory.profiler_trace.trace_file import Progress, TraceError, TraceFile, TraceLimits
from gpudash.units import format_bytes, format_count, format_duration

PROFILE_MEMORY = "torch.profiler.profile(profile_memory=True) records it"

NAMED = 3
"""Of what held the memory at its peak, named in the sentence."""


@dataclass(frozen=True, slots=True)
class TraceProfile:
    """A trace that has been read.

    Attributes:
        name: of the file.
        seconds: from the first event to the end of the last.
        operators: as `gpudash.workloads.profiling.operators` has them, by own time.
        operators_left_out: how many of the smallest are missing.
        timeline: as `gpudash.workloads.profiling.timeline` has it.
        memory: of every device, the GPUs first; empty where the trace has none.
        warnings: what could not be read, a sentence each.
    """

    name: str
    seconds: float
    operators: Sequence[Mapping[str, Any]]
    operators_left_out: int
    timeline: Mapping[str, Any]
    memory: Sequence[TracedMemory]
    warnings: Sequence[str]

    @property
    def sentence(self) -> str:
        """What is most worth knowing, in a few sentences."""
        calls = sum(row["calls"] for row in self.operators)
        parts = [f"{format_count(calls)} calls of operators in {format_duration(self.seconds)}."]
        parts += list(map(peak_sentence, self.memory))
        if not self.memory:
            parts.append(f"The trace has no memory: {PROFILE_MEMORY}.")
        return " ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """As an object of JSON."""
        found: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return found

    @classmethod
    def from_json(cls, data: object) -> TraceProfile:
        """What `to_json` made."""
        return _ADAPTER.validate_python(data)


_ADAPTER = TypeAdapter(TraceProfile)


def peak_sentence(memory: TracedMemory) -> str:
    """How much of a device was allocated at most, when, and by what."""
    size = format_bytes(memory.peak_bytes)
    text = f"On {shown_name(memory.device)} {size} were allocated at most, at {_moment(memory.peak_s)}"
    if not memory.held:
        return f"{text}."
    held = ", ".join(f"{format_bytes(size)} by {name}" for name, size in memory.held[:NAMED])
    return f"{text}: {held}."


def _moment(seconds: float) -> str:
    if seconds > 0:
        return format_duration(seconds)
    return "the start"


def read_profile(path: Path, limits: TraceLimits | None = None, progress: Progress | None = None) -> TraceProfile:
    """Read the file that ``prof.export_chrome_trace(path)`` wrote, compressed or not.

    Raises:
        TraceError: it is none, or holds no operators; one sentence.
        OSError: it cannot be read.
    """
    collected = Collected()
    count = 0
    with TraceFile(path, limits, progress) as file:
        for event in file.events():
            count += 1
            collected.take(event)
        name, cut_off = file.name, file.cut_off
    if not len(collected.cpu) and not len(collected.memory):
        raise TraceError(_nothing(name, count, cut_off))
    warnings = []
    if cut_off:
        warnings.append(f"{name} is cut off behind {format_count(count)} events; what came before is shown.")
    nesting = nested(collected)
    found, left_out = rows(collected, nesting)
    drawn = timeline(collected, nesting)
    return TraceProfile(
        name=name,
        seconds=drawn["seconds"],
        operators=found,
        operators_left_out=left_out,
        timeline=drawn,
        memory=memory_of(collected, nesting),
        warnings=warnings,
    )


def _nothing(name: str, count: int, cut_off: bool) -> str:
    if cut_off:
        return f"{name} is cut off before any operator: copy or export it again."
    if count:
        return f"{name} has {format_count(count)} events and no operators: it is no trace of torch.profiler."
    return f"{name} has no traceEvents: it is no trace of torch.profiler."
