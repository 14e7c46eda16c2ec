from __future__ import annotations

import gc
import threading

import pytest

from gpudash.system.garbage import without_collection
from tests.programs import python
from tests.unit.sources.collecting import PATIENCE_S


def test_the_collector_is_back_only_when_the_last_thread_that_held_it_off_is_done() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with without_collection():
            entered.set()
            assert leave.wait(PATIENCE_S)

    other = threading.Thread(target=hold)
    with without_collection():
        other.start()
        assert entered.wait(PATIENCE_S)
    assert not gc.isenabled()
    leave.set()
    other.join(PATIENCE_S)
    assert gc.isenabled()


def test_a_collector_that_was_off_before_stays_off() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


PROGRAM = """
import gc, sys, threading
from gpudash.telemetry.records import Note, Topic
from gpudash.workloads.running.worker import Worker
there = threading.Event()
worker = Worker(lambda record: there.set() if getattr(record, "topic", None) == Topic.TORCH else None, lambda: 0.0)
worker.start()
worker.warm_up()
assert there.wait(300)
print(gc.get_freeze_count() > 100_000, gc.isenabled())
worker.close(60)
"""


@pytest.mark.process
def test_what_torch_brings_is_searched_for_garbage_never_again() -> None:
    done = python("-c", PROGRAM)
    assert done.stdout.split() == ["True", "True"], done.stderr
