"""A model that is built on the CPU and moved takes its bytes of the device, and none of the host's memory."""

from __future__ import annotations

import pytest

from tests.programs import told_by
from tests.unit.simulator.host_models import INITS, SMALL, WIDTH

pytestmark = pytest.mark.process

MIB = 2**20
WEIGHT = 4 * WIDTH**2
LOADED = 4 * SMALL**2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Bytes of weights of every model, and of the process at its peak."""
    folder = tmp_path_factory.mktemp("models")
    answer: dict[str, int] = told_by("unit.simulator.host_models", str(folder), warns=False)
    return answer


@pytest.mark.parametrize("name", [*INITS, *(f"{name} on the device" for name in INITS), "rates"])
def test_an_initialiser_that_reads_or_writes_numbers_is_followed(name: str, found: dict[str, int]) -> None:
    assert found[name] == WEIGHT


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("adapted", WEIGHT + 2 * 4 * 8 * WIDTH),
        ("averaged", 2 * WEIGHT),
        ("loaded", LOADED),
        ("loaded mapped", LOADED),
        ("loaded there", LOADED),
    ],
)
def test_adapters_copies_and_checkpoints_are_followed(name: str, weights: int, found: dict[str, int]) -> None:
    assert found[name] == weights


def test_models_of_a_gibibyte_take_no_memory_of_the_host(found: dict[str, int]) -> None:
    assert WEIGHT == 1024 * MIB
    assert found["peak_rss"] < 800 * MIB
