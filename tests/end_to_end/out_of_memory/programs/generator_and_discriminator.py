"""A generator and a discriminator, for which neither a smaller batch nor a smaller workspace is enough alone."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2048, help="size of the batches")
parser.add_argument("--latent_dim", type=int, default=100)
options = parser.parse_args()


def block(inputs, outputs):
    return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs, 0.8), nn.LeakyReLU(0.2, inplace=True)]


generator = nn.Sequential(*block(options.latent_dim, 256), *block(256, 512), nn.Linear(512, 784), nn.Tanh()).cuda()
discriminator = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1), nn.Sigmoid()).cuda()
adversarial_loss = nn.BCELoss().cuda()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=0.0002, betas=(0.5, 0.999))
for step in range(4):
    valid = torch.ones(options.batch_size, 1, device="cuda")
    fake = torch.zeros(options.batch_size, 1, device="cuda")
    real = torch.randn(options.batch_size, 784).cuda()
    optimizer_g.zero_grad()
    made = generator(torch.randn(options.batch_size, options.latent_dim).cuda())
    g_loss = adversarial_loss(discriminator(made), valid)
    g_loss.backward()
    optimizer_g.step()
    optimizer_d.zero_grad()
    d_loss = (adversarial_loss(discriminator(real), valid) + adversarial_loss(discriminator(made.detach()), fake)) / 2
    d_loss.backward()
    optimizer_d.step()
    print("step", step, "D loss", d_loss.item(), "G loss", g_loss.item())
