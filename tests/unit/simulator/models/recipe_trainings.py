"""Trainings as recipes write them, by plain programs of transformers, torch and bitsandbytes.

``python -m tests.unit.simulator.models.recipe_trainings allocated`` with a CUDA build prints what each takes of
``cuda:0``; ``predicted`` what is said of the same training by its config. `ALLOCATED` has what they took on a stand-in
for the CUDA libraries. Nothing here is shared with what is followed: both are written by the libraries' documents.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH, LENGTH = 24, 128

STEPS = 2

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1280,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
    "max_position_embeddings": LENGTH,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "selective": {"checkpointing": True, "keeps": "products"},
    "every other layer": {"checkpointing": True, "keeps": "layers"},
    "packed": {"packing": True},
    "packed, selective": {"packing": True, "checkpointing": True, "keeps": "products"},
    "AdamW8bit": {"optimizer": "adamw8bit"},
    "PagedAdamW8bit": {"optimizer": "paged_adamw8bit"},
    "PagedAdamW": {"optimizer": "paged_adamw"},
}
"""What is asked of the prediction, by the name of the program."""

OF_BITSANDBYTES = ("AdamW8bit", "PagedAdamW8bit", "PagedAdamW")

ALLOCATED = {
    "plain": 458_454_016,
    "selective": 278_132_736,
    "every other layer": 333_015_040,
    "packed": 472_335_360,
    "packed, selective": 279_692_288,
    "AdamW8bit": 428_475_392,
    "PagedAdamW8bit": 402_260_992,
    "PagedAdamW": 401_849_344,
}
"""Peak allocated in bytes, torch 2.13 on a card of 8.0, transformers 5.23, bitsandbytes 0.50.2."""


def torchtitan_contexts() -> Any:
    """Of one layer's passes: attention and every other product are kept (torchtitan's ``_get_custom_policy``)."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    operations = torch.ops.aten
    saved = {
        operations.mm.default,
        operations._scaled_dot_product_efficient_attention.default,
        operations._scaled_dot_product_flash_attention.default,
    }
    count = {"forward_mm": 0, "recompute_mm": 0}

    def policy(context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> Any:
        key = "recompute_mm" if context.is_recompute else "forward_mm"
        if operation == operations.mm.default:
            count[key] += 1
        if operation in saved and not (operation == operations.mm.default and count[key] % 2 == 0):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts: Callable[..., Any] = create_selective_checkpoint_contexts
    return contexts(policy)


def checkpointed(model: Any, name: str) -> None:
    """Checkpointing as a program of transformers' switches it on."""
    if "selective" in name:
        how = {"use_reentrant": False, "context_fn": torchtitan_contexts}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    elif name == "every other layer":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

        untyped: Any = checkpoint_wrapper
        wrap = functools.partial(untyped, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
        # torchtitan's `_apply_layer_sac` counts from 1 and leaves the odd ones.
        for place in range(1, len(model.model.layers), 2):
            model.model.layers[place] = wrap(model.model.layers[place])


def optimizer_of(model: Any, name: str) -> Any:
    """The one that the program names."""
    import torch

    if name not in OF_BITSANDBYTES:
        return torch.optim.AdamW(model.parameters(), lr=1e-4)
    library: Any = importlib.import_module("bitsandbytes.optim")
    return getattr(library, name)(model.parameters(), lr=1e-4)


def packed_batch(device: Any) -> dict[str, Any]:
    """Two texts in each row: their tokens' places, and a mask of blocks below the diagonal."""
    import torch

    half = LENGTH // 2
    places = torch.arange(half, device=device).repeat(BATCH, 2)
    texts = torch.arange(2, device=device).repeat_interleave(half)
    mask = ((texts[:, None] == texts[None, :]) & torch.ones(LENGTH, LENGTH, device=device).tril().bool())[None, None]
    return {"position_ids": places, "attention_mask": mask.expand(BATCH, 1, LENGTH, LENGTH).contiguous()}


def trained(name: str, device: Any) -> Callable[[], None]:
    """A step of the program of this name."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {key: value for key, value in CONFIG.items() if key not in ("model_type", "architectures")}
    model: Any = LlamaForCausalLM(LlamaConfig(**settings, use_cache=False)).to(torch.bfloat16).to(device)
    model.train()
    checkpointed(model, name)
    optimizer = optimizer_of(model, name)

    def step() -> None:
        ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device=device)
        batch = {"input_ids": ids, "labels": torch.zeros_like(ids)}
        if name.startswith("packed"):
            batch |= packed_batch(device)
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def allocated() -> dict[str, int]:
    """Peak allocated of each that this Python has the libraries for."""
    import torch

    found = {}
    for name in WAYS:
        if name in OF_BITSANDBYTES and importlib.util.find_spec("bitsandbytes") is None:
            continue
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step = trained(name, torch.device("cuda", 0))
        for _ in range(STEPS):
            step()
        found[name] = torch.cuda.max_memory_allocated() - before
        del step
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()  # what a block is rounded up to depends on what is cached
    return found


def predicted() -> dict[str, int]:
    """Peak allocated of each by its config, on a card of 8.0."""
    from gpudash.memory.predicting.estimate import Target, judge
    from gpudash.simulator.device.simulated_gpu import A100
    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.simulator.models.steps import follow_model
    from tests.unit.simulator.models.small_models import REQUESTED

    dry, found = DryRun(), {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        for name, way in WAYS.items():
            asked = {**REQUESTED, "batch": BATCH, "sequence": LENGTH, **way, "path": folder}
            followed, _facts = follow_model(asked, dry, A100)
            found[name] = judge(followed.trace, Target("sim:0"), name).peak_allocated_bytes or 0
    return found


if __name__ == "__main__":
    modes = {"predicted": predicted, "allocated": allocated}
    sys.stdout.write(json.dumps(modes[sys.argv[1]]()) + "\n")
    sys.stdout.flush()
    os._exit(0)  # Python's own end may meet torch's threads: `tests.gpu.watched_programs.settle`
