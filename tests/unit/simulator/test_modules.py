"""torch's own module samples (float32) on the simulated GPU: the CPU's results and gradients, all of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.programs import python

pytestmark = pytest.mark.long

pytest.importorskip("expecttest", reason="torch's samples need it")

SCRIPT = Path(__file__).with_name("module_samples.py")
PATIENCE_S = 300


def test_modules_give_the_results_and_gradients_of_the_cpu() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[3]), "OMP_NUM_THREADS": "1"}
    ran = python(str(SCRIPT), env=environment, timeout=PATIENCE_S)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert ran.returncode == 0, f"the process ended in {lines[-1]}:\n{ran.stderr[-2000:]}"
    found = {line["module"]: line for line in lines if "samples" in line}
    assert len(found) > 200
    assert not {name: report["wrong"] for name, report in found.items() if report["wrong"]}
