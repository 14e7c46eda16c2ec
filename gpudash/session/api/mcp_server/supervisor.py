"""Runs a program for a call, and ends whatever is left of what it started.

Called as ``supervisor.py PID COMMAND …``, where PID is the process that calls it; its exit code is the program's, or
128 and the number of the signal that ended it.

A client that is killed takes its server with it, and a watched program must not go on without either: SIGTERM lets
`gpudash watch` end the program as it would at the end of a terminal, while SIGKILL would leave the program alone. A
program that puts a process into a session of its own, in which no signal to a group reaches it, is the reason to adopt
orphans (PR_SET_CHILD_SUBREAPER of prctl(2)).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Of prctl(2)."""

ENDING_S = 20
"""Longest wait for the program after SIGTERM: of a watched one it waits itself, 10 s after SIGINT and 3 s after
SIGTERM."""

ENDING_BY_ITSELF_S = 0.5
"""Wait for what the program left behind, such as a process that notices that its pipe is closed."""

LEFT_OVER_S = 3.0
"""Longest wait for what the program left behind, after SIGTERM."""

KILLED_S = 5.0
"""Longest wait after SIGKILL: a process in a call of the driver that hangs dies when that returns."""

MOST_NAMED = 10
"""Processes that a line names."""

_POLL_S = 0.05


def main() -> int:
    """Run the program, and return its exit code once nothing is left of it."""
    _set_process(_PR_SET_CHILD_SUBREAPER, 1)
    # signals wait until there is somebody to send them on to
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _set_process(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # it may have gone before prctl was called, and then no signal comes
    if os.getppid() != int(sys.argv[1]):
        return 128 + signal.SIGTERM
    program = os.fork()
    if program == 0:
        _set_process(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.execv(sys.argv[2], sys.argv[2:])

    def end(_number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(program, signal.SIGTERM)
        signal.alarm(ENDING_S)

    def kill(_number: int, _frame: object) -> None:
        _send(signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    for number in signals:
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ended = 0
    status = 0
    while ended != program:
        ended, status = os.wait()  # of orphans, too
    signal.alarm(0)
    _end_left_over()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return 128 - code
    return code


def _end_left_over() -> None:
    """End every process that is still there below this one."""
    _wait_for_all(ENDING_BY_ITSELF_S)
    if not _is_any_left():
        return
    signalled = _send(signal.SIGTERM)
    _wait_for_all(LEFT_OVER_S)
    deadline = time.monotonic() + KILLED_S
    # one that is killed can have started another just before
    while _is_any_left() and time.monotonic() < deadline:
        signalled |= _send(signal.SIGKILL)
        _wait_for_all(_POLL_S)
    named = ", ".join(map(str, sorted(signalled)[:MOST_NAMED]))
    sys.stderr.write(f"gpudash ended what the program left running, by process number: {named}.\n")


def _wait_for_all(longest_s: float) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    deadline = time.monotonic() + longest_s
    while _is_any_left() and time.monotonic() < deadline:
        signal.sigtimedwait({signal.SIGCHLD}, _POLL_S)


def _is_any_left() -> bool:
    """Whether there is a child; those that have ended go."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _send(number: int) -> set[int]:
    """Send a signal to every process below this one.

    Returns:
        Their ids.
    """
    import psutil

    below = psutil.Process().children(recursive=True)
    for one in below:
        with suppress(psutil.Error):
            one.send_signal(number)
    return {one.pid for one in below}


def _set_process(what: int, value: int) -> None:
    # elsewhere than on Linux there is no prctl, and the program is run all the same
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
