"""``gpudash estimate`` tells how long a step is predicted to take, here and on other cards, and what that costs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.session.predicting import estimator
from gpudash.speed.work import ELEMENTWISE, PRODUCT, Operation, StepWork
from gpudash.units import GIB
from tests.json_page import undescribed
from tests.unit.cli.test_estimate import ESTIMATE, SCRIPT

pytestmark = pytest.mark.process

WORK = StepWork(
    {
        Operation("mm", PRODUCT, "float16", 2 * 4096**3, 2**26, 2**25, (1, 4096, 4096, 4096), phase="forward"): 40,
        Operation("add", ELEMENTWISE, "float16", 0, 2**26, 2**25, phase="backward"): 20,
    },
    items=64,
    unit="images",
)


def on(key: str, spare: int) -> dict[str, Any]:
    return {
        "device": "sim:0",
        "key": key,
        "capacity_bytes": 24 * GIB,
        "free_bytes": 24 * GIB,
        "peak_allocated_bytes": GIB,
        "peak_reserved_bytes": GIB,
        "fits": spare > 0,
        "spare_bytes": spare,
    }


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process that predicts answers everything with one run, whose step is known."""
    script = tmp_path / "predictor.py"
    script.write_text(SCRIPT, encoding="utf-8")
    answer = {
        "estimate": {**ESTIMATE, "fits": True, "spare_bytes": GIB, "alternatives": [], "product": "Simulated RTX 4090"},
        "work": WORK.to_dict(),
        "cards": [on("rtx3060", GIB), on("h100", 70 * GIB), on("t4", -GIB), on("24GiB", 20 * GIB)],
        "final": True,
    }
    command = (sys.executable, "-I", str(script), json.dumps(answer))
    monkeypatch.setattr(estimator, "COMMAND", command)


TRAINING = ("estimate", "training", "--simulate", "rtx4090", "--steps", "600", "--epochs", "3")
CARDS = ("--cards", "rtx3060,h100,t4,24GiB")


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*TRAINING, *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*TRAINING, *words, "--json"]) == 2
    return str(json.loads(capsys.readouterr().out)["error"]["message"])


def test_the_time_of_a_step_stands_below_the_memory_and_says_that_it_is_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*TRAINING]) == 0
    lines = capsys.readouterr().out.splitlines()
    memory = next(place for place, line in enumerate(lines) if line.startswith("peak allocated"))
    place, step = next((place, line) for place, line in enumerate(lines) if " a step (" in line)
    assert place > memory
    assert step.startswith("predicted ") and step.endswith(" images/s")
    assert "for the 200 steps of an epoch" in lines[place + 1] and "epochs an hour" in lines[place + 1]
    assert lines[place + 2].startswith("compute-bound: ")
    assert "took" not in "".join(lines[place:])


def test_the_document_has_the_time_with_its_interval_as_predicted_and_every_key_of_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, *CARDS, "--price", "h100=2.5€/h")
    assert undescribed(TRAINING, found) == []
    time = found["time"]
    assert time["predicted"] is True
    assert 0 < time["low_s"] < time["median_s"] < time["high_s"]
    assert time["items_per_s"] == pytest.approx(64 / time["median_s"])
    assert found["epoch_steps"] == 200
    assert [offer["card"] for offer in found["cards"]] == ["rtx3060", "h100", "t4", "24GiB"]
    assert all(offer["predicted"] is True for offer in found["cards"])
    rtx3060, h100, t4, unknown = found["cards"]
    assert rtx3060["time"]["median_s"] > time["median_s"] > h100["time"]["median_s"]
    assert h100["cost"] == pytest.approx(200 * h100["time"]["median_s"] / 3600 * 2.5)
    assert (h100["currency"], rtx3060["cost"]) == ("EUR", None)
    assert (t4["fits"], t4["spare_bytes"]) == (False, -GIB)
    assert unknown["time"] is None and "name the card" in unknown["reason"]


def test_cards_are_sorted_by_what_is_asked_those_that_fit_first(capsys: pytest.CaptureFixture[str]) -> None:
    by_time = document(capsys, *CARDS, "--sort", "time")["cards"]
    assert [offer["card"] for offer in by_time] == ["h100", "rtx3060", "24GiB", "t4"]
    prices = ("--price", "h100=400/h", "--price", "3060=0.1/h")
    by_price = document(capsys, *CARDS, *prices, "--sort", "price")["cards"]
    assert [offer["card"] for offer in by_price] == ["rtx3060", "h100", "24GiB", "t4"]


def test_the_table_names_what_is_missing_and_of_which_steps_energy_and_price_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*TRAINING, *CARDS, "--price", "h100=2.5€/h", "--epoch-steps", "1000"]) == 0
    printed = capsys.readouterr()
    assert "predicted time of the 1\u202f000 steps of an epoch" in printed.out
    assert "24 GiB: how fast it is cannot be said of a size alone" in printed.out
    assert "no, 1.0 GiB short" in printed.out
    assert "No price was given for rtx3060, t4, 24GiB." in printed.err


def test_prices_are_read_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('currency = "EUR"\n[prices]\nh100 = 2.5\nrtx4090 = 0.44\n', encoding="utf-8")
    found = document(capsys, *CARDS, "--prices", str(file))["cards"]
    assert [offer["cost"] is not None for offer in found] == [False, True, False, False]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--cards", "rtx3061"), "There is no known GPU 'rtx3061'"),
        ((*CARDS, "--price", "h100=-1"), "The price of h100 is negative, -1."),
        ((*CARDS, "--price", "h100=1€", "--price", "t4=1$"), "Prices are in several currencies"),
        ((*CARDS, "--price", "h100"), "'h100' is no price"),
        ((*CARDS, "--price", "l4=1"), "A price is given for l4, which --cards does not name."),
        ((*CARDS, "--price", "h100=1", "--prices", "x.toml"), "--price and --prices are given together."),
        ((*CARDS, "--prices", "nothing.toml"), "nothing.toml cannot be read"),
        ((*CARDS, "--sort", "price"), "--sort price needs prices, and none is given."),
        (("--sort", "time"), "--sort is for the cards of --cards, and none is given."),
        ((*CARDS, "--sort", "speed"), 'Invalid value "speed" for --sort'),
        ((*CARDS, "--epoch-steps", "0"), "--epoch-steps"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_2(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    said = refusal(capsys, *words)
    assert sentence in said
    assert "\n" not in said
