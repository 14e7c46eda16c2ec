import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {
    "model": {"width": 512, "depth": 4},
    "training": {"batch_size": 16384, "rate": 0.1},
}


class Trainer:
    def __init__(self, config):
        width = config["model"]["width"]
        layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(config["model"]["depth"])]
        self.model = nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 1)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["training"]["rate"])
        data = TensorDataset(torch.randn(32768, 64), torch.randn(32768, 1))
        self.loader = DataLoader(data, batch_size=config["training"]["batch_size"])

    def training_step(self, data, target):
        return nn.functional.mse_loss(self.model(data.cuda()), target.cuda())

    def fit(self):
        for data, target in self.loader:
            loss = self.training_step(data, target)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print(loss.item())


Trainer(CONFIG).fit()
