"""Trace files of torch.profiler, each read by a child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpudash.memory.profiler_trace.profile import TraceProfile
from gpudash.memory.profiler_trace.trace_file import TraceError, TraceLimits
from gpudash.system.opened_file import OpenedFile


class OpenedTrace(OpenedFile[TraceProfile]):
    """A trace file that is being read, or has been; a refusal is a `TraceError`."""

    KIND = "trace"
    MODULE = "gpudash.memory.profiler_trace.process"
    REFUSAL = TraceError

    def __init__(self, path: Path, *, process: tuple[str, ...] | None = None) -> None:
        super().__init__(path, TraceLimits().memory_bytes, process)

    def _read(self, found: Any) -> TraceProfile:
        return TraceProfile.from_json(found)
