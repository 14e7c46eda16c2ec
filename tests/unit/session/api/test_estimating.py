"""Predictions as objects, from what ``gpudash estimate --json`` prints."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.session.api.estimating import CardAnswers, PredictedCell, PredictedRun, estimate, fits
from gpudash.simulator.predict import failure_text
from gpudash.simulator.refusal import (
    AS_CUDA,
    GIVEN_OR_AS_CUDA,
    GIVEN_OR_COMMAND,
    MORE_TIME,
    OR_ANOTHER_PYTHON,
    SEE_PRINTED,
)
from gpudash.units import GIB, MIB

DOCUMENT = {
    "fits": False,
    "needed_bytes": 3 * GIB,
    "peak_allocated_bytes": 2 * GIB,
    "peak_reserved_bytes": 2 * GIB,
    "by_category": {"weights": GIB, "<b>activations</b>": GIB},
    "by_line": {"/tmp/x/cell.py:4": 300 * MIB, "/tmp/x/earlier_cells.py:2": GIB, "model.py:7": MIB},
    "assumptions": ["train.py:3: one thing"],
    "more": 1,
}

CARDS = {
    "cards": [
        {
            "card": "l4",
            "name": "L4",
            "fits": True,
            "spare_bytes": GIB,
            "time": {"median_s": 0.25},
        },
        {"card": "t4", "name": "T4", "fits": False, "spare_bytes": -2 * GIB, "time": None},
        {"card": "x", "name": "X", "fits": None, "spare_bytes": None, "reason": "It needs bfloat16."},
    ]
}


def test_a_prediction_says_whether_it_fits_and_names_the_largest_lines_first() -> None:
    found = PredictedCell.of(DOCUMENT)
    assert str(found).splitlines() == [
        "This cell does not fit: it needs 3.00 GiB, of which tensors hold 2.00 GiB.",
        "    1.00 GiB  line 2 of what earlier cells made",
        "     300 MiB  line 3 of the cell",
        "       1 MiB  model.py:7",
        "train.py:3: one thing",
    ]
    assert repr(found) == str(found)
    assert found.to_dict() == DOCUMENT


def test_names_in_a_prediction_are_escaped_in_html() -> None:
    html = PredictedRun.of(DOCUMENT).to_html()
    assert "&lt;b&gt;activations&lt;/b&gt;" in html
    assert "<b>activations" not in html


def test_answers_of_cards_are_a_table_and_true_where_all_fit() -> None:
    found = CardAnswers(CARDS)
    assert str(found).splitlines() == [
        "card  fits                         step, predicted",
        "L4    fits, 1.0 GiB spare          250 ms",
        "T4    does not fit, 2.0 GiB short",
        "X     It needs bfloat16.",
    ]
    assert [answer.fits for answer in found] == [True, False, None]
    assert not found
    assert CardAnswers({"cards": CARDS["cards"][:1]})
    assert "2.0 GiB short" in found.to_html()


@pytest.mark.parametrize("target", ["train.py", "", []])
def test_what_names_no_function_and_no_command_is_refused_with_what_does(target: Any) -> None:
    with pytest.raises(ValueError, match=r'as \["python", "train.py"\]'):
        estimate(target)


def test_a_function_that_no_other_process_finds_is_refused() -> None:
    def build(_device: object) -> None: ...

    for inner in (build, lambda device: device):
        with pytest.raises(ValueError, match="no lambda, no method"):
            estimate(inner, card="l4")


def test_a_function_without_a_device_is_refused_with_the_form_that_it_has() -> None:
    with pytest.raises(ValueError, match=r"write def no_device\(device\)"):
        estimate(no_device, card="l4")


def no_device() -> None:
    """Takes nothing."""


def test_fits_wants_several_names() -> None:
    for cards in ("l4", []):
        with pytest.raises(ValueError, match="takes the names of cards"):
            fits(no_device, cards)


def test_what_a_program_printed_last_is_told_where_it_has_the_reason_and_nobody_sees_it() -> None:
    error = {"kind": "raised", "message": "train.py ended with exit code 1.", "remedy": SEE_PRINTED}
    printed = f"Traceback\nModuleNotFoundError: No module named 'torch'\n\n{error['message']} {SEE_PRINTED}\n"
    assert failure_text(error, printed) == (
        "train.py ended with exit code 1. The last line it printed: ModuleNotFoundError: No module named 'torch'"
    )
    assert failure_text(error, "") == f"{error['message']} {SEE_PRINTED}"
    assert failure_text({**error, "remedy": "Name another."}, printed) == f"{error['message']} Name another."


@pytest.mark.parametrize(
    ("remedy", "said"),
    [
        (f"Install it there{OR_ANOTHER_PYTHON}", "Install it there."),
        (MORE_TIME.format(seconds=240.0), "Allow it more: time_limit_s=240."),
        (AS_CUDA, GIVEN_OR_COMMAND),
        (GIVEN_OR_AS_CUDA, GIVEN_OR_COMMAND),
    ],
)
def test_a_flag_of_the_terminal_is_said_as_python_has_it(remedy: str, said: str) -> None:
    assert "--" in remedy and "--" not in said
    assert (
        failure_text({"message": "It cannot be predicted.", "remedy": remedy}, "") == f"It cannot be predicted. {said}"
    )
