"""pix2pix, in the way of eriklindernoren/PyTorch-GAN: a U-Net, a discriminator of patches, parts of a loss, and a line of
progress that is written over.
"""

import argparse
import datetime
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epoch", type=int, default=0, help="epoch to start training from")
parser.add_argument("--n_epochs", type=int, default=1, help="number of epochs of training")
parser.add_argument("--batch_size", type=int, default=2, help="size of the batches")
parser.add_argument("--img_height", type=int, default=32, help="size of image height")
parser.add_argument("--img_width", type=int, default=32, help="size of image width")
parser.add_argument("--sample_interval", type=int, default=3, help="interval between sampling of images")
opt = parser.parse_args()
torch.manual_seed(0)
cuda = torch.cuda.is_available()


class UNetDown(nn.Module):
    def __init__(self, in_size, out_size, normalize=True, dropout=0.0):
        super().__init__()
        layers = [nn.Conv2d(in_size, out_size, 4, 2, 1, bias=False)]
        if normalize:
            layers.append(nn.InstanceNorm2d(out_size))
        layers.append(nn.LeakyReLU(0.2))
        if dropout:
            layers.append(nn.Dropout(dropout))
        self.model = nn.Sequential(*layers)

    def forward(self, x):
        return self.model(x)


class UNetUp(nn.Module):
    def __init__(self, in_size, out_size):
        super().__init__()
        self.model = nn.Sequential(
            nn.ConvTranspose2d(in_size, out_size, 4, 2, 1, bias=False),
            nn.InstanceNorm2d(out_size),
            nn.ReLU(inplace=True),
        )

    def forward(self, x, skip_input):
        return torch.cat((self.model(x), skip_input), 1)


class GeneratorUNet(nn.Module):
    def __init__(self, in_channels=3, out_channels=3):
        super().__init__()
        self.down1 = UNetDown(in_channels, 16, normalize=False)
        self.down2 = UNetDown(16, 32)
        self.down3 = UNetDown(32, 64)
        self.down4 = UNetDown(64, 64, normalize=False)
        self.up1 = UNetUp(64, 64)
        self.up2 = UNetUp(128, 32)
        self.up3 = UNetUp(64, 16)
        self.final = nn.Sequential(
            nn.Upsample(scale_factor=2),
            nn.ZeroPad2d((1, 0, 1, 0)),
            nn.Conv2d(32, out_channels, 4, padding=1),
            nn.Tanh(),
        )

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(d1)
        d3 = self.down3(d2)
        d4 = self.down4(d3)
        return self.final(self.up3(self.up2(self.up1(d4, d3), d2), d1))


class Discriminator(nn.Module):
    def __init__(self, in_channels=3):
        super().__init__()

        def discriminator_block(in_filters, out_filters, normalization=True):
            layers = [nn.Conv2d(in_filters, out_filters, 4, stride=2, padding=1)]
            if normalization:
                layers.append(nn.InstanceNorm2d(out_filters))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(
            *discriminator_block(in_channels * 2, 16, normalization=False),
            *discriminator_block(16, 32),
            *discriminator_block(32, 64),
            nn.ZeroPad2d((1, 0, 1, 0)),
            nn.Conv2d(64, 1, 4, padding=1, bias=False),
        )

    def forward(self, img_A, img_B):
        return self.model(torch.cat((img_A, img_B), 1))


class ImageDataset(Dataset):
    def __init__(self, mode):
        self.images = torch.rand(12 if mode == "train" else 4, 2, 3, opt.img_height, opt.img_width)

    def __getitem__(self, index):
        return {"A": self.images[index, 0], "B": self.images[index, 1]}

    def __len__(self):
        return len(self.images)


criterion_GAN = torch.nn.MSELoss()
criterion_pixelwise = torch.nn.L1Loss()
lambda_pixel = 100
patch = (1, opt.img_height // 2**3, opt.img_width // 2**3)
generator = GeneratorUNet()
discriminator = Discriminator()
if cuda:
    generator = generator.cuda()
    discriminator = discriminator.cuda()
    criterion_GAN.cuda()
    criterion_pixelwise.cuda()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=0.0002, betas=(0.5, 0.999))
dataloader = DataLoader(ImageDataset("train"), batch_size=opt.batch_size)
val_dataloader = DataLoader(ImageDataset("val"), batch_size=4)
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor


def sample_images(batches_done):
    imgs = next(iter(val_dataloader))
    real_A = Variable(imgs["B"].type(Tensor))
    real_B = Variable(imgs["A"].type(Tensor))
    fake_B = generator(real_A)
    print(f"\n[Validation {batches_done}] [val pixel loss: {criterion_pixelwise(fake_B, real_B).item():f}]")


prev_time = time.time()
for epoch in range(opt.epoch, opt.n_epochs):
    for i, batch in enumerate(dataloader):
        real_A = Variable(batch["B"].type(Tensor))
        real_B = Variable(batch["A"].type(Tensor))
        valid = Variable(Tensor(np.ones((real_A.size(0), *patch))), requires_grad=False)
        fake = Variable(Tensor(np.zeros((real_A.size(0), *patch))), requires_grad=False)
        optimizer_G.zero_grad()
        fake_B = generator(real_A)
        pred_fake = discriminator(fake_B, real_A)
        loss_GAN = criterion_GAN(pred_fake, valid)
        loss_pixel = criterion_pixelwise(fake_B, real_B)
        loss_G = loss_GAN + lambda_pixel * loss_pixel
        loss_G.backward()
        optimizer_G.step()
        optimizer_D.zero_grad()
        loss_real = criterion_GAN(discriminator(real_B, real_A), valid)
        loss_fake = criterion_GAN(discriminator(fake_B.detach(), real_A), fake)
        loss_D = 0.5 * (loss_real + loss_fake)
        loss_D.backward()
        optimizer_D.step()
        batches_done = epoch * len(dataloader) + i
        batches_left = opt.n_epochs * len(dataloader) - batches_done
        time_left = datetime.timedelta(seconds=batches_left * (time.time() - prev_time))
        prev_time = time.time()
        sys.stdout.write(
            "\r[Epoch %d/%d] [Batch %d/%d] [D loss: %f] [G loss: %f, pixel: %f, adv: %f] ETA: %s"
            % (
                epoch,
                opt.n_epochs,
                i,
                len(dataloader),
                loss_D.item(),
                loss_G.item(),
                loss_pixel.item(),
                loss_GAN.item(),
                time_left,
            )
        )
        if batches_done % opt.sample_interval == 0:
            sample_images(batches_done)
print()
if cuda:
    print(f"peak memory: {torch.cuda.max_memory_allocated()}")
