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
    """Collect the oldest generation that is due, as Python itself would (CPython 3.11, gc_collect_generations).

    For a process with automatic collection disabled; call it from one thread regularly.
    """
    if _holders:
        return
    for generation in (2, 1, 0):
        threshold = gc.get_threshold()[generation]
        # A threshold of 0 disables a generation.
        if threshold and gc.get_count()[generation] > threshold and (generation < 2 or _many_have_become_old()):
            gc.collect(generation)
            if generation == 2:
                _remember_old()
            return


_old_after_full = 0
"""Objects in the oldest generation when all of it had been collected last."""


def _many_have_become_old() -> bool:
    """Whether a quarter more objects are old than after the last full collection.

    Python waits for that too (``long_lived_pending``): the time of full collections then grows with what is made, not
    with its square. Among the objects of a window and of torch one takes some 0.1 s.
    """
    return len(gc.get_objects(generation=2)) > (1 + OLD_SHARE) * _old_after_full


def _remember_old() -> None:
    global _old_after_full
    _old_after_full = len(gc.get_objects(generation=2))


OLD_SHARE = 0.25
"""From CPython's gc_collect_generations: ``long_lived_pending < long_lived_total / 4``."""
