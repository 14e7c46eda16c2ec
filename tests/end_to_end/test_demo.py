"""The demo as it is started: in the real window, and told in the terminal."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Command, Play, start_python

pytestmark = pytest.mark.long

LARGEST_PICTURE = 120_000
"""Bytes; a page carries one of each scene."""

PICTURES = ("demo-1", "demo-2", "demo-3", "demo-guess", "demo-4", "demo-5", "demo-fixed")


@pytest.mark.timeout(280)
def test_every_scene_comes_to_its_end_in_the_window_without_a_gpu(play: Play, tmp_path: Path) -> None:
    seen = play("demo")
    assert seen["failures"] == [] and seen["restored"]
    told = dict(zip(PICTURES, seen["told"], strict=True))
    assert "64 MiB each time" in told["demo-1"] and "twice the tensor" in told["demo-1"]
    assert "Expected all tensors to be on the same device" in told["demo-2"]
    assert "2.0 times as much" in told["demo-3"]
    assert "the same within 1 %" in told["demo-4"] and "nothing is said of speed" in told["demo-4"]
    assert "every step had been kept" in told["demo-5"]
    assert "the run finished all 30 steps" in told["demo-fixed"]
    for name in PICTURES:
        assert 20_000 < (tmp_path / f"{name}.png").stat().st_size < LARGEST_PICTURE


def test_without_a_display_a_scene_is_told_in_the_terminal(gpudash: Command) -> None:
    outcome = gpudash("demo", "--scene", "2")
    assert outcome.code == 0, outcome.stderr
    assert "There is no display" in outcome.stderr
    words = " ".join(outcome.stdout.split())
    assert "below are torch's own words for each" in words and "table" not in words
    assert "2 What can go wrong" in words and "Move a tensor" not in words
    assert "torch: “Expected all tensors to be on the same device" in words
    assert "4 of 5 mistakes; 1 passed silently; after x.to(device) alone, x was on cpu." in words


def test_a_scene_whose_run_does_not_reach_its_end_ends_in_one(gpudash: Command) -> None:
    outcome = gpudash("demo", "--scene", "1", "--simulate", "1GiB", "--simulate-others", "1GiB")
    assert outcome.code == 1
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("scene", ["0", "6", "-1"])
def test_a_scene_there_is_not_is_a_wrong_request(gpudash: Command, scene: str) -> None:
    outcome = gpudash("demo", "--scene", scene)
    assert outcome.code == 2
    assert outcome.stderr.splitlines() == [f"There is no scene {scene}. There are scenes 1 to 5."]


@pytest.mark.timed
def test_an_interrupted_demo_ends_soon_and_says_so_by_its_code(home: Path) -> None:
    process = start_python(home, "-m", "gpudash", "demo", "--scene", "4", extra={"PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    for line in process.stdout:
        if "small transformer" in line:
            break
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and time.monotonic() - began < 20
    assert "Traceback" not in said
