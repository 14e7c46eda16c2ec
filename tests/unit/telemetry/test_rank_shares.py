"""Shares of the step: of each rank, and of all ranks together."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.telemetry.ranks.shares import MEAN, PARTS
from gpudash.telemetry.records import RunFinished, RunStarted, Sample
from gpudash.telemetry.store import Store

SECONDS = st.floats(0, 1e3, allow_nan=False)


def row(time_s: float, rank: str, compute: float, communication: float, waiting: float) -> Sample:
    step_s = compute + communication + waiting
    return Sample(time_s, "rank", rank, {"step_s": step_s, "communication_s": communication, "waiting_s": waiting})


def started(time_s: float = 0.0) -> RunStarted:
    return RunStarted(time_s=time_s, run_id=1, workload="training", device="cpu", spec={})


def ended(time_s: float = 9.0) -> RunFinished:
    return RunFinished(time_s=time_s, run_id=1, status="finished", seconds=1.0, steps=1, result={})


def values(store: Store, device: str, part: str = "compute") -> list[float]:
    series = store.series("rank", f"{part}_share", device)
    return [] if series is None else series.window(-1.0, 100.0, 1 << 30)[1].tolist()


@pytest.fixture
def store() -> Store:
    store = Store()
    store.apply(started())
    return store


def test_a_rank_s_shares_are_parts_of_what_its_step_was_spent_on(store: Store) -> None:
    store.apply(row(1.0, "0", 0.06, 0.01, 0.03))
    assert values(store, "0") == [pytest.approx(0.6)]
    assert values(store, "0", "communication") == [pytest.approx(0.1)]
    assert values(store, "0", "waiting") == [pytest.approx(0.3)]


def test_time_in_which_a_rank_waited_for_a_core_is_no_share_of_it(store: Store) -> None:
    told = {"step_s": 1.0, "compute_s": 0.5, "communication_s": 0.2, "waiting_s": 0.1}
    store.apply(Sample(1.0, "rank", "0", told))
    store.apply(row(1.0, "1", 0.7, 0.2, 0.1))
    store.apply(ended())
    assert values(store, "0") == [pytest.approx(0.5)] and values(store, "0", "communication") == [pytest.approx(0.2)]
    assert values(store, MEAN) == [pytest.approx(0.6)] and values(store, MEAN, "waiting") == [pytest.approx(0.1)]


def test_more_time_blocked_than_the_step_took_leaves_none_for_computing(store: Store) -> None:
    store.apply(Sample(1.0, "rank", "0", {"step_s": 1.0, "communication_s": 1.5, "waiting_s": 0.5}))
    assert values(store, "0") == [0.0] and values(store, "0", "communication") == [pytest.approx(0.75)]


def test_the_mean_weighs_ranks_by_their_time_and_comes_when_the_next_step_begins(store: Store) -> None:
    store.apply(row(1.0, "0", 1.0, 1.0, 0.0))
    store.apply(row(1.0, "1", 3.0, 1.0, 0.0))
    assert values(store, MEAN) == []
    store.apply(row(2.0, "0", 1.0, 1.0, 0.0))
    assert values(store, MEAN) == [pytest.approx(4 / 6)]


def test_the_last_step_of_a_run_counts_too(store: Store) -> None:
    store.apply(row(1.0, "0", 1.0, 1.0, 0.0))
    store.apply(ended())
    assert values(store, MEAN) == [pytest.approx(0.5)]


def test_the_envelope_is_no_rank(store: Store) -> None:
    store.apply(row(1.0, "0", 1.0, 1.0, 0.0))
    store.apply(row(1.0, "lowest", 9.0, 0.0, 0.0))
    store.apply(ended())
    assert values(store, MEAN) == [pytest.approx(0.5)] and values(store, "lowest") == []


@pytest.mark.parametrize("missing", ["step_s", "communication_s", "waiting_s"])
def test_a_step_of_which_a_part_is_not_known_has_no_shares(store: Store, missing: str) -> None:
    whole = {name: 1.0 for name in ("step_s", "communication_s", "waiting_s") if name != missing}
    store.apply(Sample(1.0, "rank", "0", whole))
    store.apply(Sample(1.0, "rank", "0", {"used_bytes": 7}))
    store.apply(ended())
    assert values(store, "0") == values(store, MEAN) == []


def test_a_step_without_any_time_has_no_shares(store: Store) -> None:
    store.apply(row(1.0, "0", 0.0, 0.0, 0.0))
    store.apply(ended())
    assert values(store, "0") == values(store, MEAN) == []


def test_memory_of_a_rank_is_no_memory_of_a_gpu(store: Store) -> None:
    store.apply(Sample(1.0, "rank", "0", {"used_bytes": 7}))
    assert store.series("rank", "used_bytes", "0") is not None
    assert [key for key, _series in store.curves() if key[0] == "gpu"] == []


def test_another_run_breaks_the_ranks_lines(store: Store) -> None:
    store.apply(row(1.0, "0", 1.0, 1.0, 0.0))
    store.apply(ended(2.0))
    store.apply(started(3.0))
    assert math.isnan(values(store, "0")[-1]) and math.isnan(values(store, MEAN)[-1])


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=6))
def test_shares_add_up_to_one(steps: list[tuple[float, float, float]]) -> None:
    store = Store()
    store.apply(started())
    for rank, parts in enumerate(steps):
        store.apply(row(1.0, str(rank), *parts))
    store.apply(ended())
    for device in (MEAN, *map(str, range(len(steps)))):
        shares = [values(store, device, part) for part in PARTS]
        if shares[0]:
            assert sum(share[0] for share in shares) == pytest.approx(1.0)
