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
from anyio.abc import ByteReceiveStream, Process

from gpudash.session.api.mcp_server import ending_with_parent
from gpudash.system.foreign_files import READS_WITHIN

logger = logging.getLogger(__name__)

ENDING_S = 20.0
"""Longest wait for a command that was asked to end: of a watched program it waits 10 s after SIGINT, and 3 s after
SIGTERM."""

CLOSING_S = 2.0
"""Longest wait for the end of what was printed, which a process that was left behind can hold open."""

MOST_DOCUMENT = 64 * 2**20
"""Bytes of a document; of more nothing is kept, and the command is ended."""

LAST_PRINTED = 4_000
"""Bytes that are kept of what a command, or the program that it runs, has printed last."""


@dataclass(frozen=True)
class CommandOutcome:
    """What came of a command.

    Attributes:
        document: that it printed; ``None`` where it printed none.
        printed: the last that it, or the program that it ran, printed beside it.
        timed_out: whether it was ended because its time was over.
    """

    document: Mapping[str, Any] | None
    printed: str
    timed_out: bool


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
    arguments: Sequence[str], folder: Path, limit_s: float, *, runs_code: bool, within: Sequence[Path] = ()
) -> CommandOutcome:
    """Run ``gpudash`` with these arguments.

    Cancelled, it first ends the command with all that this has started.

    Args:
        arguments: of the command line, ``--json`` among them.
        folder: to run it in.
        limit_s: after which it is ended.
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
    command = [*python, ending_with_parent.__file__, str(os.getpid()), *python, "-m", "gpudash", *arguments]
    process = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, cwd=folder, env=environment, start_new_session=True
    )
    logger.info("process %d began: gpudash %s", process.pid, arguments[0])
    assert process.stdout is not None and process.stderr is not None
    document, printed = _Output(MOST_DOCUMENT), _Output(LAST_PRINTED)
    try:
        async with anyio.create_task_group() as readers:
            readers.start_soon(document.keep_last, process.stdout)
            readers.start_soon(printed.keep_last, process.stderr)
            with anyio.move_on_after(limit_s) as limit:
                await process.wait()
            if limit.cancelled_caught:
                await _end(process)
            readers.cancel_scope.deadline = anyio.current_time() + CLOSING_S
    finally:
        with anyio.CancelScope(shield=True):
            await _end_read(process, document, printed)
    logger.info("process %d ended with code %s", process.pid, process.returncode)
    found = None
    if not document.overflowed:
        found = _decoded(document.kept)
    return CommandOutcome(found, printed.kept.decode("utf-8", "replace"), limit.cancelled_caught)


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
