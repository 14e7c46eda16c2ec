"""How a run ends whose own process has ended without telling: in words, by what the system says of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from gpudash.system.files import text_of
from gpudash.telemetry.records import Event, OutOfMemory, RunFailed
from gpudash.workloads.running.run_errors import HOST_REMEDY, Progress

KILLED_REMEDY = "Start the run again; if nobody ended the process, check what else runs on this computer."
CRASHED_REMEDY = "Start the run again; the details hold the place, and a crash at the same one is a defect of its code."
EXITED_REMEDY = "Find out what calls exit in the workload, or in what it uses."
SILENT_REMEDY = "Start the run again; the workload, or what it uses, has closed files that are not its own."

UNHEARD = 70
"""Exit code of a run's own process that can tell nothing any more (EX_SOFTWARE in sysexits.h)."""

CLOSED = "its process closed its connection and was ended"


class MemoryKills:
    """Counts what the kernel has killed because memory was full: in our control groups, else on the whole system.

    Files and fields as in the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and vmstat's
    ``oom_kill``.

    Args:
        root: where ``proc`` and ``sys`` are found.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = [file for file in _counters(root) if _kills(file) is not None]
        self._before = self._count()

    def rose(self) -> bool:
        """Whether there are more than when counting began."""
        return self._count() > self._before

    def _count(self) -> int:
        return sum(_kills(file) or 0 for file in self._files)


def died(code: int | None, progress: Progress, workload: str, *, memory_was_full: bool, details: str) -> Event:
    """The event that tells the end of a run by that of its process.

    Args:
        code: exit code as `subprocess` has it; ``None`` when it was alive, and ended because it was silent.
        memory_was_full: whether the kernel killed something because of that meanwhile.
        details: where the process was, as far as it said.
    """
    if code == -signal.SIGKILL and memory_was_full:
        message = (
            f"This computer's memory ran out: the system killed the process of the run after {progress.steps} steps."
        )
        return OutOfMemory(error="host", message=message, remedy=HOST_REMEDY, details=details, **progress.fields())
    if code is None or code == UNHEARD:
        error, words, remedy = "silent", CLOSED, SILENT_REMEDY
    elif code == -signal.SIGKILL:
        error, words, remedy = "killed", "its process was killed from outside (SIGKILL)", KILLED_REMEDY
    elif code in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP):
        name = signal.Signals(-code).name
        error, words, remedy = "killed", f"its process was ended from outside ({name})", KILLED_REMEDY
    elif code < 0:
        error, words, remedy = "crashed", f"its process crashed ({signal_words(-code)})", CRASHED_REMEDY
    else:
        error, words, remedy = "exited", f"its process ended itself with exit code {code}", EXITED_REMEDY
    message = f"The {workload} workload ended after {progress.steps} steps: {words}."
    return RunFailed(error=error, message=message, remedy=remedy, details=details, **progress.fields())


def signal_words(number: int) -> str:
    """A signal in words and by its name: "Segmentation fault, SIGSEGV"."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    words = signal.strsignal(number)
    return f"{words}, {name}" if words else name


def _counters(root: Path) -> Iterator[Path]:
    """The innermost of our groups' counters in each hierarchy; where there is none, the system's."""
    found = False
    for line in text_of(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0" and not controllers:
            mounts, file = ["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.events"
        elif "memory" in controllers.split(","):
            mounts, file = ["sys/fs/cgroup/memory"], "memory.oom_control"
        else:
            continue
        inside = PurePosixPath(name.lstrip("/"))
        # In a container the group's own name may not be part of the path: its group is the root of what is seen.
        folders = [root / mount / place for mount in mounts for place in (inside, PurePosixPath())]
        for folder in folders:
            if _kills(folder / file) is not None:
                found = True
                yield folder / file
                break
    if not found:
        yield root / "proc/vmstat"


def _kills(file: Path) -> int | None:
    for line in text_of(file).splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            with suppress(ValueError):
                return int(number)
    return None
