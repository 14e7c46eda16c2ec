"""A CPU that was measured beside a card that is predicted."""

from __future__ import annotations

import pytest

from gpudash.telemetry.results.outcome import outcome_rows
from gpudash.units import GIB
from gpudash.workloads.programs.comparing.predicted_card import CardStep, a_card, predicted_verdict
from tests.unit.speed.made_up_times import made_up_time

FAST = made_up_time(median_s=0.02, low_s=0.015, high_s=0.03, device_s=0.019)


def test_a_card_that_is_surely_faster_is_said_so_with_both_times_and_what_holds_it_back() -> None:
    judged = predicted_verdict(1.9, "RTX 4090", CardStep(True, GIB, FAST))
    assert judged.outcome == "faster"
    assert judged.headline == "An RTX 4090 is predicted to be 95× as fast as this CPU (63× to 127×)."
    assert judged.because.startswith(
        "Measured 1.9 s a step on this CPU; an RTX 4090 is predicted to take 20 ms (15 to 30): compute-bound"
    )


@pytest.mark.parametrize(
    ("cpu_s", "outcome", "said"),
    [
        (0.001, "slower", "A GPU is predicted not to be worth it here: a T4 would be 0.05×"),
        (0.018, "close", "Too close to predict"),
    ],
)
def test_a_card_that_is_surely_slower_is_not_worth_it_and_within_the_interval_nothing_is_decided(
    cpu_s: float, outcome: str, said: str
) -> None:
    judged = predicted_verdict(cpu_s, "T4", CardStep(True, GIB, FAST))
    assert judged.outcome == outcome
    assert judged.headline.startswith(said)


def test_a_card_that_does_not_hold_the_run_has_no_time() -> None:
    judged = predicted_verdict(1.9, "RTX 4060", CardStep(False, -3 * GIB, FAST))
    assert judged.headline == "An RTX 4060 is predicted not to hold it, 3.0 GiB short."
    assert "predicted to take" not in judged.text


def test_where_nothing_was_predicted_the_reason_stands_in_its_place() -> None:
    judged = predicted_verdict(1.9, "H100 80GB", CardStep(problem="Code reads numbers."))
    assert judged.text == "Measured 1.9 s a step on this CPU; an H100 80GB could not be predicted. Code reads numbers."


@pytest.mark.parametrize(
    ("name", "text"), [("RTX 3060", "an RTX 3060"), ("L4", "an L4"), ("T4", "a T4"), ("B200", "a B200")]
)
def test_a_card_has_its_article(name: str, text: str) -> None:
    assert a_card(name) == text


def test_the_rows_of_the_result_say_which_time_is_measured_and_which_predicted() -> None:
    side = {
        "label": "cpu",
        "step_seconds": 1.9,
        "shares": {"compute": 1.0, "transfer": 0.0, "waiting": 0.0},
        "peak_allocated_bytes": None,
        "peak_used_bytes": GIB,
    }
    result = {
        "predicted": True,
        "verdict": "the verdict",
        "headline": "the headline",
        "because": "",
        "outcome": "faster",
        "measured": side,
        "card": {"name": "RTX 4090", "time": FAST.to_dict()},
        "what": "Training",
    }
    rows = dict(outcome_rows(result))
    assert rows["verdict"] == "the verdict"
    assert rows["cpu, a step, measured"].startswith("1.9 s")
    assert rows["RTX 4090, a step, predicted"] == "20.0 ms (15.0 ms to 30.0 ms)"
    assert not any(word in name for name in rows for word in ("speedup", "agreement"))
