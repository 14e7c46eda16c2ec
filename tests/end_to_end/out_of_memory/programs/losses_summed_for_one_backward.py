"""Gradients are accumulated by one backward pass over the sum of the micro-batches' losses."""

import torch
from torch import nn

ACCUMULATION = 16


def network(width, depth):
    layers = [nn.Linear(64, width)]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(model, optimizer, updates):
    criterion = nn.CrossEntropyLoss()
    loss_sum = 0.0
    for number in range(updates * ACCUMULATION):
        data = torch.randn(2048, 64, device="cuda")
        target = torch.randint(10, (2048,), device="cuda")
        loss = criterion(model(data), target)
        loss_sum = loss_sum + loss / ACCUMULATION
        if (number + 1) % ACCUMULATION == 0:
            optimizer.zero_grad(set_to_none=True)
            loss_sum.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            print("update", (number + 1) // ACCUMULATION, "loss", f"{loss_sum.item():.4f}")
            loss_sum = 0.0


model = network(512, 6).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train(model, optimizer, 3)
