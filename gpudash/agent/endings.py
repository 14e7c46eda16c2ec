"""How the program ends: an uncaught exception, reported before the interpreter is gone."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from .wire import Message

MOST_TRACEBACK = 20_000
"""Most characters; of a longer text the end is kept."""

_HOST = "DefaultCPUAllocator: "
"""Of the message with which torch refuses host memory (c10/core/impl/alloc_cpu.cpp)."""

_DRIVER = "CUDA error: out of memory"
"""Begins the message about what CUDA itself could not have: a context, a kernel's code, pinned memory."""

LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", os.path.dirname(os.path.dirname(__file__)) + os.sep)
"""Parts of the path of code that is not the program's own."""


def raised(error: BaseException, thread: str | None = None) -> Message:
    """The message about an uncaught exception."""
    file, line, name = _place(error.__traceback__)
    if file is None and isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    return {
        "type": "raised",
        "error": _kind(error),
        "message": str(error)[:MOST_TRACEBACK],
        "file": file,
        "line": line,
        "name": name,
        "traceback": _text(error)[-MOST_TRACEBACK:],
        "thread": thread,
    }


def _text(error: BaseException) -> str:
    """As Python prints it.

    An interrupt may not cause an import: one that runs code from text, as namedtuple does, makes Python forget that the
    program has to end by the signal.
    """
    if isinstance(error, KeyboardInterrupt) and "traceback" not in sys.modules:
        return f"{type(error).__name__}\n"
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _kind(error: BaseException) -> str:
    """The exception's class, or whose memory it says was full: "out_of_memory" of a GPU, "out_of_host_memory"."""
    seen = 0
    found: BaseException | None = error
    while found is not None and seen < 20:
        if type(found).__name__ == "OutOfMemoryError":
            return "out_of_memory"
        if isinstance(found, MemoryError) or (isinstance(found, RuntimeError) and _HOST in str(found)):
            return "out_of_host_memory"
        if isinstance(found, RuntimeError) and _DRIVER in str(found):
            return "out_of_memory"
        found, seen = found.__cause__, seen + 1
    return type(error).__name__


def _place(trace: TracebackType | None) -> tuple[str | None, int | None, str | None]:
    """File, line and function of the innermost line of the program's own code; of the innermost of all without one."""
    own: tuple[Any, Any, Any] | None = None
    last: tuple[Any, Any, Any] = (None, None, None)
    while trace is not None:
        code = trace.tb_frame.f_code
        last = code.co_filename, trace.tb_lineno, code.co_name
        if not code.co_filename.startswith("<") and not any(part in code.co_filename for part in LIBRARY):
            own = last
        trace = trace.tb_next
    return own or last
