"""A training loop in the style of word_language_model of pytorch/examples: parameters moved by hand, no optimizer,
and a line every few batches.
"""

import math
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
TOKENS, WIDE, LENGTH, ROWS, LOG_INTERVAL, EPOCHS = 32, 16, 8, 4, 5, 2
train_data = torch.arange(TOKENS).repeat(40)[: 26 * LENGTH * ROWS].view(ROWS, -1).t().contiguous()
embedding, decoder = torch.nn.Embedding(TOKENS, WIDE), torch.nn.Linear(WIDE, TOKENS)
recurrent = torch.nn.LSTM(WIDE, WIDE)
parameters = [*embedding.parameters(), *recurrent.parameters(), *decoder.parameters()]
criterion = torch.nn.NLLLoss()
lr = 2.0


def get_batch(i):
    length = min(LENGTH, len(train_data) - 1 - i)
    return train_data[i : i + length], train_data[i + 1 : i + 1 + length].reshape(-1)


def forward(data):
    output, _hidden = recurrent(embedding(data))
    return torch.nn.functional.log_softmax(decoder(output).view(-1, TOKENS), dim=1)


def train(epoch):
    total_loss = 0.0
    start_time = time.time()
    for batch, i in enumerate(range(0, train_data.size(0) - 1, LENGTH)):
        data, targets = get_batch(i)
        for parameter in parameters:
            parameter.grad = None
        loss = criterion(forward(data), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.25)
        for parameter in parameters:
            parameter.data.add_(parameter.grad, alpha=-lr)
        total_loss += loss.item()
        if batch % LOG_INTERVAL == 0 and batch > 0:
            cur_loss = total_loss / LOG_INTERVAL
            elapsed = time.time() - start_time
            ms = elapsed * 1000 / LOG_INTERVAL
            print(
                f"| epoch {epoch:3d} | {batch:5d}/{len(train_data) // LENGTH:5d} batches | lr {lr:02.2f} | "
                f"ms/batch {ms:5.2f} | loss {cur_loss:5.2f} | ppl {math.exp(cur_loss):8.2f}"
            )
            total_loss = 0
            start_time = time.time()


def evaluate():
    with torch.no_grad():
        data, targets = get_batch(0)
        return criterion(forward(data), targets).item()


for epoch in range(1, EPOCHS + 1):
    epoch_start_time = time.time()
    train(epoch)
    val_loss = evaluate()
    print("-" * 89)
    taken = time.time() - epoch_start_time
    print(
        f"| end of epoch {epoch:3d} | time: {taken:5.2f}s | valid loss {val_loss:5.2f} | "
        f"valid ppl {math.exp(val_loss):8.2f}"
    )
    print("-" * 89)
