"""A variational autoencoder, in the way of pytorch/examples/vae, with made-up images."""

import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.fc21 = nn.Linear(400, 20)
        self.fc22 = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 784)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 784))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--no-accel", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    use_accel = not args.no_accel and torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if use_accel else torch.device("cpu")
    print(f"Using device: {device}")

    kwargs = {"num_workers": 1, "pin_memory": True} if use_accel else {}
    images = torch.utils.data.TensorDataset(torch.rand(1024, 1, 28, 28), torch.zeros(1024))
    train_loader = torch.utils.data.DataLoader(images, batch_size=args.batch_size, **kwargs)
    model = VAE().to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch_idx, (data, _) in enumerate(train_loader):
            data = data.to(device)
            optimizer.zero_grad()
            recon_batch, mu, logvar = model(data)
            loss = loss_function(recon_batch, data, mu, logvar)
            loss.backward()
            optimizer.step()
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(images)}]\tLoss: {loss.item() / len(data):.6f}")
    with torch.no_grad():
        sample = model.decode(torch.randn(64, 20).to(device)).cpu()
    print(f"loss of a sample {sample.numpy().mean():.6f}")
    if use_accel:
        print(f"peak memory: {torch.accelerator.max_memory_allocated()}")


if __name__ == "__main__":
    main()
