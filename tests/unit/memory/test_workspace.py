"""How large torch makes cuBLAS's workspace."""

from __future__ import annotations

import pytest

from gpudash.memory.predicting.workspace import HOPPER_BYTES, USUAL_BYTES, workspace_bytes

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("capability", "size"),
    [
        (None, USUAL_BYTES),
        ((7, 5), USUAL_BYTES),
        ((8, 9), USUAL_BYTES),
        ((9, 0), 32 * MIB),
        ((10, 0), 32 * MIB),
        ((12, 0), 32 * MIB),
    ],
)
def test_hopper_and_later_cards_have_a_larger_one(capability: tuple[int, int] | None, size: int) -> None:
    assert workspace_bytes(None, capability) == size


def test_an_older_torch_gives_the_larger_one_to_hopper_alone() -> None:
    sizes = {
        capability: workspace_bytes(None, capability, (2, 11)) for capability in ((8, 0), (9, 0), (10, 0), (12, 0))
    }
    assert sizes == {(8, 0): USUAL_BYTES, (9, 0): HOPPER_BYTES, (10, 0): USUAL_BYTES, (12, 0): USUAL_BYTES}


@pytest.mark.parametrize(
    ("configured", "size"),
    [(":4096:8", 32 * MIB), (":16:8", 128 * KIB), (":4096:2:16:8", USUAL_BYTES), (":0:0", 0), ("", None), ("4M", None)],
)
def test_the_variable_says_how_large_it_is_on_any_card(configured: str, size: int | None) -> None:
    assert workspace_bytes(configured, (9, 0)) == (HOPPER_BYTES if size is None else size)
    assert workspace_bytes(configured, (8, 0)) == (USUAL_BYTES if size is None else size)
