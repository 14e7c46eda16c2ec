"""A child process that exchanges requests and answers as lines of JSON, and the thread that waits for it."""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpudash.system.foreign_text import last_line
from gpudash.system.processes import end_group

logger = logging.getLogger(__name__)

ENDING_S = 2.0
"""Longest wait for the end of a process that has closed its output, to get its exit code."""

_CHUNK = 65_536
_LAST_OUTPUT = 4_000
"""Characters kept of the process's standard error."""


class ChildProcess:
    """Starts the process, whose end of the pipes is `gpudash.system.processes.Conversation`. For a single thread.

    The process leads its own process group: Ctrl+C in the terminal does not reach it, and its children end with it.

    Args:
        command: program and arguments.

    Raises:
        OSError: if it cannot be started.

    Attributes:
        gone: whether it has ended, or will not answer any more.
    """

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        logger.info("process %d began: %s", self._process.pid, _described(command))
        assert self._process.stdin is not None and self._process.stdout is not None and self._process.stderr is not None
        self._pipes = self._process.stdin, self._process.stdout, self._process.stderr
        for stream in self._pipes[1:]:
            os.set_blocking(stream.fileno(), False)
        self._begun = b""
        self._errors = b""
        self.gone = False

    @property
    def outputs(self) -> tuple[int, int]:
        """File descriptors that become readable when the process has written something or ended."""
        return self._pipes[1].fileno(), self._pipes[2].fileno()

    @property
    def processor_s(self) -> float:
        """Processor time of the process and its children, in seconds; 0 once it is gone."""
        import psutil  # the command line loads this file and asks this of nothing

        found = 0.0
        for pid in () if self.gone else _family(self._process.pid):
            with suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                found += times.user + times.system + times.children_user + times.children_system
        return found

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a line; a process that no longer reads is `gone`."""
        # Output from earlier requests does not explain how this one ends.
        self._errors = b""
        line = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while line:
                line = line[self._pipes[0].write(line) or 0 :]
        except OSError:
            self.gone = True

    def read(self) -> list[dict[str, Any]]:
        """The messages that have arrived, without waiting; skips lines that are not JSON objects."""
        written, open_ = _written(self._pipes[1].fileno())
        self._errors = (self._errors + _written(self._pipes[2].fileno())[0])[-_LAST_OUTPUT:]
        *lines, self._begun = (self._begun + written).split(b"\n")
        self.gone = self.gone or not open_
        return [message for line in lines if isinstance(message := _decoded(line), dict)]

    def end(self) -> str:
        """Kill the process and its children, and return in words how it ended."""
        # A process that has closed its output is about to exit.
        ended = end_group(self._process, patience_s=ENDING_S if self.gone else 0.0)
        self._errors += _written(self._pipes[2].fileno())[0]
        for stream in self._pipes:
            with suppress(OSError):
                stream.close()
        self.gone = True
        return _ending(ended, self._errors.decode(errors="replace"))


class Waker:
    """Lets the thread that owns a child process wait for it, and lets others wake that thread."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._open = True
        self._lock = threading.Lock()

    def rouse(self) -> None:
        """End the wait; any thread may call this, even after `close`."""
        with self._lock, suppress(BlockingIOError):
            if self._open:
                os.write(self._writing, b".")

    def wait(self, process: ChildProcess | None, timeout_s: float | None = None) -> None:
        """Wait until `rouse` is called, the process writes something or ends, or the time is over."""
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._reading, *(() if process is None else process.outputs)):
                selector.register(descriptor, selectors.EVENT_READ)
            selector.select(timeout_s)
        with suppress(BlockingIOError):
            os.read(self._reading, _CHUNK)

    def close(self) -> None:
        """Free the resources for waiting."""
        with self._lock:
            self._open = False
            os.close(self._reading)
            os.close(self._writing)


def _family(pid: int) -> list[int]:
    """A process and its descendants, by ``task/TID/children`` in proc(5)."""
    found = [pid]
    for parent in found:
        for listed in Path("/proc", str(parent), "task").glob("*/children"):
            with suppress(OSError):
                found += map(int, listed.read_text(encoding="ascii").split())
    return found


def _described(command: Sequence[str]) -> str:
    """A command for the log: no folders, and … for Python code that it is given as text."""
    parts = [Path(part).name for part in command]
    if "-c" in parts[:-1]:
        parts[parts.index("-c") + 1] = "…"
    return " ".join(parts)


def _written(descriptor: int) -> tuple[bytes, bool]:
    """The data that can be read now, and whether there may be more."""
    found = bytearray()
    while True:
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return bytes(found), True
        except OSError:
            return bytes(found), False
        if not chunk:
            return bytes(found), False
        found += chunk


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _ending(code: int | None, errors: str) -> str:
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        if name == "SIGKILL":
            return "killed, perhaps because this computer's memory was full"
        return f"signal {name}"
    last = last_line(errors)
    return last or ("it closed its output" if code is None else f"exit code {code}")
