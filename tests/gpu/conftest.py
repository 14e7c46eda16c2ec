"""Runs on a real GPU: skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.collect import Runner

DEVICE = "cuda:0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))


@pytest.fixture
def gpu() -> Iterator[Runner]:
    """Runs workloads on the first GPU."""
    runner = Runner(DEVICE)
    yield runner
    assert runner.close()
