"""A prediction in words."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.allocator.trace import CATEGORIES, ConvolutionScratch, Trace
from gpudash.memory.predicting.card_text import CardsAnswer
from gpudash.memory.predicting.estimate import Alternative, CardEstimate, Estimate, ModelFacts, Target, judge
from gpudash.memory.predicting.prediction import Prediction, change_text, price
from gpudash.speed.work import StepWork
from gpudash.units import GIB, MIB

FITS = Estimate(
    workload="training",
    device="sim:0",
    peak_allocated_bytes=3 * GIB,
    peak_reserved_bytes=4 * GIB,
    overhead_bytes=300 * MIB,
    by_category={"weights": GIB, "activations": 2 * GIB},
    free_bytes=4 * GIB + 300 * MIB + round(2.3 * GIB),
    fits=True,
    spare_bytes=round(2.3 * GIB),
)


@pytest.mark.parametrize(
    ("changes", "found", "words"),
    [
        ({}, "fits", "fits, 2.30 GiB spare"),
        ({"spare_bytes": 0}, "fits", "fits, with nothing to spare"),
        ({"fits": False, "spare_bytes": -round(3.1 * GIB)}, "short", "does not fit, 3.10 GiB short"),
        ({"fits": False, "spare_bytes": None}, "short", "runs out of memory, as it is meant to"),
        ({"released_bytes": 100 * MIB}, "fits", "fits only after releasing its cache"),
        ({"fits": None, "margin_bytes": 120 * MIB}, "uncertain", "may fit: within the margin of 120 MiB"),
        ({"fits": None, "free_bytes": None}, "unknown", "needs 4.29 GiB; what is free is not known"),
        ({"peak_allocated_bytes": None}, "unknown", "cannot be predicted"),
    ],
)
def test_the_headline_says_in_words_what_the_verdict_is(changes: dict[str, object], found: str, words: str) -> None:
    estimate = replace(FITS, **changes)  # type: ignore[arg-type]
    assert Prediction(estimate).verdict == found
    assert Prediction(estimate).headline == words


def test_the_parts_are_the_context_the_categories_in_their_order_and_what_is_idle() -> None:
    assert Prediction(FITS).segments == [
        ("context", 300 * MIB),
        ("weights", GIB),
        ("activations", 2 * GIB),
        ("idle in the allocator", GIB),
    ]


def test_how_much_larger_a_batch_may_become_follows_from_the_largest_that_was_found_or_from_what_is_spare() -> None:
    worked = replace(FITS, work=StepWork({}, batch=32), largest_batch_size=48)
    cards = {
        "t4": CardEstimate("sim:0", key="t4", largest_batch_size=16),
        "h100": CardEstimate("sim:0", key="h100", spare_bytes=5 * GIB, margin_bytes=GIB),
        "gone": CardEstimate("sim:0", key="gone"),
    }
    assert worked.batch_rooms(cards) == {"sim:0": 1.5, "t4": 0.5, "h100": 3.0, "gone": None}


def test_what_is_short_by_less_than_the_margin_may_not_fit_and_shows_the_margin_everywhere() -> None:
    unsure = replace(
        FITS, fits=None, free_bytes=round(3.2 * GIB), spare_bytes=-round(1.09 * GIB), margin_bytes=round(2.14 * GIB)
    )
    read = Prediction(unsure)
    assert read.headline == "may not fit, 1.09 GiB short ± 2.14 GiB"
    assert read.need == "needs 4.29 GiB ± 2.14 GiB of 3.20 GiB free"
    assert read.peak == "≈ peak 4.29 GiB ± 2.14 GiB, may not fit"
    assert read.margin_remark.startswith("± 2.14 GiB: the run was followed on another card")
    card = CardEstimate(
        "sim:0",
        key="rtx4060",
        free_bytes=unsure.free_bytes,
        peak_allocated_bytes=unsure.peak_allocated_bytes,
        spare_bytes=unsure.spare_bytes,
        margin_bytes=unsure.margin_bytes,
        borrowed=True,
    )
    chip = CardsAnswer({"rtx4060": card}, requested=True).of("rtx4060")
    assert chip.standing == "uncertain"
    assert chip.sentence.startswith("may not fit, 1.1 GiB short, as followed on another card")
    assert Prediction(FITS).margin_remark == ""


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
        spare_bytes=2 * GIB,
        free_bytes=overhead + allocated + idle + 2 * GIB,
    )
    assert Prediction(estimate).bar_bytes == estimate.needed_bytes == overhead + allocated + idle


def test_what_is_needed_where_memory_is_short_is_more_than_there_is() -> None:
    short = replace(FITS, fits=False, free_bytes=4 * GIB, spare_bytes=-200 * MIB)
    assert short.needed_bytes == Prediction(short).bar_bytes == 4 * GIB + 200 * MIB


def test_without_knowing_what_is_free_the_peak_is_needed() -> None:
    unknown = replace(FITS, free_bytes=None, spare_bytes=None, fits=None)
    assert unknown.needed_bytes == 4 * GIB + 300 * MIB
    assert replace(unknown, peak_reserved_bytes=None, overhead_bytes=0).needed_bytes == 3 * GIB
    assert replace(unknown, peak_reserved_bytes=None, peak_allocated_bytes=None).needed_bytes is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "needs 4.29 GiB of 6.59 GiB free"),
        ({"margin_bytes": 40 * MIB}, "needs 4.29 GiB ± 40 MiB of 6.59 GiB free"),
        ({"margin_bytes": 204}, "needs 4.29 GiB of 6.59 GiB free"),
        ({"fits": None, "margin_bytes": 204}, "needs 4.29 GiB ± 204 B of 6.59 GiB free"),
        ({"free_bytes": None, "spare_bytes": None}, "needs 4.29 GiB"),
        ({"free_bytes": 8 * GIB, "spare_bytes": 2 * MIB}, "needs 8190 MiB of 8192 MiB free"),
        ({"free_bytes": 470 * MIB - 1, "spare_bytes": -1}, "needs 492830720 B of 492830719 B free"),
        ({"free_bytes": 470 * MIB, "spare_bytes": 0}, "needs 470 MiB of 470 MiB free"),
        ({"fits": False, "spare_bytes": None}, ""),
    ],
)
def test_need_and_free_memory_read_alike_only_when_they_are(changes: dict[str, object], words: str) -> None:
    assert Prediction(replace(FITS, **changes)).need == words  # type: ignore[arg-type]


def test_what_the_allocator_releases_on_the_way_is_said_with_its_price() -> None:
    assert Prediction(FITS).release == ""
    assert Prediction(replace(FITS, released_bytes=GIB, retries=5)).release == (
        "PyTorch has to release its cache 5 times in the steps followed, which takes time; "
        "with room to spare it would reserve 5.00 GiB"
    )
    assert price(Alternative("x", fits=True, releases_cache=True)) == "only after releasing its cache"


@pytest.mark.parametrize(
    ("alternative", "words"),
    [
        (Alternative("x"), ""),
        (Alternative("x", slowdown=1.333, slowdown_from="FLOPs"), "+33 % time, from FLOPs"),
        (Alternative("x", slowdown=0.5), "−50 % time"),
        (Alternative("x", slowdown=1.001, slowdown_from="FLOPs"), "same time, from FLOPs"),
        (Alternative("x", changes_training=True), "may change convergence"),
        (Alternative("x", note="rounded", changes_training=True), "rounded; may change convergence"),
        (Alternative("x", slowdown=2.0, changes_training=True), "+100 % time; may change convergence"),
    ],
)
def test_a_price_names_time_where_it_comes_from_and_convergence(alternative: Alternative, words: str) -> None:
    assert price(alternative) == words


def test_another_device_that_is_simulated_says_so() -> None:
    assert change_text(Alternative("on sim:1", device="sim:1")) == "on sim:1 (SIMULATED)"
    assert change_text(Alternative("on sim:1 (SIMULATED)", device="sim:1")) == "on sim:1 (SIMULATED)"
    assert change_text(Alternative("on cuda:1", device="cuda:1")) == "on cuda:1"
    assert change_text(Alternative("batch 8", {"batch": 8})) == "batch 8"


def test_no_batch_that_fits_is_said_in_words() -> None:
    assert Prediction(FITS).largest_batch == ""
    assert Prediction(replace(FITS, largest_batch_size=12)).largest_batch == "largest batch that fits: 12"
    assert Prediction(replace(FITS, largest_batch_size=0)).largest_batch == "even a batch of 1 does not fit"


def test_the_most_that_can_be_asked_for_is_no_bound_of_what_fits() -> None:
    capped = replace(FITS, largest_batch_size=65536, largest_batch_capped=True)
    assert Prediction(capped).largest_batch == "largest batch that fits: 65536 or more"
    card = replace(CardEstimate.of(capped), largest_batch_size=65536, by_line=True)
    assert CardsAnswer({"card": card}, requested=True).of("card").detail == "batch 65536 or more"


def test_the_largest_batch_says_what_it_rests_on() -> None:
    found = replace(FITS, largest_batch_size=12)
    assert Prediction(found).largest_batch_remark == ""
    assert Prediction(replace(found, largest_batch_releases=True, margin_bytes=MIB)).largest_batch_remark == (
        "the largest batch fits also if the prediction is off by its margin, and only after releasing its cache"
    )


@pytest.mark.parametrize(
    ("batch", "tokens", "words"),
    [
        (4, None, "largest batch that fits: 4"),
        (4, 2048, "largest batch 4, longest sequence 2048"),
        (0, 896, "a batch of 1 fits with up to 896 tokens"),
        (0, 0, "even a batch of 1 does not fit"),
        (None, 896, "longest sequence that fits: 896 tokens"),
        (None, None, ""),
    ],
)
def test_the_largest_sizes_are_told_in_a_line(batch: int | None, tokens: int | None, words: str) -> None:
    assert Prediction(replace(FITS, largest_batch_size=batch, largest_sequence=tokens)).largest == words


def test_what_there_was_no_time_for_is_named() -> None:
    told = Prediction(replace(FITS, untried=("the largest batch", "QLoRA")))
    assert told.untried == "not tried, since the time was over: the largest batch, QLoRA"
    assert Prediction(FITS).untried == ""


@pytest.mark.parametrize(
    ("bits", "words"), [(0, "8 parameters, 16 B as bfloat16"), (4, "8 parameters, 16 B in 4 bits, the rest bfloat16")]
)
def test_a_model_says_the_types_of_its_weights(bits: int, words: str) -> None:
    assert Prediction(replace(FITS, model=ModelFacts("Made", 8, 16, "bfloat16", packed_bits=bits))).model_lines == [
        f"Made: {words}"
    ]


def test_what_is_not_known_of_convolutions_decides_near_the_edge_alone() -> None:
    trace = Trace(array("q", [1, -1]), array("q", [GIB]), ["activations"])
    unknown = ConvolutionScratch(unknown_bytes=200 * MIB)
    for spare, verdict in ((100 * MIB, "uncertain"), (300 * MIB, "fits"), (-100 * MIB, "short")):
        target = Target("sim:0", 8 * GIB, GIB + spare)
        judged = Prediction(judge(replace(trace, convolutions=unknown), target, "one"))
        assert judged.verdict == verdict
        assert judged.convolutions.startswith("convolutions may take up to 200 MiB more on this card")
        plain = Prediction(judge(trace, target, "one"))
        assert (plain.verdict == "fits") is (spare > 0) and not plain.convolutions
        if verdict == "uncertain":
            assert judged.headline == "probably fits: convolutions may take up to 200 MiB more"
            assert judged.peak.endswith("probably fits") and "±" not in judged.peak


def test_a_trace_keeps_what_is_known_of_convolutions_on_its_way_to_another_process() -> None:
    known = ConvolutionScratch("9.20", 17, "")
    trace = replace(Trace(array("q", [1]), array("q", [GIB]), ["weights"]), convolutions=known)
    found = judge(Trace.from_json(json.loads(json.dumps(trace.to_json()))), Target("sim:0", 8 * GIB, 8 * GIB), "one")
    assert found.convolutions == known
    assert found.to_json()["convolutions"] == {"cudnn": "9.20", "unknown_bytes": 17, "problem": ""}
    assert "at least as asked of cuDNN 9.20" in Prediction(found).convolutions
