"""A model that is sharded over two GPUs by torchrun, in the way of PyTorch's tutorials: its matrices cut by hand (tensor
parallelism), or made on no device, sharded by FSDP2, and only then given numbers."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

WIDTH, WORDS = 128, 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.narrow(F.gelu(self.wide(self.norm(x))))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return x + self.block(x)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Residual() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def drawn(model):
    """The same numbers on every device: those of a model on the CPU."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    return model


def by_tensors(mesh):
    model = drawn(Words()).to(mesh.device_type)
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        plan = {
            "block": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),)),
            "block.norm": SequenceParallel(),
            "block.wide": ColwiseParallel(input_layouts=Shard(1)),
            "block.narrow": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, plan)
    return model


def from_meta(mesh, loads):
    with torch.device("meta"):
        model = Words()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if not loads:
        model.to_empty(device=mesh.device_type)
        return drawn(model)
    full = drawn(Words()).state_dict()
    parts = {
        name: nn.Parameter(distribute_tensor(full[name].to(mesh.device_type), part.device_mesh, part.placements))
        for name, part in model.state_dict().items()
    }
    model.load_state_dict(parts, assign=True)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=("tensors", "meta", "load"), default="tensors")
    strategy = parser.parse_args().strategy
    rank, cuda = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda" if cuda else "cpu", (int(os.environ["WORLD_SIZE"]),))
    model = by_tensors(mesh) if strategy == "tensors" else from_meta(mesh, strategy == "load")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for step in range(4):
        torch.manual_seed(step)
        tokens = torch.randint(0, WORDS, (8, 33)).to(mesh.device_type)
        logits, labels = model(tokens[:, :-1]), tokens[:, 1:]
        if strategy == "tensors":
            with loss_parallel():
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
                loss.backward()
            loss = loss.full_tensor()
        else:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"loss {loss.item():.6f}", flush=True)
    if cuda and rank == 0:
        print(f"peak memory: {torch.cuda.max_memory_allocated()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
