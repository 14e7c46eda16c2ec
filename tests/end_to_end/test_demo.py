"""The demo as it is started: in the real window, and told in the terminal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Command, Play, start_python

pytestmark = pytest.mark.long

FIRST = ("stage-move", "stage-wrong", "stage-copies", "stage-guess", "stage-devices", "stage-full", "stage-fixed")
OTHERS = ("stage-precisions", "stage-ladder", "stage-lines")


@pytest.mark.timeout(280)
def test_the_first_scenes_come_to_their_end_in_the_window_without_a_gpu(play: Play, tmp_path: Path) -> None:
    seen = play("demo")
    assert seen["failures"] == [] and seen["restored"]
    told = dict(zip(FIRST, seen["told"], strict=True))
    assert told["stage-move"] == "y takes 64 MiB. 128 of 256 MiB"
    assert "Expected all tensors to be on the same device" in told["stage-wrong"]
    assert "2.0 times as much" in told["stage-copies"]
    assert "the same within 1 %" in told["stage-devices"] and "says nothing about speed" in told["stage-devices"]
    assert "of 256 MiB are taken: out of memory" in told["stage-full"]
    assert "all six steps fit" in told["stage-fixed"]
    _have_pictures(tmp_path, FIRST)


@pytest.mark.thorough
@pytest.mark.timeout(280)
def test_the_other_scenes_come_to_their_end_in_the_window_without_a_gpu(play: Play, tmp_path: Path) -> None:
    seen = play("demo_of_remedies")
    assert seen["failures"] == [] and seen["restored"]
    told = dict(zip(OTHERS, seen["told"], strict=True))
    assert "less memory than fp32" in told["stage-precisions"]
    assert "GiB spare" in told["stage-ladder"]
    assert told["stage-lines"] == "64 MiB that nobody named: a + b lives until relu is done. 264 of 320 MiB"
    _have_pictures(tmp_path, OTHERS)


def _have_pictures(folder: Path, names: Sequence[str]) -> None:
    assert all((folder / f"{name}.png").stat().st_size > 5_000 for name in names)


def test_without_a_display_a_scene_is_told_in_the_terminal(gpudash: Command) -> None:
    outcome = gpudash("demo", "--scene", "2")
    assert outcome.code == 0, outcome.stderr
    assert "There is no display" in outcome.stderr
    words = " ".join(outcome.stdout.split())
    assert "2 What can go wrong" in words and "Move a tensor" not in words
    assert "3 y = x + w" in words
    assert "2 x.requires_grad_() 3 y = x.to(gpu)" in words, "a line without an effect on memory is printed too"
    assert "Line 3: RuntimeError: Expected all tensors to be on the same device" in words
    assert "No error, but x is still on the CPU: its copy had no name and is gone. (instead: x = x.to(gpu))" in words


def test_in_the_terminal_a_training_is_one_line_until_it_ends(gpudash: Command) -> None:
    outcome = gpudash("demo", "--scene", "3")
    assert outcome.code == 0, outcome.stderr
    printed = [line.strip() for line in outcome.stdout.splitlines()]
    waits = [line for line in printed if line.startswith("Training, the batches copied")]
    assert len(waits) == len(set(waits)) == 3


def test_a_scene_whose_run_does_not_reach_its_end_ends_in_one(gpudash: Command) -> None:
    outcome = gpudash("demo", "--scene", "3", "--simulate", "1GiB", "--simulate-others", "1GiB")
    assert outcome.code == 1
    assert "Traceback" not in outcome.stderr


@pytest.mark.timed
def test_an_interrupted_demo_ends_soon_and_says_so_by_its_code(home: Path) -> None:
    process = start_python(home, "-m", "gpudash", "demo", "--scene", "4", extra={"PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    for line in process.stdout:
        if "on the CPU" in line:
            break
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and time.monotonic() - began < 20
    assert "Traceback" not in said
