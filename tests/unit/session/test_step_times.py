"""How long the steps of a predicted run take on devices of all kinds."""

from __future__ import annotations

import os
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
