"""The loop of timm's train.py with its own parts: prefetching loader, EMA, scaler, channels last, scheduler."""

import argparse
from contextlib import suppress
from functools import partial

import timm
import torch
from timm.data import Mixup
from timm.data.loader import PrefetchLoader
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy, random_seed


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 256, (3, 64, 64), generator=generator, dtype=torch.uint8), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet10t")
    parser.add_argument("--amp", action="store_true")
    args = parser.parse_args()
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    random_seed(42, 0)
    model = timm.create_model(args.model, num_classes=10, drop_rate=0.1)
    model.to(device=device, memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    amp_autocast = partial(torch.autocast, device_type=device.type, dtype=torch.float16) if args.amp else suppress
    loss_scaler = NativeScaler(device=device.type) if args.amp else None
    model_ema = ModelEmaV3(model, decay=0.99)
    mixup = Mixup(mixup_alpha=0.2, num_classes=10)
    loader = torch.utils.data.DataLoader(Images(), batch_size=8, pin_memory=device.type == "cuda")
    loader = PrefetchLoader(loader, device=device)
    scheduler = CosineLRScheduler(optimizer, t_initial=2)
    criterion = SoftTargetCrossEntropy().to(device)
    losses, top1 = AverageMeter(), AverageMeter()
    for epoch in range(2):
        model.train()
        for batch, (input, target) in enumerate(loader):
            input, target = mixup(input, target)
            input = input.contiguous(memory_format=torch.channels_last)
            with amp_autocast():
                output = model(input)
                loss = criterion(output, target)
            if loss_scaler is not None:
                loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
            else:
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            optimizer.zero_grad()
            model_ema.update(model)
            if device.type == "cuda":
                torch.cuda.synchronize()
            losses.update(loss.item(), input.size(0))
            print(f"Train: {epoch} [{batch:>4d}/{len(loader)}]  Loss: {loss.item():.6f}")
        scheduler.step(epoch + 1)
        model_ema.eval()
        with torch.no_grad():
            for input, target in loader:
                with amp_autocast():
                    output = model_ema(input)
                top1.update(accuracy(output.float(), target)[0].item(), input.size(0))
        print(f"mean loss: {losses.avg:.6f}  Acc@1: {top1.avg:.3f}")
    if device.type == "cuda":
        print(f"peak memory: {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
