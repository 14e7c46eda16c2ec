"""Holding Python's garbage collector off: each search stops every thread for as long as it takes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_holders = 0
_was_on = False


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for garbage until the last of those who asked for this, in whatever thread, is done.

    For what makes very many objects that stay, among which each search would find nothing, and for what must not meet
    an object that is being deleted.
    """
    global _holders, _was_on
    with _lock:
        # The first who asks remembers whether it was on; with a count, threads may come and go in any order.
        if _holders == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0 and _was_on:
                gc.enable()
