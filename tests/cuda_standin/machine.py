"""A machine whose GPUs are the stand-in's: the environment of its processes, and what can be done to it while they run.

Everything is told through a small file that all its processes map (src/board.h has the same layout).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_DEVICES = 16
MAX_PROCESSES = 256
MAX_FAULTS = 32

STATE = "CUDA_STANDIN_STATE"

LOST_DEVICE = 999
"""cudaErrorUnknown: what calls return once a GPU has fallen off the bus."""

ILLEGAL_ADDRESS = 700
ASSERT = 710
OUT_OF_MEMORY = 2


class _Fault(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_char * 64),
        ("pid", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("sticky", ctypes.c_int32),
        ("delay_us", ctypes.c_int32),
        ("skip", ctypes.c_int64),
        ("times", ctypes.c_int64),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("started", ctypes.c_uint64),
        ("used", ctypes.c_uint64 * MAX_DEVICES),
        ("context", ctypes.c_uint8 * MAX_DEVICES),
    )


class _Board(ctypes.Structure):
    _fields_ = (
        ("armed", ctypes.c_int32),
        ("events_pending", ctypes.c_int32),
        ("lost", ctypes.c_int32 * MAX_DEVICES),
        ("faults", _Fault * MAX_FAULTS),
        ("processes", _Process * MAX_PROCESSES),
    )


def is_here() -> bool:
    """Whether this process's GPUs are the stand-in's."""
    return STATE in os.environ


@dataclass
class Machine:
    """A machine with GPUs of one kind.

    Attributes:
        libraries: the folder that `build.build` has filled.
        state: the file that its processes share; made when it is not there.
        devices: how many GPUs.
        capability: "8.0", "9.0", "12.0"; decides what card it is (src/cards.c), as far as ``settings`` do not.
        memory: of each GPU, such as "24G".
        settings: further variables, by name: see README.md.
    """

    libraries: Path
    state: Path
    devices: int = 1
    capability: str = "8.0"
    memory: str = "24G"
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = ctypes.sizeof(_Board)
        with self.state.open("a+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._board = _Board.from_buffer(self._map)

    @classmethod
    def here(cls) -> Machine:
        """The machine that this process runs on."""
        given = os.environ
        return cls(
            Path(given["LD_LIBRARY_PATH"].partition(":")[0]),
            Path(given[STATE]),
            int(given["CUDA_STANDIN_DEVICES"]),
            given["CUDA_STANDIN_CC"],
            given["CUDA_STANDIN_MEMORY"],
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a process on it has in its environment, beside what every process has."""
        return {
            "LD_LIBRARY_PATH": str(self.libraries),
            STATE: str(self.state),
            "CUDA_STANDIN_DEVICES": str(self.devices),
            "CUDA_STANDIN_CC": self.capability,
            "CUDA_STANDIN_MEMORY": self.memory,
            **self.settings,
        }

    def fail(
        self, function: str, code: int, *, call: int = 1, times: int = 1, sticky: bool = False, pid: int = 0
    ) -> None:
        """Let calls fail from now on.

        Args:
            function: a name, or a pattern such as ``*cudaLaunchKernel*``.
            code: what they return.
            call: the first that fails, counted from 1 over all processes.
            times: how many fail; -1: all from that one on.
            sticky: the process's context is lost with it: every later call returns ``code`` too.
            pid: the process whose calls fail; 0: everyone's.
        """
        self._add(_Fault(function.encode(), pid, code, sticky, 0, call - 1, times))

    def slow(self, function: str, seconds: float, *, pid: int = 0) -> None:
        """Let every call of a function take longer."""
        self._add(_Fault(function.encode(), pid, 0, 0, round(seconds * 1e6), 0, -1))

    def lose(self, device: int, code: int = LOST_DEVICE) -> None:
        """Let a GPU fall off the bus: CUDA's calls on it return ``code``, NVML says that it is lost."""
        self._board.lost[device] = code
        self._board.armed = 1

    def mend(self) -> None:
        """Take back every fault and bring back every GPU. A context that is lost stays lost."""
        self._board.armed = 0
        ctypes.memset(ctypes.byref(self._board, _Board.faults.offset), 0, _Board.faults.size)
        for device in range(MAX_DEVICES):
            self._board.lost[device] = 0

    def hold(self, device: int, size: int, pid: int | None = None) -> None:
        """Let a process that lives, this one unless told, have ``size`` bytes of a GPU beside what CUDA knows of."""
        owner = os.getpid() if pid is None else pid
        places = [process for process in self._board.processes if process.pid in (owner, 0)]
        place = next((process for process in places if process.pid == owner), places[0])
        place.started = _started(owner)
        place.pid = owner
        place.used[device] = size

    def used(self, device: int) -> int:
        """Bytes of a GPU that living processes have, contexts included."""
        return sum(process.used[device] for process in self._living())

    def processes(self, device: int) -> dict[int, int]:
        """Bytes of a GPU by process."""
        return {process.pid: process.used[device] for process in self._living() if process.used[device]}

    @property
    def events_pending(self) -> bool:
        """Whether an event, and the work before it, stays unfinished until somebody waits for it."""
        return bool(self._board.events_pending)

    @events_pending.setter
    def events_pending(self, pending: bool) -> None:
        self._board.events_pending = pending

    def _add(self, fault: _Fault) -> None:
        free = next(place for place in range(MAX_FAULTS) if not self._board.faults[place].function)
        self._board.faults[free] = fault
        self._board.armed = 1

    def _living(self) -> list[_Process]:
        return [one for one in self._board.processes if one.pid and _started(one.pid) == one.started]


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; ``None`` when it has ended. See proc(5)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])
