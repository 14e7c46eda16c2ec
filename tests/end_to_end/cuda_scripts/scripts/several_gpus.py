"""Training on several GPUs, in the way of PyTorch's tutorials: split by hand in one process, or a rank each by torchrun."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WIDTH = 128


def dataset():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(96, 32, generator=generator), torch.randint(0, 10, (96,), generator=generator))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.net(self.norm(x))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, WIDTH), Block(), Block(), nn.Linear(WIDTH, 10))


class ModelParallel(nn.Module):
    def __init__(self, dev0, dev1, split_size=8):
        super().__init__()
        self.dev0, self.dev1, self.split_size = dev0, dev1, split_size
        net = network()
        self.seq1, self.seq2 = net[:2].to(dev0), net[2:].to(dev1)

    def forward(self, x):
        splits = iter(x.to(self.dev0).split(self.split_size, dim=0))
        s_prev = self.seq1(next(splits)).to(self.dev1)
        ret = []
        for s_next in splits:
            ret.append(self.seq2(s_prev))
            s_prev = self.seq1(s_next).to(self.dev1)
        ret.append(self.seq2(s_prev))
        return torch.cat(ret)


def split():
    dev0, dev1 = ("cuda:0", "cuda:1") if torch.cuda.device_count() > 1 else ("cpu", "cpu")
    model = ModelParallel(dev0, dev1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for inputs, labels in DataLoader(dataset(), batch_size=16):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels.to(dev1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"loss {loss.item():.6f}")
    if dev0 != "cpu":
        print(f"peak memory: {max(torch.cuda.max_memory_allocated(i) for i in range(2))}")


def ranks(strategy):
    rank, cuda = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank)
    device = torch.device(f"cuda:{rank}" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    model = network().to(device)
    if strategy == "ddp":
        model = DDP(model, device_ids=[rank] if cuda else None)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, Block):
                fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, pin_memory=cuda, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"loss {mean.item() / dist.get_world_size():.6f}", flush=True)
    dist.barrier(device_ids=[rank] if cuda else None)
    if cuda and rank == 0:
        print(f"peak memory: {torch.cuda.max_memory_allocated()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=("split", "ddp", "fsdp"), default="split")
    strategy = parser.parse_args().strategy
    split() if strategy == "split" else ranks(strategy)
