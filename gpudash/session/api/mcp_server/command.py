"""Runs one command of gpudash for a tool, and ends it with the call, the time or the server."""

from __future__ import annotations

import json
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
from gpudash.units import format_bytes

logger = logging.getLogger(__name__)

ENDING_S = supervisor.ENDING_S + supervisor.LEFT_OVER_S + supervisor.KILLED_S + 2.0
"""Longest wait for a command that was asked to end, with all that it has started."""

MEMORY_EVERY_S = 2.0
"""Between two looks at the memory of a command and what it has started; a look walks through all processes."""

CLOSING_S = 2.0
"""Longest wait for the end of what was printed, which a process that was left behind can hold open."""

MOST_DOCUMENT = 64 * 2**20
"""Bytes of a document; of more nothing is kept, and the command is ended."""

LAST_PRINTED = 4_000
"""Bytes that are kept of what a command, or the program that it runs, has printed last."""


@dataclass(frozen=True)
class CallLimits:
    """After what a command is ended.

    Attributes:
        seconds: that it takes.
        memory_bytes: that it and all that it has started hold together, in the memory of the computer.
    """

    seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class CommandOutcome:
    """What came of a command.

    Attributes:
        document: that it printed; ``None`` where it printed none.
        printed: the last that it, or the program that it ran, printed beside it.
        timed_out: whether it was ended because its time was over.
        over_memory: whether it was ended because it took more memory than it may; a sentence's end that says how much.
    """

    document: Mapping[str, Any] | None
    printed: str
    timed_out: bool
    over_memory: str = ""


class _Output:
    """Takes in what a process writes, however much that is."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.kept = bytearray()
        self.overflowed = False

    async def keep_last(self, stream: ByteReceiveStream) -> None:
        """Keep the last bytes, until the end."""
        async for chunk in stream:
            self.kept += chunk
            self.overflowed = self.overflowed or len(self.kept) > self._most
            del self.kept[: -self._most]


async def run_command(
    arguments: Sequence[str], folder: Path, limits: CallLimits, *, runs_code: bool, within: Sequence[Path] = ()
) -> CommandOutcome:
    """Run ``gpudash`` with these arguments.

    Cancelled, it first ends the command with all that this has started.

    Args:
        arguments: of the command line, ``--json`` among them.
        folder: to run it in.
        limits: after which it is ended.
        runs_code: whether it is to run code of the user's. Else no Python that it starts looks for modules in its
            folder or beside a script, where anybody may have put a ``torch.py``.
        within: folders, of which no file that is named in them leads out (`READS_WITHIN`).

    Raises:
        OSError: when no process can be started.
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
        found = _decoded(document.kept)
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
    """Looks now and then at what a process holds with all that it has started.

    Attributes:
        passed_bytes: what they held when it was too much; 0 as long as it was not.
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
    """Memory that a process holds with all below it, in bytes.

    Args:
        pid: its id.
        enough: if what is resident comes to no more, that is the answer. Else pages that several processes share are
            counted once (PSS), which takes longer to ask for.
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
    """End a process, of which is read meanwhile: one whose pipe is full waits, and does not end."""
    assert process.stdout is not None and process.stderr is not None
    if process.returncode is None:
        async with anyio.create_task_group() as readers:
            readers.start_soon(document.keep_last, process.stdout)
            readers.start_soon(printed.keep_last, process.stderr)
            await _end(process)
            readers.cancel_scope.cancel()
    await process.aclose()


async def _end(process: Process) -> None:
    """Ask a process to end, and kill it with all that it has started where it does not."""
    if process.returncode is not None:
        return
    import psutil

    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with anyio.move_on_after(ENDING_S):
        await process.wait()
    if process.returncode is not None:
        return
    # what it has started is no child of anybody known once it is gone
    family = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    await process.wait()


def _decoded(text: bytes | bytearray) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        return found
    return None
