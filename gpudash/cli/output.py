"""What commands print: exactly one JSON document on stdout, everything else on stderr."""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from gpudash.telemetry.records import plain


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
    """The request was wrong: what and where, and the way out."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message if message.endswith((".", "?")) else f"{message}."
        self.remedy = remedy


def stdout() -> Console:
    """The console for a command's own output."""
    return Console(highlight=False)


def stderr() -> Console:
    """The console for progress and notices."""
    return Console(stderr=True, highlight=False)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_failure(error: RequestError, as_json: bool) -> int:
    """Report a wrong request and return exit code 2."""
    if as_json:
        print_json({"status": "failed", "error": {"kind": "request", "message": error.message, "remedy": error.remedy}})
    print_notice(f"{error.message} {error.remedy}".strip())
    return Exit.WRONG_REQUEST


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
