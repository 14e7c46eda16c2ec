"""Rules for a guest in a program: its threads get no signals, it touches none of the program's descriptors, the
program never sees its errors, and a function that it replaced is put back.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SYNCHRONOUS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")


MOST_FAULTS = 20
"""Most faults reported to the dashboard, and most characters of each."""

LONGEST_FAULT = 4000

_faults: list[str] = []
_reported: set[str] = set()


def guarded(call: Callable[..., Any]) -> Callable[..., None]:
    """``call`` with exceptions suppressed: the program would see them; the dashboard logs them."""

    def safe(*args: Any) -> None:
        try:
            call(*args)
        except Exception as error:
            note_fault(error)

    return safe


def restoring(holder: Any, made: dict[str, Any]) -> Callable[[], None]:
    """Replace functions; returns a function that restores them, unless they have been replaced again."""
    # What the holder itself has: looked up by `getattr`, a method of a class in C is no method any more.
    before = {name: vars(holder).get(name, getattr(holder, name)) for name in made}
    for name, function in made.items():
        setattr(holder, name, function)

    def undo() -> None:
        for name, function in made.items():
            if getattr(holder, name, None) is function:
                setattr(holder, name, before[name])

    return undo


def undo_nothing() -> None:
    """Undo what was not done."""


def note_fault(error: BaseException) -> None:
    """Store an exception of the agent's own code for `take_faults`, each kind once for each place.

    Imports no module, such as `traceback`: the program may be in the middle of an import.
    """
    lines = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        lines.append(f"{code.co_filename}:{at.tb_lineno} in {code.co_name}")
        at = at.tb_next
    place = "{} at {}".format(type(error).__name__, lines[-1] if lines else "")
    if place not in _reported and len(_reported) < MOST_FAULTS:
        _reported.add(place)
        _faults.append("\n".join([*lines, f"{type(error).__name__}: {error}"])[-LONGEST_FAULT:])


def take_faults() -> list[str]:
    """Errors since the last call: the stack, one call a line, and the exception."""
    taken = _faults[:]
    del _faults[: len(taken)]
    return taken


def leave_signals_to_the_program() -> None:
    """Block all signals in this thread except those it causes itself."""
    own = {getattr(_signal, name) for name in SYNCHRONOUS if hasattr(_signal, name)}
    _signal.pthread_sigmask(_signal.SIG_BLOCK, set(_signal.valid_signals()) - own)


def identity(descriptor: int) -> tuple[int, int] | None:
    """The identity of a descriptor's file: device and inode; ``None`` if it is closed.

    A program that closes all descriptors may have reused our number for a file of its own.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
