"""Manners of a guest in a program: its threads get no signals, and it touches no descriptor of the program's."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

SYNCHRONOUS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")


def leave_signals_to_the_program() -> None:
    """Let this thread get none but those of its own making."""
    own = {getattr(_signal, name) for name in SYNCHRONOUS if hasattr(_signal, name)}
    _signal.pthread_sigmask(_signal.SIG_BLOCK, set(_signal.valid_signals()) - own)


def identity(descriptor: int) -> tuple[int, int] | None:
    """What a descriptor stands for: device and inode; ``None`` when it is closed.

    A program that closes all descriptors may have given the number of ours to a file of its own.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
