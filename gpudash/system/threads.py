"""Waiting for a thread of ours to end."""

from __future__ import annotations

import threading


def joined(thread: threading.Thread | None, timeout_s: float) -> bool:
    """Wait for ``thread`` to end; false when it did not in time. ``None``, one that never began, has ended."""
    if thread is None:
        return True
    thread.join(timeout_s)
    return not thread.is_alive()
