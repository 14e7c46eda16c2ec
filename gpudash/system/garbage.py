"""Control of Python's garbage collection: not while many long-lived objects are created; in a GUI, on its thread."""

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
    """No garbage collection until the last of the concurrent users of this, on any thread, is done.

    For code that creates very many long-lived objects: each collection would find nothing, and stops every thread.
    """
    global _holders, _was_on
    with _lock:
        # The first user stores whether it was on; with a count, threads may come and go in any order.
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


def collect_due() -> None:
    """Collect the oldest generation that is due, as Python itself would (CPython, gc_collect_generations).

    For a process with automatic collection disabled; call it from one thread regularly.
    """
    if _holders:
        return
    for generation in (2, 1, 0):
        threshold = gc.get_threshold()[generation]
        # A threshold of 0 disables a generation.
        if threshold and gc.get_count()[generation] > threshold:
            gc.collect(generation)
            return
