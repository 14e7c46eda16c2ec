"""A training loop under a progress bar. tqdm need not be installed: `Bar` prints to standard error what tqdm prints."""

import sys
import time

import torch


class Bar:
    """Stands in for tqdm: the same characters, overwritten with a carriage return, with a postfix of fields."""

    def __init__(self, items, desc):
        self.items, self.desc, self.postfix, self.began = list(items), desc, "", time.time()

    def __iter__(self):
        self._print(0)
        for number, item in enumerate(self.items, 1):
            yield item
            self._print(number)
        sys.stderr.write("\n")

    def set_postfix(self, **fields):
        words = ", ".join(f"{key}={value:.3g}" for key, value in fields.items())
        self.postfix = f", {words}"

    def _print(self, done):
        total = len(self.items)
        blocks = done * 80 // total
        bar = "█" * (blocks // 8) + " ▏▎▍▌▋▊▉"[blocks % 8] * (done < total)
        rate = done / max(1e-9, time.time() - self.began)
        share = f"{self.desc}: {done / total * 100:3.0f}%"
        sys.stderr.write(f"\r{share}|{bar:10}| {done}/{total} [00:00<00:01, {rate:.2f}it/s{self.postfix}]")
        sys.stderr.flush()


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    bar = Bar(range(25), f"Epoch {epoch}")
    for _ in bar:
        inputs = torch.randn(8, 16)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=loss.item(), lr=0.1)
