"""What ranks tell one by one, in any order, becomes rows of one table."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.telemetry.ranks import JoinedStep, RankMemory, Ranks, RankStep
from gpudash.telemetry.ranks.ranks import MEAN, MOST_PENDING, PARTS, RankShares
from gpudash.telemetry.records import RunEnd, RunStarted, Sample
from gpudash.telemetry.store import Store

MIB = 2**20

SECONDS = st.floats(0, 1e3, allow_nan=False)


def step(
    rank: int, number: int, *, seconds: float = 0.1, blocked: float | None = 0.02, **more: float | None
) -> RankStep:
    time_s = more.pop("time_s", None)
    compute = None if blocked is None else seconds - blocked
    when = 10.0 + number if time_s is None else time_s
    return RankStep(rank, number, when, seconds, compute, blocked, more.get("loss"), more.get("accuracy"))


def joined(ranks: Ranks, told: Sequence[RankStep]) -> list[JoinedStep]:
    return [found for one in told if (found := ranks.take_step(one)) is not None]


def row(samples: Sequence[Sample], device: str) -> Sample:
    (found,) = (sample for sample in samples if sample.device == device)
    return found


def test_a_step_is_joined_when_its_last_rank_has_told_it() -> None:
    ranks = Ranks(3)
    told = [step(rank, 1, seconds=0.1 + rank / 100, loss=float(rank), time_s=5.0 + rank) for rank in (2, 0, 1)]
    assert [ranks.take_step(one) for one in told[:2]] == [None, None]
    found = ranks.take_step(told[2])
    assert found is not None
    assert (found.step, found.time_s, found.loss, found.accuracy) == (1, 7.0, 1.0, None)
    assert found.seconds == pytest.approx(0.12)
    assert [(sample.device, sample.time_s) for sample in found.samples] == [("0", 7.0), ("1", 7.0), ("2", 7.0)]
    assert "accuracy" not in found.samples[0].values


def test_what_all_ranks_are_blocked_is_communication_and_the_rest_is_waiting() -> None:
    (found,) = joined(Ranks(2), [step(0, 1, blocked=0.05), step(1, 1, blocked=0.01)])
    values = [sample.values for sample in found.samples]
    assert [value["communication_s"] for value in values] == [0.01, 0.01]
    assert values[0]["waiting_s"] == pytest.approx(0.04) and values[1]["waiting_s"] == 0.0
    for value in values:
        parts = [value[name] for name in ("compute_s", "communication_s", "waiting_s")]
        assert sum(part for part in parts if isinstance(part, float)) == pytest.approx(0.1)


def test_ranks_that_cannot_tell_what_they_do_have_step_times_only() -> None:
    ranks = Ranks(2)
    (found,) = joined(ranks, [step(0, 1, blocked=None), step(1, 1, blocked=0.01)])
    assert set(found.samples[0].values) == {"step", "step_s"}
    assert "waiting_s" not in found.samples[1].values
    assert ranks.summary()[1]["waiting_share"] is None


@given(st.randoms(use_true_random=False), st.integers(1, 7), st.integers(1, 12))
def test_in_whatever_order_steps_come_each_is_joined_once(order: random.Random, world_size: int, steps: int) -> None:
    told = [step(rank, number) for rank in range(world_size) for number in range(1, steps + 1)]
    order.shuffle(told)
    ranks = Ranks(world_size)
    found = joined(ranks, told)
    assert sorted(one.step for one in found) == list(range(1, steps + 1))
    assert [one["steps"] for one in ranks.summary()] == [steps] * world_size


def test_a_rank_that_stops_telling_costs_no_memory() -> None:
    ranks = Ranks(2)
    joined(ranks, [step(1, 1), *(step(0, number) for number in range(1, MOST_PENDING + 200))])
    assert len(ranks._pending) <= MOST_PENDING
    (newest,) = joined(ranks, [step(1, MOST_PENDING + 150)])
    assert newest.step == MOST_PENDING + 150


def test_after_a_restart_old_halves_of_steps_are_not_joined_with_new_ones() -> None:
    ranks = Ranks(2)
    ranks.take_memory(RankMemory(1, 1.0, used_bytes=300 * MIB))
    joined(ranks, [step(0, 1), step(1, 1), step(0, 2)])
    ranks.begin_again()
    assert joined(ranks, [step(1, 2)]) == []
    assert [one.step for one in joined(ranks, [step(0, 2)])] == [2]
    assert [one["steps"] for one in ranks.summary()] == [2, 2]
    assert ranks.summary()[1]["peak_used_bytes"] == 300 * MIB


def test_a_loss_that_is_no_number_stays_one_that_is_none() -> None:
    (found,) = joined(Ranks(2), [step(0, 1, loss=math.nan), step(1, 1, loss=1.0)])
    assert found.loss is not None and math.isnan(found.loss)


@pytest.mark.parametrize("world_size", [4, 5])
def test_from_five_ranks_on_an_envelope_is_drawn(world_size: int) -> None:
    ranks = Ranks(world_size)
    (found,) = joined(ranks, [step(rank, 1, seconds=0.1 * (rank + 1), loss=float(rank)) for rank in range(world_size)])
    assert len(found.samples) == (4 if world_size == 4 else 8)
    rows = [ranks.take_memory(RankMemory(rank, 2.0, used_bytes=rank * MIB)) for rank in range(world_size)]
    assert [len(one) for one in rows[:-1]] == [1] * (world_size - 1)
    assert len(rows[-1]) == (1 if world_size == 4 else 4)
    if world_size == 5:
        seconds = [row(found.samples, device).values["step_s"] for device in ("lowest", "median", "highest")]
        assert seconds == pytest.approx([0.1, 0.3, 0.5])
        assert row(found.samples, "median").values["step"] == 1
        assert row(rows[-1], "highest").values == {"used_bytes": 4 * MIB}


def test_the_median_of_bytes_is_whole() -> None:
    ranks = Ranks(6)
    for rank in range(5):
        ranks.take_memory(RankMemory(rank, 2.0, used_bytes=rank + 1))
    rows = ranks.take_memory(RankMemory(5, 2.0, used_bytes=6))
    assert row(rows, "median").values["used_bytes"] == 3


def test_memory_rows_hold_only_what_is_known_and_peaks_stay() -> None:
    ranks = Ranks(2)
    (found,) = ranks.take_memory(RankMemory(0, 3.0, allocated_bytes=5, peak_allocated_bytes=50))
    assert (found.time_s, found.device, found.values) == (3.0, "0", {"allocated_bytes": 5})
    ranks.take_memory(RankMemory(0, 4.0, allocated_bytes=4))
    assert ranks.summary()[0]["peak_allocated_bytes"] == 50
    assert ranks.summary()[1]["peak_allocated_bytes"] is None


def test_a_node_joins_the_ranks_that_it_hears() -> None:
    ranks = Ranks(4, [2, 3])
    (found,) = joined(ranks, [step(3, 1), step(2, 1)])
    assert [sample.device for sample in found.samples] == ["2", "3"]
    assert [one["rank"] for one in ranks.summary()] == [2, 3]


def test_the_summary_adds_up() -> None:
    ranks = Ranks(2)
    for number in range(1, 11):
        joined(ranks, [step(0, number, blocked=0.03), step(1, number, blocked=0.01)])
    zero, one = ranks.summary()
    assert zero["step_seconds_median"] == 0.1 and zero["compute_seconds_median"] == pytest.approx(0.07)
    assert zero["communication_share"] == pytest.approx(0.1) and zero["waiting_share"] == pytest.approx(0.2)
    assert one["waiting_share"] == 0.0
    assert zero["compute_share"] == pytest.approx(0.7)


def test_waiting_for_input_is_a_part_of_the_step_where_a_rank_tells_it() -> None:
    ranks, shares = Ranks(2), RankShares()
    ranks.take_step(RankStep(0, 1, 1.0, 0.1, 0.04, 0.01, input_s=0.05))
    found = ranks.take_step(RankStep(1, 1, 1.0, 0.1, 0.07, 0.03))
    assert found is not None
    told = {(name, device): share for row in found.samples for name, device, _time_s, share in shares.take(row)}
    told |= {(name, device): share for name, device, _time_s, share in shares.flush()}
    assert told["input_share", "0"] == pytest.approx(0.5) and told["compute_share", "0"] == pytest.approx(0.4)
    assert ("input_share", "1") not in told
    assert told["input_share", "mean"] == pytest.approx(0.25)
    zero, one = ranks.summary()
    assert zero["input_share"] == pytest.approx(0.5) and one["input_share"] is None


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_rank_that_cannot_be_is_refused(wrong: int) -> None:
    ranks = Ranks(2)
    with pytest.raises(ValueError, match=f"no rank {wrong} among 2"):
        ranks.take_step(step(wrong, 1))
    with pytest.raises(ValueError, match=f"no rank {wrong} among 2"):
        ranks.take_memory(RankMemory(wrong, 1.0))


@pytest.mark.parametrize(("world_size", "heard"), [(0, None), (2, [2]), (2, [])])
def test_a_world_that_cannot_be_is_refused(world_size: int, heard: list[int] | None) -> None:
    with pytest.raises(ValueError, match=r"[Rr]ank"):
        Ranks(world_size, heard)


def test_unequal_memory_is_named_with_both_figures() -> None:
    ranks = Ranks(3)
    for rank, size in enumerate((400, 900, 420)):
        ranks.take_memory(RankMemory(rank, 1.0, used_bytes=size * MIB))
    found = ranks.imbalance()
    assert found is not None
    assert (found.rank, found.bytes, found.others_bytes) == (1, 900 * MIB, 410 * MIB)
    assert "rank 1 used 900 MiB" in found.text and "410 MiB" in found.text


@pytest.mark.parametrize(
    "sizes",
    [(400, 460), (4000, 4300), (10, 20), (400, None)],
    ids=["less than 64 MiB", "less than 10 %", "small", "one does not tell"],
)
def test_memory_that_is_about_equal_is_not_told(sizes: Sequence[int | None]) -> None:
    ranks = Ranks(2)
    for rank, size in enumerate(sizes):
        ranks.take_memory(RankMemory(rank, 1.0, used_bytes=None if size is None else size * MIB))
    assert ranks.imbalance() is None


def test_what_the_allocator_counts_decides_before_what_the_process_holds() -> None:
    ranks = Ranks(2)
    for rank, (used, allocated) in enumerate(((900, 100), (300, 300))):
        ranks.take_memory(RankMemory(rank, 1.0, used_bytes=used * MIB, allocated_bytes=allocated * MIB))
    found = ranks.imbalance()
    assert found is not None and found.rank == 1 and "allocated 300 MiB" in found.text


def spent(time_s: float, rank: str, compute: float, communication: float, waiting: float) -> Sample:
    step_s = compute + communication + waiting
    return Sample(time_s, "rank", rank, {"step_s": step_s, "communication_s": communication, "waiting_s": waiting})


def started(time_s: float = 0.0) -> RunStarted:
    return RunStarted(time_s=time_s, run_id=1, workload="training", device="cpu", spec={})


def ended(time_s: float = 9.0) -> RunEnd:
    return RunEnd(time_s=time_s, run_id=1, status="finished", seconds=1.0, steps=1, result={})


def values(store: Store, device: str, part: str = "compute") -> list[float]:
    series = store.series("rank", f"{part}_share", device)
    return [] if series is None else series.window(-1.0, 100.0, 1 << 30)[1].tolist()


@pytest.fixture
def store() -> Store:
    store = Store()
    store.apply(started())
    return store


def test_a_rank_s_shares_are_parts_of_what_its_step_was_spent_on(store: Store) -> None:
    store.apply(spent(1.0, "0", 0.06, 0.01, 0.03))
    assert values(store, "0") == [pytest.approx(0.6)]
    assert values(store, "0", "communication") == [pytest.approx(0.1)]
    assert values(store, "0", "waiting") == [pytest.approx(0.3)]


def test_time_in_which_a_rank_waited_for_a_core_is_no_share_of_it(store: Store) -> None:
    told = {"step_s": 1.0, "compute_s": 0.5, "communication_s": 0.2, "waiting_s": 0.1}
    store.apply(Sample(1.0, "rank", "0", told))
    store.apply(spent(1.0, "1", 0.7, 0.2, 0.1))
    store.apply(ended())
    assert values(store, "0") == [pytest.approx(0.5)] and values(store, "0", "communication") == [pytest.approx(0.2)]
    assert values(store, MEAN) == [pytest.approx(0.6)] and values(store, MEAN, "waiting") == [pytest.approx(0.1)]


def test_more_time_blocked_than_the_step_took_leaves_none_for_computing(store: Store) -> None:
    store.apply(Sample(1.0, "rank", "0", {"step_s": 1.0, "communication_s": 1.5, "waiting_s": 0.5}))
    assert values(store, "0") == [0.0] and values(store, "0", "communication") == [pytest.approx(0.75)]


def test_the_mean_weighs_ranks_by_their_time_and_comes_when_the_next_step_begins(store: Store) -> None:
    store.apply(spent(1.0, "0", 1.0, 1.0, 0.0))
    store.apply(spent(1.0, "1", 3.0, 1.0, 0.0))
    assert values(store, MEAN) == []
    store.apply(spent(2.0, "0", 1.0, 1.0, 0.0))
    assert values(store, MEAN) == [pytest.approx(4 / 6)]


def test_the_last_step_of_a_run_counts_too(store: Store) -> None:
    store.apply(spent(1.0, "0", 1.0, 1.0, 0.0))
    store.apply(ended())
    assert values(store, MEAN) == [pytest.approx(0.5)]


def test_the_envelope_is_no_rank(store: Store) -> None:
    store.apply(spent(1.0, "0", 1.0, 1.0, 0.0))
    store.apply(spent(1.0, "lowest", 9.0, 0.0, 0.0))
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
    store.apply(spent(1.0, "0", 0.0, 0.0, 0.0))
    store.apply(ended())
    assert values(store, "0") == values(store, MEAN) == []


def test_memory_of_a_rank_is_no_memory_of_a_gpu(store: Store) -> None:
    store.apply(Sample(1.0, "rank", "0", {"used_bytes": 7}))
    assert store.series("rank", "used_bytes", "0") is not None
    assert [key for key, _series in store.curves() if key[0] == "gpu"] == []


def test_another_run_breaks_the_ranks_lines(store: Store) -> None:
    store.apply(spent(1.0, "0", 1.0, 1.0, 0.0))
    store.apply(ended(2.0))
    store.apply(started(3.0))
    assert math.isnan(values(store, "0")[-1]) and math.isnan(values(store, MEAN)[-1])


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=6))
def test_shares_add_up_to_one(steps: list[tuple[float, float, float]]) -> None:
    store = Store()
    store.apply(started())
    for rank, parts in enumerate(steps):
        store.apply(spent(1.0, str(rank), *parts))
    store.apply(ended())
    for device in (MEAN, *map(str, range(len(steps)))):
        shares = [values(store, device, part) for part in PARTS if part != "input"]
        if shares[0]:
            assert sum(share[0] for share in shares) == pytest.approx(1.0)
