"""What the processes that gpudash starts have in common: how they end, and how the reading and predicting ones talk;
and what the system knows of this one.
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
"""Longest wait for a process that imports torch: a cold import of a CUDA build from a network disk has been
seen to take over a minute."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_RATHER_THIS_ONE = "500"
"""Added to what the kernel kills by when memory is full (proc(5), oom_score_adj), so that it does not kill gpudash."""

_CHUNK = 65_536

STATM = Path("/proc/self/statm")
SCHEDSTAT = Path("/proc/thread-self/schedstat")


def die_with(parent: int, name: bytes) -> None:
    """End when the thread that started this process does, which lives as long as its process (prctl(2)).

    Args:
        parent: the number of the process that started this one, which may have ended already.
        name: of this process, at most 15 bytes.
    """
    import ctypes  # takes a while; only processes that were started need it

    # prctl is Linux's; elsewhere a process outlives its parent, and is ended by its closed standard input.
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
    # The parent may have ended before prctl was called, and then nothing would end this process.
    if os.getppid() != parent:
        os._exit(0)
    # A higher number is killed sooner; raising it needs no right.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123 - no path of ours
        score.write(_RATHER_THIS_ONE)


def end_group(process: subprocess.Popen[Any], *, patience_s: float = 0.0, dying_s: float | None = None) -> int | None:
    """End a process that leads a group of its own, with all that it has started there.

    Args:
        patience_s: how long it may take to end by itself.
        dying_s: how long it is waited for once it was killed, which a driver's call may hold up; ``None`` without end.

    Returns:
        its exit code as `subprocess` has it, or ``None`` when it was killed here.
    """
    from subprocess import TimeoutExpired

    # Its code first: what has ended by itself must not count as killed.
    code = process.poll()
    if code is None and patience_s > 0:
        with suppress(TimeoutExpired):
            code = process.wait(patience_s)
    # The group is killed in any case: what the process has started outlives it.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if code is None:
        with suppress(TimeoutExpired):
            process.wait(dying_s)
    logger.info("process %d %s", process.pid, "was ended by gpudash" if code is None else f"ended with code {code}")
    return code


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
        pages = int(STATM.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


class Conversation:
    """A child process's end of a conversation in lines of JSON; its other end is `gpudash.system.child_process`.

    It is asked on its standard input and answers on its standard output. What any code prints from now on goes to the
    standard error, and what it reads is empty. The process ends with its standard input, whatever it is doing.
    """

    def __init__(self) -> None:
        # Kept under other numbers before code of anybody's can print or read on 0 and 1.
        self._questions, self._answers = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        # Whatever prints on 1, C libraries included, is on the standard error from now on.
        os.dup2(2, 1)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to take questions, on a thread of its own."""
        threading.Thread(target=self._listen, name="gpudash-questions", daemon=True).start()

    @property
    def waits(self) -> bool:
        """Whether a question is waiting."""
        return not self._lines.empty()

    def next(self) -> Any:
        """The next question, once it is there.

        Raises:
            ValueError: when it is no JSON.
        """
        return json.loads(self._lines.get())

    def newest(self) -> Any:
        """The newest question, once one is there; those before it are left.

        Raises:
            ValueError: when it is no JSON.
        """
        question = self._lines.get()
        while not self._lines.empty():
            question = self._lines.get()
        return json.loads(question)

    def report(self, answer: Mapping[str, Any]) -> None:
        """Write one answer.

        Raises:
            OSError: when its reader is gone.
        """
        line = memoryview(json.dumps(answer).encode() + b"\n")
        # A pipe may take a part only.
        while line:
            line = line[os.write(self._answers, line) :]

    def _listen(self) -> None:
        # without a buffer, whose lock this thread would hold when the interpreter ends
        begun = b""
        while chunk := os.read(self._questions, _CHUNK):
            *lines, begun = (begun + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    self._lines.put(line)
        # Whatever the main thread does, such as an operation that takes minutes: the asking process is gone.
        os._exit(0)


def resident_bytes() -> int | None:
    """Bytes of this process that are in memory now; ``None`` where the system has no /proc.

    The second number of /proc/self/statm (proc(5)) in pages.
    """
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def waited_seconds(pid: int | None = None) -> float:
    """How long a thread has been ready to run while others had the cores; 0 where the system does not say.

    The second number of its schedstat, in nanoseconds (Linux, Documentation/scheduler/sched-stats.rst).

    Args:
        pid: of the process whose main thread it is; ``None`` for this thread.
    """
    path = SCHEDSTAT
    if pid is not None:
        path = Path(f"/proc/{pid}/schedstat")
    try:
        return int(path.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def give_back() -> None:
    """Collect garbage and return the heap's free pages, where the C library can (glibc's ``malloc_trim``)."""
    # Garbage first: the heap has free pages only once cycles are gone.
    gc.collect()
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
        trim(0)
