"""Starting a thread, and waiting for its end."""

from __future__ import annotations

import threading
from collections.abc import Callable


def started(name: str, call: Callable[..., object], *arguments: object) -> threading.Thread:
    """A thread that runs ``call`` and does not keep the process alive; it has begun.

    Args:
        name: of the thread, as in the log.
        call, arguments: what it runs.
    """
    thread = threading.Thread(target=call, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread | None, timeout_s: float) -> bool:
    """Wait for ``thread`` to end; false if it did not in time. ``None``, for one that never began, counts as ended."""
    if thread is None:
        return True
    thread.join(timeout_s)
    return not thread.is_alive()
