"""Trains on a simulated GPU with a batch that its command line gives."""

import argparse

import torch
from torch import nn

torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=16)
arguments = parser.parse_args()
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(4))).to("sim:0")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(arguments.batch_size, 512).to("sim:0")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
