"""Processes that end with the one that started them, whatever ended that."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_RATHER_THIS_ONE = "500"
"""Added to what the kernel kills by when memory is full (proc(5), oom_score_adj), so that it does not kill gpudash."""


def die_with(parent: int, name: bytes) -> None:
    """End when the thread that started this process does, which lives as long as its process (prctl(2)).

    Args:
        parent: the number of the process that started this one, which may have ended already.
        name: of this process, at most 15 bytes.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123 - no path of ours
        score.write(_RATHER_THIS_ONE)
