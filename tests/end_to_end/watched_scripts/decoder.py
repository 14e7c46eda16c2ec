"""Trains a small decoder by AdamW on a simulated GPU, in a few steps."""

import torch
from torch import nn

torch.set_num_threads(1)
DEVICE = "sim:0"
WORDS, WIDTH, HEADS, BATCH, LENGTH = 65, 256, 8, 24, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.2))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        shape = BATCH, LENGTH, HEADS, WIDTH // HEADS
        parts = [part.view(shape).transpose(1, 2) for part in self.attention(self.before(hidden)).split(WIDTH, 2)]
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return hidden + self.mlp(self.between(hidden))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.label, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.label(inputs) + self.places(torch.arange(LENGTH, device=DEVICE))
        return nn.functional.cross_entropy(self.head(self.blocks(hidden)).view(-1, WORDS), targets.view(-1))


model = Decoder().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    inputs, targets = (torch.randint(0, WORDS, (BATCH, LENGTH)).to(DEVICE) for _ in range(2))
    loss = model(inputs, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
