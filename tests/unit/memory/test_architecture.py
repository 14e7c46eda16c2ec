"""What a GPU's design says of it."""

from __future__ import annotations

import pytest

from gpudash.memory.predicting.architecture import (
    HOPPER_WORKSPACE_BYTES,
    USUAL_WORKSPACE_BYTES,
    Architecture,
    keeps_workspaces,
    lt_workspace_bytes,
    multiprocessors_of,
    workspace_bytes,
)


@pytest.mark.parametrize(
    ("capability", "threads"), [((7, 5), 1024), ((8, 0), 2048), ((8, 9), 1536), ((9, 0), 2048), ((12, 0), 1536)]
)
def test_threads_of_a_multiprocessor_go_by_the_capability(capability: tuple[int, int], threads: int) -> None:
    assert Architecture(capability, 1).threads_per_multiprocessor == threads


@pytest.mark.parametrize(
    ("cores", "capability", "multiprocessors"),
    [(2560, (7, 5), 40), (6912, (8, 0), 108), (16384, (8, 9), 128), (16896, (9, 0), 132), (21760, (12, 0), 170)],
)
def test_multiprocessors_are_counted_from_the_cores_that_the_driver_reports(
    cores: int, capability: tuple[int, int], multiprocessors: int
) -> None:
    assert multiprocessors_of(cores, capability) == multiprocessors


KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("capability", "size"),
    [
        (None, USUAL_WORKSPACE_BYTES),
        ((7, 5), USUAL_WORKSPACE_BYTES),
        ((8, 9), USUAL_WORKSPACE_BYTES),
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
    assert sizes == {
        (8, 0): USUAL_WORKSPACE_BYTES,
        (9, 0): HOPPER_WORKSPACE_BYTES,
        (10, 0): USUAL_WORKSPACE_BYTES,
        (12, 0): USUAL_WORKSPACE_BYTES,
    }


@pytest.mark.parametrize(
    ("configured", "size"),
    [
        (":4096:8", 32 * MIB),
        (":16:8", 128 * KIB),
        (":4096:2:16:8", USUAL_WORKSPACE_BYTES),
        (":0:0", 0),
        ("", None),
        ("4M", None),
    ],
)
def test_the_variable_says_how_large_it_is_on_any_card(configured: str, size: int | None) -> None:
    assert workspace_bytes(configured, (9, 0)) == (HOPPER_WORKSPACE_BYTES if size is None else size)
    assert workspace_bytes(configured, (8, 0)) == (USUAL_WORKSPACE_BYTES if size is None else size)


@pytest.mark.parametrize(
    ("configured", "size"),
    [
        (None, MIB),
        ("2048", 2 * MIB),
        ("0", 0),
        (" 4", 4 * KIB),
        ("12abc", 12 * KIB),
        ("abc", MIB),
        ("99999999999", MIB),
        ("-1", USUAL_WORKSPACE_BYTES),
        ("1000000", USUAL_WORKSPACE_BYTES),
    ],
)
def test_an_older_torch_has_one_of_its_own_for_products_with_a_bias(configured: str | None, size: int) -> None:
    assert lt_workspace_bytes(configured, USUAL_WORKSPACE_BYTES, (2, 11)) == size
    assert lt_workspace_bytes(configured, USUAL_WORKSPACE_BYTES, (2, 12)) == 0


@pytest.mark.parametrize(
    ("configured", "version", "keeps"),
    [(None, (2, 14), True), ("0", (2, 14), True), (None, (2, 15), False), ("0", (2, 15), False), ("1", (2, 15), True)],
)
def test_since_torch_2_15_a_product_frees_its_workspace_unless_told_to_keep_it(
    configured: str | None, version: tuple[int, int], keeps: bool
) -> None:
    assert keeps_workspaces(configured, version) is keeps
