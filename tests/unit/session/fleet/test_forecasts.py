"""Memory that grows is foretold from scrapes, however far apart they are."""

from __future__ import annotations

import pytest

from gpudash.session.fleet.fleet import MOST_AT_ONCE, Forecasts
from gpudash.session.fleet.gpu import FleetGpu
from tests.unit.session.fleet.told import NOW, fleet_gpu

LABELS = {"UUID": "GPU-a", "instance": "n1:9400"}
WHERE = ("n1:9400", "GPU-a")


def gpu(fullness: float, seen_s: float, **beside: object) -> FleetGpu:
    return fleet_gpu("a", fullness, seen_s=seen_s, **{"exporter": "dcgm", "labels": LABELS, **beside})


@pytest.mark.parametrize("interval_s", [1.0, 5.0, 15.0])
def test_a_memory_that_grows_steadily_is_foretold_to_be_full(interval_s: float) -> None:
    forecasts, found = Forecasts(), {}
    for n in range(90):
        found = forecasts.take([gpu(0.05 + 0.01 * n, NOW + n * interval_s)], {WHERE: interval_s})
    left_s = (1.0 - 0.94) / 0.01 * interval_s
    assert found["a"] == pytest.approx(left_s, rel=0.3)


def test_a_memory_that_stands_is_not_foretold() -> None:
    forecasts = Forecasts()
    assert not any(forecasts.take([gpu(0.9, NOW + n)], {WHERE: 1.0}) for n in range(90))


def test_a_memory_that_grows_and_is_not_yet_full_is_no_forecast() -> None:
    forecasts = Forecasts()
    assert not any(forecasts.take([gpu(0.1 + 0.005 * n, NOW + n)], {WHERE: 1.0}) for n in range(90))


@pytest.mark.parametrize("beside", [{"exporter": "gpudash"}, {"stale": True}])
def test_what_gpudash_foretells_itself_and_what_is_stale_is_left_out(beside: dict[str, object]) -> None:
    forecasts = Forecasts()
    assert not any(forecasts.take([gpu(0.05 + 0.01 * n, NOW + n, **beside)], {WHERE: 1.0}) for n in range(90))


def test_the_same_scrape_told_twice_counts_once() -> None:
    forecasts = Forecasts()
    for n in range(180):
        found = forecasts.take([gpu(0.05 + 0.01 * (n // 2), NOW + n // 2)], {WHERE: 1.0})
    assert found["a"] == pytest.approx(6.0, rel=0.3)


def test_many_full_memories_take_turns_and_none_is_forgotten() -> None:
    forecasts, found = Forecasts(), {}
    keys = [str(n) for n in range(2 * MOST_AT_ONCE)]
    for n in range(92):
        gpus = [fleet_gpu(key, 0.05 + 0.01 * n, seen_s=NOW + n, exporter="dcgm", labels=LABELS) for key in keys]
        found = forecasts.take(gpus, {WHERE: 1.0})
    assert set(found) == set(keys)
