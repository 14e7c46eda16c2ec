"""Image models, small or of real size: what a dry run that asks cuDNN predicts of them, and what they take.

Everything of an argument: ``model``, a name of `MODELS` or of `tests.gpu.library_image_models`; ``dtype``, of
`DTYPES`; ``last``, whether channels lie last; ``benchmark``, as of ``torch.backends.cudnn``; ``capability`` and
``multiprocessors`` of the card; ``inference``, whether they infer rather than train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tests.allocator_matrix.models import Cnn, Unet
from tests.gpu import library_image_models
from tests.gpu.child import Report

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

STEPS = 3


def _normed(inward: int, outward: int, kernel: int, stride: int = 1, groups: int = 1, dims: int = 2) -> list[nn.Module]:
    """A convolution that keeps the size but for its stride, batch normalisation, ReLU."""
    convolution, norm = ((nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[dims - 2]
    made = convolution(inward, outward, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [made, norm(outward), nn.ReLU(inplace=True)]


class Residual(nn.Module):
    """What it holds, beside a shortcut."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.layers(x)
        return found


def _classifier(*layers: nn.Module, width: int, dims: int = 2) -> nn.Module:
    pool = (nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dims - 2]
    return nn.Sequential(*layers, pool(1), nn.Flatten(), nn.Linear(width, 1000))


def _vgg() -> nn.Module:
    """VGG-11."""
    layers: list[nn.Module] = []
    inward = 3
    for widths in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for width in widths:
            layers += [nn.Conv2d(inward, width, 3, padding=1), nn.ReLU(inplace=True)]
            inward = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000)
    )


