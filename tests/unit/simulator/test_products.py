"""What is multiplied is counted at the kernels, as torch's own counter has it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.programs import told_by

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = told_by("unit.simulator.counted_products")
    return found


@pytest.mark.parametrize("step", ["layers", "flash attention", "efficient attention"])
def test_products_are_those_of_torch_s_counter(step: str, counted: dict[str, dict[str, Any]]) -> None:
    assert counted[step]["own"] == counted[step]["torch"] > 0


def test_a_mixture_of_experts_multiplies_each_token_once_in_each_direction(counted: dict[str, dict[str, Any]]) -> None:
    assert counted["experts"]["own"] == 3 * 2 * 16 * 32 * 64
