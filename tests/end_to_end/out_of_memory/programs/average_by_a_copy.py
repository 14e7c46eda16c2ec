"""An average of the weights is kept in a copy of the model, beside the state of AdamW."""

import copy

import torch
from torch import nn


class Average:
    """Follows a model's weights slowly."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay = decay
        self.shadow = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights of now."""
        for ours, theirs in zip(self.shadow.parameters(), model.parameters(), strict=True):
            ours.mul_(self.decay).add_(theirs.detach(), alpha=1 - self.decay)


model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
average = Average(model)
for step in range(3):
    loss = model(torch.randn(16, 2048, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
    print("step", step, "loss", loss.item())
