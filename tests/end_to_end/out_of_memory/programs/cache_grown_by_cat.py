"""A decoder makes its keys and values longer with each token, and hands them on as the past."""

import torch
from torch import nn


class Attention(nn.Module):
    """Attention to all tokens so far."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)

    def forward(self, state, past=None):
        """The next state, and what was seen."""
        batch, tokens, width = state.shape
        parts = self.project(state).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        return found.transpose(1, 2).reshape(batch, tokens, width), (k, v)


class Decoder(nn.Module):
    """Layers of attention."""

    def __init__(self, width: int = 2048, heads: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(layers))

    def forward(self, state, past=None):
        """The next state, and what each layer has seen."""
        present = []
        for place, layer in enumerate(self.layers):
            state, seen = layer(state, past[place] if past else None)
            present.append(seen)
        return state, present

    @torch.inference_mode()
    def generate(self, state, max_new_tokens: int = 20):
        """So many tokens more."""
        past = None
        for _ in range(max_new_tokens):
            state, past = self(state, past)
        return past[0][0].shape[2]


print("tokens", Decoder().cuda().eval().generate(torch.randn(512, 1, 2048, device="cuda"), max_new_tokens=64))
