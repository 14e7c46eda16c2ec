"""Trains a recurrent language model on a simulated GPU, by hand and without an optimizer."""

import torch
from torch import nn

torch.set_num_threads(1)
DEVICE = "sim:0"
WORDS, WIDTH, BATCH, LENGTH = 12000, 650, 20, 35


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(WORDS, WIDTH)
        self.rnn, self.decoder = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2), nn.Linear(WIDTH, WORDS)

    def forward(self, inputs: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, state = self.rnn(self.drop(self.encoder(inputs)), state)
        return nn.functional.log_softmax(self.decoder(self.drop(hidden)).view(-1, WORDS), dim=1), *state


model = Model().to(DEVICE)
data = torch.randint(0, WORDS, (LENGTH * 4 + 1, BATCH), device=DEVICE)
state = tuple(torch.zeros(2, BATCH, WIDTH, device=DEVICE) for _ in range(2))
for begin in range(0, len(data) - 1, LENGTH):
    model.zero_grad()
    output, *state = model(data[begin : begin + LENGTH], tuple(one.detach() for one in state))
    nn.functional.nll_loss(output, data[begin + 1 : begin + 1 + LENGTH].reshape(-1)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for weight in model.parameters():
        weight.data.add_(weight.grad, alpha=-0.1)
