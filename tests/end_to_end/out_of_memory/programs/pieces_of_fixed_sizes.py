"""Buffers of one size are freed between others that stay: what is free lies in pieces."""

import torch

MIB = 2**20


def buffer(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


whole = buffer(624)
del whole
kept, passing = [], []
for _ in range(12):
    passing.append(buffer(40))
    kept.append(buffer(12))
passing.clear()
large = [buffer(100) for _ in range(3)]
print("done with", len(kept) + len(large))
