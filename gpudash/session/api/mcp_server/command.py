"""Runs one gpudash command for a tool, and ends it with the call, its time limit or the server."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process

from gpudash.session.api.mcp_server import supervisor
from gpudash.system.foreign_files import READS_WITHIN
from gpudash.system.foreign_text import json_object
from gpudash.units import format_bytes

logger = logging.getLogger(__name__)

ENDING_S = supervisor.ENDING_S + supervisor.LEFT_OVER_S + supervisor.KILLED_S + 2.0
"""Longest wait for a command that was told to terminate, including everything it has started."""

MEMORY_EVERY_S = 2.0
"""Interval between two checks of the memory of a command and its descendants; each check scans all processes."""

CLOSING_S = 2.0
"""Longest wait for the end of the output, which a leftover process can hold open."""

MOST_DOCUMENT = 64 * 2**20
"""Bytes of a document; a longer one is discarded, and the command is ended."""

LAST_PRINTED = 4_000
"""Bytes of output that are kept, the last ones of a command or of the program that it runs."""


@dataclass(frozen=True)
class CallLimits:
    """Limits beyond which a command is ended.

    Attributes:
        seconds: its duration.
        memory_bytes: host memory that it and all its descendants hold together.
    """

    seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class CommandOutcome:
    """How a command ended.

    Attributes:
        document: printed by it; ``None`` if it printed none.
        printed: the end of the other output, of the command or of the program that it ran.
        timed_out: whether it was ended at its time limit.
        over_memory: the end of a sentence that says by how much it exceeded its memory limit; "" if it did not.
    """

    document: Mapping[str, Any] | None
    printed: str
    timed_out: bool
    over_memory: str = ""

    def refused_for(self, kind: str) -> bool:
        """Whether the document is an error of this kind."""
        error = (self.document or {}).get("error")
        return error is not None and error["kind"] == kind


class _Output:
    """Receives what a process writes, whatever its length."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.kept = bytearray()
        self.overflowed = False

    async def keep_last(self, stream: ByteReceiveStream) -> None:
        """Keep the last bytes, until the stream ends."""
        async for chunk in stream:
            self.kept += chunk
            self.overflowed = self.overflowed or len(self.kept) > self._most
            del self.kept[: -self._most]


async def run_command(
    arguments: Sequence[str], folder: Path, limits: CallLimits, *, runs_code: bool, within: Sequence[Path] = ()
) -> CommandOutcome:
    """Run ``gpudash`` with these arguments.

    When cancelled, it first ends the command and everything that it has started.

    Args:
        arguments: for the command line, including ``--json``.
        folder: the working directory.
        limits: beyond which the command is ended.
        runs_code: whether it may run the user's code. Otherwise no Python that it starts looks for modules in its
            working directory or beside a script, where anybody may have put a ``torch.py``.
        within: folders that files named in them must not lead out of (`READS_WITHIN`).

    Raises:
        OSError: when the process cannot be started.
    """
    environment = dict(os.environ)
    if not runs_code:
        environment["PYTHONSAFEPATH"] = "1"
    if within:
        environment[READS_WITHIN] = os.pathsep.join(map(str, within))
    python = [sys.executable, "-P"]
    command = [*python, supervisor.__file__, str(os.getpid()), *python, "-m", "gpudash", *arguments]
    process = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, cwd=folder, env=environment, start_new_session=True
    )
    logger.info("process %d began: gpudash %s", process.pid, arguments[0])
    assert process.stdout is not None and process.stderr is not None
    document, printed = _Output(MOST_DOCUMENT), _Output(LAST_PRINTED)
    memory = _MemoryLimit(process, limits.memory_bytes)
    try:
        async with anyio.create_task_group() as readers:
            readers.start_soon(document.keep_last, process.stdout)
            readers.start_soon(printed.keep_last, process.stderr)
            with anyio.move_on_after(limits.seconds) as limit:
                async with anyio.create_task_group() as waiting:
                    waiting.start_soon(memory.wait, waiting.cancel_scope)
                    await process.wait()
                    waiting.cancel_scope.cancel()
            if limit.cancelled_caught or memory.passed_bytes:
                await _end(process)
            readers.cancel_scope.deadline = anyio.current_time() + CLOSING_S
    finally:
        with anyio.CancelScope(shield=True):
            await _end_read(process, document, printed)
    logger.info("process %d ended with code %s", process.pid, process.returncode)
    found = None
    if not document.overflowed:
        found = json_object(document.kept)
    over_memory = ""
    if memory.passed_bytes:
        over_memory = (
            f"it held {format_bytes(memory.passed_bytes)} of this computer's memory with all that it started, and "
            f"{format_bytes(limits.memory_bytes)} is the most that a call may hold"
        )
    return CommandOutcome(
        found,
        printed.kept.decode("utf-8", "replace"),
        timed_out=limit.cancelled_caught and not memory.passed_bytes,
        over_memory=over_memory,
    )


class _MemoryLimit:
    """Checks now and then how much memory a process and its descendants hold.

    Attributes:
        passed_bytes: what they held when the limit was exceeded; 0 before that.
    """

    def __init__(self, process: Process, most_bytes: int) -> None:
        self._process = process
        self._most_bytes = most_bytes
        self.passed_bytes = 0

    async def wait(self, scope: anyio.CancelScope) -> None:
        """Cancel ``scope`` once they hold too much."""
        while True:
            held = await anyio.to_thread.run_sync(held_bytes, self._process.pid, self._most_bytes)
            if held > self._most_bytes:
                self.passed_bytes = held
                scope.cancel()
                return
            await anyio.sleep(MEMORY_EVERY_S)


def held_bytes(pid: int, enough: int) -> int:
    """Memory that a process and its descendants hold, in bytes.

    Args:
        pid: the process id.
        enough: if the resident memory does not exceed this, it is the answer. Otherwise shared pages are counted once
            (PSS), which takes longer to read.
    """
    import psutil

    family: list[psutil.Process] = []
    resident = 0
    held = 0
    with suppress(psutil.Error):
        first = psutil.Process(pid)
        family = [first, *first.children(recursive=True)]
    for one in family:
        with suppress(psutil.Error):
            resident += one.memory_info().rss
    if resident <= enough:
        return resident
    for one in family:
        with suppress(psutil.Error):
            held += one.memory_full_info().pss
    return held


async def _end_read(process: Process, document: _Output, printed: _Output) -> None:
    """End a process while reading its output: a process blocked on a full pipe does not end."""
    assert process.stdout is not None and process.stderr is not None
    if process.returncode is None:
        async with anyio.create_task_group() as readers:
            readers.start_soon(document.keep_last, process.stdout)
            readers.start_soon(printed.keep_last, process.stderr)
            await _end(process)
            readers.cancel_scope.cancel()
    await process.aclose()


async def _end(process: Process) -> None:
    """Terminate a process; if it does not end, kill it and everything that it has started."""
    if process.returncode is not None:
        return
    import psutil

    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with anyio.move_on_after(ENDING_S):
        await process.wait()
    if process.returncode is not None:
        return
    # once it is gone, what it has started is no longer anybody's known child
    family = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    await process.wait()
