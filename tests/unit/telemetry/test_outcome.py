"""Results in words."""

from __future__ import annotations

from typing import Any

from gpudash.telemetry.records import Note, Topic
from gpudash.telemetry.results.outcome import outcome_rows, predicted_step, stage_remark
from gpudash.telemetry.runs import RunView


def rate(median: float | None, **facts: Any) -> dict[str, Any]:
    """A row of a transfer's result."""
    whole = {"from": "cpu", "to": "cuda:0", "memory": "pinned", "blocking": True, "block_bytes": 2**20}
    figures = {"bytes_per_second_median": median, "bytes_per_second_iqr": None if median is None else median / 10}
    return {**whole, **figures, **facts}


def test_a_pipeline_tells_its_values_and_whether_they_are_right() -> None:
    result = {"values": [[11.0]], "expected": [[11.0]], "equal": True, "original_unchanged": True}
    assert outcome_rows(result) == [("values", "[[11.0]]"), ("as expected", "yes"), ("original unchanged", "yes")]


def test_a_wrong_value_is_told_with_what_was_expected() -> None:
    result = {"values": [[12.0]], "expected": [[11.0]], "equal": False, "original_unchanged": False}
    assert outcome_rows(result)[1:] == [("as expected", "no, expected [[11.0]]"), ("original unchanged", "no")]


def test_a_pitfall_tells_torchs_words_the_explanation_and_the_mend() -> None:
    pitfall = {"message": "torch says so", "explanation": "because", "remedy": "do this"}
    assert [words for _what, words in outcome_rows({"pitfall": pitfall})] == ["torch says so", "because", "do this"]


def test_rates_carry_their_spread_and_what_was_not_possible_its_reason_once() -> None:
    result = {
        "rates": [
            rate(25e9),
            rate(20e9, blocking=False),
            rate(None, reason="needs a GPU", block_bytes=1),
            rate(None, reason="needs a GPU", block_bytes=2),
        ]
    }
    assert outcome_rows(result) == [
        ("cpu → cuda:0, pinned, 1 MiB", "25.0 GB/s, spread 10 %"),
        ("cpu → cuda:0, pinned, overlapped, 1 MiB", "20.0 GB/s, spread 10 %"),
        ("not possible", "cpu → cuda:0, pinned: needs a GPU"),
    ]


def test_a_figure_that_was_not_had_is_left_out_and_a_zero_is_not() -> None:
    assert outcome_rows({"link_bytes_per_second": None, "allocated_bytes": 0}) == [("allocated", "0 B")]


def test_what_a_model_writes_on_is_told_in_one_line_with_what_cannot_be_seen_written_out() -> None:
    predictions = [{"prompt": "this is left out of what is shown\n", "text": "def\x1b[2Jx\n"}]
    assert outcome_rows({"predictions": predictions, "pretraining": 9}) == [
        ("prediction 1", "after “ft out of what is shown\\n” it writes “def\\x1b[2Jx\\n”")
    ]


def test_a_predicted_class_is_told_with_how_sure_it_is_and_a_model_that_has_learnt_nothing_says_so() -> None:
    predictions = [
        {"class": 3, "probability": 0.914, "expected": 3},
        {"class": 5, "probability": 0.11, "expected": 7},
    ]
    assert outcome_rows({"predictions": predictions, "pretraining": 0}) == [
        ("prediction 1", "class 3, 91 % sure, right"),
        ("prediction 2", "class 5, 11 % sure, it is class 7"),
        ("learnt", "nothing, its weights are random"),
    ]


def test_a_split_model_tells_the_peak_of_each_device() -> None:
    rows = [
        {"device": name, "peak_allocated_bytes": size, "peak_reserved_bytes": 2 * size}
        for name, size in (("cuda:0", 2**30), ("cuda:1", 2**31))
    ]
    assert outcome_rows({"devices": rows}) == [
        ("peak on cuda:0", "1.00 GiB allocated, 2.00 GiB reserved"),
        ("peak on cuda:1", "2.00 GiB allocated, 4.00 GiB reserved"),
    ]


def test_strays_of_the_placement_are_named() -> None:
    placement = {
        "groups": {"parameters": {"cuda:0": {"bytes": 2**20}}, "buffers": {}},
        "strays": ["norm.weight on cpu"],
    }
    assert outcome_rows({"placement": placement}) == [
        ("placement", "parameters on cuda:0 (1 MiB); elsewhere: norm.weight on cpu")
    ]


def test_a_stage_tells_object_device_leaf_and_first_values_where_it_knows_them() -> None:
    unknown = dict.fromkeys(("remark", "same_object", "is_cuda", "is_leaf", "first_values"))
    assert stage_remark(unknown) == ""
    known = {
        **unknown,
        "remark": "moved",
        "same_object": False,
        "is_cuda": True,
        "is_leaf": True,
        "first_values": [1.0, 2.5],
    }
    assert stage_remark(known) == "moved; new object; is_cuda; leaf; first values 1, 2.5"
    assert stage_remark({**known, "remark": "PyTorch reports no error."}).startswith(
        "PyTorch reports no error; new object; "
    )
    assert stage_remark({**unknown, "remark": "PyTorch reports no error."}) == "PyTorch reports no error."


def timed(*, simulated: bool = False, steps: int = 6, words: object = "0.31 s ± 0.06") -> RunView:
    """A run with steps of 0.33 s but for its first, of which a time was predicted."""
    run = RunView(1, "training", "cuda:0", {}, simulated, 0.0, status="finished", step=steps)
    run.notes = [Note(time_s=0.0, run_id=1, topic=Topic.PREDICTED, text="", details={"step": {"words": words}})]
    for step in range(1, steps + 1):
        run.step_times.add(5.0 + 0.33 * step, step)
    return run


def test_a_run_that_was_predicted_says_how_long_a_step_took_beside_it() -> None:
    assert list(predicted_step(timed())) == [("time of a step", "predicted 0.31 s ± 0.06, took 330 ms")]


def test_of_a_simulated_card_whose_steps_the_cpu_computes_nothing_is_compared() -> None:
    assert list(predicted_step(timed(simulated=True))) == []


def test_a_run_of_few_steps_or_without_a_readable_prediction_says_nothing_of_their_time() -> None:
    assert list(predicted_step(timed(steps=3))) == []
    assert list(predicted_step(timed(words=None))) == []
    unpredicted = timed()
    unpredicted.notes = []
    assert list(predicted_step(unpredicted)) == []
