"""Tests of the stand-in itself, and of the program where a GPU must fail: they run on a CUDA build of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cuda_standin.machine import Machine, is_here

ROOT = Path(__file__).parents[2]

LIMIT_S = 120.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skipif(not is_here(), reason="runs on the stand-in for CUDA: make cuda")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(missing)


class Program:
    """Starts Python programs on a machine of their own.

    Attributes:
        machine: the machine, which a test may do harm to.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def start(self, *script: str, **settings: str) -> subprocess.Popen[str]:
        """A running program, from the parts of its source; its output is text."""
        return subprocess.Popen(
            [sys.executable, "-c", "".join(textwrap.dedent(part) for part in script)],
            cwd=ROOT,
            env={**os.environ, **self.machine.environment, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *script: str, **settings: str) -> Any:
        """What the program has printed last, as JSON."""
        process = self.start(*script, **settings)
        out, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
        return json.loads(out.splitlines()[-1])


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Programs on a machine like the one the tests run on, which nobody else uses."""
    return Program(replace(Machine.here(), state=tmp_path / "board"))


@pytest.fixture
def gpus() -> int:
    """How many GPUs the machine has."""
    return torch.cuda.device_count()
