"""Runs a program for a call, and ends everything that remains of what it started.

Called as ``supervisor.py PID COMMAND …``, where PID is the calling process; its exit code is the program's, or 128
plus the number of the signal that ended it.

A client that is killed takes its server with it, and a watched program must not outlive both: on SIGTERM `gpudash
watch` ends the program as it would when its terminal closes, while SIGKILL would leave it running. A program may start
a process in a session of its own, which no signal to a group reaches; this is why orphans are adopted
(PR_SET_CHILD_SUBREAPER of prctl(2)).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""For prctl(2)."""

ENDING_S = 20
"""Longest wait for the program after SIGTERM: `gpudash watch` itself waits for its program, 10 s after SIGINT and 3 s
after SIGTERM."""

ENDING_BY_ITSELF_S = 0.5
"""Wait for leftover processes to end by themselves, for example because they notice that their pipe is closed."""

LEFT_OVER_S = 3.0
"""Longest wait for leftover processes after SIGTERM."""

KILLED_S = 5.0
"""Longest wait after SIGKILL: a process in a hanging driver call dies only when the call returns."""

MOST_NAMED = 10
"""Processes that a line lists."""

_POLL_S = 0.05


def main() -> int:
    """Run the program, and return its exit code once everything that it started has ended."""
    _set_process(_PR_SET_CHILD_SUBREAPER, 1)
    # signals stay pending until there is a process to forward them to
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _set_process(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # the caller may have ended before prctl was called, and then no signal arrives
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
        ended, status = os.wait()  # includes orphans
    signal.alarm(0)
    _end_left_over()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return 128 - code
    return code


def _end_left_over() -> None:
    """End every descendant that is still running."""
    _wait_for_all(ENDING_BY_ITSELF_S)
    if not _is_any_left():
        return
    signalled = _send(signal.SIGTERM)
    _wait_for_all(LEFT_OVER_S)
    deadline = time.monotonic() + KILLED_S
    # a killed process may have started another one just before
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
    """Whether there is a child; those that have ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _send(number: int) -> set[int]:
    """Send a signal to every descendant.

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
    # prctl exists only on Linux; elsewhere the program runs without it
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
