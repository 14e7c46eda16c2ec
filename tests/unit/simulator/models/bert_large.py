"""Trainings of bert-large as Hugging Face's guide to one GPU published them in 2022, with what they took.

The Trainer of that time computed attention eagerly, set gradients to zero instead of freeing them, and stepped on one
tensor after another. The guide (docs/source/en/perf_train_gpu_one.mdx of transformers 4.21) gives what NVML counted on
a V100: the context of CUDA, 1.31 GiB there, is taken off here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import BertConfig, BertForSequenceClassification

SEQUENCE = 512
CONTEXT_GIB = 1.31


@dataclass(frozen=True)
class Published:
    """A training, and GiB that NVML counted of it."""

    counted_gib: float
    batch: int
    accumulation: int = 1
    checkpointing: bool = False
    autocasts: bool = False

    @property
    def reserved_gib(self) -> float:
        return self.counted_gib - CONTEXT_GIB

    def __call__(self, device: torch.device) -> Callable[[], None]:
        """A step of the training; ``gpudash estimate --callable`` calls it."""
        config = BertConfig(
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
            attn_implementation="eager",
        )
        model = BertForSequenceClassification(config).to(device).train()
        if self.checkpointing:
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        scaler = torch.amp.GradScaler(device=device.type, enabled=self.autocasts)

        def step() -> None:
            for _ in range(self.accumulation):
                tokens = torch.randint(100, 30_000, (self.batch, SEQUENCE), device=device)
                labels = torch.randint(0, 2, (self.batch,), device=device)
                with torch.autocast(device.type, torch.float16, enabled=self.autocasts):
                    loss = model(input_ids=tokens, labels=labels).loss
                scaler.scale(loss / self.accumulation).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)

        return step


batch_4 = Published(14.6, batch=4)
accumulated = Published(8.48, batch=1, accumulation=4)
checkpointed = Published(6.62, batch=1, accumulation=4, checkpointing=True)
half = Published(12.84, batch=4, autocasts=True)
