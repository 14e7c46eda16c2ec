from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from gpudash.sources.lanes import Lane
from gpudash.telemetry.records import Record, Sample, SourceFailed, SourceRecovered, State
from tests.unit.clock import Clock
from tests.unit.sources.collecting import PATIENCE_S, Collector, events, rows, session_clock


def reading(now_s: float) -> list[Record]:
    return [Sample(now_s, "host", None, {"used_bytes": 1})]


def gap(now_s: float) -> list[Record]:
    return [Sample(now_s, "host", None, {"used_bytes": None}, {"used_bytes": State.STALE})]


@contextmanager
def started(lane: Lane, release: Callable[[], None] = lambda: None) -> Iterator[Lane]:
    lane.start()
    try:
        yield lane
    finally:
        release()
        lane.stop()
        assert lane.join(PATIENCE_S)


class Blocked:
    """A reading that does not return until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def __call__(self, now_s: float) -> Iterable[Record]:
        self.entered.set()
        assert self.released.wait(PATIENCE_S)
        return reading(now_s)


def test_a_lane_keeps_to_its_schedule_so_lateness_does_not_add_up() -> None:
    records, clock = Collector(), session_clock()
    with started(Lane("test", reading, records, clock, 0.004)) as lane:
        records.wait(lambda known: len(known) >= 50)
        lane.stop()
        assert lane.join(PATIENCE_S)
    samples, done = rows(records.records, None), lane.statistics
    scheduled = done.readings + done.missed - 2  # the first reading is at once, the others keep to the schedule
    drift = samples[-1].time_s - samples[1].time_s - scheduled * 0.004
    assert abs(drift) <= done.worst_lateness_s + 0.004
    assert done.readings == len(samples)


def test_lanes_of_one_clock_are_due_together_however_they_began() -> None:
    times: list[float] = []

    class Stepping(Clock):
        """Goes on by a fifth of a period with each look at it, so that nothing is waited for."""

        def __call__(self) -> float:
            self.now_s += 0.05
            return self.now_s

    def read(now_s: float) -> list[Record]:
        times.append(now_s)
        return reading(now_s)

    for began_s in (0.0, 0.11, 0.88):
        times.clear()
        records, clock = Collector(), Stepping()
        clock.now_s = began_s
        with started(Lane("test", read, records, clock, 0.25)) as lane:
            records.wait(lambda known: len(known) >= 6)
            lane.stop()
            assert lane.join(PATIENCE_S)
        assert all(time_s % 0.25 < 0.11 for time_s in times[1:]), times


def test_a_lane_that_cannot_keep_up_counts_what_it_missed() -> None:
    clock, records = Clock(), Collector()

    def slow(now_s: float) -> Iterable[Record]:
        clock.now_s = now_s + 1.05
        return reading(now_s)

    with started(Lane("test", slow, records, clock, 0.25)) as lane:
        records.wait(lambda known: len(known) >= 2)
        lane.stop()
        assert lane.join(PATIENCE_S)
    assert lane.statistics.missed >= 3


def test_an_exception_is_told_once_and_so_is_the_recovery() -> None:
    records, fails = Collector(), threading.Event()
    fails.set()

    def sometimes(now_s: float) -> Iterable[Record]:
        if fails.is_set():
            raise OSError("no such file")
        return reading(now_s)

    with started(Lane("test", sometimes, records, session_clock(), 0.002, title="The host", stale=gap)):
        records.wait(lambda known: len(rows(known, None)) >= 5)
        fails.clear()
        records.wait_for(lambda record: isinstance(record, SourceRecovered))
        records.wait(lambda known: rows(known, None)[-1].values["used_bytes"] == 1)
    failed, recovered = events(records.records, SourceFailed), events(records.records, SourceRecovered)
    assert len(failed) == len(recovered) == 1
    assert "The host could not be read (OSError: no such file)" in failed[0].text


def test_a_tick_that_failed_writes_a_gap() -> None:
    records = Collector()

    def never(now_s: float) -> Iterable[Record]:
        raise ValueError

    with started(Lane("test", never, records, session_clock(), 0.002, stale=gap)):
        records.wait(lambda known: len(rows(known, None)) >= 3)
    for row in rows(records.records, None):
        assert row.values == {"used_bytes": None} and row.states == {"used_bytes": State.STALE}


def test_a_stuck_call_gives_gaps_at_the_lanes_pace_and_one_event() -> None:
    clock, records, blocked = Clock(), Collector(), Blocked()
    lane = Lane("test", blocked, records, clock, 0.1, source="GPU-1", title="GPU 0 (X)", stale=gap, patience_s=1.0)
    with started(lane, blocked.released.set):
        assert blocked.entered.wait(PATIENCE_S)
        lane.check()
        assert records.records == [] and not lane.stuck
        clock.now_s = 0.4
        lane.check()
        lane.check()
        assert [row.time_s for row in rows(records.records, None)] == [0.4]
        assert lane.stuck and events(records.records, SourceFailed) == []
        clock.now_s = 1.2
        lane.check()
        clock.now_s = 1.3
        lane.check()
        assert [row.time_s for row in rows(records.records, None)] == pytest.approx([0.4, 1.2, 1.3])
        failed = events(records.records, SourceFailed)
        assert [event.source for event in failed] == ["GPU-1"]
        assert failed[0].text.startswith("GPU 0 (X) has not answered for 1.2 s")
        assert lane.statistics.missed == 13


def test_a_call_that_returns_late_is_stamped_after_the_gaps_it_caused() -> None:
    clock, records, blocked = Clock(), Collector(), Blocked()
    with started(Lane("test", blocked, records, clock, 0.1, stale=gap, patience_s=1.0), blocked.released.set) as lane:
        assert blocked.entered.wait(PATIENCE_S)
        clock.now_s = 5.0
        lane.check()
        blocked.released.set()
        records.wait_for(lambda record: isinstance(record, Sample) and record.values["used_bytes"] == 1)
    samples = rows(records.records, None)
    assert [row.values["used_bytes"] for row in samples[:2]] == [None, 1]
    assert samples[1].time_s >= samples[0].time_s == 5.0
    assert len(events(records.records, SourceRecovered)) == 1
    assert lane.statistics.missed >= 48


def test_a_row_that_no_gap_stood_in_for_keeps_its_own_time_however_late_the_call_returns() -> None:
    clock, records, blocked = Clock(), Collector(), Blocked()

    def read(now_s: float) -> list[Record]:
        return [Sample(now_s, "allocator", "sim:0", {"reserved_bytes": 2}), *blocked(now_s)]

    with started(Lane("test", read, records, clock, 0.1, stale=gap), blocked.released.set) as lane:
        assert blocked.entered.wait(PATIENCE_S)
        began_s, clock.now_s = clock.now_s, 5.0
        lane.check()
        blocked.released.set()
        found = records.wait_for(lambda record: isinstance(record, Sample) and record.table == "allocator")
    assert found[0].time_s == began_s


def test_nothing_is_emitted_after_stop_even_when_a_call_returns_later() -> None:
    records, blocked = Collector(), Blocked()
    lane = Lane("test", blocked, records, session_clock(), 0.01)
    with started(lane, blocked.released.set):
        assert blocked.entered.wait(PATIENCE_S)
        lane.stop()
        assert not lane.join(0.0)
        blocked.released.set()
        assert lane.join(PATIENCE_S)
    assert records.records == []


def test_the_period_can_change_while_the_lane_waits() -> None:
    records = Collector()
    with started(Lane("test", reading, records, session_clock(), 3600.0)) as lane:
        records.wait(lambda known: len(known) == 1)
        lane.set_period(0.002)
        records.wait(lambda known: len(known) >= 10)
        assert lane.statistics.period_s == 0.002
