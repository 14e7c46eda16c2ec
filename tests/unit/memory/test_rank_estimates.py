"""Several ranks' predictions as one."""

from __future__ import annotations

from array import array
from dataclasses import replace

from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, Trace
from gpudash.memory.predicting.estimate import Alternative, Estimate, Target, judge
from gpudash.memory.predicting.prediction import COMMUNICATION, CONTEXT, Prediction, price
from gpudash.memory.predicting.rank_estimates import (
    GLOO_TEXT,
    NCCL_BYTES,
    NCCL_TEXT,
    deciding,
    of_halves,
    of_ranks,
    ranks_on,
    unequal,
)
from gpudash.units import GIB, MIB

TRACE = Trace(array("q", [1]), array("q", [2 * GIB]), [WEIGHTS], followed=3)


def card(number: int, free: int = 8 * GIB, capacity: int = 8 * GIB) -> Target:
    return Target(f"cuda:{number}", capacity, free, 500 * MIB, "a CUDA context of 500 MiB assumed")


def predicted(*targets: Target, strategy: str = "ddp") -> Estimate:
    return of_ranks(ranks_on(targets), strategy, lambda target: judge(TRACE, target, "training"))


def test_each_rank_has_its_figures_and_those_of_the_deciding_one_are_the_whole_s() -> None:
    found = predicted(card(0), card(1, free=2 * GIB))
    assert (found.deciding_rank, found.device, found.fits) == (1, "cuda:1", False)
    assert [(rank.rank, rank.device, rank.fits) for rank in found.ranks] == [(0, "cuda:0", True), (1, "cuda:1", False)]
    chosen = found.ranks[1]
    assert (found.free_bytes, found.peak_reserved_bytes) == (chosen.free_bytes, chosen.peak_reserved_bytes)


def test_the_first_of_equal_ranks_decides() -> None:
    assert deciding([card(0), card(1)]) == 0


def test_a_rank_of_which_nothing_is_known_decides_over_one_that_fits() -> None:
    found = predicted(card(0), replace(card(1), free_bytes=None))
    assert (found.deciding_rank, found.fits) == (1, None)


def test_of_a_split_model_the_device_with_least_to_spare_decides_and_each_has_its_own_peak() -> None:
    larger = Trace(array("q", [1]), array("q", [3 * GIB]), [WEIGHTS], followed=3)
    halves = [judge(TRACE, card(0), "training"), judge(larger, card(1, free=3 * GIB), "training")]
    found = of_halves(halves)

    assert (found.strategy, found.deciding_rank, found.device, found.fits) == ("split", 1, "cuda:1", False)
    assert [half.peak_allocated_bytes for half in found.ranks] == [2 * GIB, 3 * GIB]
    assert found.communication_bytes == 0 and found.free_bytes == 3 * GIB
    told = Prediction(found)
    assert told.headline.endswith(" on cuda:1")
    assert "cuda:0: " in told.rank_lines[0] and "peak allocated 2.00 GiB" in told.rank_lines[0]
    assert told.rank_lines[-1] == "cuda:1 has least to spare and decides"
    assert of_halves([halves[0], replace(halves[0], fits=None)]).fits is None


def test_ranks_on_one_device_share_what_is_free() -> None:
    both = ranks_on([Target("cpu", 16 * GIB, 8 * GIB, 0, "no context")] * 2)
    assert [target.free_bytes for target in both] == [4 * GIB, 4 * GIB]
    assert "shared by 2 ranks" in both[0].overhead_words
    assert GLOO_TEXT in both[0].overhead_words


def test_nccl_is_assumed_on_gpus_and_never_on_the_cpu() -> None:
    (gpu,), (cpu,) = ranks_on([card(0)]), ranks_on([Target("cpu", GIB, GIB)])
    assert (gpu.communication_bytes, gpu.overhead_bytes) == (NCCL_BYTES, 500 * MIB + NCCL_BYTES)
    assert NCCL_TEXT in gpu.overhead_words
    assert (cpu.communication_bytes, cpu.overhead_bytes) == (0, 0)