def _grouped() -> nn.Module:
    """Bottlenecks with 32 groups, as of ResNeXt."""
    layers = [*_normed(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inward = 64
    for width in (256, 512, 1024):
        layers += _normed(inward, width, 1, 2)
        layers += [Residual(*_normed(width, width // 2, 1), *_normed(width // 2, width // 2, 3, 1, 32),
                          *_normed(width // 2, width, 1)) for _ in range(2)]  # fmt: skip
        inward = width
    return _classifier(*layers, width=inward)


def _mobile() -> nn.Module:
    """Depthwise convolutions between pointwise ones, as of MobileNetV2."""
    layers = _normed(3, 32, 3, 2)
    inward = 32
    for width, stride in ((24, 2), (32, 2), (64, 2), (96, 1), (160, 2)):
        wide = 6 * inward
        layers += [*_normed(inward, wide, 1), *_normed(wide, wide, 3, stride, wide), *_normed(wide, width, 1)[:2]]
        layers.append(
            Residual(*_normed(width, 6 * width, 1), *_normed(6 * width, 6 * width, 3, 1, 6 * width),
                   *_normed(6 * width, width, 1)[:2])
        )  # fmt: skip
        inward = width
    return _classifier(*layers, width=inward)


def _large_kernels() -> nn.Module:
    """Depthwise convolutions of 7×7, as of ConvNeXt."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4)]
    inward = 96
    for width in (96, 192, 384):
        if width != inward:
            layers.append(nn.Conv2d(inward, width, 2, 2))
        layers += [
            Residual(nn.Conv2d(width, width, 7, padding=3, groups=width), nn.GroupNorm(1, width),
                   nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1))
            for _ in range(2)
        ]  # fmt: skip
        inward = width
    return _classifier(*layers, width=inward)


def _segmenting() -> nn.Module:
    """Dilated convolutions, and transposed ones back to the size of the image."""
    wide = [nn.Conv2d(256, 256, 3, padding=rate, dilation=rate) for rate in (2, 4, 8)]
    up = [nn.ConvTranspose2d(256, 64, 4, 2, 1), nn.ReLU(inplace=True), nn.ConvTranspose2d(64, 21, 4, 4)]
    return nn.Sequential(*_normed(3, 64, 7, 2), *_normed(64, 128, 3, 2), *_normed(128, 256, 3, 2), *wide, *up)


def _video() -> nn.Module:
    """Residual convolutions in three dimensions, as of R3D-18."""
    layers = _normed(3, 64, 3, 2, dims=3)
    inward = 64
    for width in (64, 128, 256):
        layers += _normed(inward, width, 3, 1 if width == inward else 2, dims=3)
        layers.append(Residual(*_normed(width, width, 3, dims=3), *_normed(width, width, 3, dims=3)))
        inward = width
    return _classifier(*layers, width=inward, dims=3)


def _diffusion_vae() -> nn.Module:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(64, 128),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    )


def _diffusion_unet() -> nn.Module:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=32,
        block_out_channels=(64, 128, 128),
        down_block_types=("DownBlock2D",) * 3,
        up_block_types=("UpBlock2D",) * 3,
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (lambda: Cnn([64, 128, 256, 512], 2, 1000, checkpointing=False), (8, 3, 224, 224)),
    "vgg11": (_vgg, (8, 3, 224, 224)),
    "grouped": (_grouped, (8, 3, 224, 224)),
    "mobile": (_mobile, (8, 3, 224, 224)),
    "large_kernels": (_large_kernels, (8, 3, 224, 224)),
    "segmenting": (_segmenting, (4, 3, 256, 256)),
    "unet": (lambda: Unet([64, 128, 256], checkpointing=False), (4, 3, 64, 64)),
    "video": (_video, (2, 3, 8, 112, 112)),
    "diffusion_vae": (_diffusion_vae, (8, 3, 128, 128)),
    "diffusion_unet": (_diffusion_unet, (8, 3, 64, 64)),
}
"""What makes each, and the size of what it is given. The last two are diffusers'."""


def _stepper(argument: Mapping[str, Any], device: torch.device) -> Callable[[], None]:
    """A training step with momentum, or a pass without gradients."""
    make, size = {**MODELS, **library_image_models.MODELS}[argument["model"]]
    dtype = DTYPES[argument["dtype"]]
    layout = torch.contiguous_format
    if argument["last"]:
        layout = {4: torch.channels_last, 5: torch.channels_last_3d}[len(size)]
    module = make().to(device=device, dtype=dtype).train(not argument["inference"])
    module.to(memory_format=layout)
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
    # diffusers' U-Net is told how noisy its images are
    more = []
    if argument["model"] == "diffusion_unet":
        more.append(torch.zeros(size[0], dtype=torch.int64, device=device))

    def step() -> None:
        images = torch.randn(size, device=device, dtype=dtype).contiguous(memory_format=layout)
        with torch.set_grad_enabled(not argument["inference"]):
            found = module(images, *more)
        if argument["inference"]:
            return
        getattr(found, "sample", found).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def follow(_device: None, argument: Mapping[str, Any], tell: Report) -> None:
    """Peaks of a dry run for such a card, in bytes, which cuDNN was asked, and how much more a convolution may take."""
    from gpudash.memory.predicting.architecture import Architecture
    from gpudash.memory.predicting.estimate import Target, judge
    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.simulator.dry_run.own_code import follow as follow_code

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = argument["benchmark"]
    architecture = Architecture(tuple(argument["capability"]), argument["multiprocessors"])
    followed = follow_code(lambda device: _stepper(argument, device), DryRun(), steps=STEPS, architecture=architecture)
    found = judge(followed.trace, Target("sim:0"), argument["model"])
    tell("allocated", found.peak_allocated_bytes)
    tell("reserved", found.peak_reserved_bytes)
    tell("cudnn", found.convolutions.cudnn)
    tell("unknown", found.convolutions.unknown_bytes)
    # it need not be asked where torch's own kernels compute everything
    if not found.convolutions.cudnn and found.convolutions.unknown_bytes:
        tell("problem", found.convolutions.problem or "cuDNN was not asked")


def take(device: torch.device, argument: Mapping[str, Any], tell: Report) -> None:
    """Peaks of torch's allocator, in bytes."""
    torch.backends.cudnn.benchmark = argument["benchmark"]
    step = _stepper(argument, device)
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize(device)
    tell("allocated", torch.cuda.max_memory_allocated(device))
    tell("reserved", torch.cuda.max_memory_reserved(device))
