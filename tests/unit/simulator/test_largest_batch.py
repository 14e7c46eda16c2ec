"""The largest batch that is said to fit does, and one more does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.programs import told_by

pytestmark = pytest.mark.long

SPECS: list[dict[str, Any]] = [
    {"batch": 16},
    {"batch": 1},
    {"batch": 4096},
    {"precision": "bf16", "depth": 2, "batch": 16},
    {"mode": "inference", "batch": 8},
    {"width": 2048, "depth": 8, "batch": 64},
]


@pytest.fixture(scope="module")
def edges() -> list[dict[str, Any]]:
    """Of every spec on a card of 2 GiB, from one process of dry runs."""
    found: list[dict[str, Any]] = told_by("unit.simulator.largest_batches", json.dumps(SPECS))
    return found


@pytest.mark.parametrize("index", range(len(SPECS)), ids=[" ".join(map(str, spec.values())) for spec in SPECS])
def test_the_largest_batch_fits_and_the_next_does_not(index: int, edges: list[dict[str, Any]]) -> None:
    assert (edges[index]["fits"], edges[index]["next"]) == (True, False)


def test_where_one_starts_does_not_change_the_largest_batch(edges: list[dict[str, Any]]) -> None:
    assert len({edges[index]["largest"] for index in range(3)}) == 1


def test_what_fits_with_no_batch_at_all_is_told_as_zero(edges: list[dict[str, Any]]) -> None:
    assert edges[-1]["largest"] == 0
