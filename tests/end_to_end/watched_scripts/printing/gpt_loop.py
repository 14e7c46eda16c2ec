"""A training loop in the style of nanoGPT's train.py: an evaluation before the first step, then a line every few."""

import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
max_iters, eval_interval, log_interval, gradient_accumulation_steps = 40, 20, 10, 2
model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def get_batch():
    x = torch.randint(0, 64, (8, 16))
    return x, (x + 1) % 64


@torch.no_grad()
def estimate_loss():
    out = {}
    for split in ("train", "val"):
        x, y = get_batch()
        out[split] = torch.nn.functional.cross_entropy(model(x).view(-1, 64), y.view(-1))
    return out


iter_num = 0
t0 = time.time()
while True:
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
    for _micro_step in range(gradient_accumulation_steps):
        x, y = get_batch()
        loss = torch.nn.functional.cross_entropy(model(x).view(-1, 64), y.view(-1)) / gradient_accumulation_steps
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    dt = t1 - t0
    t0 = t1
    if iter_num % log_interval == 0:
        lossf = loss.item() * gradient_accumulation_steps
        print(f"iter {iter_num}: loss {lossf:.4f}, time {dt * 1000:.2f}ms, mfu {-1.0 * 100:.2f}%")
    iter_num += 1
    if iter_num > max_iters:
        break
