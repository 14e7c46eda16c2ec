"""A small Llama over two ranks: what a dry run predicts of each, and what each takes on a device of its own.

``predicted MAJOR,MINOR,MULTIPROCESSORS`` prints JSON of the first rank without numbers; ``allocated RANK FILE`` that of
one rank of two by torch's allocator of ``cuda:RANK``, which meets the other through FILE; ``divided`` what becomes of
each part of the memory, and why some are refused.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.unit.simulator.models.small_models import REQUESTED, TEXT

CONFIG = {
    **TEXT,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1280,
    "vocab_size": 8192,
}
"""Its weights take more than what cuBLAS does."""

COUNT = 2
"""Ranks that are run."""

DDP = {"devices": "cpu,cpu", "parallel": "ddp"}
FSDP = {"devices": "cpu,cpu", "parallel": "fsdp"}
FSDP1 = {"devices": "cpu,cpu", "parallel": "fsdp1"}
PACKED = {"task": "qlora", "quantisation": "nf4-double"}

WAYS: dict[str, dict[str, Any]] = {
    "DDP": DDP,
    "DDP, bf16 autocast, accumulated and clipped": {**DDP, "precision": "amp", "accumulation": 2, "clip": 1.0},
    "DDP, checkpointing": {**DDP, "checkpointing": True, "optimizer": "adafactor"},
    "DDP, LoRA": {**DDP, "task": "lora"},
    "FSDP2": FSDP,
    "FSDP2, fp32, fused and clipped": {**FSDP, "precision": "fp32", "optimizer": "adamw_fused", "clip": 1.0},
    "FSDP2, accumulated": {**FSDP, "accumulation": 2},
    "FSDP2, checkpointing": {**FSDP, "checkpointing": True, "optimizer": "sgd"},
    "FSDP2, LoRA": {**FSDP, "task": "lora"},
    "FSDP1, accumulated": {**FSDP1, "accumulation": 2},
    "FSDP1, QLoRA, checkpointing": {**FSDP1, **PACKED, "checkpointing": True, "keep_16_bits": True},
}


FOUR = {"devices": "cpu,cpu,cpu,cpu", "parallel": "fsdp"}
DIVIDED: dict[str, dict[str, Any]] = {
    "one": {},
    "two copies": DDP,
    "two shards": FSDP,
    "four shards": FOUR,
    "packed": {"task": "qlora", "quantisation": "nf4", "batch": 1},
    "two packed copies": {**DDP, "task": "qlora", "quantisation": "nf4", "batch": 1},
    "two packed shards": {**FSDP, "task": "qlora", "quantisation": "nf4", "batch": 1},
    "two flat packed shards": {**FSDP1, **PACKED, "quantisation": "nf4", "batch": 1, "keep_16_bits": True},
    "one on the host": {"offload": "weights"},
    "two on the host": {**FSDP, "offload": "weights"},
}


def asked(folder: Path, differs: dict[str, Any]) -> dict[str, Any]:
    """What is asked of the model, which is written into ``folder``."""
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return {**REQUESTED, **differs, "path": str(folder)}


def predicted(folder: Path, card: str) -> dict[str, int]:
    """Peak allocated of each way, by a dry run of the first rank."""
    from gpudash.memory.predicting.architecture import Architecture
    from gpudash.memory.predicting.estimate import Target, judge
    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.simulator.models.steps import follow_model

    major, minor, multiprocessors = map(int, card.split(","))
    dry, found = DryRun(), {}
    for way in WAYS:
        followed, _ = follow_model(asked(folder, WAYS[way]), dry, Architecture((major, minor), multiprocessors))
        found[way] = judge(followed.trace, Target("cuda:0"), way).peak_allocated_bytes or 0
    return found


def divided(folder: Path) -> dict[str, Any]:
    """Of each: the parts of the peak by category and what lies on the host, or why it is refused."""
    from gpudash.memory.predicting.estimate import Target, judge
    from gpudash.simulator.device.simulated_gpu import A100
    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.simulator.models.steps import follow_model
    from gpudash.simulator.refusal import CannotPredictError

    dry, found = DryRun(), {}
    for name, differs in DIVIDED.items():
        try:
            followed, facts = follow_model(asked(folder, differs), dry, A100)
        except CannotPredictError as refused:
            found[name] = {"refused": str(refused)}
            continue
        parts = judge(followed.trace, Target("sim:0"), name).by_category
        found[name] = {**parts, "host": facts.get("pinned_bytes", 0) + facts.get("pageable_bytes", 0)}
    return found


def allocated(folder: Path, rank: str, meeting: str) -> dict[str, int]:
    """Peak allocated of three steps of each way, from before the model was built, on one of two ranks."""
    import torch
    from torch import distributed
    from transformers import masking_utils  # noqa: F401 # imported while DDP runs, it leaves a bucket of DDP's behind

    from gpudash.simulator.models.steps import RequestedModel
    from tests.gpu.watched_programs import settle

    device, found = torch.device("cuda", int(rank)), {}
    torch.cuda.set_device(device)
    for number, way in enumerate(WAYS):
        store = f"file://{meeting}-{number}"
        distributed.init_process_group("nccl", init_method=store, rank=int(rank), world_size=COUNT)
        world = distributed.group.WORLD
        assert world is not None
        torch.cuda.reset_peak_memory_stats()
        # FSDP1 leaves its flat parameters: each holds the hook that takes its gradient, and is held by it.
        before = torch.cuda.memory_allocated()
        step = RequestedModel(asked(folder, WAYS[way])).build(device)
        for _ in range(3):
            # what threads hold of the step before for some moments, and NCCL's watchdog for up to 100 ms, is gone
            settle()
            if isinstance(world._get_backend(device), distributed.ProcessGroupNCCL):  # torch 2.15 has another as well
                world._wait_for_pending_works()
            step()
        found[way] = torch.cuda.max_memory_allocated() - before
        del step
        settle()
        distributed.destroy_process_group()  # its threads hold tensors until they have seen that work is done
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    modes: dict[str, Any] = {"predicted": predicted, "allocated": allocated, "divided": divided}
    with tempfile.TemporaryDirectory() as place:
        peaks = modes[sys.argv[1]](Path(place), *sys.argv[2:])
    sys.stdout.write(json.dumps(peaks))
    sys.stdout.flush()
    os._exit(0)  # Python's own end may meet torch's threads: `tests.gpu.watched_programs.settle`
