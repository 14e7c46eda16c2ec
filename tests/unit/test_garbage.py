from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from gpudash.system.garbage import collect_due, without_collection
from tests.programs import python
from tests.unit.sources.collecting import PATIENCE_S


@pytest.fixture(autouse=True)
def on() -> None:
    """The collector is on; a picture that another test drew in this process left it to an event loop."""
    gc.enable()


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


class _Node:
    """Garbage as soon as nobody else knows it: it knows itself."""

    def __init__(self) -> None:
        self.itself = self


def _left() -> int:
    return sum(type(thing) is _Node for thing in gc.get_objects())


@pytest.fixture
def off() -> Iterator[None]:
    """Garbage is collected when a test says so."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("off")
def test_garbage_is_collected_once_there_is_as_much_as_python_itself_would_wait_for() -> None:
    _Node()
    collect_due()
    assert _left() == 1
    for _ in range(gc.get_threshold()[0] + 1):
        _Node()
    with without_collection():
        collect_due()
        assert _left() > 1
    collect_due()
    assert _left() == 0


@pytest.mark.usefixtures("off")
def test_what_outlived_the_young_generation_is_collected_in_its_turn() -> None:
    old = _Node()
    gc.collect(0)
    del old
    for _ in range(gc.get_threshold()[1] + 2):
        for _ in range(gc.get_threshold()[0] + 1):
            _Node()
        collect_due()
    assert _left() == 0


@pytest.mark.usefixtures("off")
def test_all_is_collected_only_once_a_quarter_more_has_become_old() -> None:
    kept: list[object] = []

    def age(count: int) -> None:
        kept.extend([] for _ in range(count))
        for _ in range(gc.get_threshold()[2] + 1):
            gc.collect(1)
        collect_due()

    age(len(gc.get_objects()))
    old = _Node()
    gc.collect(1)
    del old
    age(0)
    assert _left() == 1
    age(len(gc.get_objects()))
    assert _left() == 0


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
