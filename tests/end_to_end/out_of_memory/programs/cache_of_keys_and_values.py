"""A decoder keeps keys and values of every token it has written."""

import torch
from torch import nn

BATCH, HEADS, WIDTH, LAYERS = 512, 16, 128, 2
project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH, device="cuda")
kv_cache = [None] * LAYERS
state = torch.randn(BATCH, 1, HEADS * WIDTH, device="cuda")
max_new_tokens = 64
with torch.no_grad():
    for _token in range(max_new_tokens):
        for layer in range(LAYERS):
            query, key, value = project(state).view(BATCH, 1, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
            if kv_cache[layer] is not None:
                key = torch.cat((kv_cache[layer][0], key), 2)
                value = torch.cat((kv_cache[layer][1], value), 2)
            kv_cache[layer] = key, value
            found = nn.functional.scaled_dot_product_attention(query, key, value)
            state = found.transpose(1, 2).reshape(BATCH, 1, HEADS * WIDTH)
print("tokens", kv_cache[0][0].shape[2])
