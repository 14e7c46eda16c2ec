"""The store of a replay while the recording grows: a moment stays what it was, and what nobody looks at stays small."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry import store as store_module
from gpudash.telemetry.records import Sample
from gpudash.telemetry.series import Series, summary
from gpudash.telemetry.store import MemoryBackend, Store

KEY = ("host", "used_bytes", None)
KEPT = 8192

COUNTS = st.integers(1, 300)

TIMES = st.floats(-5.0, 310.0)


def reading(i: int) -> Sample:
    return Sample(float(i), "host", None, {"used_bytes": i})


class Looking:
    """The lock of a store, behind which somebody looks whenever it is let go."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._poll = look

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._poll()
        self._lock.release()


def test_whoever_draws_between_new_records_sees_the_moment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "AT_A_TIME", 1)
    store = Store()
    store.apply_all([reading(i) for i in range(KEPT)])
    store.seek(6000.0)
    seen: list[list[float]] = []

    def look() -> None:
        series = store.series(*KEY)
        assert series is not None
        seen.append(series.window(5990.0, 7000.0, 100)[1].tolist())

    look()
    store.lock = Looking(look)  # type: ignore[assignment]
    store.apply_all([reading(i) for i in range(KEPT, KEPT + 3)])
    assert seen == [[float(i) for i in range(5989, 6001)]] * 4


def test_what_nobody_looks_at_does_not_wait_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_WAITING", 10)
    loads = []

    def load(key: tuple[str, str, str | None]) -> Series:
        loads.append(key)
        return Series.preloaded(summary(np.arange(4.0), np.arange(4.0), 2), 4, 64)

    backend = MemoryBackend()
    monkeypatch.setattr(backend, "keys", [KEY])
    monkeypatch.setattr(backend, "load", load)
    whole = Store(backend)
    for i in range(4, 14):
        whole.apply(reading(i))
    assert loads == []
    whole.apply(reading(14))
    assert loads == [KEY]
    series = whole.series(*KEY)
    assert series is not None
    assert len(series) == 15
    assert series.window(0.0, 14.0, 100)[1].tolist() == [float(i) for i in range(15)]
    assert loads == [KEY]


def filled(count: int, recent: int = 16, buckets: int = 8) -> Series:
    series = Series(recent, buckets)
    for i in range(count):
        series.append(float(i), None if i % 11 == 3 else float(i * 37 % 101))
    return series


@settings(max_examples=150, deadline=None)
@given(COUNTS, TIMES)
def test_a_series_as_it_was_knows_nothing_later_and_everything_kept_before(count: int, t: float) -> None:
    whole = filled(count)
    then = whole.until(t)
    times, values = whole.window(-10.0, 400.0, 10_000)
    known = times <= t
    found = then.window(-10.0, 400.0, 10_000)
    assert found[0].tolist() == times[known].tolist()
    assert found[1].tolist() == pytest.approx(values[known].tolist(), nan_ok=True)
    last = then.last()
    assert last == (None if not known.any() else pytest.approx((times[known][-1], values[known][-1]), nan_ok=True))
    extent = then.extent()
    assert extent is None if last is None else extent == (0.0, last[0])
    assert len(then) <= len(whole)


@settings(max_examples=50, deadline=None)
@given(COUNTS, st.lists(TIMES, min_size=2, max_size=8), st.integers(1, 30))
def test_going_from_moment_to_moment_draws_the_same_as_going_there_at_once(
    count: int, moments: list[float], columns: int
) -> None:
    whole = filled(count)
    for t in moments:
        seen = whole.until(t)
        fresh = filled(count).until(t)
        drawn, expected = seen.window(0.0, 310.0, columns), fresh.window(0.0, 310.0, columns)
        assert np.nanmin(drawn[1], initial=1e9) == np.nanmin(expected[1], initial=1e9)
        assert np.nanmax(drawn[1], initial=-1e9) == np.nanmax(expected[1], initial=-1e9)
        assert drawn[0].max(initial=-1.0) <= max(t, -1.0)


def preloaded(count: int) -> Series:
    times = np.arange(float(count))
    return Series.preloaded(summary(times, times * 2, 16), count, 16)


def test_a_preloaded_series_goes_on_where_its_buckets_end() -> None:
    series = preloaded(100)
    for i in range(100, 3000):
        series.append(float(i), i * 2.0)
    found = series.statistics(-math.inf, math.inf)
    assert found is not None
    assert (len(series), series.extent(), series.last()) == (3000, (0.0, 2999.0), (2999.0, 5998.0))
    assert (found.count, found.min, found.max, found.mean) == (3000, 0.0, 5998.0, 2999.0)


def test_what_is_not_known_exactly_is_asked_for_and_answered_once_it_is_there() -> None:
    series, asked = preloaded(1000), []
    series.request = lambda t0, t1: asked.append((t0, t1))
    coarse = series.window(100.0, 140.0, 800)[0]
    series.window(100.0, 140.0, 800)
    assert asked == [(100.0, 140.0)] * 2
    raw = Series()
    for i in range(90, 151):
        raw.append(float(i), i * 2.0)
    series.sharpen([((90.0, 150.0), raw)])
    asked.clear()
    assert len(coarse) < len(series.window(100.0, 140.0, 800)[0]) == 43
    assert series.at(101.5) == 202.0
    assert series.neighbour(101.0, 1) == 102.0
    figures = series.statistics(101.0, 103.0)
    assert figures is not None
    assert (figures.count, figures.mean) == (3, 204.0)
    assert asked == []
    assert series.until(120.0).window(100.0, 140.0, 800)[0][-1] == 120.0
    series.window(100.0, 300.0, 800)
    assert asked == [(100.0, 300.0)]


def test_a_range_without_an_end_and_one_outside_ask_for_nothing() -> None:
    series = preloaded(1000)
    series.request = lambda t0, t1: pytest.fail("asked")
    series.statistics(-math.inf, math.inf)
    series.window(-50.0, -10.0, 100)
    series.window(2000.0, 3000.0, 100)


def test_the_end_of_a_view_is_drawn_and_read_where_it_is_known() -> None:
    whole = preloaded(1000)
    view = whole.until(500.5, (500.4, 7.0))
    assert view.last() == (500.4, 7.0)
    assert view.extent() == (0.0, 500.4)
    times, values = view.window(400.0, 600.0, 800)
    assert (times[-1], values[-1]) == (500.4, 7.0)
    assert view.at(500.45) == 7.0
    assert whole.until(500.5, (100.0, 8.0)).last() == whole.until(500.5).last() == (496.0, 992.0)
