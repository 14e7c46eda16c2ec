"""The process that dry-runs leaves a request for a newer one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
def test_a_dry_run_is_left_in_its_midst_and_the_next_one_is_as_if_nothing_had_been() -> None:
    script = "tests.unit.workloads.left_dry_runs"
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-m", script], cwd=root, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["looks"] > 300, "it looks at every allocation, those of the backward pass too"
    assert found["left"] == [True] * 8
    assert found["alike"] == [True] * 8
