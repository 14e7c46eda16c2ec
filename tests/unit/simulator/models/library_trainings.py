"""Trainings as libraries take them, which choose a GPU by themselves: for ``gpudash estimate --callable --as-cuda``.

``python -m tests.unit.simulator.models.library_trainings`` with a CUDA build prints what each takes of ``cuda:0``, as
JSON; `ALLOCATED` has what that was on a stand-in for the CUDA libraries. Attention is transformers' own in all of them:
which other it takes is decided by numbers, and nothing computes there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Step = Callable[[], object]

STEPS = 3

LENGTH, WORDS = 128, 1000

ALLOCATED = {
    "trainer": (198_724_096, 224_395_264),
    "checkpointed_trainer": (87_927_808, 102_760_448),
    "accelerated": (185_230_336, 211_812_352),
    "says_cuda": (52_863_488, 65_011_712),
}
"""Peaks of allocated and reserved memory in bytes, torch 2.13 on a card of 8.0."""


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Words in a row, each to be told from those before."""

    def __init__(self, count: int = 64) -> None:
        self._text = torch.randint(0, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._text[place], "labels": self._text[place]}


def language_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": WORDS, "n_positions": LENGTH}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(attn_implementation="eager", **sizes, **ends))


def trained(**options: Any) -> Step:
    """A training by transformers' Trainer, as a whole."""
    from transformers import Trainer, TrainingArguments

    common: dict[str, Any] = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "report_to": [],
        "disable_tqdm": True,
    }
    arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), **common, **options)
    model = language_model()
    return Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens(16)).train


def trainer(_device: torch.device) -> Step:
    """In bfloat16 with two passes a step; it evaluates in between, logs, and saves the model in the end."""
    evaluated: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1}
    return trained(bf16=True, gradient_accumulation_steps=2, per_device_eval_batch_size=8, **evaluated)


def checkpointed_trainer(_device: torch.device) -> Step:
    """In float32 with gradient checkpointing and Adafactor."""
    return trained(gradient_checkpointing=True, optim="adafactor", save_strategy="no")


def accelerated(_device: torch.device) -> Step:
    """A loop under accelerate, in float16 with two passes a step and gradients that are clipped."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters())
    batches = torch.utils.data.DataLoader(Tokens(), batch_size=8, shuffle=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    left = iter(batches)

    def step() -> object:
        with accelerator.accumulate(model):
            loss = model(**next(left)).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return accelerator.gather(loss).mean().item()

    return step


def says_cuda(_device: torch.device) -> Step:
    """A loop that names its device, as nanoGPT's does."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    scaler = torch.amp.GradScaler(device)

    def step() -> None:
        values = torch.randn(64, 512).pin_memory().to(device, non_blocking=True)
        with torch.autocast(device, torch.float16):
            loss = model(values).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    return step


WHOLE = (trainer, checkpointed_trainer)
ALL = (*WHOLE, accelerated, says_cuda)


def allocated(name: str) -> tuple[int, int]:
    """The peaks of allocated and reserved memory of ``cuda:0``, which this process has not used before."""
    build = next(one for one in ALL if one.__name__ == name)
    torch.manual_seed(0)
    step = build(torch.device("cuda", 0))
    for _ in range(1 if build in WHOLE else STEPS):
        step()
    statistics = torch.cuda.memory_stats()
    return statistics["allocated_bytes.all.peak"], statistics["reserved_bytes.all.peak"]


def every_one_allocated() -> dict[str, tuple[int, int]]:
    """The same of each, in processes of their own that see one GPU: over several a Trainer trains in parallel."""
    found = {}
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    for build in ALL:
        command = [sys.executable, "-m", "tests.unit.simulator.models.library_trainings", build.__name__]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found[build.__name__] = tuple(json.loads(done.stdout.splitlines()[-1]))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(allocated(sys.argv[1]) if sys.argv[1:] else every_one_allocated()) + "\n")
    sys.stdout.flush()
    os._exit(0)  # Python's own end may meet torch's threads: `tests.gpu.watched_programs.settle`
