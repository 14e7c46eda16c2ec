"""How the program ends: reports an uncaught exception before the interpreter shuts down."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from .wire import Message

MOST_TRACEBACK = 20_000
"""Longest traceback in characters; of a longer one, the end is kept."""

_HOST = "DefaultCPUAllocator: "
"""Prefix of torch's message when host memory is refused (c10/core/impl/alloc_cpu.cpp)."""

_DRIVER = "CUDA error: out of memory"
"""Beginning of CUDA's own message if it lacks memory: for a context, a kernel's code, pinned memory."""

LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", os.path.dirname(os.path.dirname(__file__)) + os.sep)
"""Parts of paths of code that is not the program's own."""


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
    """The traceback as Python prints it.

    An interrupt must not cause an import: one that executes code from a string, like namedtuple, makes Python forget
    that the program must end by the signal.
    """
    if isinstance(error, KeyboardInterrupt) and "traceback" not in sys.modules:
        return f"{type(error).__name__}\n"
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _kind(error: BaseException) -> str:
    """The exception's class, or which memory was full: "out_of_memory" for a GPU, "out_of_host_memory"."""
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
    """File, line and function of the program's innermost own line; of the innermost line if it has none."""
    own: tuple[Any, Any, Any] | None = None
    last: tuple[Any, Any, Any] = (None, None, None)
    while trace is not None:
        code = trace.tb_frame.f_code
        last = code.co_filename, trace.tb_lineno, code.co_name
        if not code.co_filename.startswith("<") and not any(part in code.co_filename for part in LIBRARY):
            own = last
        trace = trace.tb_next
    return own or last
