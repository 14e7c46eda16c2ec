"""The store of a replay while the recording grows: a moment stays what it was, and what nobody looks at stays small."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from gpudash.telemetry.buckets import summary
from gpudash.telemetry.recording import seekable_store as positioned
from gpudash.telemetry.recording.moments import Moment
from gpudash.telemetry.recording.recorded_series import RecordedSeries
from gpudash.telemetry.recording.seekable_store import Everything, PositionedStore
from gpudash.telemetry.records import Sample

KEY = ("host", "used_bytes", None)
KEPT = 8192


def reading(i: int) -> Sample:
    return Sample(float(i), "host", None, {"used_bytes": i})


class Looking:
    """The lock of a store, behind which somebody looks whenever it is let go."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._look = look

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._look()
        self._lock.release()


def test_whoever_draws_between_new_records_sees_the_moment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positioned, "AT_A_TIME", 1)
    store = PositionedStore(Everything())
    store.apply_all([reading(i) for i in range(KEPT)])
    store.show(6000.0, Moment(), [])
    seen: list[list[float]] = []

    def look() -> None:
        series = store.series(*KEY)
        assert series is not None
        seen.append(series.window(5990.0, 7000.0, 100)[1].tolist())

    look()
    store.lock = store.whole.lock = Looking(look)  # type: ignore[assignment]
    store.apply_all([reading(i) for i in range(KEPT, KEPT + 3)])
    assert seen == [[float(i) for i in range(5989, 6001)]] * 4


def test_what_nobody_looks_at_does_not_wait_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positioned, "MOST_WAITING", 10)
    loads = []

    def load(key: tuple[str, str, str | None]) -> RecordedSeries:
        loads.append(key)
        return RecordedSeries.preloaded(summary(np.arange(4.0), np.arange(4.0), 2), 4, 64)

    whole = Everything([KEY], load)
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
