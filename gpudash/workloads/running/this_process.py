"""What the system knows of this process, and giving freed memory back to it."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
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


def give_back() -> None:
    """Collect garbage and return the heap's free pages, where the C library can (glibc's ``malloc_trim``)."""
    gc.collect()
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
        trim(0)
