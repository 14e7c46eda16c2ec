"""What commands print: exactly one JSON document on stdout, everything else on stderr.

rich is imported where something is printed with it: a window that opens needs none of it.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpudash.telemetry.records import plain

if TYPE_CHECKING:
    from rich.console import Console


class Exit(enum.IntEnum):
    """Exit codes of every command."""

    FINISHED = 0
    FAILED = 1
    WRONG_REQUEST = 2
    OUT_OF_MEMORY = 3
    INTERRUPTED = 130


OF_STATUS = {
    "finished": Exit.FINISHED,
    "failed": Exit.FAILED,
    "out_of_memory": Exit.OUT_OF_MEMORY,
    "cancelled": Exit.INTERRUPTED,
}


class RequestError(Exception):
    """The request was wrong: what and where, and the way out.

    Attributes:
        joined: false when a thread was left behind, for `leave`.
    """

    code = Exit.WRONG_REQUEST
    status = "failed"
    kind = "request"

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message if message.endswith((".", "?")) else f"{message}."
        self.remedy = remedy
        self.joined = True


class RequestInterruptedError(RequestError):
    """The user ended the command before there was anything to report."""

    code = Exit.INTERRUPTED
    status = "cancelled"
    kind = "interrupted"


def stdout() -> Console:
    """The console for a command's own output: it prints no more when its reader has gone away, and the command keeps
    the exit code that it earns."""
    from rich.console import Console

    class QuietConsole(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            discard_stdout()

    return QuietConsole(highlight=False)


def stderr() -> Console:
    """The console for progress and notices."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


JSON_FORMAT = 1
"""Of every document of ``--json``; a key that changes its meaning or goes makes it one more."""


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, with its ``format`` and its ``status`` ("finished" where it has none) at the top.

    ``resources/guide/json.md`` describes every document.
    """
    whole = {"format": JSON_FORMAT, "status": "finished", **document}
    try:
        sys.stdout.write(json.dumps(plain(whole), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Send what is still printed nowhere: its reader went away, and there is nobody left to tell."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_failure(error: RequestError, as_json: bool) -> int:
    """Report what was wrong with a request; returns the exit code."""
    if as_json:
        told = {"kind": error.kind, "message": error.message, "remedy": error.remedy}
        print_json({"status": error.status, "error": told})
    print_notice(f"{error.message} {error.remedy}".strip())
    return leave(error.code, error.joined)


def print_notice(text: str) -> None:
    """One sentence on stderr, unwrapped, so that scripts find it on one line."""
    sys.stderr.write(f"{text}\n")


def leave(code: int, joined: bool) -> int:
    """The exit code; leaves at once when a thread is stuck in a driver or an operation and cannot be joined."""
    if joined:
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
