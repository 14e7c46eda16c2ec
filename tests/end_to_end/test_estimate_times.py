"""``gpudash estimate`` with the real process that predicts: how long a step takes, on which card, for how much."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import Command

MINE = """
import torch
from torch import nn

def build(device):
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(64, 1024, device=device)
    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return step
"""

CARDS = "--cards", "rtx3060,rtx4090,a100-80gb,h100"


def test_a_training_is_predicted_on_four_cards_in_time_energy_and_money(gpudash: Command) -> None:
    words = ("training", "--simulate", "rtx4090", *CARDS, "--price", "4090=0.44/h", "--price", "h100=2.49/h")
    shape = ("--width", "512", "--depth", "8", "--batch", "32", "--steps", "600", "--epochs", "3")
    outcome = gpudash("estimate", *words, *shape, "--sort", "time", "--json")
    assert outcome.code == 0, outcome.stderr
    found = outcome.document
    time = found["time"]
    assert time["predicted"] is True
    assert 0 < time["low_s"] < time["median_s"] < time["high_s"]
    assert time["bound"] in ("compute", "memory bandwidth", "launches", "copies")
    assert sum(time["by_kind"].values()) > 0
    offers = {offer["card"]: offer for offer in found["cards"]}
    assert offers.keys() == {"rtx3060", "rtx4090", "a100-80gb", "h100"}
    assert all(offer["fits"] and offer["time"]["predicted"] for offer in offers.values())
    medians = [offer["time"]["median_s"] for offer in found["cards"]]
    assert medians == sorted(medians)
    # the card in question is answered the same whether it is asked about alone or beside others
    assert offers["rtx4090"]["time"]["median_s"] == pytest.approx(time["median_s"])
    assert offers["h100"]["time"]["median_s"] < offers["rtx3060"]["time"]["median_s"]
    assert found["epoch_steps"] == 200
    assert offers["h100"]["cost"] == pytest.approx(200 * offers["h100"]["time"]["median_s"] / 3600 * 2.49)
    assert offers["h100"]["energy_wh"] > 0 and offers["rtx3060"]["cost"] is None


def test_code_of_ones_own_is_predicted_on_other_cards_too(
    gpudash: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    outcome = gpudash("estimate", "--callable", "mine.py:build", "--simulate", "t4", "--cards", "h100", "--json")
    assert outcome.code == 0, outcome.stderr
    (offer,) = outcome.document["cards"]
    assert offer["fits"] is True and offer["spare_bytes"] > outcome.document["spare_bytes"]
    assert offer["time"]["median_s"] < outcome.document["time"]["median_s"]
    assert offer["steps"] == 1000


def test_without_a_gpu_the_cpu_is_measured_and_the_card_predicted_in_those_words(gpudash: Command) -> None:
    fields = ("--model", "mlp", "--width", "64", "--batch", "16", "--repetitions", "16", "--limit", "10")
    outcome = gpudash("run", "comparison", "--devices", "cpu,rtx4090", *fields, "--no-record", "--json")
    assert outcome.code == 0, outcome.stderr
    result = outcome.document["result"]
    assert result["predicted"] is True
    assert result["card"]["time"]["predicted"] is True
    assert result["measured"]["step_seconds"] > 0
    said = result["verdict"]
    assert "easured" in said and "a step on this CPU" in said and "is predicted to take" in said
