"""What becomes of the memory of a model that several ranks train."""

from __future__ import annotations

from typing import Any

import pytest

from tests.programs import told_by

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """Bytes by category, and on the host, of every way to divide the model."""
    answer: dict[str, dict[str, Any]] = told_by("unit.simulator.models.rank_models", "divided")
    return answer


def test_a_copy_has_buckets_beside_its_gradients(found: dict[str, dict[str, Any]]) -> None:
    one, copy = found["one"], found["two copies"]
    assert copy["weights"] == one["weights"] and copy["optimizer state"] == one["optimizer state"]
    assert copy["gradients"] == pytest.approx(2 * one["gradients"], rel=0.01)


@pytest.mark.parametrize(("ranks", "name"), [(2, "two shards"), (4, "four shards")])
def test_every_shard_has_its_part_of_the_optimizer_s_state(
    ranks: int, name: str, found: dict[str, dict[str, Any]]
) -> None:
    assert found[name]["optimizer state"] == pytest.approx(found["one"]["optimizer state"] / ranks, rel=0.05)


def test_weights_on_the_host_are_divided_among_the_ranks(found: dict[str, dict[str, Any]]) -> None:
    assert found["two on the host"]["host"] == pytest.approx(found["one on the host"]["host"], rel=0.02)
    assert found["one"]["host"] == 0


def test_packed_weights_can_be_copied_and_not_sharded(found: dict[str, dict[str, Any]]) -> None:
    assert found["two packed copies"]["weights"] == found["packed"]["weights"]
    assert found["two packed shards"] == {"refused": "Packed weights cannot be sharded by FSDP2."}


def test_fsdp1_shards_packed_weights_and_leaves_their_scales_whole(found: dict[str, dict[str, Any]]) -> None:
    shards = found["two flat packed shards"]["weights"]
    assert found["packed"]["weights"] / 2 < shards < found["packed"]["weights"]
