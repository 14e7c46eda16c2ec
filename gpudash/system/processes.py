"""What the processes started by gpudash share: how they end, and how those that read and predict communicate; and what
the system reports about this process.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

logger = logging.getLogger(__name__)

TORCH_IMPORT_S = 120.0
"""Longest wait for a process that imports torch: a cold import of a CUDA build from a network disk can take over a
minute."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_RATHER_THIS_ONE = "500"
"""Added to the score that decides which process is killed when memory is full (proc(5), oom_score_adj): this one rather
than gpudash."""

_CHUNK = 65_536

STATM = Path("/proc/self/statm")
SCHEDSTAT = Path("/proc/thread-self/schedstat")


def die_with(parent: int, name: bytes) -> None:
    """End when the thread that started this process ends, which lives as long as its process (prctl(2)).

    Args:
        parent: process id of the process that started this one, which may already have ended.
        name: name for this process, at most 15 bytes.
    """
    import ctypes  # takes a while; only child processes need it

    # prctl exists only on Linux; elsewhere a process outlives its parent, and ends with its closed standard input.
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
    # The parent may have ended before prctl was called; then nothing would end this process.
    if os.getppid() != parent:
        os._exit(0)
    # A higher score is killed sooner; raising it needs no privilege.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123 - no path of ours
        score.write(_RATHER_THIS_ONE)


def end_group(process: subprocess.Popen[Any], *, patience_s: float = 0.0, dying_s: float | None = None) -> int | None:
    """End a process that leads its own group, with everything that it has started there.

    Args:
        patience_s: how long it may take to end by itself.
        dying_s: how long to wait for it after killing it, which a driver call may delay; ``None``: no limit.

    Returns:
        Its exit code as in `subprocess`, or ``None`` if it was killed here.
    """
    from subprocess import TimeoutExpired

    # First its exit code: a process that has ended by itself must not count as killed.
    code = process.poll()
    if code is None and patience_s > 0:
        with suppress(TimeoutExpired):
            code = process.wait(patience_s)
    # Kill the group in any case: what the process has started may outlive it.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if code is None:
        with suppress(TimeoutExpired):
            process.wait(dying_s)
    logger.info("process %d %s", process.pid, "was ended by gpudash" if code is None else f"ended with code {code}")
    return code


def limit(memory_bytes: int, cpu_s: int) -> None:
    """Limit what this process may use from now on: bytes of address space beyond the present, and CPU time.

    It also leaves no core file behind.
    """
    for kind, wanted in (
        (resource.RLIMIT_AS, _address_space() + memory_bytes),
        (resource.RLIMIT_CPU, int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + cpu_s),
        (resource.RLIMIT_CORE, 0),
    ):
        _soft, hard = resource.getrlimit(kind)
        with suppress(ValueError, OSError):  # a system without such a limit
            resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def lift_cpu_limit() -> None:
    """Remove the limit on CPU time: what follows no longer depends on a file."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def _address_space() -> int:
    try:
        pages = int(STATM.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


class Conversation:
    """The child's end of a conversation in lines of JSON; the other end is `gpudash.system.child_process`.

    Questions arrive on standard input, and answers leave on standard output. From now on, output of any code goes to
    standard error, and its input is empty. The process ends when its standard input does, whatever it is doing.
    """

    def __init__(self) -> None:
        # Duplicated before any other code can print to 1 or read from 0.
        self._questions, self._answers = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        # Everything printed to 1, also by C libraries, goes to standard error from now on.
        os.dup2(2, 1)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def start(self) -> None:
        """Start to receive questions, on a separate thread."""
        threading.Thread(target=self._listen, name="gpudash-questions", daemon=True).start()

    @property
    def waits(self) -> bool:
        """Whether a question is waiting."""
        return not self._lines.empty()

    def next(self) -> Any:
        """The next question; waits for it.

        Raises:
            ValueError: if it is not JSON.
        """
        return json.loads(self._lines.get())

    def newest(self) -> Any:
        """The newest question; waits for one, and skips those before it.

        Raises:
            ValueError: if it is not JSON.
        """
        question = self._lines.get()
        while not self._lines.empty():
            question = self._lines.get()
        return json.loads(question)

    def report(self, answer: Mapping[str, Any]) -> None:
        """Write an answer.

        Raises:
            OSError: if its reader is gone.
        """
        line = memoryview(json.dumps(answer).encode() + b"\n")
        # A pipe may accept only a part.
        while line:
            line = line[os.write(self._answers, line) :]

    def _listen(self) -> None:
        # unbuffered: this thread would hold the buffer's lock when the interpreter exits
        begun = b""
        while chunk := os.read(self._questions, _CHUNK):
            *lines, begun = (begun + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    self._lines.put(line)
        # Whatever the main thread does, such as an operation that takes minutes: the asking process is gone.
        os._exit(0)


def resident_bytes() -> int | None:
    """Bytes of this process that are in physical memory; ``None`` if the system has no /proc.

    The second number in /proc/self/statm (proc(5)), in pages.
    """
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def waited_seconds(pid: int | None = None) -> float:
    """How long a thread was ready to run while others had the cores; 0 if the system does not report it.

    The second number in its schedstat, in nanoseconds (Linux, Documentation/scheduler/sched-stats.rst).

    Args:
        pid: process whose main thread it is; ``None`` for this thread.
    """
    path = SCHEDSTAT
    if pid is not None:
        path = Path(f"/proc/{pid}/schedstat")
    try:
        return int(path.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def give_back() -> None:
    """Collect garbage and return free heap pages to the system, if the C library can (glibc's ``malloc_trim``)."""
    # Garbage first: the heap only has free pages once cycles are gone.
    gc.collect()
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
        trim(0)
