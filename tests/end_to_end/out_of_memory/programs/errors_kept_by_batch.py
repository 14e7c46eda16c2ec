"""A search for the batch that fits keeps the error of every batch that does not."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 256)).cuda()


def attempt(batch: int):
    """One forward pass."""
    try:
        data = torch.randn(batch, 1024, device="cuda")
        return model(data).sum()
    except torch.OutOfMemoryError as error:
        raise RuntimeError(f"batch {batch} is too large") from error


class Search:
    """Halves the batch until it fits."""

    def __init__(self) -> None:
        self.errors: dict[int, Exception] = {}

    def largest(self, batch: int = 16384) -> int:
        """The first that fits."""
        while True:
            try:
                attempt(batch)
            except RuntimeError as error:
                self.errors[batch] = error
                batch //= 2
                if batch < 4096:
                    raise
            else:
                return batch


search = Search()
print(search.largest())
for batch, error in search.errors.items():
    print(batch, error.args)
