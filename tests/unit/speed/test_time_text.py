"""A predicted time in words."""

from __future__ import annotations

import pytest

from gpudash.speed.time_text import (
    about_text,
    bound_text,
    gain_texts,
    short_text,
    span_text,
    step_text,
    time_lines,
    unknown_text,
)
from gpudash.speed.work import Gain
from tests.unit.speed.made_up_times import made_up_time


@pytest.mark.parametrize(
    ("median", "text"),
    [
        (3.1e-6, "3.1 µs (2.6 to 3.8)"),
        (0.0021, "2.1 ms (1.8 to 2.6)"),
        (0.02, "20 ms (17 to 24)"),
        (0.104, "104 ms (87 to 127)"),
        (0.31, "0.31 s (0.26 to 0.38)"),
        (31.0, "31 s (26 to 38)"),
        (400.0, "6 min 40 s (5 min 36 s to 8 min 08 s)"),
    ],
)
def test_a_time_and_its_interval_are_in_one_unit_with_the_digits_that_tell_them_apart(median: float, text: str) -> None:
    assert span_text(median, median * 0.84, median * 1.22) == text


def test_a_step_says_that_it_is_predicted_and_how_surely() -> None:
    assert step_text(made_up_time()) == "predicted 0.31 s a step (0.26 to 0.38)"
    assert short_text(made_up_time()) == "0.31 s"
    assert about_text(made_up_time()) == "0.31 s ± 0.06"


def test_what_holds_a_step_back_stands_within_a_sentence() -> None:
    assert bound_text(made_up_time()) == "compute-bound: 70 % of the GPU's time is in convolutions"
    waiting = made_up_time(bound="launches", device_s=0.09)
    assert bound_text(waiting) == "launch-bound: for 71 % of the step the GPU waits for Python"
    hardly = made_up_time(bound="launches", device_s=0.295)
    assert bound_text(hardly) == "launch-bound: the kernels are so small that starting them takes longest"


def test_operations_of_no_known_kind_are_counted_and_have_their_share_of_the_time() -> None:
    assert unknown_text(made_up_time()) == ""
    text = unknown_text(made_up_time(unknown=12, unknown_s=0.009))
    assert text == "12 operations a step unknown, 3 % of the GPU's time: counted by the bytes they move"


def test_three_changes_at_most_are_named_and_none_that_brings_next_to_nothing() -> None:
    gains = tuple(Gain(f"change {number}", factor) for number, factor in enumerate((2.6, 1.4, 1.2, 1.1)))
    assert gain_texts(made_up_time(gains=gains)) == [
        "change 0: predicted 2.6× images/s",
        "change 1: predicted 1.4× images/s",
        "change 2: predicted 1.2× images/s",
    ]
    assert gain_texts(made_up_time(gains=(Gain("nothing much", 1.01),))) == []


def test_an_epoch_is_told_where_its_steps_are_known() -> None:
    without = list(time_lines(made_up_time()))
    assert without[0] == "predicted 0.31 s a step (0.26 to 0.38), 206 images/s"
    assert not any("epoch" in line for line in without)
    with_epoch = list(time_lines(made_up_time(), 100))
    assert with_epoch[1] == "predicted 31 s for the 100 steps of an epoch (26 to 38), 116 epochs an hour"
    assert [line for line in with_epoch if line != with_epoch[1]] == without
