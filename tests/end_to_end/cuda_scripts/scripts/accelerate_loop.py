"""accelerate's own loop, as in its quick tour: it prepares model, optimizer and loader for the device it finds."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default="no")
    args = parser.parse_args()
    accelerator = Accelerator(mixed_precision=args.mixed_precision, gradient_accumulation_steps=2)
    set_seed(3)
    model = nn.Sequential(nn.Embedding(300, 64), nn.TransformerEncoderLayer(64, 4, 128, batch_first=True))
    head = nn.Linear(64, 300)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    tokens = torch.randint(0, 300, (96, 24))
    loader = DataLoader(TensorDataset(tokens), batch_size=8, shuffle=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=12)
    model, head, optimizer, loader, scheduler = accelerator.prepare(model, head, optimizer, loader, scheduler)
    accelerator.print("device:", accelerator.device)
    for _epoch in range(2):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                logits = head(model(batch))
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            accelerator.print(f"loss {accelerator.gather(loss.detach()).mean().item():.6f}")
    if accelerator.device.type == "cuda":
        accelerator.print(f"peak memory: {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
