"""Waiting for a thread to end."""

from __future__ import annotations

import threading


def joined(thread: threading.Thread | None, timeout_s: float) -> bool:
    """Wait for ``thread`` to end; false if it did not in time. ``None``, for one that never began, counts as ended."""
    if thread is None:
        return True
    thread.join(timeout_s)
    return not thread.is_alive()
