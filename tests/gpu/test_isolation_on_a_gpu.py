"""A run in a process of its own leaves the GPU as it was, whatever happens in it, and the next one works."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu import isolation
from tests.gpu.child import asked

HARD_STOP_S = 1.0
NOISE_BYTES = 16 * 2**20
"""By which a driver's figure for the whole GPU moves by itself."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return asked(isolation.measure, "cuda:0", limit_s=110)


@pytest.mark.parametrize("name", ["training", "out_of_memory", "poisoned", "deaf", "afterwards"])
def test_the_level_of_the_gpus_memory_is_back_when_the_end_is_told(found: dict[str, Any], name: str) -> None:
    used = found[name]["used_bytes"]
    assert abs(used["after"] - used["before"]) <= NOISE_BYTES, found


def test_each_run_ends_as_what_happened_in_it(found: dict[str, Any]) -> None:
    assert found["training"]["status"] == found["afterwards"]["status"] == "finished", found
    assert found["out_of_memory"]["error"] == "cuda"
    assert found["poisoned"]["error"] == "cuda_error"
    assert found["poisoned"]["remedy"].startswith("Start the run again: it had a process of its own")
    assert found["deaf"]["status"] == "cancelled" and found["deaf"]["to_stop_s"] < HARD_STOP_S


def test_the_process_that_starts_them_has_no_context(found: dict[str, Any]) -> None:
    assert found["this_process_has_a_context"] in (False, None) and found["closed"] is True
