"""Limits that a process puts on itself before it reads what may be hostile."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have Linux end this process with the one that started it; elsewhere the end of standard input has to do.

    Args:
        parent: its number; this process ends at once where it is no longer there.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def limit(memory_bytes: int, cpu_s: int) -> None:
    """Bound what this process may take from now on, in bytes of address space above its own now, and in CPU time.

    It also leaves no core file behind.
    """
    for kind, wanted in (
        (resource.RLIMIT_AS, _address_space() + memory_bytes),
        (resource.RLIMIT_CPU, int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + cpu_s),
        (resource.RLIMIT_CORE, 0),
    ):
        _soft, hard = resource.getrlimit(kind)
        with suppress(ValueError, OSError):  # a system that does not keep such a limit
            resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def lift_cpu_limit() -> None:
    """Take back the bound on CPU time: what comes now is no longer in the hands of a file."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def _address_space() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()
