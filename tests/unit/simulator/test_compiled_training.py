"""``torch.compile`` on the simulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_compiled_code_trains_as_it_does_uncompiled_and_says_that_nothing_was_compiled() -> None:
    command = [sys.executable, "-m", "tests.unit.simulator.compiled_training"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    plain = told["losses"].pop("None")
    assert plain[0] > plain[-1] > 0
    assert told["losses"] == dict.fromkeys(("inductor", "eager", "aot_eager"), plain)
    assert "torch.compile compiles nothing for sim: the code runs as it is." in told["said"]
