"""A cache drops entries of any size at random: holes stay between those that are left."""

import random

import torch

MIB = 2**20
rng = random.Random(0)
cache = {}
for number in range(400):
    size = rng.randint(2 * MIB, 30 * MIB)
    cache[number] = torch.empty(size, dtype=torch.uint8, device="cuda")
    while sum(entry.numel() for entry in cache.values()) > 380 * MIB:
        cache.pop(rng.choice(list(cache)))
print("entries", len(cache))
