"""Tests of a file named ``..._on_a_gpu`` run on a real GPU, and are skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.runs import Runner

DEVICE = "cuda:0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.stem.endswith("_on_a_gpu"):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))


@pytest.fixture
def gpu() -> Iterator[Runner]:
    """Runs workloads on the first GPU."""
    runner = Runner(DEVICE)
    yield runner
    assert runner.close()
