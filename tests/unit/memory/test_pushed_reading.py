"""Readings of an allocator in another process: the newest with every peak, and a gap once the process is silent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.watching.pushed_reading import READ_NS, PushedReading
from gpudash.telemetry.metrics import METRICS
from tests.unit.clock import Clock

NAMES = {metric.name for metric in METRICS["allocator"]}


def reading(allocated: int, peak: int) -> dict[str, int | None]:
    return {
        "allocated_bytes": allocated,
        "reserved_bytes": allocated + 10,
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": peak + 10,
        "allocation_retries": 0,
    }


def test_before_anything_was_pushed_every_metric_is_a_gap() -> None:
    assert PushedReading(Clock())() == dict.fromkeys(NAMES)


def test_the_newest_reading_carries_the_peaks_of_all_since_the_call_before() -> None:
    pushed = PushedReading(Clock())
    pushed.put(reading(5, 90))
    pushed.put(reading(7, 20))
    assert pushed() == reading(7, 90)
    pushed.put(reading(8, 15))
    assert pushed() == reading(8, 15)


def test_once_stale_it_is_a_gap_and_never_the_last_value() -> None:
    clock = Clock()
    pushed = PushedReading(clock, stale_s=0.5)
    pushed.put(reading(5, 5))
    clock.now_s += 0.5
    assert pushed() == reading(5, 5)
    clock.now_s += 0.001
    assert pushed() == dict.fromkeys(NAMES)


def test_a_peak_pushed_just_before_a_silence_is_in_the_first_reading_after_it() -> None:
    clock = Clock()
    pushed = PushedReading(clock, stale_s=0.5)
    pushed.put(reading(5, 90))
    clock.now_s += 1.0
    assert pushed()["peak_allocated_bytes"] is None
    pushed.put(reading(6, 6))
    assert pushed()["peak_allocated_bytes"] == 90


def test_a_reading_keeps_its_own_time_and_has_it_once_where_silence_says_that_it_lasts() -> None:
    pushed, lasting = PushedReading(Clock()), PushedReading(Clock(), lasts=True)
    for one in (pushed, lasting):
        one.put({**reading(5, 9), READ_NS: 7})
        assert one()[READ_NS] == 7
    assert pushed()[READ_NS] == 7
    assert lasting() == reading(5, 9)


def test_a_metric_that_could_not_be_had_is_a_gap_beside_the_others() -> None:
    pushed = PushedReading(Clock())
    pushed.put({**reading(5, 9), "peak_reserved_bytes": None})
    assert pushed()["peak_reserved_bytes"] is None and pushed()["allocated_bytes"] == 5
    assert pushed.peaks() == {"peak_allocated_bytes": 9, "peak_reserved_bytes": None}


def test_what_is_pushed_may_be_changed_afterwards_by_whoever_did() -> None:
    pushed, given_one = PushedReading(Clock()), reading(5, 5)
    pushed.put(given_one)
    given_one["allocated_bytes"] = 6
    assert pushed()["allocated_bytes"] == 5


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**50))))
def test_no_peak_is_lost_however_pushes_and_calls_alternate(moves: list[tuple[bool, int]]) -> None:
    pushed, seen, put = PushedReading(Clock()), [0], [0]
    for called, peak in moves:
        if called:
            seen.append(pushed()["peak_allocated_bytes"] or 0)
        else:
            pushed.put(reading(peak // 2, peak))
            put.append(peak)
    seen.append(pushed()["peak_allocated_bytes"] or 0)
    assert max(seen) == max(put) == (pushed.peaks()["peak_allocated_bytes"] or 0)


def test_once_the_process_has_ended_nothing_is_read_that_another_could_be_taken_to_hold() -> None:
    pushed = PushedReading(Clock())
    pushed.put(reading(5, 9))
    pushed.end()
    found = pushed()
    assert (found["reserved_bytes"], found["peak_reserved_bytes"]) == (0, 0)
    assert pushed.peaks()["peak_reserved_bytes"] == 19, "for its result"
