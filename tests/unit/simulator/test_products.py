"""What is multiplied is counted at the kernels, as torch's own counter has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.unit.simulator.counted_products"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("step", ["layers", "flash attention", "efficient attention"])
def test_products_are_those_of_torch_s_counter(step: str, counted: dict[str, dict[str, Any]]) -> None:
    assert counted[step]["own"] == counted[step]["torch"] > 0


def test_a_mixture_of_experts_multiplies_each_token_once_in_each_direction(counted: dict[str, dict[str, Any]]) -> None:
    assert counted["experts"]["own"] == 3 * 2 * 16 * 32 * 64


def test_counting_changes_nothing_of_what_is_allocated(counted: dict[str, dict[str, Any]]) -> None:
    assert [name for name, found in counted.items() if not found["same"]] == []
