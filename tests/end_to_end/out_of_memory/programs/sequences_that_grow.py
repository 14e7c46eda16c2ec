"""Sequences are sorted by their length and padded to the longest of a batch, so that every batch is longer."""

import torch
from torch import nn
from torch.utils.data import DataLoader

texts = [torch.randint(0, 1000, (80 + 10 * number,)) for number in range(80)]


def collate(samples):
    """A batch and its targets."""
    ids = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return ids[:, :-1], ids[:, 1:]


class Model(nn.Module):
    """One layer of a language model."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.head = nn.Linear(width, 1000)

    def forward(self, ids):
        """The logits."""
        return self.head(self.layer(self.embed(ids)))


def train_step(model, optimizer, ids, targets):
    """One step."""
    ids, targets = ids.cuda(), targets.cuda()
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits.view(-1, 1000), targets.reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for ids, targets in DataLoader(texts, 8, collate_fn=collate):
    print(train_step(model, optimizer, ids, targets))
