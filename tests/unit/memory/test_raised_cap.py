"""A higher cap as the way out where a cap on the allocator is what is short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.memory.explaining.remedies import raised_cap, with_raised_cap
from gpudash.memory.predicting.estimate import Alternative, Estimate
from gpudash.units import GIB, MIB

LARGER = Alternative("a card with 16 GiB", card_bytes=16 * GIB, fits=True)
SMALLER = Alternative("batch 4", {"batch": 4}, fits=True)
SHORT = Estimate(
    workload="training",
    device="sim:0",
    peak_allocated_bytes=3 * GIB,
    peak_reserved_bytes=3 * GIB + MIB // 2,
    fits=False,
    margin_bytes=MIB,
    alternatives=(SMALLER, LARGER),
)
ROOM = 6 * GIB


def test_a_higher_cap_is_offered_in_place_of_a_larger_card() -> None:
    raised, *others = with_raised_cap(SHORT, 2 * GIB, ROOM).alternatives
    assert raised.change == "a memory cap of 3.01 GiB"
    assert raised.memory_cap_bytes == 3 * GIB + 2 * MIB
    assert (raised.peak_reserved_bytes, raised.fits) == (SHORT.peak_reserved_bytes, True)
    assert others == [SMALLER]


@pytest.mark.parametrize("room", [3 * GIB, None])
def test_no_cap_is_offered_that_is_above_what_is_free_or_where_that_is_not_known(room: int | None) -> None:
    assert with_raised_cap(SHORT, 2 * GIB, room).alternatives == (SMALLER,)


def test_a_cap_that_is_not_what_is_short_changes_nothing() -> None:
    fitting = replace(SHORT, fits=True)
    assert with_raised_cap(SHORT, 4 * GIB, ROOM) is SHORT
    assert with_raised_cap(SHORT, None, ROOM) is SHORT
    assert with_raised_cap(fitting, 2 * GIB, ROOM) is fitting


@pytest.mark.parametrize(
    ("peak", "cap"), [(5 * GIB, None), (5 * GIB + 1, 5 * GIB + MIB), (7 * GIB, 7 * GIB), (7 * GIB + 1, None)]
)
def test_a_cap_is_raised_only_to_what_the_device_has(peak: int, cap: int | None) -> None:
    found = raised_cap(Estimate("sim:0", workload="training", peak_reserved_bytes=peak), 5 * GIB, 7 * GIB)
    assert (None if found is None else found.memory_cap_bytes) == cap
