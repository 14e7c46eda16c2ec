"""Two processes on one simulated card beside two on the stand-in's: refusals, free memory, peaks."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cuda_standin import two_processes
from tests.cuda_standin.conftest import LIMIT_S, ROOT
from tests.cuda_standin.machine import Machine
from tests.programs import python

CARD = {"memory": "2G", "devices": 1, "capability": "8.0", "settings": {"CUDA_STANDIN_CONTEXT": "300M"}}
"""As large as the simulated one, of its design, with a context as large."""


def answers(machine: Machine, environment: dict[str, str], *arguments: str) -> list[Any]:
    variables = {**environment, **machine.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = python(two_processes.__file__, *arguments, cwd=ROOT, env=variables, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:32"])
def test_two_processes_on_a_simulated_card_get_the_answers_of_two_on_a_gpu(tmp_path: Path, settings: str) -> None:
    machine = replace(Machine.here(), state=tmp_path / "board", **CARD)
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}
    on_gpu = answers(machine, environment)
    simulated = answers(machine, {**environment, "CUDA_VISIBLE_DEVICES": "-1"}, "simulated")
    assert simulated == on_gpu
    assert sum(bool(message) for message, *_figures in on_gpu) == 3
