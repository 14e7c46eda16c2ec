"""The child process that reads a trace file under limits, and answers with the profile."""

from __future__ import annotations

import sys

from gpudash.memory.profiler_trace.profile import read_profile
from gpudash.memory.profiler_trace.trace_file import TraceError, TraceLimits
from gpudash.system.opened_file import FileReader

STARTING_CPU_S = 30

CPU_S_PER_MIB = 5
"""A MiB of a compressed trace expands to about 12, each of which takes about 0.03 s; the rest is for slow machines."""


def main() -> int:
    """Read the file and answer."""
    reader = FileReader(b"gpudash-trace")
    found = reader.read(
        lambda: read_profile(reader.path, TraceLimits(memory_bytes=reader.memory_bytes), reader.progress),
        TraceError,
        cpu_s=STARTING_CPU_S,
        cpu_s_per_mib=CPU_S_PER_MIB,
        remedy="profile fewer steps",
    )
    if found is not None:
        reader.report({"read": found.to_json()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
