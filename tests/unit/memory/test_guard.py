"""`Guard`: refuses what would cross its level, and finds what crossed it."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.watching.levels import Guard
from gpudash.telemetry.records import Sample
from gpudash.units import GIB, MIB


def host(used: int | None) -> Sample:
    return Sample(0.0, "host", None, {"used_bytes": used})


@pytest.fixture
def guard() -> Guard:
    made = Guard()
    made.arm("host", 5 * GIB, "the guard, 1 GiB above the use at the start of the run")
    return made


def test_an_allocation_that_stays_below_the_level_is_granted(guard: Guard) -> None:
    guard.observe(host(4 * GIB))
    assert guard.refuse(GIB - 1) is None


def test_an_allocation_that_would_cross_the_level_is_refused_in_words(guard: Guard) -> None:
    guard.observe(host(4 * GIB))
    assert guard.refuse(GIB) == (
        "Stopped by the guard, 1 GiB above the use at the start of the run: 4.00 of 5.00 GiB are in use, and the run "
        "asks for 1.00 GiB more. Ask for less memory, close other programs, or raise --guard."
    )


def test_what_was_granted_counts_until_the_next_reading(guard: Guard) -> None:
    guard.observe(host(4 * GIB))
    assert guard.refuse(600 * MIB) is None
    assert guard.refuse(600 * MIB) is not None
    guard.observe(host(4 * GIB))
    assert guard.refuse(600 * MIB) is None


def test_a_reading_at_the_level_stops_the_run_once(guard: Guard) -> None:
    assert guard.observe(host(5 * GIB - 1)) is None
    sentence = guard.observe(host(5 * GIB))
    assert sentence is not None
    assert "5.00 of 5.00 GiB are in use" in sentence
    assert guard.observe(host(6 * GIB)) is None


def test_a_gap_or_another_memory_is_no_reading(guard: Guard) -> None:
    guard.observe(host(4 * GIB))
    assert guard.observe(host(None)) is None
    assert guard.observe(Sample(0.0, "gpu", "GPU-1", {"used_bytes": 9 * GIB})) is None
    assert guard.observe(Sample(0.0, "process", None, {"used_bytes": 9 * GIB})) is None
    assert guard.refuse(MIB) is None


def test_a_guard_that_is_off_stops_nothing(guard: Guard) -> None:
    guard.observe(host(4 * GIB))
    guard.disarm()
    assert guard.level_bytes is None
    assert guard.refuse(100 * GIB) is None
    assert guard.observe(host(100 * GIB)) is None


def test_without_a_reading_nothing_is_refused() -> None:
    guard = Guard()
    guard.arm("GPU-1", GIB, "the guard's level")
    assert guard.device == "GPU-1"
    assert guard.refuse(2 * GIB) is None


def test_arming_again_watches_anew(guard: Guard) -> None:
    guard.observe(host(6 * GIB))
    guard.arm("host", 8 * GIB, "the guard's level")
    assert guard.refuse(GIB) is None
    assert guard.observe(host(8 * GIB)) is not None
    guard.arm("GPU-1", 8 * GIB, "the guard's level")
    assert guard.refuse(100 * GIB) is None


@given(st.integers(0, 100), st.lists(st.integers(0, 100)))
def test_grants_between_two_readings_never_reach_the_level_together(used: int, sizes: list[int]) -> None:
    guard = Guard()
    guard.arm("host", 100, "the guard's level")
    guard.observe(host(used))
    granted = sum(size for size in sizes if guard.refuse(size) is None)
    assert granted == 0 or used + granted < 100


def test_threads_that_ask_at_once_share_what_is_left() -> None:
    guard = Guard()
    guard.arm("host", 1001, "the guard's level")
    guard.observe(host(0))
    granted: list[int] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait(5)
        granted.extend(1 for _ in range(500) if guard.refuse(1) is None)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert len(granted) == 1000
