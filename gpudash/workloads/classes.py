"""A generated set of classes to tell apart."""

from __future__ import annotations

import torch

FEATURES = 32
CLASSES = 10

SPREAD = 0.9
"""Distance of class centres over the noise's: chosen so that a small MLP reaches about nine in ten, not all."""


def classes(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around `CLASSES` random centres, with unit Gaussian noise.

    Returns:
        points of shape (samples, `FEATURES`), float32, and their classes, shape (samples,), int64; on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = SPREAD * torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    return centres[labels] + torch.randn(samples, FEATURES, generator=generator), labels
