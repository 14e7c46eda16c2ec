"""What may be changed of a training on several devices."""

from __future__ import annotations

from gpudash.specs import TrainingSpec
from gpudash.specs.changes import batch_fields, changes


def test_a_global_batch_is_shared_out_and_made_smaller_for_all() -> None:
    spec = TrainingSpec(devices="cpu,cpu", global_batch=32)
    accumulated = next(change for change in changes(spec) if "accumulation" in change.fields)
    assert accumulated.label == "batch 8 on each rank, accumulated over 2"
    assert accumulated.fields == {"global_batch": 16, "accumulation": 2}
    assert accumulated.applied(spec).rank_batch == 8  # type: ignore[attr-defined]


def test_a_batch_of_each_rank_stays_one() -> None:
    assert batch_fields(TrainingSpec(devices="cpu,cpu", batch=16), 4) == {"batch": 4}
    assert batch_fields(TrainingSpec(batch=16), 4) == {"batch": 4}


def test_shards_are_offered_in_place_of_copies_only() -> None:
    words = "FSDP2 instead of DDP"
    offered = {
        parallel: words in [change.label for change in changes(TrainingSpec(devices="cpu,cpu", parallel=parallel))]
        for parallel in ("ddp", "fsdp")
    }
    assert offered == {"ddp": True, "fsdp": False}
    assert words not in [change.label for change in changes(TrainingSpec())]
