"""A prediction in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.allocator.trace import CATEGORIES
from gpudash.memory.estimate import Alternative, Estimate
from gpudash.memory.estimate_words import change_words, headline, largest_batch, needed_bytes, price, segments, verdict
from gpudash.units import GIB, MIB

FITS = Estimate(
    "training",
    "sim:0",
    peak_allocated_bytes=3 * GIB,
    peak_reserved_bytes=4 * GIB,
    overhead_bytes=300 * MIB,
    by_category={"weights": GIB, "activations": 2 * GIB},
    free_bytes=8 * GIB,
    fits=True,
    spare_bytes=round(2.3 * GIB),
)


@pytest.mark.parametrize(
    ("changes", "found", "words"),
    [
        ({}, "fits", "fits, 2.30 GiB spare"),
        ({"spare_bytes": 0}, "fits", "fits, with nothing to spare"),
        ({"fits": False, "spare_bytes": -round(3.1 * GIB)}, "short", "does not fit, 3.10 GiB short"),
        ({"fits": False, "spare_bytes": -1}, "short", "does not fit"),
        ({"fits": None, "margin_bytes": 120 * MIB}, "uncertain", "may fit: within the margin of 120 MiB"),
        ({"fits": None, "free_bytes": None}, "unknown", "needs 4.29 GiB; what is free is not known"),
        ({"peak_allocated_bytes": None}, "unknown", "cannot be predicted"),
    ],
)
def test_the_headline_says_in_words_what_the_verdict_is(changes: dict[str, object], found: str, words: str) -> None:
    estimate = replace(FITS, **changes)  # type: ignore[arg-type]
    assert verdict(estimate) == found
    assert headline(estimate) == words


def test_the_parts_are_the_context_the_categories_in_their_order_and_what_is_idle() -> None:
    assert segments(FITS) == [
        ("context", 300 * MIB),
        ("weights", GIB),
        ("activations", 2 * GIB),
        ("idle in the allocator", GIB),
    ]


@given(
    overhead=st.integers(0, GIB),
    by_category=st.dictionaries(st.sampled_from(CATEGORIES), st.integers(0, 8 * GIB), min_size=1),
    idle=st.integers(0, GIB),
)
def test_the_parts_add_up_to_what_is_needed(overhead: int, by_category: dict[str, int], idle: int) -> None:
    allocated = sum(by_category.values())
    estimate = replace(
        FITS,
        overhead_bytes=overhead,
        by_category=by_category,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=allocated + idle,
    )
    assert sum(size for _name, size in segments(estimate)) == needed_bytes(estimate)


def test_on_a_device_without_a_caching_allocator_what_is_allocated_is_needed() -> None:
    assert needed_bytes(replace(FITS, peak_reserved_bytes=None, overhead_bytes=0)) == 3 * GIB


@pytest.mark.parametrize(
    ("alternative", "words"),
    [
        (Alternative("x"), ""),
        (Alternative("x", slowdown=1.333, slowdown_from="FLOPs"), "+33 % time, from FLOPs"),
        (Alternative("x", slowdown=0.5), "−50 % time"),
        (Alternative("x", slowdown=1.001, slowdown_from="FLOPs"), "same time, from FLOPs"),
        (Alternative("x", changes_training=True), "may change convergence"),
        (Alternative("x", slowdown=2.0, changes_training=True), "+100 % time; may change convergence"),
    ],
)
def test_a_price_names_time_where_it_comes_from_and_convergence(alternative: Alternative, words: str) -> None:
    assert price(alternative) == words


def test_another_device_that_is_simulated_says_so() -> None:
    assert change_words(Alternative("on sim:1", device="sim:1")) == "on sim:1 (SIMULATED)"
    assert change_words(Alternative("on sim:1 (SIMULATED)", device="sim:1")) == "on sim:1 (SIMULATED)"
    assert change_words(Alternative("on cuda:1", device="cuda:1")) == "on cuda:1"
    assert change_words(Alternative("batch 8", {"batch": 8})) == "batch 8"


def test_no_batch_that_fits_is_said_in_words() -> None:
    assert largest_batch(12) == "largest batch that fits: 12"
    assert largest_batch(0) == "not even a batch of 1 fits"
