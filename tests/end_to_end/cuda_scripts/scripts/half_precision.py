"""Half precision as in PyTorch's recipes: a scaler, clipped gradients, an average of the weights, workers that stay."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)]
    model = nn.Sequential(*layers).cuda()
    model(torch.rand(2, 3, 32, 32).cuda())
    average = copy.deepcopy(model)
    data = TensorDataset(torch.rand(128, 3, 32, 32), torch.randint(0, 10, (128,)))
    loader = DataLoader(data, 16, shuffle=True, num_workers=1, pin_memory=True, persistent_workers=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(2):
        total = 0.0
        for images, labels in loader:
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(images.cuda(non_blocking=True)), labels.cuda())
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not torch.isfinite(norm):
                print("skipped a step")
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.data.lerp_(new.data, 0.01)
        print(f"epoch {epoch} loss {total / len(loader):.6f} scale {scaler.get_scale()}")
    print(f"peak memory: {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
