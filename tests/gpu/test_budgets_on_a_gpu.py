"""Tests with budgets of GPU memory, measured on the device that ``--gpu-memory-device`` names."""

from __future__ import annotations

import re
from pathlib import Path

from tests.budget_project import BASELINES, Project

OVER = """
import pytest
import torch

from training import outputs


@pytest.mark.gpu_memory("512MiB")
def test_four_outputs_are_too_many(gpu_memory):
    assert gpu_memory.device == torch.device("cuda:0")
    outputs(gpu_memory.device)


@pytest.mark.gpu_memory("700MiB")
def test_four_outputs_are_just_enough(gpu_memory):
    outputs(gpu_memory.device)
    assert gpu_memory.peak_bytes == torch.cuda.max_memory_allocated() == 2**28


def test_the_next_test_has_the_whole_gpu():
    assert len(outputs("cuda:0")) == 4
    assert torch.ones(2**29, dtype=torch.uint8, device="cuda:0").nbytes == 2**29
"""


def test_a_test_over_its_budget_fails_with_the_lines_that_filled_it(tmp_path: Path) -> None:
    code, printed = Project(tmp_path, over=OVER).run("--gpu-memory-device", "cuda:0")
    assert code == 1 and "1 failed, 2 passed" in printed, printed
    assert "The test has 512 MiB of cuda:0." in printed
    assert re.search(r"192 MiB +192 MiB +3 +other tensors +training\.py:\d+ ", printed), printed
    assert "test_four_outputs_are_just_enough: peak 256 MiB allocated, 556 MiB of 700 MiB" in printed


def test_a_baseline_is_stored_and_what_grew_is_told_by_line(tmp_path: Path) -> None:
    project = Project(tmp_path, baselines=BASELINES)
    code, printed = project.run("--gpu-memory-device", "cuda", "--gpu-memory-write-baseline")
    assert code == 0 and "memory.json has the peaks of 2 tests now." in printed, printed
    code, printed = project.run("--gpu-memory-device", "cuda", BATCH="4096")
    assert code == 1 and "1 failed, 1 passed" in printed, printed
    assert re.search(r"line training\.py: inputs = torch\.ones\(batch.* \+4 MiB", printed), printed
    assert re.search(r"training\.py:\d+ train", printed[printed.index("Who allocated it") :])
