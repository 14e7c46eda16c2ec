"""Becomes another program, which is asked to end once the process that started it has gone.

Called as ``ending_with_parent.py PID COMMAND …``.

A client that is killed takes its server with it, and a watched program must not go on without either. SIGTERM lets
`gpudash watch` end the program as it would at the end of a terminal; SIGKILL would leave the program alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
"""Of prctl(2); what it sets outlives execve(2)."""


def main() -> None:
    """Set the signal, and become the program."""
    # elsewhere than on Linux there is no prctl, and the program goes on
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # it may have gone before prctl was called, and then no signal comes
    if os.getppid() != int(sys.argv[1]):
        return
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
