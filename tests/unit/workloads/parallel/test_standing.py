"""Which rank the others wait for."""

from __future__ import annotations

from gpudash.system.processes import TORCH_IMPORT_S
from gpudash.workloads.programs.parallel.joining import COLLECTIVE, Standing, held_up, overdue, waited_s


def rank(number: int, step: int, phase: str, since_s: float = 0.0, heard_s: float = 10.0, where: str = "") -> Standing:
    found = Standing(number, "cpu", pid=100 + number)
    found.stands(step, phase, where, since_s)
    found.heard_s = heard_s
    return found


def test_the_rank_that_still_computes_is_named_with_the_place_where_it_stands() -> None:
    found = held_up([rank(0, 5, COLLECTIVE, 3.0), rank(1, 5, "computing", 3.0, where="mine.py:7 in loop")], 10.0)

    assert found is not None and found.rank == 1
    assert "Rank 1 (cpu, pid 101) keeps the other rank waiting at step 5" in found.text
    assert "7.0 s" in found.text and "computing step 5, at mine.py:7 in loop" in found.text


def test_a_rank_a_step_behind_is_named_though_it_waits_too() -> None:
    found = held_up([rank(0, 5, COLLECTIVE), rank(1, 4, COLLECTIVE), rank(2, 5, "computing")], 10.0)

    assert found is not None and found.rank == 1 and "the other ranks" in found.text


def test_a_silent_rank_comes_before_one_that_computes() -> None:
    found = held_up([rank(0, 5, "computing"), rank(1, 5, COLLECTIVE, heard_s=2.0), rank(2, 5, COLLECTIVE)], 10.0)

    assert found is not None and found.rank == 1 and "has said nothing for 8.0 s" in found.text


def test_a_rank_that_never_spoke_has_not_begun() -> None:
    found = held_up([rank(0, 0, COLLECTIVE), Standing(1, "cpu")], 10.0)

    assert found is not None and found.text == "Rank 1 (cpu) has not begun, and the others wait for it."


def test_nobody_is_named_where_all_compute_all_wait_or_all_are_silent() -> None:
    assert held_up([rank(0, 5, "computing"), rank(1, 5, "computing")], 10.0) is None
    assert held_up([rank(0, 5, COLLECTIVE), rank(1, 5, COLLECTIVE)], 10.0) is None
    assert held_up([rank(0, 5, "computing", heard_s=1.0), rank(1, 5, "computing", heard_s=1.0)], 10.0) is None


def test_waiting_is_counted_from_the_arrival_at_the_collective() -> None:
    waiting = rank(0, 5, COLLECTIVE, 3.0)
    waiting.stands(5, COLLECTIVE, "", 9.0)
    assert waited_s([waiting, rank(1, 5, "computing")], 10.0) == 7.0
    assert waited_s([rank(0, 5, "computing")], 10.0) == 0.0


def test_a_rank_that_is_slow_to_begin_is_waited_for_longer_than_one_that_trains() -> None:
    both = [rank(0, 0, COLLECTIVE, since_s=0.0, heard_s=30.0), rank(1, 0, "starting", heard_s=30.0)]
    assert not overdue(both, 30.0, patience_s=5.0, grace_s=10.0)
    assert overdue(both, TORCH_IMPORT_S + 10.1, patience_s=5.0, grace_s=10.0)
    for one in both:
        one.ready = True
    assert overdue(both, 30.0, patience_s=5.0, grace_s=10.0) and not overdue(both, 15.0, patience_s=5.0, grace_s=10.0)


def test_ranks_that_have_all_fallen_silent_are_overdue() -> None:
    both = [rank(0, 3, "computing", heard_s=10.0), rank(1, 3, "computing", heard_s=10.0)]
    for one in both:
        one.ready = True
    assert overdue(both, 25.1, 5.0, 10.0) and not overdue(both, 24.9, 5.0, 10.0)
    both[1].heard_s = 20.0
    assert not overdue(both, 25.1, 5.0, 10.0)
