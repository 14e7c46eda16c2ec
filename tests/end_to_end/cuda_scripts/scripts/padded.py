"""Texts of all lengths, each batch padded to its longest, as fine-tuning has them: on one GPU, or on ranks of torchrun."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

WORDS, WIDTH, LONGEST = 500, 64, 120


def texts():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, LONGEST, (96,), generator=generator).tolist()
    return [torch.randint(1, WORDS, (length,), generator=generator) for length in lengths]


def padded(batch):
    tokens = pad_sequence(batch, batch_first=True)
    return {"tokens": tokens, "mask": tokens.ne(0)}


def main():
    ranks, cuda = int(os.environ.get("WORLD_SIZE", "1")), torch.cuda.is_available()
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device(f"cuda:{rank}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(rank)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), layer, nn.Linear(WIDTH, WORDS)).to(device)
    data = texts()
    sampler = None
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        sampler = DistributedSampler(data)
        model = DistributedDataParallel(model, device_ids=[rank] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in DataLoader(data, batch_size=4, sampler=sampler, collate_fn=padded):
        tokens, mask = batch["tokens"].to(device), batch["mask"].to(device)
        losses = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="none")
        loss = (losses * mask.flatten()).sum() / mask.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"loss {loss.item():.6f}", flush=True)
    if cuda:
        print(f"peak memory: {torch.cuda.max_memory_allocated()}", flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
