"""Models of transformers whose memory numbers decide: what a dry run predicts of each, and what each takes on CUDA.

A mask of ones is left out, so that attention takes its fast path; a router sends tokens to experts; `generate` ends
when every sequence has ended. Run in a process of its own: ``allocated``, or ``predicted`` with a card's compute
capability and multiprocessors, such as ``8,0,108``. Prints the peak in bytes of each model as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from transformers import (
    Adafactor,
    CLIPConfig,
    CLIPModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Target, judge
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.own_code import follow

Step = Callable[[], None]

VOCABULARY = 500
"""Tokens of every model; the last one pads."""

STEPS = 3

DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
}


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Callable[[], dict[str, Any]]) -> Step:
    """A training step of a model that makes its loss itself."""
    model.train()

    def step() -> None:
        model(**batch()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def sequences(rows: int, length: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Random tokens, with a mask that hides none of them."""
    ids = torch.randint(1, VOCABULARY - 1, (rows, length), device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def labelled(rows: int, length: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Sequences whose next tokens are to be learnt."""
    found = sequences(rows, length, device)
    return {**found, "labels": found["input_ids"]}


def llama(device: torch.device) -> Step:
    """In bfloat16, with checkpointing."""
    model = LlamaForCausalLM(LlamaConfig(**DECODER, use_cache=False)).to(device, torch.bfloat16)
    model.activation_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return trained(model, optimizer, lambda: labelled(4, 128, device))


def mixtral(device: torch.device) -> Step:
    """A mixture of experts."""
    model = MixtralForCausalLM(MixtralConfig(**DECODER, use_cache=False, num_local_experts=4)).to(device)
    return trained(model, torch.optim.AdamW(model.parameters()), lambda: labelled(4, 128, device))


def clip(device: torch.device) -> Step:
    """Pictures and their descriptions."""
    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**tower, "vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": VOCABULARY - 2}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={**tower, "image_size": 64, "patch_size": 16})).to(
        device
    )

    def batch() -> dict[str, Any]:
        pictures = torch.randn(16, 3, 64, 64, device=device)
        return {**sequences(16, 77, device), "pixel_values": pictures, "return_loss": True}

    return trained(model, torch.optim.AdamW(model.parameters()), batch)


def t5(device: torch.device) -> Step:
    """An encoder and a decoder, with Adafactor."""
    config = T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=VOCABULARY, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config).to(device)
    optimizer = Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)

    def batch() -> dict[str, torch.Tensor]:
        return {**sequences(8, 128, device), "labels": torch.randint(1, VOCABULARY - 1, (8, 64), device=device)}

    return trained(model, optimizer, batch)


def continued(model: Any, device: torch.device) -> Step:
    """Twelve more tokens of each sequence."""
    model.eval()
    given = sequences(4, 20, device)

    def step() -> None:
        made = model.generate(**given, max_new_tokens=12, do_sample=False, pad_token_id=VOCABULARY - 1)
        if made.shape != (4, 32):
            raise ValueError(f"{tuple(made.shape)} in place of twelve more tokens")

    return step


def llama_generates(device: torch.device) -> Step:
    return continued(LlamaForCausalLM(LlamaConfig(**DECODER)).to(device), device)


def gpt2_generates(device: torch.device) -> Step:
    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64, bos_token_id=None, eos_token_id=None
    )
    return continued(GPT2LMHeadModel(config).to(device), device)


def graph(device: torch.device) -> Step:
    """A graph convolution that replaces the loops of its graph: how many there are decides the sizes."""
    layer = nn.Linear(32, 32).to(device)
    optimizer = torch.optim.Adam(layer.parameters())
    edges = torch.randint(0, 400, (2, 3000), generator=torch.Generator().manual_seed(0)).to(device)
    edges[:, :5] = torch.arange(5, device=device)

    def step() -> None:
        others = edges[:, edges[0] != edges[1]]
        start, end = torch.cat([others, torch.arange(400, device=device).repeat(2, 1)], 1)
        rows = torch.randn(400, 32, device=device)
        degree = torch.zeros(400, device=device).index_add(0, end, torch.ones_like(end, dtype=rows.dtype))
        weights = (degree[start] * degree[end]).rsqrt()
        torch.zeros_like(rows).index_add(0, end, layer(rows)[start] * weights[:, None]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


BUILDS = {build.__name__: build for build in (llama, mixtral, clip, t5, llama_generates, gpt2_generates, graph)}


def predicted(card: str) -> Iterable[tuple[str, int]]:
    """The peaks of a dry run on a card: its compute capability and multiprocessors."""
    major, minor, multiprocessors = map(int, card.split(","))
    architecture = Architecture((major, minor), multiprocessors, cudnn_converts=False)
    dry = DryRun()
    for name, build in BUILDS.items():
        followed = follow(build, dry, steps=STEPS, architecture=architecture)
        yield name, judge(followed.trace, Target("sim:0"), name).peak_allocated_bytes or 0


def allocated() -> Iterable[tuple[str, int]]:
    """The peaks of torch's allocator for CUDA."""
    for name, build in BUILDS.items():
        step = build(torch.device("cuda", 0))
        for _ in range(STEPS):
            step()
        yield name, torch.cuda.max_memory_allocated()
        del step
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()  # what a block is rounded up to depends on what is cached
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    found = predicted(sys.argv[2]) if sys.argv[1] == "predicted" else allocated()
    sys.stdout.write(json.dumps(dict(found)))
    sys.stdout.flush()
    os._exit(0)  # Python's own end may meet torch's threads: `tests.gpu.watched_programs.settle`
