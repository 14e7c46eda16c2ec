"""The models that are trained: plain PyTorch, as anybody would write them."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A pre-norm transformer block with causal attention. Input and output: (batch, sequence, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        transformed: torch.Tensor = x + self.feed_forward(self.norm_feed_forward(x))
        return transformed


class Transformer(nn.Module):
    """Predicts the next character. Input: (batch, sequence) of integers; output: (batch, sequence, vocabulary).

    With checkpointing only the input of each block is kept for the backward pass, which computes the block again.
    """

    def __init__(
        self, vocabulary: int, width: int, depth: int, heads: int, sequence: int, checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.characters(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            # No block draws random numbers, so the generator's state need not be kept for the second time.
            h = checkpoint(block, h, use_reentrant=False, preserve_rng_state=False) if self.checkpointing else block(h)
        logits: torch.Tensor = self.head(self.norm(h))
        return logits


class Mlp(nn.Module):
    """Tells classes apart. Input: (batch, features); output: (batch, classes).

    A layer keeps little more than its own input, so checkpointing saves memory over several: it works on √depth
    groups of layers (Chen et al. 2016, arXiv:1604.06174).
    """

    def __init__(self, features: int, width: int, depth: int, classes: int, checkpointing: bool = False) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.group = 2 * math.ceil(depth / max(2, math.isqrt(depth)))
        widths = [features, *[width] * depth]
        layers: list[nn.Module] = []
        for wide_in, wide_out in itertools.pairwise(widths):
            layers += [nn.Linear(wide_in, wide_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointing:
            for first in range(0, len(self.layers), self.group):
                layers = self.layers[first : first + self.group]
                x = checkpoint(layers, x, use_reentrant=False, preserve_rng_state=False)
            return x
        logits: torch.Tensor = self.layers(x)
        return logits


class Convolution(nn.Module):
    """A 3×3 convolution, normalised, and ReLU; added to its input unless it halves rows and columns.

    Each sample is normalised by itself (Wu & He 2018, arXiv:1803.08494): gradients accumulated over several batches
    are then those of one large batch, and computing a layer again changes nothing.
    """

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.convolution = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(math.gcd(8, channels), channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm(self.convolution(x)))
        return y if self.stride > 1 else x + y


class Cnn(nn.Module):
    """Tells images apart. Input: (batch, colours, rows, columns); output: (batch, classes).

    The first blocks, as many as ``halvings``, halve rows and columns. Checkpointing as in `Transformer`.
    """

    def __init__(
        self, colours: int, channels: int, depth: int, halvings: int, classes: int, checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.stem = nn.Conv2d(colours, channels, 3, padding=1)
        self.blocks = nn.ModuleList(Convolution(channels, 2 if block < halvings else 1) for block in range(depth))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.stem(x))
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False, preserve_rng_state=False) if self.checkpointing else block(h)
        logits: torch.Tensor = self.head(h.mean((2, 3)))
        return logits
