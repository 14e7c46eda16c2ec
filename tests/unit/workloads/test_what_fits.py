"""One rule of what fits."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpudash.memory.predicting.estimate import Estimate, Target, fits, judge
from gpudash.memory.predicting.fit import run_on
from gpudash.memory.predicting.prediction import Prediction, price
from gpudash.specs import TrainingSpec
from gpudash.units import GIB, MIB
from gpudash.workloads.predicting.device_fit import as_alternative
from tests.unit.workloads.made_up_predictions import CARDS, EDGES, SPECS, made_up, near, predicted, training

__all__ = ["made_up"]

pytestmark = pytest.mark.usefixtures("made_up")


def consistent(found: Estimate) -> None:
    """What is needed exceeds what is free exactly where it is said not to fit, in every form."""
    need, free = found.needed_bytes, found.free_bytes
    assert need is not None and free is not None
    if found.fits is not None:
        assert found.fits is (need <= free)
    assert Prediction(found).bar_bytes == need
    assert Prediction(found).need.startswith("needs ")
    assert ("does not fit" in Prediction(found).headline) is (found.fits is False)
    document = found.to_json()
    assert document["needed_bytes"] == need
    assert document["spare_bytes"] == free - need
    if found.minimum_capacity_bytes is not None and found.capacity_bytes == free:
        assert (found.minimum_capacity_bytes <= free) is (need <= free)


@settings(max_examples=60, deadline=None)
@given(SPECS, st.one_of(CARDS, EDGES))
def test_what_does_not_fit_needs_more_than_there_is_and_nothing_else_does(spec: TrainingSpec, target: Target) -> None:
    consistent(judge(training(spec), target, "training"))


@settings(max_examples=60, deadline=None)
@given(SPECS, st.integers(-48, 8), st.integers(0, 3 * MIB))
def test_what_is_predicted_near_a_full_card_is_what_the_allocator_reserves_there(
    spec: TrainingSpec, mib: int, odd: int
) -> None:
    trace = training(spec)
    target = near(spec, Target("sim:0", overhead_bytes=100 * MIB), mib * MIB - odd)
    found = judge(trace, target, "training")
    outcome = run_on(trace, target.room_bytes or 0)
    assert found.fits is outcome.fits
    assert found.needed_bytes is not None and found.capacity_bytes is not None
    if outcome.fits:
        assert (found.peak_reserved_bytes, found.retries) == (outcome.taken, outcome.retries)
        assert found.needed_bytes == outcome.taken + 100 * MIB
        released = bool(found.released_bytes)
        assert ("only after releasing its cache" in Prediction(found).headline) is released
        assert released or not outcome.retries


@settings(max_examples=25, deadline=None)
@given(SPECS, st.one_of(CARDS, EDGES))
def test_every_way_that_is_said_to_fit_fits_what_is_free_and_the_largest_batch_is_the_largest(
    spec: TrainingSpec, target: Target
) -> None:
    other = Target("sim:1", 2 * GIB, 300 * MIB)
    found = predicted(spec, target, (other,) if target.device == "sim:0" else ())
    consistent(found)
    free = found.free_bytes or 0
    for way in found.alternatives:
        if way.fits is True and way.card_bytes is None:
            there = other if way.device == "sim:1" else None
            room = (free - found.overhead_bytes) if there is None else there.room_bytes or 0
            assert way.peak_reserved_bytes is not None
            assert way.peak_reserved_bytes <= room, way
        elif way.fits is True:
            assert (way.peak_reserved_bytes or 0) + found.overhead_bytes <= (way.card_bytes or 0), way
    largest = found.largest_batch_size
    assume(largest is not None)
    assert largest is not None
    if largest:
        consistent(at_most := predicted(spec.model_copy(update={"batch": largest}), target))
        assert at_most.fits is True
    assert fits(training(spec.model_copy(update={"batch": largest + 1})), target) is not True
    if found.fits is True:
        assert largest >= spec.batch


def test_a_run_that_passes_only_after_releases_says_so_with_what_it_would_like() -> None:
    trace = training(TrainingSpec(batch=16, depth=6))
    spacious = judge(trace, Target("sim:0"), "x").peak_reserved_bytes or 0
    room = next(size for size in range(spacious, 0, -2 * MIB) if run_on(trace, size).retries)
    found = judge(trace, Target("sim:0", room, room), "training")
    assert Prediction(found).headline == "fits only after releasing its cache"
    assert found.released_bytes == spacious - (found.peak_reserved_bytes or 0) > 0
    way = as_alternative("half the batch", found)
    assert (way.fits, way.releases_cache) == (True, True)
    assert price(way) == "only after releasing its cache"
