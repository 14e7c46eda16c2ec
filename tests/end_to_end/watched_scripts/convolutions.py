"""Trains a convolutional network by SGD on a simulated GPU, in a few steps."""

import torch
from torch import nn

torch.set_num_threads(1)
DEVICE = "sim:0"


def block(inside: int, outside: int, stride: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels, by in ((inside, stride), (outside, 1)):
        layers += [nn.Conv2d(channels, outside, 3, by, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
    return nn.Sequential(*layers)


model = nn.Sequential(
    nn.Conv2d(3, 32, 7, 2, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    block(32, 32, 1),
    block(32, 64, 2),
    block(64, 128, 2),
    block(128, 256, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(256, 1000),
).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
for _ in range(3):
    images, labels = torch.randn(32, 3, 224, 224, device=DEVICE), torch.randint(0, 1000, (32,), device=DEVICE)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
