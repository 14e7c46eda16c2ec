"""How long the steps of a predicted run take on devices of all kinds."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Target
from gpudash.session.predicting.step_times import NO_DATA_SHEET, NOT_KNOWN, reason_for, stage_seconds, times_on
from gpudash.speed.work import ELEMENTWISE, PRODUCT, Operation, StepWork

WORK = StepWork(
    {
        Operation("mm", PRODUCT, "float16", 2 * 4096**3, 2**26, 2**25, (1, 4096, 4096, 4096), phase="forward"): 20,
        Operation("mm", PRODUCT, "float16", 2 * 4096**3, 2**26, 2**25, (1, 4096, 4096, 4096), phase="backward"): 40,
        Operation("add", ELEMENTWISE, "float32", 0, 2**20, 2**19, phase="optimizer"): 10,
    },
    items=64,
)
NAMED = Target("sim:0", product="Simulated RTX 4090")
SIZED = Target("sim:0", product="Simulated GPU")


def test_a_named_card_has_a_time_and_a_size_alone_has_a_reason() -> None:
    assert times_on(WORK, {"named": NAMED, "sized": SIZED, "cpu": Target("cpu", product="A processor")}).keys() == {
        "named"
    }
    assert reason_for(SIZED.product) == NOT_KNOWN
    assert reason_for(NAMED.product) == NO_DATA_SHEET
    assert times_on(None, {"named": NAMED}) == {}


def test_a_card_of_the_machine_that_has_no_data_sheet_is_guessed_from_its_architecture() -> None:
    unknown = Target("cuda:0", product="NVIDIA RTX 7777", architecture=Architecture((8, 9), 100))
    guessed = times_on(WORK, {"cuda:0": unknown, "named": NAMED})
    assert guessed["cuda:0"].median_s > guessed["named"].median_s


def test_a_card_of_the_machine_copies_over_its_own_link_and_a_simulated_one_over_that_of_its_data_sheet() -> None:
    copying = replace(WORK, copied_in_bytes=2**30, copies=1, pinned=True)
    whole = Target("cuda:0", product="NVIDIA GeForce RTX 4090", architecture=Architecture((8, 9), 128))
    targets = {
        "whole": whole,
        "narrow": replace(whole, pcie=(3, 4)),
        "unknown": replace(whole, pcie=(9, 3)),
        "named": replace(NAMED, pcie=(3, 4)),
    }
    copies = {key: time.copy_s for key, time in times_on(copying, targets).items()}
    # PCIe 3.0 has half of the rate of 4.0, and of 16 lanes there are 4.
    assert copies["narrow"] == pytest.approx(8 * copies["whole"], rel=0.01)
    assert copies["unknown"] == copies["named"] == copies["whole"]


def test_the_link_of_a_card_comes_through_to_the_process_that_predicts() -> None:
    assert Target.from_json({"device": "cuda:0", "pcie": [4, 8]}).pcie == (4, 8)
    assert Target.from_json({"device": "cuda:0"}).pcie is None


def test_the_times_of_the_stages_come_to_that_of_the_step() -> None:
    seconds = stage_seconds(WORK, NAMED)
    assert seconds.keys() == {"forward", "backward", "optimizer"}
    assert sum(seconds.values()) == pytest.approx(times_on(WORK, {"": NAMED})[""].median_s)
    assert seconds["backward"] > seconds["forward"] > seconds["optimizer"] > 0
    assert stage_seconds(WORK, SIZED) == {}


def test_a_card_of_ones_own_is_known_by_its_name_and_a_file_that_cannot_be_read_is_left_out() -> None:
    file = Path(os.environ["GPUDASH_HOME"]) / "cards.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    own = Target("sim:0", product="Simulated my-card")
    file.write_text("[my-card]\nmemory_gb_per_s = 960\nfloat32_tflops = 56.3\n", encoding="utf-8")
    assert times_on(WORK, {"own": own}).keys() == {"own"}
    file.write_text("nothing of the kind", encoding="utf-8")
    assert times_on(WORK, {"own": own, "named": NAMED}).keys() == {"named"}
