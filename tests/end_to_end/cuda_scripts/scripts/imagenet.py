"""A residual network on images, in the way of pytorch/examples/imagenet with ``--dummy``: made-up images, DataParallel."""

import argparse
import os
import tempfile
import time

import torch
from torch import nn
from torch.backends import cudnn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset


class FakeData(Dataset):
    def __init__(self, size, shape, classes):
        self.size, self.shape, self.classes = size, shape, classes

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.shape, generator=generator), index % self.classes


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, width, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        layers, planes = [], width
        for stage in range(4):
            out = width * 2**stage
            layers += [BasicBlock(planes, out, 1 if stage == 0 else 2), BasicBlock(out, out)]
            planes = out
        self.layers = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(planes, num_classes)

    def forward(self, x):
        x = self.layers(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", type=int, default=None)
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("-j", "--workers", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    cudnn.deterministic = True
    cudnn.benchmark = False

    model = ResNet(args.width, 100)
    if not torch.cuda.is_available():
        print("using CPU, this will be slow")
        device = torch.device("cpu")
    elif args.gpu is not None:
        torch.cuda.set_device(args.gpu)
        model = model.cuda(args.gpu)
        device = torch.device(f"cuda:{args.gpu}")
    else:
        model = torch.nn.DataParallel(model).cuda()
        device = torch.device("cuda")
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    train_loader = torch.utils.data.DataLoader(
        FakeData(args.images, (3, 64, 64), 100), batch_size=args.batch_size, num_workers=args.workers, pin_memory=True
    )
    for epoch in range(args.epochs):
        model.train()
        for i, (images, target) in enumerate(train_loader):
            began = time.time()
            images = images.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            acc1, _acc5 = accuracy(output, target, topk=(1, 5))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            took = time.time() - began
            print(
                f"Epoch: [{epoch}][{i}/{len(train_loader)}]\tTime {took:6.3f}\tLoss {loss.item():.6f}\tAcc@1 {acc1[0]:6.2f}"
            )
        scheduler.step()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint.pth.tar")
            torch.save({"epoch": epoch, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            found = torch.load(path, map_location=None if device.type == "cpu" else f"cuda:{args.gpu or 0}")
        model.load_state_dict(found["state_dict"])
        optimizer.load_state_dict(found["optimizer"])
        del found
    if device.type == "cuda":
        print(f"peak memory: {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
