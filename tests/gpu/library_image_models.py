"""Image models of torchvision, timm, segmentation-models-pytorch, MONAI and diffusers, where these are installed.

Small images and batches: that cuDNN is asked about many different convolutions matters, and not that they are large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

IMAGES = (4, 3, 128, 128)

VOLUMES = (1, 1, 64, 64, 64)

FILMS = (2, 3, 8, 64, 64)


class Given(nn.Module):
    """A model with what else it is called with; its first result.

    Args:
        more: makes it, on the device and in the type of the images.
    """

    def __init__(self, module: nn.Module, more: Callable[[torch.Tensor], dict[str, Any]] | None = None) -> None:
        super().__init__()
        self.module = module
        self.more = more

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.module(images, **(self.more or _nothing)(images))
        for name in ("sample", "out"):
            if hasattr(found, name):
                found = getattr(found, name)
            elif isinstance(found, dict) and name in found:
                found = found[name]
        if isinstance(found, tuple | list):
            found = found[0]
        made: torch.Tensor = found
        return made


def _nothing(_images: torch.Tensor) -> dict[str, Any]:
    return {}


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision.models import get_model

        return Given(get_model(name, weights=None, **options))

    return make


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return Given(timm.create_model(name, **options))

    return make


def _segmenting(name: str, encoder: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import segmentation_models_pytorch

        return Given(getattr(segmentation_models_pytorch, name)(encoder, encoder_weights=None, classes=4))

    return make


def _monai(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from monai.networks import nets

        return Given(getattr(nets, name)(**options))

    return make


def _diffusers(
    name: str, more: Callable[[torch.Tensor], dict[str, Any]] | None = None, **options: Any
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import diffusers

        return Given(getattr(diffusers, name)(**options), more)

    return make


def _timed(images: torch.Tensor) -> dict[str, Any]:
    """How noisy the images are."""
    return {"timestep": torch.zeros(len(images), dtype=torch.int64, device=images.device)}


def _described(images: torch.Tensor) -> dict[str, Any]:
    """The same, and a text of eight words."""
    return {**_timed(images), "encoder_hidden_states": images.new_zeros(len(images), 8, 64)}


_BLOCKS_2D: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 64,
    "attention_head_dim": 4,
}

_BLOCKS_3D: dict[str, Any] = {
    **_BLOCKS_2D,
    "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
    "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
    "attention_head_dim": 32,
}

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "torchvision.vgg16": (_torchvision("vgg16"), (4, 3, 224, 224)),
    "torchvision.resnet50": (_torchvision("resnet50"), (8, 3, 224, 224)),
    "torchvision.resnext50_32x4d": (_torchvision("resnext50_32x4d"), IMAGES),
    "torchvision.densenet121": (_torchvision("densenet121"), IMAGES),
    "torchvision.googlenet": (_torchvision("googlenet", aux_logits=False, init_weights=False), IMAGES),
    "torchvision.mobilenet_v3_large": (_torchvision("mobilenet_v3_large"), IMAGES),
    "torchvision.shufflenet_v2_x1_0": (_torchvision("shufflenet_v2_x1_0"), IMAGES),
    "torchvision.deeplabv3_resnet50": (_torchvision("deeplabv3_resnet50", weights_backbone=None), IMAGES),
    "torchvision.r2plus1d_18": (_torchvision("r2plus1d_18"), FILMS),
    "torchvision.mc3_18": (_torchvision("mc3_18"), FILMS),
    "timm.efficientnet_b0": (_timm("efficientnet_b0"), IMAGES),
    "timm.convnextv2_atto": (_timm("convnextv2_atto"), IMAGES),
    "timm.mobilenetv4_conv_small": (_timm("mobilenetv4_conv_small"), IMAGES),
    "timm.repvgg_a0": (_timm("repvgg_a0"), IMAGES),
    "timm.darknet53": (_timm("darknet53"), IMAGES),
    "timm.hrnet_w18_small": (_timm("hrnet_w18_small"), IMAGES),
    "timm.swin_tiny": (_timm("swin_tiny_patch4_window7_224"), (4, 3, 224, 224)),
    "smp.Unet": (_segmenting("Unet", "resnet18"), IMAGES),
    "smp.DeepLabV3Plus": (_segmenting("DeepLabV3Plus", "resnet34"), IMAGES),
    "monai.UNet": (
        _monai("UNet", spatial_dims=3, in_channels=1, out_channels=2, channels=(16, 32, 64), strides=(2, 2)),
        VOLUMES,
    ),
    "monai.SegResNet": (_monai("SegResNet", spatial_dims=3, in_channels=1, out_channels=2), VOLUMES),
    "monai.VNet": (_monai("VNet"), VOLUMES),
    "diffusers.VQModel": (
        _diffusers("VQModel", block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2,
                   up_block_types=("UpDecoderBlock2D",) * 2),
        IMAGES,
    ),
    "diffusers.AutoencoderTiny": (_diffusers("AutoencoderTiny"), IMAGES),
    "diffusers.AutoencoderKLWan": (
        _diffusers("AutoencoderKLWan", base_dim=32, z_dim=4, latents_mean=[0.0] * 4, latents_std=[1.0] * 4),
        (1, 3, 5, 64, 64),
    ),
    "diffusers.UNet2DConditionModel": (_diffusers("UNet2DConditionModel", _described, **_BLOCKS_2D), (4, 4, 32, 32)),
    "diffusers.UNet3DConditionModel": (_diffusers("UNet3DConditionModel", _described, **_BLOCKS_3D), (1, 4, 4, 32, 32)),
}  # fmt: skip
"""What makes each, and the size of what it is given, as of `tests.gpu.image_models`."""
