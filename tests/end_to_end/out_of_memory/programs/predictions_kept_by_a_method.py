"""A method takes what each step has predicted into its history, together with numbers."""

from collections import defaultdict

import torch
from torch import nn


class Trainer:
    """Trains a model, and remembers how that went."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model.cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.history = defaultdict(list)

    def log(self, **metrics) -> None:
        """Remember metrics of a step."""
        for name, value in metrics.items():
            self.history[name].append(value)

    def step(self, data: torch.Tensor, target: torch.Tensor) -> None:
        """One step."""
        prediction = self.model(data)
        loss = nn.functional.mse_loss(prediction, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.log(loss=loss.item(), prediction=prediction, target=target)

    def fit(self, steps: int) -> None:
        """Train for some steps."""
        for _ in range(steps):
            data = torch.randn(32768, 64, device="cuda")
            target = torch.randn(32768, 64, device="cuda")
            self.step(data, target)
        print("loss", self.history["loss"][-1], "mean", float(self.history["prediction"][-1].mean()))


Trainer(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))).fit(30)
