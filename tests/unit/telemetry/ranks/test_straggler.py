"""A rank that is slower is named with its figure, and nobody among equals, however noisy the machine."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry.ranks import Ranks, RankStep, Straggler
from gpudash.telemetry.ranks.straggler import LEAST_STEPS, WARM_UP, _lower_bound, _median_of_others

REPETITIONS = 10
BASE_S = 0.01


def noise(generator: random.Random, spread: float, alike: float, *, heavy: bool) -> Iterator[float]:
    """Factors around 1 that neighbours share, of a lognormal or, heavier, of a Student's t with 2.5 degrees."""
    state = 0.0
    while True:
        shock = generator.gauss(0, 1)
        if heavy:
            shock /= (generator.gammavariate(1.25, 2.0) / 2.5) ** 0.5 * 1.6
        state = alike * state + (1 - alike**2) ** 0.5 * shock
        yield 2.718281828 ** (spread * state)


def judged(
    seed: int, world_size: int, steps: int, *, slower: float, spread: float, alike: float, heavy: bool = False
) -> tuple[set[int], Straggler | None]:
    """Who was named while a run went on, looked at every 50 steps, and the last word. The last rank is the slow one."""
    generator = random.Random(seed)
    factors = [noise(generator, spread, alike, heavy=heavy) for _ in range(world_size)]
    ranks, named = Ranks(world_size), set()
    for number in range(1, steps + 1):
        computing = [BASE_S * next(factor) for factor in factors]
        computing[-1] *= 1 + slower
        if number <= 3:  # a warm-up that says nothing of what follows
            computing = [seconds * generator.uniform(1, 30) for seconds in computing]
        seconds = max(computing) + 0.001
        for rank, own in enumerate(computing):
            ranks.take_step(RankStep(rank, number, float(number), seconds, own, seconds - own))
        if number % 50 == 0 and (found := ranks.straggler()) is not None:
            named.add(found.rank)
    return named, ranks.straggler()


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("spread", "steps", "tolerance"), [(0.05, 200, 0.05), (0.15, 800, 0.07)])
def test_a_rank_that_is_20_percent_slower_is_named_with_its_figure(
    world_size: int, spread: float, steps: int, tolerance: float
) -> None:
    found = [judged(seed, world_size, steps, slower=0.2, spread=spread, alike=0.5)[1] for seed in range(REPETITIONS)]
    right = [one for one in found if one is not None and one.rank == world_size - 1]
    assert len(right) >= 9
    assert sum(abs(one.slower - 0.2) < tolerance for one in right) >= 9
    assert all(f"Rank {world_size - 1} computes {one.slower * 100:.0f} % longer" in one.text for one in right)


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("heavy", [False, True])
def test_nobody_is_named_among_equals_in_nine_of_ten(world_size: int, *, heavy: bool) -> None:
    runs = [
        judged(seed, world_size, 500, slower=0.0, spread=0.3, alike=0.5, heavy=heavy) for seed in range(REPETITIONS)
    ]
    assert sum(not named and last is None for named, last in runs) >= 9


def test_in_heavy_noise_the_slow_rank_is_found_when_there_are_many_steps() -> None:
    runs = [judged(seed, 4, 1000, slower=0.2, spread=0.3, alike=0.5, heavy=True) for seed in range(REPETITIONS)]
    assert sum(3 in named for named, _last in runs) >= 9


def steady(ranks: Ranks, steps: int, computing: list[float | None], blocked: list[float | None]) -> None:
    for number in range(1, steps + 1):
        for rank, (own, stood) in enumerate(zip(computing, blocked, strict=True)):
            ranks.take_step(RankStep(rank, number, float(number), 0.02, own, stood))


def test_a_rank_whose_batches_come_late_is_named_with_its_waiting_for_them() -> None:
    ranks = Ranks(3)
    for number in range(1, 101):
        for rank, input_s in enumerate((0.002, 0.002, 0.05)):
            blocked_s = 0.05 - input_s
            ranks.take_step(RankStep(rank, number, number / 10, 0.07, 0.02, blocked_s, input_s=input_s))
    found = ranks.straggler()
    assert found is not None and found.rank == 2
    assert found.text.startswith("Rank 2 takes 218 % longer a step than the other ranks")
    assert found.text.endswith("which wait 48.0 ms a step for it. Rank 2 waits 50.0 ms a step for its input.")


def test_a_rank_that_computes_long_is_not_said_to_wait_for_its_input() -> None:
    ranks = Ranks(2)
    for number in range(1, 101):
        for rank, compute_s in enumerate((0.02, 0.05)):
            ranks.take_step(RankStep(rank, number, number / 10, 0.07, compute_s, 0.05 - compute_s, input_s=0.01))
    found = ranks.straggler()
    assert found is not None and found.text.startswith("Rank 1 computes 100 % longer") and "input" not in found.text


@pytest.mark.parametrize(
    ("computing", "waiting"),
    [
        pytest.param([None, None], [None, None], id="none says what it computes"),
        pytest.param([0.01, 0.02, None], [0.01, 0.0, None], id="one does not say it"),
        pytest.param([0.01, 0.013], [0.005, 0.010], id="nobody waits for the slow one"),
        pytest.param([0.01], [0.0], id="one alone"),
    ],
)
def test_ranks_that_do_not_say_what_they_compute_or_do_not_wait_have_no_straggler(
    computing: list[float | None], waiting: list[float | None]
) -> None:
    ranks = Ranks(len(computing))
    steady(ranks, 300, computing, waiting)
    assert ranks.straggler() is None


@pytest.mark.parametrize(("steps", "told"), [(WARM_UP + LEAST_STEPS - 1, False), (WARM_UP + LEAST_STEPS, True)])
def test_the_first_steps_are_left_out_and_a_few_more_are_needed(steps: int, *, told: bool) -> None:
    ranks = Ranks(2)
    steady(ranks, steps, [0.01, 0.013], [0.01, 0.007])
    assert (ranks.straggler() is not None) == told


def test_the_sentence_tells_the_figure_its_bound_and_what_the_others_lose() -> None:
    ranks = Ranks(2)
    steady(ranks, 105, [0.010, 0.012], [0.004, 0.001])
    found = ranks.straggler()
    assert found is not None and found.slower == pytest.approx(0.2)
    assert found.text == (
        "Rank 1 computes 20 % longer a step than the other rank (at least 20 %, last 100 steps), "
        "which waits 3.00 ms a step for it."
    )


def test_a_rank_that_was_slow_before_a_restart_is_judged_anew() -> None:
    ranks = Ranks(2)
    steady(ranks, 100, [0.010, 0.012], [0.004, 0.001])
    ranks.begin_again()
    assert ranks.straggler() is None


@given(st.lists(st.floats(0.001, 1000), min_size=2, max_size=9), st.data())
def test_the_median_of_the_others_leaves_out_one(values: list[float], data: st.DataObject) -> None:
    ordered = sorted(values)
    own = data.draw(st.sampled_from(ordered))
    others = list(ordered)
    others.remove(own)
    assert _median_of_others(ordered, own) == pytest.approx(statistics.median(others))


@settings(max_examples=50)
@given(st.lists(st.floats(0.5, 2.0), min_size=LEAST_STEPS, max_size=400))
def test_the_lower_bound_lies_among_the_values_and_not_above_most_of_them(values: list[float]) -> None:
    bound = _lower_bound(values)
    assert min(values) <= bound <= max(values)
    assert sum(value >= bound for value in values) >= len(values) / 10
