"""Small models of the usual families, in plain torch."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Blocks(nn.Module):
    """Modules one after another, computed again in the backward pass if asked for."""

    def __init__(self, blocks: list[nn.Module], checkpointing: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.checkpointing = checkpointing

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            again = self.checkpointing and torch.is_grad_enabled()
            x = checkpoint(block, x, *rest, use_reentrant=False) if again else block(x, *rest)
        return x


class Attention(nn.Module):
    """Self-attention over (batch, length, width), its heads of keys and values serving several of the queries' each.

    Args:
        kv_heads: heads of keys and values; as many as of the queries by default.
        turned: whether positions are rotated in.
    """

    def __init__(
        self, width: int, heads: int, *, kv_heads: int = 0, is_causal: bool = False, turned: bool = False,
        dropout: float = 0.0, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.kv_heads, self.each = heads, kv_heads or heads, width // heads
        self.is_causal, self.turned, self.dropout = is_causal, turned, dropout
        self.inward = nn.Linear(width, (heads + 2 * self.kv_heads) * self.each, bias=bias)
        self.outward = nn.Linear(heads * self.each, width, bias=bias)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, _ = x.shape
        sizes = [self.heads * self.each, self.kv_heads * self.each, self.kv_heads * self.each]
        query, key, value = (
            part.view(batch, length, -1, self.each).transpose(1, 2) for part in self.inward(x).split(sizes, -1)
        )
        if self.turned:
            query, key = turn(query), turn(key)
        result = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.is_causal, enable_gqa=self.kv_heads != self.heads,
        )  # fmt: skip
        return self.outward(result.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


def turn(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions for (batch, heads, length, width), the halves of the width being pairs."""
    length, half = x.shape[2], x.shape[3] // 2
    rates = 10_000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(length, device=x.device, dtype=torch.float32)[:, None] * rates
    cosine, sine = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cosine.to(x.dtype) + turned * sine.to(x.dtype)


class Block(nn.Module):
    """A transformer's block: normalised, attended, normalised, fed forward."""

    def __init__(self, attention: Attention, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention, self.norms = attention, nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.feed = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x), mask)
        return x + self.feed(self.norms[1](x))  # type: ignore[no-any-return]


class Gated(nn.Module):
    """A Llama's block: RMS norms, no bias, rotary positions, grouped queries, a gated feed-forward."""

    def __init__(self, attention: Attention, width: int, inner: int) -> None:
        super().__init__()
        self.attention, self.norms = attention, nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """Tokens to scores of the next: (batch, length) to (batch, length, vocabulary)."""

    def __init__(
        self, vocabulary: int, width: int, length: int, blocks: Blocks, norm: nn.Module, *, tied: bool
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width) if tied else None
        self.blocks, self.norm = blocks, norm
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """Padded tokens to scores of each: a mask of truths says which tokens there are."""

    def __init__(self, vocabulary: int, width: int, length: int, blocks: Blocks) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width, padding_idx=0), nn.Embedding(length, width)
        self.norm, self.blocks, self.dropout = nn.LayerNorm(width), blocks, nn.Dropout(0.1)
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, vocabulary))

    def forward(self, tokens: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        mask = present[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
        return self.head(self.blocks(self.dropout(self.norm(x)), mask))  # type: ignore[no-any-return]


class Vit(nn.Module):
    """Images to scores of classes, by patches."""

    def __init__(self, side: int, patch: int, width: int, classes: int, blocks: Blocks) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, width))
        self.blocks, self.norm, self.head = blocks, nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Two convolutions with batch norms beside a shortcut."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inward, outward, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outward, outward, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outward), nn.BatchNorm2d(outward)])
        plain = stride == 1 and inward == outward
        self.short = (
            nn.Identity() if plain
            else nn.Sequential(nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward))
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norms[0](self.first(x)), inplace=True)
        return functional.relu(self.norms[1](self.second(y)) + self.short(x))


class Cnn(nn.Module):
    """Images to scores of classes, by residual convolutions."""

    def __init__(self, widths: list[int], depth: int, classes: int, checkpointing: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        blocks: list[nn.Module] = []
        inward = widths[0]
        for place, width in enumerate(widths):
            for number in range(depth):
                blocks.append(Residual(inward, width, 2 if number == 0 and place else 1))
                inward = width
        self.blocks = Blocks(blocks, checkpointing)
        self.head = nn.Linear(inward, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(images))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


class Convolved(nn.Module):
    """A U-Net's block: two convolutions behind group norms, beside a shortcut."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, inward), nn.GroupNorm(8, outward)])
        self.first, self.second = nn.Conv2d(inward, outward, 3, 1, 1), nn.Conv2d(outward, outward, 3, 1, 1)
        self.short = nn.Conv2d(inward, outward, 1) if inward != outward else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(functional.silu(self.norms[0](x)))
        return self.short(x) + self.second(functional.silu(self.norms[1](y)))  # type: ignore[no-any-return]


class Unet(nn.Module):
    """Images to images of the same size; attention in the middle is written out."""

    def __init__(self, widths: list[int], checkpointing: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1)
        pairs = list(zip([widths[0], *widths[:-1]], widths, strict=True))
        self.down = nn.ModuleList([Convolved(inward, outward) for inward, outward in pairs])
        self.shrink = nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1) for width in widths[:-1]])
        self.middle = nn.Conv2d(widths[-1], 3 * widths[-1], 1)
        self.up = nn.ModuleList([Convolved(2 * width, width) for width in reversed(widths[:-1])])
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(outward, inward, 2, 2) if number % 2 else nn.Conv2d(outward, inward, 1)
            for number, (inward, outward) in enumerate(reversed(list(itertools.pairwise(widths))))
        )
        self.head = nn.Conv2d(widths[0], 3, 3, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, kept = self.stem(images), []
        for number, block in enumerate(self.down):
            x = self._run(block, x)
            if number < len(self.shrink):
                kept.append(x)
                x = self.shrink[number](x)
        x = x + self._attended(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            if isinstance(grow, nn.Conv2d):
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = self._run(block, torch.cat((grow(x), kept.pop()), 1))
        return self.head(x)  # type: ignore[no-any-return]

    def _run(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        again = self.checkpointing and torch.is_grad_enabled()
        return checkpoint(block, x, use_reentrant=False) if again else block(x)  # type: ignore[no-any-return]

    def _attended(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.middle(x).flatten(2).chunk(3, 1)
        shares = torch.softmax(query.transpose(1, 2) @ key / math.sqrt(query.shape[1]), -1)
        return (value @ shares.transpose(1, 2)).view_as(x)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Tokens to scores of the next, by an LSTM."""

    def __init__(self, vocabulary: int, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.cells = nn.LSTM(width, width, depth, batch_first=True, dropout=0.2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.tokens(tokens))[0])  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Vectors to scores of classes."""

    def __init__(self, width: int, depth: int, classes: int, dropout: float, checkpointing: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout)) for _ in range(depth)
        ]
        self.blocks, self.head = Blocks(layers, checkpointing), nn.Linear(width, classes)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(values))  # type: ignore[no-any-return]
