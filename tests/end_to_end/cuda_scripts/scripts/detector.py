"""A detector's training, in the way of yolov5's train.py: groups of parameters, scales, EMA, a checkpoint in half."""

import argparse
import math
from copy import deepcopy
from io import BytesIO

import torch
import torch.nn.functional as F
from torch import nn


def select_device():
    if not torch.cuda.is_available():
        return torch.device("cpu")
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        print(f"CUDA:{i} ({p.name}, {p.total_memory / (1 << 20):.0f}MiB)")
    return torch.device("cuda:0")


class Conv(nn.Module):
    def __init__(self, c1, c2, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Model(nn.Module):
    def __init__(self, nc=3):
        super().__init__()
        self.stem = nn.Sequential(Conv(3, 16, 3, 2), Conv(16, 32, 3, 2))
        self.deep = Conv(32, 64, 3, 2)
        self.up = nn.Upsample(None, 2, "nearest")
        self.head = nn.Conv2d(96, 3 * (nc + 5), 1)
        self.no, self.stride = nc + 5, 4.0
        self.register_buffer("anchors", torch.tensor([[1.0, 2], [3, 4], [5, 6]]))

    def forward(self, x):
        a = self.stem(x)
        y = self.head(torch.cat([a, self.up(self.deep(a))], 1))
        bs, _, ny, nx = y.shape
        y = y.view(bs, 3, self.no, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        if self.training:
            return y
        d, t = self.anchors.device, self.anchors.dtype
        yv, xv = torch.meshgrid(torch.arange(ny, device=d, dtype=t), torch.arange(nx, device=d, dtype=t), indexing="ij")
        grid = torch.stack((xv, yv), 2).expand((1, 3, ny, nx, 2)) - 0.5
        xy, wh, conf = y.sigmoid().split((2, 2, self.no - 4), 4)
        xy, wh = (xy * 2 + grid) * self.stride, (wh * 2) ** 2 * self.anchors.view((1, 3, 1, 1, 2))
        return torch.cat((xy, wh, conf), 4).view(bs, -1, self.no)


def box_iou(box1, box2):
    (a1, a2), (b1, b2) = box1.unsqueeze(1).chunk(2, 2), box2.unsqueeze(0).chunk(2, 2)
    inter = (torch.min(a2, b2) - torch.max(a1, b1)).clamp(0).prod(2)
    return inter / ((a2 - a1).prod(2) + (b2 - b1).prod(2) - inter + 1e-7)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--img", type=int, default=96)
    opt = parser.parse_args()
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.backends.cudnn.benchmark = True
    device = select_device()
    cuda = device.type != "cpu"
    model = Model().to(device)
    ema = deepcopy(model).eval()
    for p in ema.parameters():
        p.requires_grad_(False)
    g = [], [], []
    for v in model.modules():
        for name, p in v.named_parameters(recurse=0):
            g[2 if name == "bias" else 1 if isinstance(v, nn.BatchNorm2d) else 0].append(p)
    optimizer = torch.optim.SGD(g[2], lr=0.01, momentum=0.937, nesterov=True)
    optimizer.add_param_group({"params": g[0], "weight_decay": 5e-4})
    optimizer.add_param_group({"params": g[1], "weight_decay": 0.0})
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    BCEcls, BCEobj = (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0], device=device)) for _ in range(2))
    for i in range(6):
        imgs = (torch.rand(4, 3, opt.img, opt.img) * 255).byte().to(device, non_blocking=True).float() / 255
        sz = opt.img if i % 2 else opt.img * 3 // 4
        imgs = F.interpolate(imgs, size=(sz, sz), mode="bilinear", align_corners=False)
        with torch.autocast(device.type, enabled=False):
            pred = model(imgs)
            n = 12
            b, a = torch.randint(0, 4, (n,)).to(device), torch.randint(0, 3, (n,)).to(device)
            gj, gi = (torch.randint(0, sz // 4, (n,)).to(device) for _ in range(2))
            pxy, pwh, _, pcls = pred[b, a, gj, gi].split((2, 2, 1, 3), 1)
            lbox = (1 - pxy.sigmoid()).mean() + F.smooth_l1_loss(pwh, torch.ones_like(pwh))
            tobj = torch.zeros(pred.shape[:4], dtype=pred.dtype, device=device)
            tobj[b, a, gj, gi] = 1.0
            t = torch.full_like(pcls, 0.0, device=device)
            t[range(n), torch.randint(0, 3, (n,)).to(device)] = 1.0
            loss = 0.05 * lbox + BCEobj(pred[..., 4], tobj) + 0.5 * BCEcls(pcls, t)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        d = 0.9999 * (1 - math.exp(-(i + 1) / 2000))
        msd = model.state_dict()
        for k, v in ema.state_dict().items():
            if v.dtype.is_floating_point:
                v *= d
                v += (1 - d) * msd[k].detach()
        mem = f"{torch.cuda.memory_reserved() / 1e9 if cuda else 0:.3g}G"
        print(f"{i} {mem} loss {loss.item():.6f}")
    if cuda:
        print(f"peak memory: {torch.cuda.max_memory_allocated()}")
    file = BytesIO()
    torch.save({"model": deepcopy(model).half(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    ckpt = torch.load(file, map_location=lambda storage, _place: storage, weights_only=False)
    model = ckpt["model"].float().to(device).eval()
    with torch.no_grad():
        x = model(torch.rand(1, 3, opt.img, opt.img).to(device))[0]
        x = x[x[:, 4].argsort(descending=True)[:50]]
        x = torch.cat((x[:, :2] - x[:, 2:4] / 2, x[:, :2] + x[:, 2:4] / 2, x[:, 4:]), 1)
        keep = (box_iou(x[:, :4], x[:, :4]).triu(1) > 0.5).any(0).logical_not()
        boxes = x[keep].to("cpu", non_blocking=True)
    if cuda:
        torch.cuda.synchronize()
    print(f"loss of confidence {1 - boxes[:, 4].mean().item():.6f}")


if __name__ == "__main__":
    main()