def test_what_is_assumed_for_nccl_is_a_part_of_its_own_and_said_to_be_assumed() -> None:
    found = predicted(card(0), card(1))
    parts = dict(Prediction(found).segments)
    assert (parts[CONTEXT], parts[COMMUNICATION]) == (500 * MIB, NCCL_BYTES)
    assert sum(parts.values()) == found.needed_bytes
    assert Prediction(found).assumed == "assumed: NCCL about 192 MiB per rank"
    assert NCCL_TEXT in found.method


def test_the_peak_of_a_rank_of_ddp_is_a_lower_bound_by_one_set_of_gradients() -> None:
    trace = Trace(array("q", [1, 2]), array("q", [200 * MIB, GIB]), [WEIGHTS, ACTIVATIONS], followed=3)

    def late(strategy: str, *targets: Target) -> Estimate:
        return of_ranks(ranks_on(targets), strategy, lambda target: judge(trace, target, "training"))

    ddp = late("ddp", card(0), card(1))
    assert ddp.late_bytes == 200 * MIB
    assert Prediction(ddp).lower_bound == "up to 200 MiB more allocated while gradients wait for NCCL"
    others = late("fsdp", card(0), card(1)), late("ddp", Target("cpu", GIB, GIB), Target("cpu", GIB, GIB))
    assert [(found.late_bytes, Prediction(found).lower_bound) for found in others] == [(0, ""), (0, "")]


def test_a_run_on_one_device_has_no_ranks_in_its_words() -> None:
    alone = judge(TRACE, card(0), "training")
    assert (Prediction(alone).rank_lines, Prediction(alone).assumed, alone.deciding_rank) == ([], "", None)
    assert COMMUNICATION not in dict(Prediction(alone).segments)


def test_equal_ranks_are_told_as_alike() -> None:
    found = predicted(card(0), card(1))
    assert not unequal(found)
    assert Prediction(found).headline.endswith("spare per rank")
    assert Prediction(found).rank_lines == [
        "2 ranks, all alike: rank 0 above",
        "rank 1 on cuda:1: 2.68 GiB of 8.00 GiB free, fits",
    ]


def test_unequal_devices_name_the_one_that_decides() -> None:
    found = predicted(card(0), card(1, free=2 * GIB))
    assert Prediction(found).headline == "does not fit, 0.68 GiB short on rank 1"
    assert Prediction(found).rank_lines[0] == "2 ranks, memory unequal: rank 1 on cuda:1 has least and decides"


def test_of_more_than_four_ranks_only_the_fullest_is_told() -> None:
    assert Prediction(predicted(*(card(number) for number in range(8)))).rank_lines == [
        "8 ranks, the fullest shown: rank 0 above"
    ]


def test_the_largest_batch_is_told_per_rank_and_in_all() -> None:
    found = predicted(card(0), card(1))
    both = replace(found, largest_batch_size=24, largest_global_batch=48)
    assert Prediction(both).largest_batch == "largest batch: 24 per rank, 48 in all"
    none = replace(found, largest_batch_size=0, largest_global_batch=0)
    assert Prediction(none).largest_batch == "even a batch of 1 does not fit"


def test_a_rank_that_has_to_release_its_cache_says_so() -> None:
    # 20 MiB in pieces, freed, then 30 MiB: on 40 MiB the first segment has to go back
    trace = Trace(array("q", [1, -1, 2]), array("q", [20 * MIB, 30 * MIB]), [WEIGHTS, WEIGHTS])
    tight, roomy = (Target(f"sim:{number}", free, free) for number, free in enumerate((40 * MIB, GIB)))
    found = of_ranks([roomy, tight, tight], "ddp", lambda target: judge(trace, target, "training"))
    assert Prediction(found).headline == "fits only after releasing its cache on rank 1"
    assert Prediction(found).rank_lines[2] == (
        "rank 2 on sim:0: 30 MiB of 40 MiB free, fits only after releasing its cache"
    )


def test_the_price_of_several_gpus_is_how_many() -> None:
    assert price(Alternative("FSDP2 over 2 GPUs", ranks=2)) == "takes 2 GPUs, time not predicted; same global batch"


def test_the_strategy_and_the_number_of_ranks_are_in_the_method() -> None:
    assert predicted(card(0), card(1), strategy="fsdp").method.startswith("one of 2 ranks (FSDP2, torch's own code")
