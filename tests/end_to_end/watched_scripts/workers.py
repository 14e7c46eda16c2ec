"""Loads its data with workers, forked or spawned."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    method = sys.argv[1] if len(sys.argv) > 1 else "fork"
    data = TensorDataset(torch.arange(64.0))
    loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context=method)
    print("sum", sum(float(batch.sum()) for (batch,) in loader))
