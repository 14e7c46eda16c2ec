"""One rule of what fits, in the words, the terminal and the document alike."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpudash.cli.terminal.estimate_report import print_estimate
from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.trace import ACTIVATIONS, GRADIENTS, OPTIMIZER_STATE, WEIGHTS, Trace, TraceMark
from gpudash.memory.predicting.estimate import Estimate, Target, fits, judge
from gpudash.memory.predicting.estimate_words import bar_bytes, headline, need_words, price
from gpudash.memory.predicting.fit import run_on
from gpudash.specs import TrainingSpec
from gpudash.units import GIB, MIB
from gpudash.workloads.predicting import estimate as predicting
from gpudash.workloads.predicting.device_fit import as_alternative

LAYER = 6 * MIB
PER_ITEM = 3 * MIB // 2


def training(spec: TrainingSpec, *_: Any, **__: Any) -> Trace:
    """Three steps of layers whose activations differ in size, with gradients and state that come after the first
    forward pass: near a full card the cache has to be released."""
    trace = Trace(followed=3)
    layers = spec.depth

    def make(size: int, category: str) -> int:
        trace.sizes.append(size)
        trace.categories.append(category)
        trace.events.append(len(trace.sizes))
        return len(trace.sizes)

    weights = [make(LAYER, WEIGHTS) for _ in range(layers)]
    state: list[int] = []
    for step in (1, 2, 3):
        trace.marks.append(TraceMark(len(trace.events), step, "forward"))
        batch = spec.rank_batch // spec.accumulation
        kept = [make(PER_ITEM * batch * (3 + layer % 3) // 3, ACTIVATIONS) for layer in range(layers)]
        gradients = []
        for layer in reversed(range(layers)):
            scratch = make(2 * PER_ITEM * batch + layer * MIB, ACTIVATIONS)
            gradients.append(make(LAYER, GRADIENTS))
            trace.events.extend([-scratch, -kept[layer]])
        if not state and spec.optimizer != "sgd":
            state = [make(2 * LAYER, OPTIMIZER_STATE) for _ in weights]
        trace.events.extend(-block for block in gradients)
    return trace


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dry runs that take no time."""
    monkeypatch.setattr(predicting, "trace_of", training)
    monkeypatch.setattr(predicting, "flops_of", lambda spec, *_: 4 if spec.checkpointing else 3)


def predicted(spec: TrainingSpec, target: Target, elsewhere: tuple[Target, ...] = ()) -> Estimate:
    return list(predicting.estimate(predicting.Question(spec, target, None, elsewhere), None))[-1]  # type: ignore[arg-type]


SPECS = st.builds(
    TrainingSpec,
    batch=st.integers(1, 64),
    depth=st.integers(1, 8),
    optimizer=st.sampled_from(["sgd", "adamw"]),
)

CARDS = st.builds(
    lambda capacity, others, overhead, margin, device, share: Target(
        device,
        capacity,
        max(0, capacity - others),
        0 if device == "cpu" else overhead,
        margin_ratio=margin,
        settings=AllocatorSettings(per_process_memory_fraction=share),
    ),
    capacity=st.integers(8 * MIB, GIB),
    others=st.sampled_from([0, 0, 64 * MIB]),
    overhead=st.sampled_from([0, 100 * MIB]),
    margin=st.sampled_from([0.0, 0.01, 0.2]),
    device=st.sampled_from(["sim:0", "cuda:0", "cpu"]),
    share=st.sampled_from([1.0, 1.0, 0.5]),
)


def near(spec: TrainingSpec, target: Target, more: int) -> Target:
    """``target`` with about as much as the run reserves, where what fits is decided."""
    reserved = judge(training(spec), Target("sim:0"), "x").peak_reserved_bytes or 0
    free = max(0, reserved + target.overhead_bytes + more)
    return Target(target.device, free, free, target.overhead_bytes, margin_ratio=target.margin_ratio)


EDGES = st.builds(near, SPECS, CARDS, st.integers(-48, 8).map(lambda mib: mib * MIB))


def consistent(found: Estimate) -> None:
    """What is needed exceeds what is free exactly where it is said not to fit, in every form."""
    need, free = found.needed_bytes, found.free_bytes
    assert need is not None and free is not None
    if found.fits is not None:
        assert found.fits is (need <= free)
    assert bar_bytes(found) == need
    assert need_words(found).startswith("needs ")
    assert ("does not fit" in headline(found)) is (found.fits is False)
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
        assert ("only after releasing its cache" in headline(found)) is released
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


@settings(max_examples=25, deadline=None)
@given(spec=SPECS, target=EDGES)
def test_the_terminal_says_it_as_the_document_does(spec: TrainingSpec, target: Target) -> None:
    found = judge(training(spec), target, "training")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        text = printed(found)
    first = text.splitlines()[0]
    assert ("does not fit" in first) is (found.fits is False)
    told = re.search(r"needs (\S+) (\S+)(?: ± \S+ \S+)? of (\S+) (\S+) free", text)
    assert told is not None
    need, free = (float(told[1]) * UNITS[told[2]], float(told[3]) * UNITS[told[4]])
    if found.fits is not None:
        assert (need > free) is (found.fits is False)


UNITS = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": GIB}


def printed(found: Estimate) -> str:
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        print_estimate(found)
    return written.getvalue()


def test_a_run_that_passes_only_after_releases_says_so_with_what_it_would_like() -> None:
    trace = training(TrainingSpec(batch=16, depth=6))
    spacious = judge(trace, Target("sim:0"), "x").peak_reserved_bytes or 0
    room = next(size for size in range(spacious, 0, -2 * MIB) if run_on(trace, size).retries)
    found = judge(trace, Target("sim:0", room, room), "training")
    assert headline(found) == "fits only after releasing its cache"
    assert found.released_bytes == spacious - (found.peak_reserved_bytes or 0) > 0
    way = as_alternative("half the batch", found)
    assert (way.fits, way.releases_cache) == (True, True)
    assert price(way) == "only after releasing its cache"
