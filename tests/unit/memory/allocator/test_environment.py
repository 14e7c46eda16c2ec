"""The allocator's settings in the environment, and what is added to them."""

from __future__ import annotations

import pytest

from gpudash.memory.allocator.settings import EXPANDABLE, VARIABLES, allocator_text, assignment


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_without_settings_the_variable_is_the_one_every_torch_reads() -> None:
    assert allocator_text() == ""
    assert assignment(EXPANDABLE) == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def test_the_variable_that_torch_prefers_is_the_one_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2,>:8], expandable_segments:False")
    told = "PYTORCH_ALLOC_CONF='roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True'"
    assert assignment(EXPANDABLE) == told
