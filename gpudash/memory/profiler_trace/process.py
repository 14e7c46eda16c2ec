"""The child process that reads a trace file under limits: the file may be hostile or huge.

Its first line of standard input says what to read: ``{"path", "parent", "memory_bytes"}``. It writes lines of JSON:
``{"progress": [bytes, bytes]}`` now and then, at the end ``{"refused": sentence}`` or ``{"read": profile}``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpudash.memory.profiler_trace.profile import read_profile
from gpudash.memory.profiler_trace.trace_file import Progress, TraceError, TraceLimits
from gpudash.memory.snapshot.reading.source import name_of
from gpudash.system.processes import Conversation, die_with, limit
from gpudash.units import MIB

NAME = b"gpudash-trace"
"""Of the process, at most 15 bytes."""

REPORTED_EVERY_S = 0.05
STARTING_CPU_S = 30

CPU_S_PER_MIB = 5
"""A MiB of a compressed trace expands to about 12, each of which takes about 0.03 s; the rest is for slow machines."""

Report = Callable[[Mapping[str, Any]], None]


def main() -> int:
    """Read the file and answer."""
    conversation = Conversation()
    conversation.start()
    try:
        request = conversation.next()
    except ValueError:
        return 2
    die_with(request["parent"], NAME)
    conversation.report(_read(Path(request["path"]), int(request["memory_bytes"]), _paced(conversation.report)))
    return 0


def _read(path: Path, memory_bytes: int, progress: Progress) -> Mapping[str, Any]:
    """The answer: the profile, or why there is none."""
    try:
        limit(memory_bytes, STARTING_CPU_S + CPU_S_PER_MIB * (path.stat().st_size // MIB))
        found = read_profile(path, TraceLimits(memory_bytes=memory_bytes), progress)
    except TraceError as error:
        return {"refused": str(error)}
    except OSError as error:
        return {"refused": f"{name_of(path)} cannot be read: {error.strerror or error}."}
    except MemoryError:
        text = f"{name_of(path)} needs more than {memory_bytes:,} bytes of memory to read: profile fewer steps."
        return {"refused": text}
    return {"read": found.to_json()}


def _paced(report: Report) -> Progress:
    next_at = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal next_at
        now = time.monotonic()
        if now >= next_at:
            next_at = now + REPORTED_EVERY_S
            report({"progress": [done, total]})

    return progress


if __name__ == "__main__":
    sys.exit(main())
