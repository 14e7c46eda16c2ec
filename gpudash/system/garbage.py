"""When Python looks for garbage: not while many objects are made that stay; where there is a window, in its thread."""

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

    For what makes very many objects that stay: each search would find nothing, and stops every thread meanwhile.
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


def collect_due() -> None:
    """Collect the oldest generation whose turn it is, as Python itself would (CPython, gc_collect_generations).

    For a process in which automatic collection is off, to be called from one thread now and then.
    """
    if _holders:
        return
    for generation in (2, 1, 0):
        threshold = gc.get_threshold()[generation]
        # A threshold of 0 turns a generation off.
        if threshold and gc.get_count()[generation] > threshold:
            gc.collect(generation)
            return
