"""A training that does not fit one GPU, spread over several."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, Trace
from gpudash.memory.predicting.estimate import Alternative, Target
from gpudash.memory.predicting.rank_estimates import NCCL_BYTES
from gpudash.specs import MatmulSpec, Spec, TrainingSpec
from gpudash.units import GIB, MIB
from gpudash.workloads.predicting.spreading import COUNTS, spread_over

PER_ITEM = 64 * MIB


def trace_of(weights: int) -> Callable[[Spec, Target], Trace]:
    """Dry runs of a model of ``weights`` bytes: FSDP2 leaves each rank its share of them."""

    def trace(spec: Spec, _target: Target) -> Trace:
        assert isinstance(spec, TrainingSpec)
        kept = weights // spec.world_size if spec.parallel == "fsdp" else weights
        sizes = array("q", [kept, PER_ITEM * spec.rank_batch])
        return Trace(array("q", [1, 2]), sizes, [WEIGHTS, ACTIVATIONS], followed=3)

    return trace


def card(number: int, size: int = 24 * GIB, free: int | None = None) -> Target:
    return Target(f"cuda:{number}", size, size if free is None else free)


def spread(weights: int, *cards: Target, batch: int = 16, spec: Spec | None = None) -> list[Alternative]:
    return list(spread_over(spec or TrainingSpec(batch=batch), cards[0], cards[1:], trace_of(weights)))


def test_too_many_activations_are_shared_out_by_ddp_and_the_global_batch_stays() -> None:
    (found,) = spread(GIB, card(0), card(1), batch=512)
    assert (found.change, found.fits, found.ranks) == ("DDP over cuda:0, cuda:1", True, 2)
    assert found.fields == {"devices": "cuda:0,cuda:1", "parallel": "ddp", "global_batch": 512}
    assert found.peak_reserved_bytes == GIB + 256 * PER_ITEM
    assert not found.changes_training


def test_too_many_weights_need_fsdp_and_ddp_is_told_not_to_help() -> None:
    ddp, fsdp = spread(40 * GIB, card(0), card(1))
    assert (ddp.fits, fsdp.fits) == (False, True)
    assert fsdp.fields["parallel"] == "fsdp"
    assert fsdp.peak_reserved_bytes == 20 * GIB + 8 * PER_ITEM


def test_gpus_that_are_not_there_are_named_by_number_and_size() -> None:
    (found,) = spread(40 * GIB, card(0, 23 * GIB))
    assert (found.change, found.fits, found.ranks, found.fields) == ("2 × 24 GiB with FSDP2", True, 2, {})
    assert found.card_bytes == 24 * GIB


def test_only_more_gpus_than_there_are_are_wished_for() -> None:
    found = spread(80 * GIB, card(0), card(1))
    changes = ["DDP over cuda:0, cuda:1", "FSDP2 over cuda:0, cuda:1", "4 × 24 GiB with FSDP2"]
    assert [one.change for one in found] == changes
    assert [one.fits for one in found] == [False, False, True]


def test_a_full_gpu_is_left_out_where_others_do() -> None:
    found = spread(40 * GIB, card(0), card(1, free=GIB), card(2))
    assert found[-1].fields["devices"] == "cuda:0,cuda:2"


def test_what_connects_the_ranks_has_its_room() -> None:
    tight, roomy = 12 * GIB + 8 * PER_ITEM, 12 * GIB + 8 * PER_ITEM + NCCL_BYTES
    assert spread(24 * GIB, card(0, tight), card(1, tight))[1].fits is False
    assert spread(24 * GIB, card(0, roomy), card(1, roomy))[1].fits is True


def test_simulated_gpus_are_judged_and_offered_as_others_are() -> None:
    found = spread(40 * GIB, *(Target(f"sim:{number}", 24 * GIB, 24 * GIB) for number in range(2)))
    fields = {"devices": "sim:0,sim:1", "parallel": "fsdp", "global_batch": 16}
    assert (found[-1].fits, found[-1].fields) == (True, fields)
    assert found[-1].change == "FSDP2 over sim:0, sim:1 (SIMULATED)"


@pytest.mark.parametrize(
    "spec",
    [TrainingSpec(mode="inference"), TrainingSpec(move_at_epoch=1), MatmulSpec()],
    ids=["inference", "moves", "matmul"],
)
def test_what_cannot_be_spread_is_not(spec: Spec) -> None:
    assert spread(40 * GIB, card(0), card(1), spec=spec) == []


def test_nothing_is_spread_over_the_cpu() -> None:
    assert spread(40 * GIB, Target("cpu", 24 * GIB, 24 * GIB)) == []


def test_a_batch_is_only_shared_out_evenly() -> None:
    assert spread(40 * GIB, card(0), card(1), batch=15) == []


def test_a_model_too_large_for_all_numbers_of_gpus_gets_no_wish() -> None:
    assert spread(2 * COUNTS[-1] * 24 * GIB, card(0)) == []
