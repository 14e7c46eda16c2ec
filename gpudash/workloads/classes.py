"""Generated sets of classes to tell apart: points and images."""

from __future__ import annotations

import torch

from gpudash.specs.training import CLASSES, COLOURS, CONTRAST, FEATURES, SPREAD, TILE


def classes(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around `CLASSES` random centres, with unit Gaussian noise.

    Returns:
        points of shape (samples, `FEATURES`), float32, and their classes, shape (samples,), int64; on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = SPREAD * torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    return centres[labels] + torch.randn(samples, FEATURES, generator=generator), labels


def images(samples: int, side: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images of `CLASSES` random patterns, each a tile repeated over the image, with unit Gaussian noise.

    Returns:
        images of shape (samples, `COLOURS`, side, side), float32, and their classes, shape (samples,), int64; on the
        CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    tiles = CONTRAST * torch.randn(CLASSES, COLOURS, TILE, TILE, generator=generator)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    repeats = -(-side // TILE)
    patterns = tiles.repeat(1, 1, repeats, repeats)[:, :, :side, :side]
    return patterns[labels] + torch.randn(samples, COLOURS, side, side, generator=generator), labels
