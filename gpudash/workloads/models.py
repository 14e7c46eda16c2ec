"""The models that are trained: plain PyTorch, as anybody would write them."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional


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
    """Predicts the next character. Input: (batch, sequence) of integers; output: (batch, sequence, vocabulary)."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.characters(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        logits: torch.Tensor = self.head(self.norm(h))
        return logits


class Mlp(nn.Module):
    """Tells classes apart. Input: (batch, features); output: (batch, classes)."""

    def __init__(self, features: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [features, *[width] * depth]
        layers: list[nn.Module] = []
        for wide_in, wide_out in itertools.pairwise(widths):
            layers += [nn.Linear(wide_in, wide_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(x)
        return logits
