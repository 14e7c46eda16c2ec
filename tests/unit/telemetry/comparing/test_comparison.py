"""Two runs compared: a run against itself, swapped, changed in one thing, and runs that cannot be compared whole."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry.comparing import ComparedRun, Comparison, FigureDifference, compare
from gpudash.telemetry.comparing.comparison import (
    MINUS,
    Field,
    differences_text,
    field_row,
    headline,
    signed,
    spec_fields,
    value_text,
    verdict_text,
)
from gpudash.telemetry.records import plain
from gpudash.units import MIB
from tests.unit.telemetry.comparing.made import MADE, Ending, Made

RESULTS: dict[str, Any] = {
    "steps_per_second": 100.0,
    "items_per_second": 1600.0,
    "latency_p50_seconds": 0.01,
    "seconds_median": 0.02,
    "seconds_iqr": 0.001,
    "flops_per_second": 1e12,
    "ratio": 2.0,
    "interval": [1.9, 2.1],
    "rates": [
        {
            "from": "cpu",
            "to": "cuda:0",
            "memory": "pinned",
            "blocking": True,
            "block_bytes": MIB,
            "bytes_per_second_median": 1e9,
            "bytes_per_second_iqr": 1e7,
        },
        {
            "from": "cpu",
            "to": "cpu",
            "memory": "pageable",
            "blocking": True,
            "block_bytes": MIB,
            "bytes_per_second_median": None,
            "bytes_per_second_iqr": None,
        },
    ],
}

MADES = st.builds(
    Made,
    steps=st.integers(0, 30),
    step_s=st.floats(1e-4, 1.0),
    wobble=st.floats(0.0, 0.5),
    loss=st.none() | st.floats(-5, 5) | st.just(math.nan),
    accuracy=st.none() | st.floats(0, 1),
    allocated=st.none() | st.integers(0, 2**36),
    ending=st.sampled_from(["finished", "cancelled", "failed", "out_of_memory", "running"]),
    result=st.sampled_from([{}, RESULTS]),
    simulated=st.booleans(),
)


def by_name(comparison: Comparison) -> dict[str, FigureDifference]:
    return {difference.name: difference for difference in comparison.differences}


@settings(max_examples=30, deadline=None)
@given(MADES)
def test_a_run_against_itself_is_the_same_everywhere(made: Made) -> None:
    comparison = compare(made.run("a"), made.run("b"))
    assert [difference.verdict for difference in comparison.differences] == ["same"] * len(comparison.differences)
    assert [difference.difference for difference in comparison.differences] == [0.0] * len(comparison.differences)
    assert comparison.changed == []
    assert set(comparison.worse()) <= {"final_loss"} and (comparison.worse() == [] or math.isnan(made.loss or 0))


@settings(max_examples=30, deadline=None)
@given(MADES, MADES)
def test_swapping_flips_signs_and_nothing_else(a: Made, b: Made) -> None:
    there, back = compare(a.run("a"), b.run("b")), compare(b.run("b"), a.run("a"))
    turned = {
        "more": "less",
        "less": "more",
        "same": "same",
        "unclear": "unclear",
        "better": "worse",
        "worse": "better",
        None: None,
    }
    assert by_name(there).keys() == by_name(back).keys()
    for name, difference in by_name(there).items():
        other = by_name(back)[name]
        assert (difference.a, difference.b) == (other.b, other.a)
        assert difference.difference == -other.difference
        assert difference.noise == other.noise
        assert turned[difference.verdict] == other.verdict
        assert turned[difference.judgement] == other.judgement
        assert (difference.ratio is None) == (other.ratio is None)
        if difference.ratio is not None and other.ratio is not None:
            assert difference.ratio * other.ratio == pytest.approx(1.0)
    asked_of_both = {(field.name, *map(repr, field.values)) for field in there.specs}
    assert asked_of_both == {(field.name, *map(repr, reversed(field.values))) for field in back.specs}


@settings(max_examples=20, deadline=None)
@given(MADES, MADES)
def test_the_document_is_json_and_the_words_are_words(a: Made, b: Made) -> None:
    comparison = compare(a.run("a"), b.run("b"))
    document = json.loads(json.dumps(plain(comparison.document(0.1)), allow_nan=False))
    assert {"a", "b", "figures", "specs", "worse", "tolerance"} <= document.keys()
    assert headline(comparison)
    assert "nan" not in headline(comparison)


def test_half_the_pace_is_less_and_worse() -> None:
    comparison = compare(MADE.run(), MADE.but(step_s=0.02).run("b"))
    throughput = by_name(comparison)["median_throughput"]
    assert (throughput.verdict, throughput.judgement, throughput.ratio) == ("less", "worse", pytest.approx(0.5))
    assert throughput.difference == pytest.approx(-800)
    assert by_name(comparison)["stage.forward.seconds"].judgement == "worse"
    assert comparison.worse(0.1) == ["median_throughput", "seconds"]
    assert comparison.worse(2.0) == []


def test_worse_within_the_tolerance_or_within_the_noise_is_not_told() -> None:
    slower = MADE.but(step_s=0.0105)
    assert compare(MADE.run(), slower.run("b")).worse(0.10) == []
    assert compare(MADE.run(), slower.run("b")).worse(0.01) == ["median_throughput", "seconds"]
    crowded = compare(MADE.run(crowding=0.3), slower.run("b", crowding=0.3))
    assert crowded.worse(0.01) == []
    assert any("Other programs used the processor" in note for note in crowded.notes)


def test_what_would_matter_and_is_within_the_noise_is_too_noisy_to_tell() -> None:
    """A quarter less throughput, of which 30 % of the processor's time was others', is not "the same"."""
    slower = MADE.but(step_s=0.0135)
    crowded = compare(MADE.run(crowding=0.3), slower.run("b", crowding=0.3))
    throughput = by_name(crowded)["median_throughput"]
    assert (throughput.verdict, throughput.judgement) == ("unclear", None)
    assert verdict_text(throughput) == "too noisy to tell"
    assert "too noisy to tell" in headline(crowded)
    assert (crowded.worse(0.1), crowded.unclear(0.1)) == ([], ["median_throughput"])
    assert crowded.unclear(0.5) == []
    assert crowded.document(0.1)["unclear"] == ["median_throughput"]
    faster = compare(slower.run(crowding=0.3), MADE.run("b", crowding=0.3))
    assert (faster.unclear(0.1), by_name(faster)["median_throughput"].verdict) == ([], "unclear")
    quiet = compare(MADE.run(), slower.run("b"))
    assert (quiet.worse(0.1), quiet.unclear(0.1)) == (["median_throughput", "seconds"], [])


def test_a_small_difference_within_the_noise_is_the_same_at_any_tolerance() -> None:
    crowded = compare(MADE.run(crowding=0.3), MADE.but(step_s=0.0104).run("b", crowding=0.3))
    assert by_name(crowded)["median_throughput"].verdict == "same"
    assert crowded.unclear(0.0) == []


@settings(max_examples=30, deadline=None)
@given(MADES, MADES, st.floats(0, 1))
def test_nothing_is_both_worse_and_too_noisy_to_tell(a: Made, b: Made, tolerance: float) -> None:
    comparison = compare(a.run("a"), b.run("b"))
    assert not set(comparison.worse(tolerance)) & set(comparison.unclear(tolerance))
    for difference in comparison.differences:
        if difference.may_exceed(tolerance):
            assert abs(difference.difference) <= difference.noise


def test_more_memory_is_worse_and_less_is_better() -> None:
    comparison = compare(MADE.run(), MADE.but(allocated=150 * MIB).run("b"))
    assert comparison.worse(0.1) == ["peak_allocated_bytes", "peak_reserved_bytes"]
    back = compare(MADE.but(allocated=150 * MIB).run(), MADE.run("b"))
    assert back.worse() == []
    assert by_name(back)["peak_allocated_bytes"].judgement == "better"


@pytest.mark.parametrize("ending", ["out_of_memory", "cancelled", "failed", "running"])
def test_less_memory_of_a_run_that_ended_early_is_neither_better_nor_worse(ending: Ending) -> None:
    early = MADE.but(allocated=60 * MIB, ending=ending).run("b")
    early.view.memory.allocated_bytes = early.view.memory.reserved_bytes = 60 * MIB
    less = compare(MADE.run(), early)
    peak = by_name(less)["peak_allocated_bytes"]
    assert (peak.verdict, peak.judgement) == ("less", None)
    assert "Better in B: peak" not in headline(less)
    assert "Different in B: peak allocated (" in headline(less)
    more = compare(early, MADE.run())
    assert not {"peak_allocated_bytes", "peak_reserved_bytes"} & {*more.worse(), *more.unclear()}
    assert "Worse in B: peak" not in headline(more)


def test_more_memory_is_worse_also_of_a_run_that_ended_early() -> None:
    comparison = compare(MADE.run(), MADE.but(allocated=150 * MIB, ending="out_of_memory").run("b"))
    assert by_name(comparison)["peak_allocated_bytes"].judgement == "worse"


def on_card(gib: int, label: str, **changed: Any) -> ComparedRun:
    made = MADE.but(device="sim:0", simulated=True, spec={"simulate": [gib * 2**30]}, **changed)
    run = made.run(label, machine={"GPU": "Simulated GPU"})
    run.view.memory.capacity_bytes = gib * 2**30
    run.view.memory.used_bytes = run.view.memory.reserved_bytes
    return run


def test_what_was_reserved_on_different_cards_is_neither_better_nor_worse() -> None:
    comparison = compare(on_card(24, "a"), on_card(1, "b", allocated=60 * MIB))
    told = {name: figure.judgement for name, figure in by_name(comparison).items() if name.startswith("peak")}
    assert told == {"peak_allocated_bytes": "better", "peak_reserved_bytes": None, "peak_used_bytes": None}
    assert comparison.notes[-1] == (
        "Different cards: Simulated GPU of 24 GiB in A, Simulated GPU of 1 GiB in B; what was reserved and used is "
        "neither better nor worse."
    )
    same = compare(on_card(24, "a"), on_card(24, "b", allocated=60 * MIB))
    assert by_name(same)["peak_reserved_bytes"].judgement == "better"
    assert not [note for note in same.notes if "Different cards" in note]


def test_runs_of_which_some_are_simulated_differ_in_whether_they_are() -> None:
    runs = [MADE.run(), MADE.run("b"), MADE.but(simulated=True).run("c")]
    assert differences_text(runs) == "The 3 runs differ in whether they are simulated."


def test_a_simulated_card_is_told_by_its_size_and_not_by_a_count_of_bytes() -> None:
    comparison = compare(on_card(24, "a"), on_card(1, "b"))
    assert "They differ in simulate (24 GiB in A, 1 GiB in B)." in headline(comparison)
    told = Field("simulate", ([25769803776], ["h100"], 25769803776))
    assert field_row(told) == ["simulate", "differs", "24 GiB", "h100", "24 GiB"]


def test_what_was_asked_of_several_runs_is_told_run_by_run_and_sizes_as_sizes() -> None:
    runs = [MADE.but(workload="pressure", spec={"step": step * MIB, "rate": 4.0}).run() for step in (64, 64, 128)]
    fields = {field.name: field for field in spec_fields(runs)}
    assert next(iter(fields)) == "step" and field_row(fields["step"])[1:] == ["differs", "64 MiB", "64 MiB", "128 MiB"]
    assert field_row(fields["rate"])[1:] == ["same", "4.0", "4.0", "4.0"]
    assert differences_text(runs) == "The 3 runs differ in step."
    assert differences_text([runs[0], runs[0], runs[1]]) == "All 3 were asked the same."


def test_a_change_of_the_program_is_told_by_what_it_writes() -> None:
    patch = "--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n-    kept.append(loss)\n+    kept.append(loss.item())\n"
    as_it_is, changed = MADE.but(spec={}).run(), MADE.but(spec={"edit": patch}).run("b")
    assert "They differ in edit (- in A, kept.append(loss.item()) in B)." in headline(compare(as_it_is, changed))


def test_memory_in_use_counts_only_where_the_allocator_tells_nothing() -> None:
    one, other = MADE.but(allocated=None).run(), MADE.but(allocated=None).run("b")
    one.view.memory.used_bytes, other.view.memory.used_bytes = 100 * MIB, 200 * MIB
    assert compare(one, other).worse(0.1) == ["peak_used_bytes"]
    counted = MADE.run(), MADE.run("b")
    counted[0].view.memory.used_bytes, counted[1].view.memory.used_bytes = 100 * MIB, 200 * MIB
    assert compare(*counted).worse(0.1) == []


def test_a_higher_final_loss_is_worse_and_one_that_became_nan_too() -> None:
    assert compare(MADE.run(), MADE.but(loss=0.9).run("b")).worse(0.1) == ["final_loss"]
    diverged = compare(MADE.run(), MADE.but(loss=math.nan).run("b"))
    assert diverged.worse(0.1) == ["final_loss"]
    assert "B has no loss that is a number." in diverged.notes


@pytest.mark.parametrize("ending", ["failed", "out_of_memory", "cancelled"])
def test_a_run_that_did_not_end_as_well_is_worse_and_its_seconds_say_nothing(ending: Any) -> None:
    comparison = compare(MADE.run(), MADE.but(ending=ending, steps=50).run("b"))
    assert "status" in comparison.worse(0.5)
    assert by_name(comparison)["seconds"].judgement is None
    assert any(note.startswith("B ") for note in comparison.notes)


def test_a_run_that_is_still_on_has_figures_so_far() -> None:
    comparison = compare(MADE.run(), MADE.but(ending="running").run("b"))
    assert "seconds" not in by_name(comparison)
    assert by_name(comparison)["median_throughput"].verdict == "same"
    assert "B has not ended: its figures are those up to its newest record." in comparison.notes
    assert comparison.worse() == ["status"]


def test_what_was_asked_differently_comes_first_and_is_named() -> None:
    bf16 = MADE.but(spec={"model": "mlp", "precision": "bf16", "extra": 1})
    comparison = compare(MADE.run(), bf16.run("b"))
    assert [field.name for field in comparison.changed] == ["precision", "extra"]
    assert comparison.specs[0].name == "precision"
    assert comparison.document()["specs"][0] == {"field": "precision", "a": "fp32", "b": "bf16"}
    assert "precision (fp32 in A, bf16 in B)" in headline(comparison)


def test_machines_stand_beside_the_specs_and_do_not_count_as_asked() -> None:
    comparison = compare(MADE.run(machine={"torch": "2.12"}), MADE.run("b", machine={"torch": "2.13"}))
    assert comparison.changed == []
    assert comparison.document()["machine"] == [{"field": "torch", "a": "2.12", "b": "2.13"}]


def test_different_workloads_are_said_and_their_items_are_not_compared() -> None:
    comparison = compare(MADE.run(), MADE.but(workload="matmul", spec={"size": 64}).run("b"))
    assert "median_throughput" not in by_name(comparison)
    assert comparison.notes[0].startswith("A is training and B is matmul")
    tokens = compare(MADE.but(result={"item": "sample"}).run(), MADE.but(result={"item": "character"}).run("b"))
    assert "median_throughput" not in by_name(tokens)
    assert "A counts samples and B counts characters: their throughput is not compared." in tokens.notes


def test_a_simulated_gpu_is_said() -> None:
    comparison = compare(MADE.run(), MADE.but(device="sim:0", simulated=True).run("b"))
    assert "B ran on a simulated GPU, whose speed is not that of a GPU." in comparison.notes
    assert [field.name for field in comparison.changed] == ["device", "simulated"]


def test_runs_without_a_common_figure_say_so() -> None:
    nothing = MADE.but(steps=0, allocated=None, ending="running")
    assert "They have no figure in common." in headline(compare(nothing.run(), MADE.run("b")))


def test_the_sign_is_spelt_out() -> None:
    assert MINUS == "B minus A"
    assert signed("bytes", -12 * MIB) == "−12 MiB"
    assert signed("s", 0.0031) == "+3.10 ms"
    assert signed("ratio", 0.05) == "+5.0 points"
    assert signed("nats", 0.0) == "0"
    assert value_text("items/s", 9830.0) == "9\u202f830 items/s"
    worse = by_name(compare(MADE.run(), MADE.but(step_s=0.02).run("b")))["seconds"]
    assert verdict_text(worse) == "more, worse"
    assert worse.strength == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("values", "short"),
    [
        (("/home/u/a/train.py", "/home/u/b/train.py"), ["…/a/train.py", "…/b/train.py"]),
        (("/home/u/a/train.py", "/home/u/a/eval.py"), ["…/train.py", "…/eval.py"]),
        (("/home/u/a/train.py", "/home/u/a/train.py"), ["…/train.py", "…/train.py"]),
        (("/a/data", "/b/a/data", None), ["/a/data", "/b/a/data", "-"]),
        (("train.py", "/tmp", "https://host/a/b", "1/2/3"), ["train.py", "/tmp", "https://host/a/b", "1/2/3"]),
        (
            (
                ["python", "/w/a/t.py", "--data=/mnt/set", "--lr", "1"],
                ["python", "/w/b/t.py", "--data=/mnt/set", "--lr", "1"],
            ),
            ["…/a/t.py …", "…/b/t.py …"],
        ),
        ((["python", "t.py", "--lr", "1"], ["python", "t.py", "--lr", "2"]), ["… --lr 1", "… --lr 2"]),
        ((["python", "t.py"], ["python", "t.py", "--lr", "2"]), ["… t.py", "… t.py --lr 2"]),
        ((["python", "/w/t.py"], ["python", "/w/t.py"]), ["python …/t.py", "python …/t.py"]),
    ],
)
def test_a_setting_is_shortened_to_what_tells_the_runs_apart(values: tuple[Any, ...], short: list[str]) -> None:
    field = Field("command", values)
    assert field.short_labels == short
    differing = {label for label in field.labels if field.differs}
    assert len({*field.short_labels}) >= len(differing)


@pytest.mark.parametrize(
    ("name", "values", "short"),
    [
        ("GPU", ("Simulated RTX 4090", "Simulated GPU"), ["RTX 4090 …", "own size …"]),
        ("GPU", ("Simulated RTX 4090", "NVIDIA H100 80GB HBM3"), ["RTX 4090 (simulated)", "NVIDIA H100 80GB HBM3"]),
        ("GPU", ("Simulated GPU", "Simulated GPU"), ["own size (simulated)", "own size (simulated)"]),
        ("device", ("sim:0@rtx4090", "sim:0@1GiB"), ["… RTX 4090", "… 1 GiB"]),
        ("device", ("sim:0@1GiB", "cpu"), ["sim:0 · 1 GiB", "cpu"]),
    ],
)
def test_cards_are_told_apart_by_how_their_names_begin(name: str, values: tuple[str, str], short: list[str]) -> None:
    assert Field(name, values).short_labels == short
