"""What the system knows of this process while it is measured."""

from __future__ import annotations

import os
from pathlib import Path

STATM = Path("/proc/self/statm")
SCHEDSTAT = Path("/proc/thread-self/schedstat")


def resident_bytes() -> int | None:
    """Bytes of this process that are in memory now; ``None`` where the system has no /proc.

    The second number of /proc/self/statm (proc(5)) in pages.
    """
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def waited_seconds() -> float:
    """How long this thread has been ready to run while others had the cores; 0 where the system does not say.

    The second number of /proc/thread-self/schedstat, in nanoseconds (Linux, Documentation/scheduler/sched-stats.rst).
    """
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
