"""Attention's numbers, computed on the host; on tensors without numbers only their sizes."""

from __future__ import annotations

from typing import NamedTuple

import torch

_fast = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_fast_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Attention(NamedTuple):
    """The settings of one attention.

    Attributes:
        dropout: probability.
        is_causal: whether a position sees only those up to its own.
        scale: of the scores.
        seed: of the dropout's mask.
    """

    dropout: float
    is_causal: bool
    scale: float
    seed: int


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, how: Attention
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result and log of the sum of the exponentials of the scores.

    Args:
        query, key, value: (batch, heads, length, width); fewer heads of keys and values serve several of the queries.
        bias: added to the scores.
        how: the settings.
    """
    if query.is_meta:
        size = (*query.shape[:3], value.shape[3])
        return query.new_empty(size), query.new_empty(query.shape[:3], dtype=torch.float32)
    key, value = _repeated(key, query), _repeated(value, query)
    if not how.dropout and query.shape[3] == value.shape[3]:
        result = _fast(query, key, value, 0.0, how.is_causal, attn_mask=bias, scale=how.scale)
        return result[0], result[1]
    scores = _scores(query, key, bias, how)
    sums = scores.logsumexp(-1)
    shares = (scores - sums.unsqueeze(-1)).exp() * _kept(scores, how)
    return (shares @ value.to(scores.dtype)).to(query.dtype), sums


def backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    result: torch.Tensor,
    sums: torch.Tensor,
    how: Attention,
    wants_bias: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients for query, key, value and, if asked for, the bias."""
    if query.is_meta:
        for_bias = torch.empty_like(bias) if wants_bias and bias is not None else None
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), for_bias
    keys, values = _repeated(key, query), _repeated(value, query)
    if not how.dropout and not wants_bias and query.shape[3] == value.shape[3]:
        ordered = sums.transpose(1, 2).contiguous().transpose(1, 2)
        grads = _fast_backward(
            grad, query, keys, values, result, ordered, 0.0, how.is_causal, attn_mask=bias, scale=how.scale
        )
        return grads[0], _summed(grads[1], key), _summed(grads[2], value), None
    scores = _scores(query, keys, bias, how)
    shares, kept = (scores - sums.unsqueeze(-1).to(scores.dtype)).exp(), _kept(scores, how)
    wide = grad.to(scores.dtype)
    for_values = (shares * kept).transpose(-2, -1) @ wide
    for_shares = (wide @ values.to(scores.dtype).transpose(-2, -1)) * kept
    for_scores = shares * (for_shares - (for_shares * shares).sum(-1, keepdim=True))
    for_query = for_scores @ keys.to(scores.dtype) * how.scale
    for_keys = for_scores.transpose(-2, -1) @ query.to(scores.dtype) * how.scale
    return (
        for_query.to(query.dtype),
        _summed(for_keys.to(key.dtype), key),
        _summed(for_values.to(value.dtype), value),
        for_scores.to(bias.dtype) if wants_bias and bias is not None else None,
    )


def _scores(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, how: Attention) -> torch.Tensor:
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ key.to(dtype).transpose(-2, -1) * how.scale
    if bias is not None:
        scores = scores + bias
    if how.is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores


def _kept(scores: torch.Tensor, how: Attention) -> torch.Tensor:
    """The dropout's mask, the same whenever it is made of the same seed."""
    if not how.dropout:
        return torch.ones((), dtype=scores.dtype)
    generator = torch._C.Generator()
    generator.manual_seed(how.seed)
    drawn = torch.rand(scores.shape, generator=generator, dtype=torch.float32)
    share = 1 - how.dropout
    return (drawn < share).to(scores.dtype) / (share or 1.0)


def _repeated(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    times = query.shape[1] // tensor.shape[1]
    return tensor if times == 1 else tensor.repeat_interleave(times, 1)


def _summed(grad: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if grad.shape == tensor.shape:
        return grad
    batch, heads, length, width = tensor.shape
    return grad.reshape(batch, heads, -1, length, width).sum(2)
